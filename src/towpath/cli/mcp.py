"""`towpath mcp`: tools for a coding agent, on standard input and output."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Any

import typer

from towpath.console.exits import NotInstalled
from towpath.console.verb import Session, verb
from towpath.supervise import detached

if TYPE_CHECKING:
    from towpath.web.mcp import ToolCall
    from towpath.web.tools import ToolRequest

EXAMPLES = """
    towpath mcp
    towpath mcp --api-url https://towpath.example.com --agent build-3 --roles backend,docs
"""

_TAKEN_BACK_WITHIN = 10.0

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
    from towpath.calls.errors import CallFailed  # noqa: PLC0415 -- the same

    found = tools_of(applications(session.settings.applications))
    given: dict[str, Any] = {"agent_id": agent} if agent else {}
    if roles:
        given["roles"] = [role.strip() for role in roles.split(",") if role.strip()]
    async with Remote.of(session, api_url) as remote:
        taking_back: set[asyncio.Task[None]] = set()

        async def send(request: ToolRequest, headers: Mapping[str, str]) -> ToolAnswer:
            path = f"{request.path}?{request.query}" if request.query else request.path
            answer = await remote.answer(request.method, path, request.body, headers)
            return ToolAnswer(answer.status, answer.body)

        async def take_back(call: ToolCall, headers: Mapping[str, str]) -> None:
            """Repeat the call under the same idempotency key, without waiting, and undo it."""
            with suppress(CallFailed, TimeoutError):
                async with asyncio.timeout(_TAKEN_BACK_WITHIN):
                    undo = call.undo_request(await send(call.request.without_wait(), headers))
                    if undo is not None:
                        await send(undo, {})

        async def ask(call: ToolCall, _: object) -> ToolAnswer:
            headers = {"idempotency-key": uuid.uuid4().hex} if call.undo else {}
            try:
                return await send(call.request, headers)
            except asyncio.CancelledError:
                if call.undo:  # the server may have answered already
                    task = detached("taking back of an answer", take_back(call, headers))
                    taking_back.add(task)
                    task.add_done_callback(taking_back.discard)
                raise

        await over_stdio(found, version=version("towpath"), ask=ask, given=given)
        if taking_back:
            await asyncio.wait(taking_back)


def register(towpath: typer.Typer) -> None:
    verb(towpath, "mcp", examples=EXAMPLES)(mcp)
