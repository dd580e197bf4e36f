"""Bodies: read within their limits, and only where a path takes one. Memory stays flat."""

from __future__ import annotations

import asyncio
import gc
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from inspect import signature
from ipaddress import IPv6Address, ip_address
from typing import Any

import msgspec
from fastapi import Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send

from towpath.clock import Duration
from towpath.web.auth import key_of
from towpath.web.fields import DEPTH_MOST, too_deep
from towpath.web.limits import ServerLimits
from towpath.web.problems import Refused

_MB = 1024 * 1024
_AGAIN = "Send the request again."


# ── memory ───────────────────────────────────────────────────────────────────────────────


class Holding:
    """What one request holds of a room while a block runs, and until when it may go on reading."""

    __slots__ = ("_room", "deadline", "evicted", "holder", "parts", "size")

    def __init__(self, room: Room, holder: str) -> None:
        self._room, self.holder = room, holder
        self.parts: list[bytes] = []
        self.size = 0
        self.deadline: asyncio.Timeout | None = None
        """While it reads; what has come in whole is not given up any more."""
        self.evicted = False

    def __enter__(self) -> Holding:
        self._room.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._room.remove(self)


class Room:
    """Memory for all bodies together, and for those of one holder: a key, or an address.

    Who comes last is let in. Where there is no room, the oldest body that is still under way is
    given up: the holder's own if it has its share, else of all. So whoever holds back the end of
    what he sends keeps nobody out, and a body that comes without a pause gets through. One has at
    most *largest* bytes, and comes *within* a time; *remedy* is for what is larger.
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
        self._holdings: dict[Holding, None] = {}  # the oldest first
        self._shares: dict[str, int] = {}
        self._held = 0

    def holding(self, holder: str) -> Holding:
        """A place for one body while a block runs."""
        return Holding(self, holder)

    def add(self, mine: Holding) -> None:
        self._holdings[mine] = None

    def remove(self, mine: Holding) -> None:
        self._count(mine, -mine.size)
        del self._holdings[mine]

    def take(self, mine: Holding, size: int) -> None:
        """Count *size* bytes more. 503 if nobody can be given up for them."""
        if not self._fits(mine.holder, size):
            self._make_room(mine.holder, size, spared=mine)
        self._count(mine, size)

    def refusal(self) -> Refused:
        """What those are told for whom there is no room."""
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

    def _make_room(self, holder: str, size: int, *, spared: Holding) -> None:
        for other in list(self._holdings):
            full = self._held + size > self._together
            if other is not spared and other.deadline and (full or other.holder == holder):
                self._evict(other)
            if self._fits(holder, size):
                return
        raise self.refusal()

    def _evict(self, other: Holding) -> None:
        if other.deadline is not None:
            other.deadline.reschedule(asyncio.get_running_loop().time())
        other.deadline, other.evicted = None, True
        other.parts.clear()
        self._count(other, -other.size)

    def _count(self, holding: Holding, size: int) -> None:
        holding.size += size
        self._held += size
        share = self._shares.get(holding.holder, 0) + size
        if share:
            self._shares[holding.holder] = share
        else:
            self._shares.pop(holding.holder, None)

    # ── one body ─────────────────────────────────────────────────────────────────────────

    def declared(self, headers: dict[bytes, bytes]) -> bytes:
        """The length that is announced. 413 if that is too much already."""
        declared = headers.get(b"content-length", b"")
        if declared.isdigit():
            self._check(int(declared))
        return declared

    def _check(self, size: int) -> None:
        if size > self._largest:
            detail = f"at most {self._largest} bytes"
            raise Refused(413, "body_too_large", detail, remedy=self._remedy)

    async def read(self, receive: Receive, mine: Holding) -> bytes | None:
        """The whole body; None if the client disconnected. 413, 408, 503."""
        size = 0
        try:
            async with asyncio.timeout(self._within.total_seconds()) as mine.deadline:
                while True:
                    message = await receive()
                    if mine.evicted:
                        raise self.refusal()  # it may come just before it is told so
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


# ── JSON, from those who have a key ──────────────────────────────────────────────────────


class Bodies:
    """Reads the JSON that keys send.

    The length is counted as it comes, whatever Content-Length says. What gets past here is JSON
    in UTF-8 that can be stored and shown again: no NaN, no half of a character, not too deep.
    """

    def __init__(self, limits: ServerLimits) -> None:
        self._share = max(64 * _MB, 4 * limits.body)
        self._room = Room(
            largest=limits.body,
            within=limits.body_within,
            remedy="Store the data elsewhere and send a reference.",
            together=2 * self._share,
            each=self._share,
            refusal=("too_many_bodies", "too many large requests at once"),
        )

    def holding(self, request: Request) -> Holding:
        """A place for the body of *request* while a block runs."""
        return self._room.holding(key_of(request).id)

    async def read(self, request: Request, mine: Holding) -> bool:
        """Put the body into *request*, and count it for *mine*. False = the client left.

        400, 408, 413, 415, 503.
        """
        headers = dict(request.scope["headers"])
        if self._room.declared(headers) not in (b"", b"0") or b"transfer-encoding" in headers:
            _check_type(headers)
        body = await self._room.read(request.receive, mine)
        if body is None:
            return False
        if body:
            if too_deep(body):
                detail = f"more than {DEPTH_MOST} levels"
                remedy = "Flatten the JSON, or send it as text."
                raise Refused(400, "nested_too_deep", detail, remedy=remedy)
            # Half a share at most: however many values it has, one request alone is let in.
            self._room.take(mine, min(_decoded_size(body), self._share // 2))
            request._json = _decoded(body)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] -- parsed once: Starlette has no other place for it
        request._body = body  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] -- as above
        return True


class BodyRoute(APIRoute):
    """A path whose body, if it takes one, is read within the limits; otherwise nothing is."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = self.get_body_handler()
        if self.body_field is None:
            return handle

        async def handle_bounded(request: Request) -> Response:
            bodies: Bodies = request.app.state.bodies
            with bodies.holding(request) as mine:
                if not await bodies.read(request, mine):
                    return Response(status_code=400)  # the client disconnected: nobody reads it
                return await handle(request)

        return handle_bounded

    def get_body_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """What answers a request whose body was read."""
        return super().get_route_handler()


