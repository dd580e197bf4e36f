"""MCP over HTTP and over stdio; the only module that imports the official MCP library."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple, cast

import msgspec
from mcp import MCPError
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http import REQUEST_CANCELLED
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    TextContent,
    ToolAnnotations,
)
from mcp_types import Tool as McpTool
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from towpath.errors import TowpathError
from towpath.supervise import Background, detached
from towpath.web.auth import inner_scope, key_of
from towpath.web.bodies import Bodies
from towpath.web.tools import Tool, ToolRequest, Tools

NAME = "towpath"
_SESSION = b"mcp-session-id"
_CALL = "towpath.mcp_call"
_FIELDS_OF_PROBLEMS = {"type", "title", "status", "detail", "remedy", "retry"}


class ToolAnswer(NamedTuple):
    """The HTTP response of a tool's path."""

    status: int
    body: bytes


class ToolCall(NamedTuple):
    """A call of a tool: the request for its path, and the tool that undoes it."""

    request: ToolRequest
    undo: Tool | None

    def undo_request(self, answer: ToolAnswer) -> ToolRequest | None:
        """The request that undoes the call; None if *answer* gave the client nothing to undo."""
        if self.undo is None or answer.status != 200:
            return None
        content = cast("dict[str, Any]", msgspec.json.decode(answer.body))
        fields = self.undo.arguments.model_fields.items()
        return self.undo.request({name: content[name] for name, at in fields if at.is_required()})


Ask = Callable[[ToolCall, Any], Awaitable[ToolAnswer]]
"""`(call, context of the MCP request)`: sends the request of a tool. Raises TowpathError."""


def server_of(
    found: Sequence[Tools], *, version: str, ask: Ask, given: Mapping[str, Any] | None = None
) -> Server[Any]:
    """An MCP server with these tools. Calls that lack an argument in *given* get it from there."""
    tools = {tool.name: tool for each in found for tool in each.tools}
    added = given or {}

    async def list_tools(_: Any, __: Any) -> ListToolsResult:
        return ListToolsResult(tools=[_describe_tool(tool, list(added)) for tool in tools.values()])

    async def call_tool(context: Any, params: CallToolRequestParams) -> CallToolResult:
        tool = tools.get(params.name)
        if tool is None:
            return _error_result(
                f"there is no tool {params.name!r}", f"Use one of {', '.join(tools)}."
            )
        own = {name: value for name, value in added.items() if name in tool.arguments.model_fields}
        try:
            request = tool.request({**own, **(params.arguments or {})})
            undo = tools[tool.undo] if tool.undo else None
            return _result(tool, await ask(ToolCall(request, undo), context))
        except TowpathError as error:
            return _error_result(f"{error.code}: {error}", error.remedy)

    return Server(
        NAME,
        version=version,
        title="Towpath",
        instructions="\n\n".join(each.instructions for each in found),
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _describe_tool(tool: Tool, given: Sequence[str]) -> McpTool:
    hints = ToolAnnotations(
        read_only_hint=tool.reads,
        destructive_hint=False,
        idempotent_hint=tool.repeatable or tool.reads,
        open_world_hint=False,
    )
    return McpTool(
        name=tool.name,
        title=tool.title,
        description=tool.about,
        input_schema=tool.schema(given),
        output_schema=tool.answer_schema(),
        annotations=hints,
    )


def _result(tool: Tool, answered: ToolAnswer) -> CallToolResult:
    """The result for the model. Texts of strangers are only quoted as values in JSON."""
    if answered.status == 204:
        nothing = {"nothing": tool.nothing}
        return CallToolResult(content=[TextContent(text=tool.nothing)], structured_content=nothing)
    try:
        content: Any = msgspec.json.decode(answered.body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _error_result(
            f"the server answered {answered.status} without JSON", "Try again later."
        )
    if answered.status < 300:
        text = json.dumps(content, ensure_ascii=False)
        return CallToolResult(content=[TextContent(text=text)], structured_content=content)
    problem = cast("dict[str, Any]", content) if isinstance(content, dict) else {}
    code = str(problem.get("type", "")).rpartition("/")[2] or str(answered.status)
    more = {name: value for name, value in problem.items() if name not in _FIELDS_OF_PROBLEMS}
    text = f"{code}: {problem.get('detail', 'refused')}" + (f" {json.dumps(more)}" if more else "")
    return _error_result(text, str(problem.get("remedy") or "Try again later."))


def _error_result(what: str, remedy: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=f"{what}\nDo: {remedy}")], is_error=True)


