"""`towpath mcp`: tools for a coding agent, on standard input and output."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Any

import typer

from towpath.console.exits import NotInstalled
from towpath.console.verb import Session, verb

if TYPE_CHECKING:
    from towpath.web.mcp import ToolCall

EXAMPLES = """
    towpath mcp
    towpath mcp --api-url https://towpath.example.com --agent build-3 --roles backend,docs
"""

Agent = Annotated[
    str | None,
    typer.Option("--agent", metavar="NAME", help="The agent's name. [default: set by the agent]"),
]
Roles = Annotated[
    str | None,
    typer.Option("--roles", metavar="A,B", help="The agent's roles. [default: set by the agent]"),
]
Server = Annotated[
    str | None,
    typer.Option("--api-url", metavar="URL", help="URL of the HTTP server.  [setting: api_url]"),
]


async def mcp(
    session: Session, *, api_url: Server = None, agent: Agent = None, roles: Roles = None
) -> None:
    """Offer the server's tools to a coding agent over MCP, on standard input and output.

    The agent's program starts and ends this command. The key comes from TOWPATH_API_KEY or
    TOWPATH_API_KEY_FILE and is sent only to the server. A program that speaks HTTP can use /mcp of
    the server instead.
    """
    try:
        from towpath.console.remote import Remote  # noqa: PLC0415 -- slow to import, and an extra
        from towpath.web.mcp import ToolAnswer, over_stdio  # noqa: PLC0415 -- the same
    except ModuleNotFoundError as error:
        raise NotInstalled(error.name or "a library", extra="mcp") from error
    from towpath.apps.application import applications, tools_of  # noqa: PLC0415 -- slow to import

    found = tools_of(applications(session.settings.applications))
    given: dict[str, Any] = {"agent_id": agent} if agent else {}
    if roles:
        given["roles"] = [role.strip() for role in roles.split(",") if role.strip()]
    async with Remote.of(session, api_url) as remote:

        async def ask(call: ToolCall, _: object) -> ToolAnswer:
            request = call.request
            path = f"{request.path}?{request.query}" if request.query else request.path
            answer = await remote.answer(request.method, path, request.body)
            return ToolAnswer(answer.status, answer.body)

        await over_stdio(found, version=version("towpath"), ask=ask, given=given)


def register(app: typer.Typer) -> None:
    verb(app, "mcp", examples=EXAMPLES)(mcp)
