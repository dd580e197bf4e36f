"""Request bodies: read within limits of size, time and memory, and only where a path takes one."""

from __future__ import annotations

import asyncio
import gc
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from inspect import signature
from ipaddress import IPv6Address
from typing import Any

import msgspec
from fastapi import Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from towpath.clock import Duration
from towpath.web.auth import key_of
from towpath.web.fields import DEPTH_MOST, too_deep
from towpath.web.limits import ServerLimits
from towpath.web.problems import Refused

_MB = 1024 * 1024
_AGAIN = "Send the request again."


# ── memory ───────────────────────────────────────────────────────────────────────────────


class BodyReservation:
    """The memory that one body takes while a block runs, and the deadline of its reading."""

    __slots__ = ("_budget", "deadline", "evicted", "holder", "parts", "size")

    def __init__(self, budget: BodyBudget, holder: str) -> None:
        self._budget, self.holder = budget, holder
        self.parts: list[bytes] = []
        self.size = 0
        self.deadline: asyncio.Timeout | None = None
        """Set while the body is read; without it, the body is complete and not evicted."""
        self.evicted = False

    def __enter__(self) -> BodyReservation:
        self._budget.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._budget.remove(self)


class BodyBudget:
    """Limits the memory of all bodies *together*, and of *each* holder: a key, or an address.

    A new body is always accepted. If the memory is full, the oldest unfinished body is evicted:
    one of the same holder if that has used up its share, else of any holder. So a client that
    holds back the end of its body blocks no other, and a body that arrives without a pause gets
    through. A body has at most *largest* bytes, and must arrive *within* a time; *remedy* is for
    one that is larger, *refusal* for one that is evicted.
    """

    def __init__(
        self,
        *,
        largest: int,
        within: Duration,
        remedy: str,
        together: int,
        each: int,
        refusal: tuple[str, str],
    ) -> None:
        self._largest, self._within, self._remedy = largest, within, remedy
        self._together, self._each, self._refusal = together, each, refusal
        self._reservations: dict[BodyReservation, None] = {}  # the oldest first
        self._shares: dict[str, int] = {}
        self._held = 0

    def reserve(self, holder: str) -> BodyReservation:
        """Returns the context manager for one body of *holder*."""
        return BodyReservation(self, holder)

    def add(self, mine: BodyReservation) -> None:
        self._reservations[mine] = None

    def remove(self, mine: BodyReservation) -> None:
        self._count(mine, -mine.size)
        del self._reservations[mine]

    def take(self, mine: BodyReservation, size: int) -> None:
        """Count *size* more bytes. Raises Refused (503) if no other body can be evicted."""
        if not self._fits(mine.holder, size):
            self._evict_others(mine.holder, size, spared=mine)
        self._count(mine, size)

    def refusal(self) -> Refused:
        """The error for a body that finds the memory used up (503)."""
        return Refused(
            503,
            *self._refusal,
            remedy=_AGAIN,
            headers={"Retry-After": "1", "Connection": "close"},
        )

    def _fits(self, holder: str, size: int) -> bool:
        return (
            self._held + size <= self._together and self._shares.get(holder, 0) + size <= self._each
        )

    def _evict_others(self, holder: str, size: int, *, spared: BodyReservation) -> None:
        for other in list(self._reservations):
            full = self._held + size > self._together
            if other is not spared and other.deadline and (full or other.holder == holder):
                self._evict(other)
            if self._fits(holder, size):
                return
        raise self.refusal()

    def _evict(self, other: BodyReservation) -> None:
        if other.deadline is not None:
            other.deadline.reschedule(asyncio.get_running_loop().time())
        other.deadline, other.evicted = None, True
        other.parts.clear()
        self._count(other, -other.size)

    def _count(self, reservation: BodyReservation, size: int) -> None:
        reservation.size += size
        self._held += size
        share = self._shares.get(reservation.holder, 0) + size
        if share:
            self._shares[reservation.holder] = share
        else:
            self._shares.pop(reservation.holder, None)

    # ── one body ─────────────────────────────────────────────────────────────────────────

    def declared(self, headers: dict[bytes, bytes]) -> bytes:
        """The value of Content-Length, or empty. Raises Refused (413) if it is too large."""
        declared = headers.get(b"content-length", b"")
        if declared.isdigit():
            self._check(int(declared))
        return declared

    def _check(self, size: int) -> None:
        if size > self._largest:
            detail = f"at most {self._largest} bytes"
            raise Refused(413, "body_too_large", detail, remedy=self._remedy)

    async def read(self, receive: Receive, mine: BodyReservation) -> bytes | None:
        """The whole body; None if the client disconnected. Raises Refused (408, 413, 503)."""
        size = 0
        try:
            async with asyncio.timeout(self._within.total_seconds()) as mine.deadline:
                while True:
                    message = await receive()
                    if mine.evicted:
                        raise self.refusal()  # the part came just before the timeout
                    if message["type"] == "http.disconnect":
                        return None
                    part: bytes = message.get("body", b"")
                    size += len(part)
                    self._check(size)
                    self.take(mine, len(part))
                    mine.parts.append(part)
                    if not message.get("more_body", False):
                        return b"".join(mine.parts)
        except TimeoutError:
            if mine.evicted:
                raise self.refusal() from None
            raise Refused(
                408,
                "body_too_slow",
                "the body did not arrive in time",
                remedy=_AGAIN,
                headers={"Connection": "close"},
            ) from None
        finally:
            mine.deadline = None
            mine.parts.clear()