class DirectRoute(BodyRoute):
    """A path whose function takes a JSON body and what functions of the request return, and returns
    the response itself.

    FastAPI describes it, but does not call it: for each request it would look for parameters of
    every kind, which takes longer than all else about a small one. Raises TypeError for a function
    that needs more.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        handle = self.get_route_handler()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            response = await handle(Request(scope, receive, send))
            await response(scope, receive, send)

        # FastAPI's own has a stack for what dependencies leave open: there is none here.
        self.app = app

    def get_body_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        function, found, field = self.endpoint, _found_in_request(self.dependant), self.body_field
        wanted, guards = set(signature(function).parameters), self.dependant.dependencies
        if (
            field is None
            or self.dependant.body_params != [field]
            or wanted != {field.name, *found}
            or len(found) != len(guards)  # those of a router have no name
        ):
            raise TypeError(f"{self.path} takes more than a body and what the request has")

        async def handle(request: Request) -> Response:
            values = {name: await find(request) for name, find in found.items()}
            # Last, as FastAPI does it: a key that may not send it is refused before.
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
    """What Content-Length says; None = nothing. 400 for what is no number."""
    text = request.headers.get("content-length")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 19:
        remedy = "Send the length of the body in bytes, or none."
        raise Refused(400, "length_invalid", "Content-Length is not a number", remedy=remedy)
    return int(text)


async def pieces(request: Request, *, silence: Duration) -> AsyncGenerator[bytes]:
    """The body as it comes, of any type and any length: the caller says when it is too much.

    For a path whose function asks for the Request and for no body: nothing of it is read before,
    and no more at a time than the connection buffers. 408 if nothing comes for *silence*; 400 if
    the client leaves, so that what was cut is never taken for the end.
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


# ── deliveries, from anybody ─────────────────────────────────────────────────────────────


class Deliveries:
    """Reads the bodies of webhooks, raw. Whoever sends one has no key: he is known by address."""

    def __init__(
        self,
        *,
        largest: int,
        within: Duration,
        setting: str = "http.body",
        together: int = 64 * _MB,
        each: int = 32 * _MB,
    ) -> None:
        self._room = Room(
            largest=largest,
            within=within,
            remedy=f"Raise the setting {setting}, then redeliver the webhook from the forge.",
            together=max(together, largest),
            each=max(each, largest),
            refusal=("too_many_deliveries", "too many webhooks at once"),
        )

    @asynccontextmanager
    async def read(self, scope: Scope, receive: Receive) -> AsyncGenerator[bytes | None]:
        """The body while the block needs it; None if the client disconnected. 413, 408, 503."""
        self._room.declared(dict(scope["headers"]))
        with self._room.holding(_network(scope)) as mine:
            yield await self._room.read(receive, mine)


def _network(scope: Scope) -> str:
    """Whom to count a request for: its address; of IPv6 the /64, which is one customer's."""
    host = scope["client"][0] if scope.get("client") else ""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv6Address):
        return str(address.ipv4_mapped or int(address) >> 64)
    return host


# ── checks ───────────────────────────────────────────────────────────────────────────────


_JSON_TYPE = re.compile(rb"application/(?:[a-z0-9.+-]+\+)?json\s*(?:;.*)?", re.IGNORECASE)


def _check_type(headers: dict[bytes, bytes]) -> None:
    """415 for what does not say that it is JSON, or comes compressed."""
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
    """About how many bytes a body's values take in memory, beside itself."""
    return 56 * (body.count(b"[") + body.count(b"{")) + 32 * body.count(b",")


def _decoded(body: bytes) -> Any:
    """The values of *body*. 400 for what is not JSON to the letter."""
    # The collector would look through all of it again and again while it grows: five times as
    # long for a body of many small lists.
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