# ── in a server ──────────────────────────────────────────────────────────────────────────


class ToolsEndpoint:
    """Tools over streamable HTTP. Requests are independent: any server can answer each of them.

    A client that sends `initialize` gets a session id, which is stored nowhere. It only separates
    the requests of several clients that share a key: `notifications/cancelled` comes in a request
    of its own, and names the cancelled request by a number that every client begins at 0.
    """

    def __init__(self, server: Server[Any]) -> None:
        self._server = server
        self._manager: StreamableHTTPSessionManager | None = None
        self._ready, self._stopped = asyncio.Event(), asyncio.Event()
        self._running = Background("tools over MCP", self._run)
        self._open = OpenCalls()

    @classmethod
    async def started(cls, app: ASGIApp, found: Sequence[Tools], version: str) -> ToolsEndpoint:
        """Returns an endpoint that is ready to answer. It sends its requests to *app* directly."""

        async def ask(call: ToolCall, context: Any) -> ToolAnswer:
            outer: Request = context.request

            async def take_back(answer: ToolAnswer) -> None:
                if (undo := call.undo_request(answer)) is not None:
                    await _send_request(app, undo, outer)

            open_call: OpenCall = outer.scope[_CALL]
            return await open_call.run(_send_request(app, call.request, outer), take_back)

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
        """Reads the body within the limits. Yields a `receive` that returns the body, and then the
        messages that follow; None if the client disconnected. Raises Refused.
        """
        bodies: Bodies = scope["app"].state.bodies
        request = Request(scope, receive)
        with bodies.reserve(request) as mine:
            read = await bodies.read(request, mine)
            yield _replay_body(await read.body(), receive) if read else None

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._manager is None:
            return
        if scope["method"] != "POST":
            await self._manager.handle_request(scope, receive, send)
            return
        body: bytes = (await receive())["body"]
        message = _Message.read(body)
        client = (key_of(Request(scope)).id, dict(scope["headers"]).get(_SESSION, b""))
        if (cancelled := message.cancels) is not None:
            self._open.cancel(*client, cancelled)
        headers = [(_SESSION, uuid.uuid4().hex.encode())] if message.opens_session else []
        call = OpenCall(body, receive, send, headers)
        scope[_CALL] = call
        with self._open.holding(call, *client, message.id):
            async with call:
                await self._manager.handle_request(scope, call.receive, call.send)