# ── JSON, sent with a key ────────────────────────────────────────────────────────────────


class Bodies:
    """Reads JSON bodies of requests with a key.

    Counts the bytes that arrive, whatever Content-Length says. Accepts only JSON in UTF-8 that can
    be stored and shown again: no NaN, no half of a surrogate pair, not nested too deep.
    """

    def __init__(self, limits: ServerLimits) -> None:
        self._share = max(64 * _MB, 4 * limits.body)
        self._budget = BodyBudget(
            largest=limits.body,
            within=limits.body_within,
            remedy="Store the data elsewhere and send a reference.",
            together=2 * self._share,
            each=self._share,
            refusal=("too_many_bodies", "too many large requests at once"),
        )

    def reserve(self, request: Request) -> BodyReservation:
        """Returns the context manager for the body of *request*."""
        return self._budget.reserve(key_of(request).id)

    async def read(self, request: Request, mine: BodyReservation) -> ReadRequest | None:
        """Read the body of *request*, and count it for *mine*. Returns None if the client left.

        Raises Refused (400, 408, 413, 415, 503).
        """
        headers = dict(request.scope["headers"])
        if self._budget.declared(headers) not in (b"", b"0") or b"transfer-encoding" in headers:
            _check_type(headers)
        body = await self._budget.read(request.receive, mine)
        if body is None:
            return None
        value = None
        if body:
            if too_deep(body):
                detail = f"more than {DEPTH_MOST} levels"
                remedy = "Flatten the JSON, or send it as text."
                raise Refused(400, "nested_too_deep", detail, remedy=remedy)
            # At most half a share: one request alone always fits, however many values it has.
            self._budget.take(mine, min(_decoded_size(body), self._share // 2))
            value = _decode_json(body)
        return ReadRequest(request, body, value)


class ReadRequest(Request):
    """A request whose body was read within the limits, and parsed."""

    def __init__(self, request: Request, body: bytes, value: Any) -> None:
        super().__init__(request.scope, request.receive)
        self._content, self._value = body, value

    async def body(self) -> bytes:
        return self._content

    async def json(self) -> Any:
        return self._value


class BodyRoute(APIRoute):
    """A route that reads its body within the limits, and reads nothing if it takes no body."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = self.get_body_handler()
        if self.body_field is None:
            return handle

        async def handle_bounded(request: Request) -> Response:
            bodies: Bodies = request.app.state.bodies
            with bodies.reserve(request) as mine:
                read = await bodies.read(request, mine)
                if read is None:
                    return Response(status_code=400)  # not sent: the client disconnected
                return await handle(read)

        return handle_bounded

    def get_body_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Returns the function that answers a request whose body was read."""
        return super().get_route_handler()


def direct_app(handle: Callable[[Request], Awaitable[Response]]) -> ASGIApp:
    """Return the ASGI app of a route without the stacks that FastAPI keeps for dependencies with
    `yield`.
    """

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        response = await handle(Request(scope, receive, send))
        await response(scope, receive, send)

    return app


class DirectRoute(BodyRoute):
    """A route whose function takes a JSON body and dependencies of the request alone, and returns
    the response itself.

    FastAPI describes the route in OpenAPI, but does not call it: collecting parameters of every
    kind takes longer than the rest of a small request (70 µs instead of 24 for a message). Raises
    TypeError for a function with other parameters.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.app = direct_app(self.get_route_handler())

    def get_body_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        function, found, field = self.endpoint, _found_in_request(self.dependant), self.body_field
        wanted, guards = set(signature(function).parameters), self.dependant.dependencies
        if (
            field is None
            or self.dependant.body_params != [field]
            or wanted != {field.name, *found}
            or len(found) != len(guards)  # dependencies of a router have no name
        ):
            raise TypeError(f"{self.path} takes more than a body and what the request has")

        async def handle(request: Request) -> Response:
            values = {name: await find(request) for name, find in found.items()}
            # The body comes last, as in FastAPI: a key without permission is refused before.
            if not await request.body():
                raise RequestValidationError([_NO_BODY])
            values[field.name], misfits = field.validate(await request.json(), loc=("body",))
            if misfits:
                raise RequestValidationError(misfits)
            return await function(**values)

        return handle


_NO_BODY = {"type": "missing", "loc": ("body",), "msg": "Field required", "input": None}


def _found_in_request(dependant: Dependant) -> dict[str, Callable[[Request], Awaitable[Any]]]:
    """The parameters that are dependencies, each with the function that finds its value."""
    return {
        each.name: each.call
        for each in dependant.dependencies
        if each.name
        and each.call
        and [*signature(each.call).parameters] == [each.request_param_name]
    }


# ── raw bodies, piece by piece ───────────────────────────────────────────────────────────


def announced_length(request: Request) -> int | None:
    """The value of Content-Length; None without one. Raises Refused (400) if it is no number."""
    text = request.headers.get("content-length")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 19:
        remedy = "Send the length of the body in bytes, or none."
        raise Refused(400, "length_invalid", "Content-Length is not a number", remedy=remedy)
    return int(text)


async def pieces(request: Request, *, silence: Duration) -> AsyncGenerator[bytes]:
    """Yields the parts of a body as they arrive, of any type and length: the caller limits it.

    For a route whose function takes the Request and no body: nothing is read before, and no more
    at a time than the connection buffers. Raises Refused: 408 if no part arrives for *silence*,
    400 if the client leaves, so that a cut body is never taken for a complete one.
    """
    while True:
        try:
            async with asyncio.timeout(silence.total_seconds()):
                message = await request.receive()
        except TimeoutError:
            raise Refused(
                408,
                "body_too_slow",
                "no part of the body arrived in time",
                remedy=_AGAIN,
                headers={"Connection": "close"},
            ) from None
        if message["type"] == "http.disconnect":
            raise Refused(400, "body_cut", "the client disconnected", remedy=_AGAIN)
        if data := message.get("body", b""):
            yield data
        if not message.get("more_body", False):
            return


# ── deliveries, sent without a key ───────────────────────────────────────────────────────


class Deliveries:
    """Reads the raw bodies of webhooks. Senders have no key: they are counted by address."""

    def __init__(
        self,
        *,
        largest: int,
        within: Duration,
        setting: str = "http.body",
        together: int = 64 * _MB,
        each: int = 32 * _MB,
    ) -> None:
        self._budget = BodyBudget(
            largest=largest,
            within=within,
            remedy=f"Raise the setting {setting}, then redeliver the webhook from the forge.",
            together=max(together, largest),
            each=max(each, largest),
            refusal=("too_many_deliveries", "too many webhooks at once"),
        )

    @asynccontextmanager
    async def read(self, scope: Scope, receive: Receive) -> AsyncGenerator[bytes | None]:
        """Yields the body; None if the client disconnected. Raises Refused (408, 413, 503)."""
        self._budget.declared(dict(scope["headers"]))
        with self._budget.reserve(_network(scope)) as mine:
            yield await self._budget.read(receive, mine)


def _network(scope: Scope) -> str:
    """The client's address; of an IPv6 address the /64, which usually belongs to one customer."""
    host: str = scope["client"][0] if scope.get("client") else ""
    if ":" not in host:
        return host
    try:
        address = IPv6Address(host)
    except ValueError:
        return host
    return str(address.ipv4_mapped or int(address) >> 64)


# ── checks ───────────────────────────────────────────────────────────────────────────────


_JSON_TYPE = re.compile(rb"application/(?:[a-z0-9.+-]+\+)?json\s*(?:;.*)?", re.IGNORECASE)


def _check_type(headers: dict[bytes, bytes]) -> None:
    """Raises Refused (415) unless the headers declare JSON without compression."""
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise Refused(
            415,
            "unsupported_media_type",
            "the body is compressed (Content-Encoding)",
            remedy="Send the body uncompressed, without a Content-Encoding header.",
        )
    given = headers.get(b"content-type", b"").strip()
    if _JSON_TYPE.fullmatch(given) is None:
        sent = given[:80].decode("ascii", "replace")
        raise Refused(
            415,
            "unsupported_media_type",
            f"the Content-Type is {sent}, not JSON" if sent else "there is no Content-Type",
            remedy="Send JSON with `Content-Type: application/json`. curl's own default is "
            "another type: add -H 'Content-Type: application/json', or use --json.",
        )


def _decoded_size(body: bytes) -> int:
    """Estimates the memory of the parsed values, beside the body itself."""
    return 56 * (body.count(b"[") + body.count(b"{")) + 32 * body.count(b",")


def _decode_json(body: bytes) -> Any:
    """The values of *body*. Raises Refused (400) for invalid JSON."""
    # The garbage collector would traverse the growing result again and again: a body of many small
    # lists would take five times as long.
    gc.disable()
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(
            400,
            "malformed_json",
            str(error) if isinstance(error, msgspec.MsgspecError) else "the body is not JSON",
            remedy="Send JSON in UTF-8.",
        ) from None
    finally:
        gc.enable()
