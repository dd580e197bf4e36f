"""MCP by its official library, which nobody else imports: over HTTP in a server, and over stdio."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, cast

import msgspec
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    TextContent,
    ToolAnnotations,
)
from mcp_types import Tool as Shown
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from towpath.errors import TowpathError
from towpath.supervise import Background
from towpath.web.auth import within
from towpath.web.bodies import Bodies
from towpath.web.tools import Tool, ToolRequest, Tools

NAME = "towpath"
_FIELDS_OF_PROBLEMS = {"type", "title", "status", "detail", "remedy", "retry"}


class ToolAnswer(NamedTuple):
    """What the path of a tool answered."""

    status: int
    body: bytes


Ask = Callable[[ToolRequest, Any], Awaitable[ToolAnswer]]
"""`(request, the MCP request's context)`: ask the path of a tool. Raises TowpathError."""


def server_of(
    found: Sequence[Tools], *, version: str, ask: Ask, given: Mapping[str, Any] | None = None
) -> Server[Any]:
    """An MCP server with these tools. What is *given* is added to calls that have none of it."""
    tools = {tool.name: tool for each in found for tool in each.tools}
    added = given or {}

    async def list_tools(_: Any, __: Any) -> ListToolsResult:
        return ListToolsResult(tools=[_shown(tool, list(added)) for tool in tools.values()])

    async def call_tool(context: Any, params: CallToolRequestParams) -> CallToolResult:
        tool = tools.get(params.name)
        if tool is None:
            return _refused(f"there is no tool {params.name!r}", f"Use one of {', '.join(tools)}.")
        own = {name: value for name, value in added.items() if name in tool.arguments.model_fields}
        try:
            request = tool.request({**own, **(params.arguments or {})})
            return _result(tool, await ask(request, context))
        except TowpathError as error:
            return _refused(f"{error.code}: {error}", error.remedy)

    return Server(
        NAME,
        version=version,
        title="Towpath",
        instructions="\n\n".join(each.instructions for each in found),
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _shown(tool: Tool, given: Sequence[str]) -> Shown:
    hints = ToolAnnotations(
        read_only_hint=tool.reads,
        destructive_hint=False,
        idempotent_hint=tool.repeatable or tool.reads,
        open_world_hint=False,
    )
    return Shown(
        name=tool.name,
        title=tool.title,
        description=tool.about,
        input_schema=tool.schema(given),
        annotations=hints,
    )


def _result(tool: Tool, answered: ToolAnswer) -> CallToolResult:
    """What a model is told. Texts of strangers are values of JSON, never words of ours."""
    if answered.status == 204:
        return CallToolResult(content=[TextContent(text=tool.nothing)])
    try:
        content: Any = msgspec.json.decode(answered.body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _refused(f"the server answered {answered.status} without JSON", "Try again later.")
    if answered.status < 300:
        text = json.dumps(content, ensure_ascii=False)
        return CallToolResult(content=[TextContent(text=text)], structured_content=content)
    problem = cast("dict[str, Any]", content) if isinstance(content, dict) else {}
    code = str(problem.get("type", "")).rpartition("/")[2] or str(answered.status)
    more = {name: value for name, value in problem.items() if name not in _FIELDS_OF_PROBLEMS}
    told = f"{code}: {problem.get('detail', 'refused')}" + (f" {json.dumps(more)}" if more else "")
    return _refused(told, str(problem.get("remedy") or "Try again later."))


def _refused(what: str, remedy: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=f"{what}\nDo: {remedy}")], is_error=True)


# ── in a server ──────────────────────────────────────────────────────────────────────────


class ToolsEndpoint:
    """Tools over streamable HTTP, without sessions: each request stands for itself."""

    def __init__(self, server: Server[Any]) -> None:
        self._server = server
        self._manager: StreamableHTTPSessionManager | None = None
        self._ready, self._stopped = asyncio.Event(), asyncio.Event()
        self._running = Background("tools over MCP", self._run)

    @classmethod
    async def started(cls, app: ASGIApp, found: Sequence[Tools], version: str) -> ToolsEndpoint:
        """One that answers; it asks the paths of *app* itself."""

        async def ask(request: ToolRequest, context: Any) -> ToolAnswer:
            return await _asked(app, request, context.request)

        endpoint = cls(server_of(found, version=version, ask=ask))
        endpoint._running.start()
        await endpoint._ready.wait()
        return endpoint

    async def close(self) -> None:
        self._stopped.set()
        self._running.retire()
        await self._running.stop()

    async def _run(self) -> None:
        manager = StreamableHTTPSessionManager(self._server, stateless=True)  # each runs once
        async with manager.run():
            self._manager = manager
            self._ready.set()
            await self._stopped.wait()

    @asynccontextmanager
    async def read(self, scope: Scope, receive: Receive) -> AsyncGenerator[Receive | None]:
        """The body of a request, read within the limits, and then what else comes of it.

        None: the client disconnected. Raises Refused.
        """
        bodies: Bodies = scope["app"].state.bodies
        request = Request(scope, receive)
        async with bodies.read(request) as came:
            yield _replayed(await request.body(), receive) if came else None

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._manager is not None:
            await self._manager.handle_request(scope, receive, send)


def _replayed(body: bytes, receive: Receive) -> Receive:
    read = False

    async def again() -> Message:
        nonlocal read
        if read:
            return await receive()
        read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _asked(app: ASGIApp, request: ToolRequest, outer: Request) -> ToolAnswer:
    """Ask a path of *app* in the name of whoever sent *outer*. Cancelled with it."""
    scope: Scope = {
        **within(outer.scope),
        "method": request.method,
        "path": request.path,
        "raw_path": request.path.encode(),
        "query_string": request.query.encode(),
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
    }
    status, parts = 500, list[bytes]()
    sent = False

    async def receive() -> Message:
        nonlocal sent
        if sent:
            await asyncio.get_running_loop().create_future()  # whoever leaves cancels
        sent = True
        return {"type": "http.request", "body": request.body, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        elif message["type"] == "http.response.body":
            parts.append(message.get("body", b""))

    try:
        await app(scope, receive, send)
    except Exception:  # a defect: it was answered, and is told as any other
        logging.getLogger("uvicorn.error").exception("a tool's path failed")
    return ToolAnswer(status, b"".join(parts))


# ── over stdio ───────────────────────────────────────────────────────────────────────────


async def over_stdio(
    found: Sequence[Tools], *, version: str, ask: Ask, given: Mapping[str, Any]
) -> None:
    """Serve tools on standard input and output until the input ends."""
    server = server_of(found, version=version, ask=ask, given=given)
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())