class _Message(msgspec.Struct):
    """The fields of a JSON-RPC message that this module needs; the library parses it all."""

    id: Any = None
    method: str = ""
    params: Any = None

    @classmethod
    def read(cls, body: bytes) -> _Message:
        """Parse *body*; returns an empty message if it is invalid, which the library refuses."""
        try:
            return msgspec.json.decode(body, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return cls()

    @property
    def opens_session(self) -> bool:
        return self.method == "initialize"

    @property
    def cancels(self) -> Any:
        """The id of the request that this message cancels."""
        if self.method != "notifications/cancelled" or not isinstance(self.params, dict):
            return None
        return cast("dict[str, Any]", self.params).get("requestId")


class OpenCall:
    """One POST until its answer is sent. Notes whether the client still waits for the answer.

    A client leaves by disconnecting or by cancelling. If it leaves before the answer is sent, the
    call is undone.
    """

    def __init__(
        self,
        body: bytes,
        receive: Receive,
        send: Send,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        self._body: bytes | None = body
        self._receive, self._send, self._headers = receive, send, headers
        self._left, self._cancelled = asyncio.Event(), asyncio.Event()
        self._sent = self._over = False
        self._take_back: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._taking_back: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> OpenCall:
        self._watching = asyncio.ensure_future(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over = True
        self._watching.cancel()
        await asyncio.wait((self._watching,))
        if not self._sent:
            for undo in self._take_back:
                self._start(undo())

    def cancel(self) -> None:
        """Note that the client does not want the answer any more."""
        self._cancelled.set()

    async def receive(self) -> Message:
        """Returns the body; then waits until the client disconnects, and returns that message."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Send a part of the answer. Notes whether the client was there for the first part."""
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *self._headers]
        elif not self._sent and _is_answer(message.get("body", b"")):
            await asyncio.sleep(0)  # lets `_watch` see a disconnect that has already happened
            self._sent = not (self._left.is_set() or self._cancelled.is_set())
        await self._send(message)

    async def run(
        self,
        asking: Coroutine[Any, Any, ToolAnswer],
        take_back: Callable[[ToolAnswer], Coroutine[Any, Any, None]],
    ) -> ToolAnswer:
        """Returns the result of *asking*; cancels it if the client cancels. An answer that the
        client does not get is passed to *take_back*.
        """
        task = asyncio.ensure_future(asking)
        cancelled = asyncio.ensure_future(self._cancelled.wait())
        try:
            await asyncio.wait((task, cancelled), return_when=asyncio.FIRST_COMPLETED)
        finally:
            cancelled.cancel()
            if task.done():
                self._plan_take_back(task, take_back)
            else:  # it may still return an answer
                task.add_done_callback(lambda done: self._plan_take_back(done, take_back))
                task.cancel()
        await asyncio.wait((task,))
        if task.cancelled():
            raise MCPError(REQUEST_CANCELLED, "the client cancelled the request")
        return task.result()

    def _plan_take_back(
        self,
        done: asyncio.Future[ToolAnswer],
        take_back: Callable[[ToolAnswer], Coroutine[Any, Any, None]],
    ) -> None:
        """Take the answer back: now if the call is over, else when it ends without being sent."""
        if done.cancelled() or done.exception() is not None:
            return
        if self._over:
            self._start(take_back(done.result()))
        else:
            self._take_back.append(lambda: take_back(done.result()))

    def _start(self, undo: Coroutine[Any, Any, None]) -> None:
        task = detached("taking back of an answer", undo)
        self._taking_back.add(task)
        task.add_done_callback(self._taking_back.discard)

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._left.set()


def _is_answer(part: bytes) -> bool:
    """Whether *part* of a body belongs to the answer, and not to the pings before it."""
    return bool(part) and not part.startswith(b":")


class OpenCalls:
    """The calls that wait for an answer, by client and request id."""

    def __init__(self) -> None:
        self._calls: dict[tuple[str, bytes, str], set[OpenCall]] = {}

    @contextmanager
    def holding(self, call: OpenCall, key: str, session: bytes, id: Any) -> Generator[None]:
        """Keep *call* under its client, a *key* and a *session*, and the *id* of its request."""
        name = (key, session, json.dumps(id))
        calls = self._calls.setdefault(name, set())
        calls.add(call)
        try:
            yield
        finally:
            calls.discard(call)
            if not calls:
                self._calls.pop(name, None)

    def cancel(self, key: str, session: bytes, id: Any) -> None:
        """Cancel that client's call. Without a session, only if exactly one call fits."""
        calls = self._calls.get((key, session, json.dumps(id)), set[OpenCall]())
        if session or len(calls) == 1:
            for call in calls:
                call.cancel()


def _replay_body(body: bytes, receive: Receive) -> Receive:
    read = False

    async def again() -> Message:
        nonlocal read
        if read:
            return await receive()
        read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _send_request(app: ASGIApp, request: ToolRequest, outer: Request) -> ToolAnswer:
    """Send *request* to *app* with the key of *outer*, and return the response.

    A cancellation is ignored once the path has answered: then the caller undoes the call.
    """
    scope: Scope = {
        **inner_scope(outer.scope),
        "method": request.method,
        "path": request.path,
        "raw_path": request.path.encode(),
        "query_string": request.query.encode(),
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
    }
    status, parts = 500, list[bytes]()
    sent = answered = False

    async def receive() -> Message:
        nonlocal sent
        if sent:
            await asyncio.get_running_loop().create_future()  # until the call is cancelled
        sent = True
        return {"type": "http.request", "body": request.body, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status, answered
        if message["type"] == "http.response.start":
            status = message["status"]
        elif message["type"] == "http.response.body":
            parts.append(message.get("body", b""))
            answered = not message.get("more_body", False)

    try:
        await app(scope, receive, send)
    except asyncio.CancelledError:
        if not answered:
            raise
    except Exception:  # a defect: the app has answered 500, and raises the error as well
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
