"""Tools: what coding agents may do with an application over MCP, the Model Context Protocol.

A tool is a path of the HTTP API with a name and a description for models. So it needs the same
scope, has the same errors, and works the same in the server (`/mcp`) and from another machine
(`towpath mcp`, which calls the path over HTTP).
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import msgspec
from pydantic import BaseModel, ConfigDict, ValidationError

from towpath.errors import InvalidInput
from towpath.web.limits import ServerLimits

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from towpath.web.mcp import ToolsEndpoint

PATH = "/mcp"


class Arguments(BaseModel):
    """The arguments of a tool. The descriptions of its fields are for models."""

    model_config = ConfigDict(extra="forbid")


class ToolArgumentsInvalid(InvalidInput):
    """The tool was called with invalid arguments; nothing was done."""

    code = "tool_arguments_invalid"
    remedy = "Follow the tool's input schema."


class ToolRequest(NamedTuple):
    """The HTTP request for a call of a tool."""

    method: str
    path: str
    query: str
    body: bytes

    def without_wait(self) -> ToolRequest:
        """The same request, answered at once."""
        content: Any = msgspec.json.decode(self.body) if self.body else {}
        return self._replace(body=msgspec.json.encode({**content, "wait": 0}))


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """One tool for an agent."""

    name: str
    title: str
    about: str
    """What it does and when to use it, for a model."""
    arguments: type[Arguments]
    answer: type[BaseModel]
    """The type of the path's answer."""
    path: str
    """A path of the HTTP API; names in braces are replaced by arguments."""
    method: str = "POST"
    nothing: str = ""
    """The text for the model if the answer is empty (204), also as the field `nothing`."""
    reads: bool = False
    """Whether it changes nothing."""
    repeatable: bool = False
    """Whether a repeat has no further effect."""
    undo: str = ""
    """The tool that undoes this one if the client does not get the answer. The answer has all
    arguments that the other tool requires."""

    def schema(self, given: Sequence[str] = ()) -> dict[str, Any]:
        """The schema of its arguments; those in *given* are optional."""
        schema = self.arguments.model_json_schema()
        required = [name for name in schema.get("required", []) if name not in given]
        rest = {name: value for name, value in schema.items() if name != "required"}
        return rest | {"required": required} if required else rest

    def answer_schema(self) -> dict[str, Any]:
        """The schema of its answers: the path's, or `nothing` if the answer may be empty."""
        schema = self.answer.model_json_schema(mode="serialization")
        if not self.nothing:
            return schema
        definitions = schema.pop("$defs", {})
        nothing = {
            "type": "object",
            "properties": {"nothing": {"type": "string"}},
            "required": ["nothing"],
            "additionalProperties": False,
        }
        either: dict[str, Any] = {"type": "object", "anyOf": [schema, nothing]}
        return either | {"$defs": definitions} if definitions else either

    def request(self, arguments: Mapping[str, Any]) -> ToolRequest:
        """The request for a call. Raises ToolArgumentsInvalid, without the values."""
        try:
            found = self.arguments.model_validate(dict(arguments))
        except ValidationError as error:
            faults = [
                f"{'.'.join(map(str, fault['loc'])) or 'arguments'}: {fault['msg']}"
                for fault in error.errors(include_url=False, include_input=False)
            ]
            raise ToolArgumentsInvalid(f"{self.name}: {'; '.join(faults[:5])}") from None
        values = found.model_dump(mode="json", exclude_none=True)
        parts = {name: value for name, value in values.items() if f"{{{name}}}" in self.path}
        path = self.path.format_map({name: quote(str(parts[name]), safe="") for name in parts})
        rest = {name: value for name, value in values.items() if name not in parts}
        if self.method == "GET":
            return ToolRequest(self.method, path, urlencode(rest, doseq=True), b"")
        return ToolRequest(self.method, path, "", msgspec.json.encode(rest))


class Tools(msgspec.Struct, frozen=True, kw_only=True):
    """The tools of an application."""

    instructions: str
    """How to use the tools together, for a model."""
    tools: tuple[Tool, ...]


# ── the path of a server ─────────────────────────────────────────────────────────────────


class ToolsPath:
    """ASGI app: `/mcp` of a server, stateless. Loads the MCP library at the first request.

    A page of another site could reach the server under its own host name (DNS rebinding). So a
    request with an origin that is not in *limits* is refused, and so is a request for a host that
    is neither an address, nor `localhost`, nor in *limits*.
    """

    def __init__(self, found: Sequence[Tools], *, version: str, limits: ServerLimits) -> None:
        self._found, self._version = found, version
        self._hosts = {host.lower() for host in limits.mcp_hosts}
        self._origins = {origin.lower().rstrip("/") for origin in limits.mcp_origins}
        self._starting = asyncio.Lock()
        self._endpoint: ToolsEndpoint | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from towpath.web.problems import Refused, of_error  # noqa: PLC0415 -- needs an extra

        app: ASGIApp = scope["app"]
        try:
            self._check_origin_and_host(dict(scope["headers"]))
            if scope["method"] != "POST":
                raise _only_post()
            endpoint = await self._start_endpoint(app)
            async with endpoint.read(scope, receive) as replayed:
                if replayed is not None:
                    await endpoint.answer(scope, replayed, send)
        except Refused as refusal:
            await of_error(refusal)(scope, receive, send)

    async def close(self) -> None:
        """Stop the endpoint, and the calls that it runs."""
        if self._endpoint is not None:
            await self._endpoint.close()
            self._endpoint = None

    async def _start_endpoint(self, app: ASGIApp) -> ToolsEndpoint:
        async with self._starting:
            if (endpoint := self._endpoint) is None:
                kind = (await asyncio.to_thread(_import_endpoint)).ToolsEndpoint
                endpoint = await kind.started(app, self._found, self._version)
                self._endpoint = endpoint
            return endpoint

    def _check_origin_and_host(self, headers: Mapping[bytes, bytes]) -> None:
        from towpath.web.problems import Refused  # noqa: PLC0415 -- needs an extra

        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        if origin and origin not in self._origins:
            raise Refused(
                403,
                "origin_forbidden",
                "pages of this origin may not use the tools of this server",
                remedy="Add the origin to the setting `http.mcp_origins` if you trust it.",
            )
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if not _is_safe(name := urlsplit(f"//{host}").hostname or "") and name not in self._hosts:
            raise Refused(
                403,
                "host_forbidden",
                "this host name is not allowed here",
                remedy="Add the name to the setting `http.mcp_hosts`, or use the address.",
            )


def _only_post() -> Exception:
    """The error that the protocol asks for in servers without sessions: they have no stream of
    their own (GET), and no session to end (DELETE).
    """
    from towpath.web.problems import Refused  # noqa: PLC0415 -- needs an extra

    return Refused(
        405,
        "method_not_allowed",
        "this server has no MCP sessions",
        remedy="Send every message with POST.",
        headers={"Allow": "POST"},
    )


def _is_safe(host: str) -> bool:
    """Whether no other site can make the name point to this server."""
    with suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    return host == "localhost"


def _import_endpoint() -> Any:
    """The module with the endpoint. Raises Refused (404) if the MCP library is not installed."""
    try:
        return import_module("towpath.web.mcp")
    except ModuleNotFoundError as error:
        from towpath.web.problems import Refused  # noqa: PLC0415 -- needs an extra

        raise Refused(
            404,
            "mcp_not_installed",
            f"tools need {error.name}, which is not installed here",
            remedy="Install Towpath with the extra `mcp` where the server runs:"
            " `pip install '/path/to/towpath[mcp]'`, with the path of your clone.",
        ) from error
