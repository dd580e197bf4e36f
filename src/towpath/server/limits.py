"""Limits: how large, how deep, how slow and how often a request may be. Memory stays flat."""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from itertools import accumulate
from math import ceil

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from towpath.clock import Duration, seconds, steady
from towpath.server.paths import is_webhook
from towpath.server.problems import Refused

DEPTH_MOST = 64
"""Levels of nesting in JSON."""
_KEYS_MOST = 10_000
_SEND_LESS = "Store the data elsewhere and send a reference."
_RAISE_DELIVERY = "Raise the setting reviews.delivery, and let the forge send it again."


class ServerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one server process takes on."""

    body: int = 2 * 1024 * 1024
    """Bytes of one request's body."""
    body_within: Duration = seconds(15)
    """How long a body may take to arrive."""
    rate: int = 2_000
    """Requests per second and key; twice as many at once. 0 = no limit."""
    streams: int = 10_000
    """Event streams open at once."""


class Rates:
    """A bucket per key: refuses who asks too often."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str) -> None:
        """Count one request. 429 with the time after which there is room again."""
        if not self._rate:
            return
        now = steady()
        full = 2.0 * self._rate
        left, at = self._buckets.get(key, (full, now))
        left = min(full, left + (now - at) * self._rate)
        if left < 1:
            after = max(1, ceil((1 - left) / self._rate))
            raise Refused(
                429,
                "rate_limited",
                f"more than {self._rate} requests a second with this key",
                remedy="Send fewer, larger requests: most paths take lists.",
                headers={"Retry-After": str(after)},
            )
        self._buckets[key] = (left - 1, now)
        self._buckets.move_to_end(key)
        if len(self._buckets) > _KEYS_MOST:
            self._buckets.popitem(last=False)


class Streams:
    """How many event streams are open."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.open = 0

    @contextmanager
    def one_more(self) -> Generator[None]:
        """Count a stream while it is open."""
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1

    def refuse_if_full(self) -> None:
        """503 if there are too many."""
        if self.open >= self._most:
            raise Refused(
                503,
                "too_many_streams",
                f"{self._most} event streams are open on this server",
                remedy="Close some, or start another server.",
                headers={"Retry-After": "5"},
            )


class Bodies:
    """ASGI middleware: reads a body within its limits before anything else looks at it.

    The length is counted as it comes, whatever Content-Length says. What gets past here is JSON
    in UTF-8 that can be stored and shown again: no NaN, no half of a character, not too deep.
    Webhooks pass: nothing of them is read before it is known who may send them, see `Deliveries`.
    """

    def __init__(self, app: ASGIApp, limits: ServerLimits) -> None:
        self._app, self._limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _has_no_body(scope) or is_webhook(scope):
            await self._app(scope, receive, send)
            return
        try:
            body = await self._read(_headers(scope), receive)
        except Refused as refused:
            await refused.response()(scope, receive, send)
            return
        if body is None:
            return
        await self._app(scope, _replay(body, receive), send)

    async def _read(self, headers: dict[bytes, bytes], receive: Receive) -> bytes | None:
        """The body; None if the client left."""
        limit = self._limits.body
        declared = _declared(headers, limit)
        if declared not in (b"", b"0") or b"transfer-encoding" in headers:
            _check_type(headers)
        body = await _in_time(_collected(receive, limit), self._limits.body_within)
        if body:
            _check_depth(body)
            _check_json(body)
        return body


class Deliveries:
    """Reads the bodies of webhooks, raw. Whoever sends one has no key, so all of them together
    may take only so much memory at a time.
    """

    def __init__(self, *, largest: int, within: Duration, together: int = 64 * 1024 * 1024) -> None:
        self._largest, self._within = largest, within
        self._room = together

    @contextmanager
    def _held(self) -> Generator[Callable[[int], None]]:
        """Count bytes while the block holds them. 503 if there is no room."""
        held = 0

        def take(size: int) -> None:
            nonlocal held
            if size > self._room:
                raise Refused(
                    503,
                    "too_many_deliveries",
                    "too many webhooks come at once",
                    remedy="Send it again.",
                    headers={"Retry-After": "5"},
                )
            self._room -= size
            held += size

        try:
            yield take
        finally:
            self._room += held

    @asynccontextmanager
    async def read(self, scope: Scope, receive: Receive) -> AsyncGenerator[bytes | None]:
        """The body while the block needs it; None if the client left. 413, 408, 503."""
        _declared(_headers(scope), self._largest, remedy=_RAISE_DELIVERY)
        with self._held() as take:
            reading = _collected(receive, self._largest, take, remedy=_RAISE_DELIVERY)
            yield await _in_time(reading, self._within)


def _has_no_body(scope: Scope) -> bool:
    return scope["method"] in ("GET", "HEAD", "OPTIONS")


def _headers(scope: Scope) -> dict[bytes, bytes]:
    return dict(scope["headers"])


def _declared(headers: dict[bytes, bytes], limit: int, *, remedy: str = _SEND_LESS) -> bytes:
    """The length that is announced. 413 if that is too much already."""
    declared = headers.get(b"content-length", b"")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit, remedy)
    return declared


async def _in_time(reading: Awaitable[bytes | None], within: Duration) -> bytes | None:
    try:
        async with asyncio.timeout(within.total_seconds()):
            return await reading
    except TimeoutError:
        raise Refused(
            408,
            "body_too_slow",
            "the body did not come in time",
            remedy="Send it again.",
            headers={"Connection": "close"},
        ) from None


async def _collected(
    receive: Receive,
    limit: int,
    take: Callable[[int], None] = lambda _: None,
    *,
    remedy: str = _SEND_LESS,
) -> bytes | None:
    """All parts of the body, as long as they are not too many; None if the client left."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise _too_large(limit, remedy)
        take(len(part))
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _too_large(limit: int, remedy: str) -> Refused:
    return Refused(413, "body_too_large", f"at most {limit} bytes", remedy=remedy)


_JSON_TYPE = re.compile(rb"application/(?:[a-z0-9.+-]+\+)?json\s*(?:;.*)?", re.IGNORECASE)


def _check_type(headers: dict[bytes, bytes]) -> None:
    """415 for what does not say that it is JSON, or comes packed."""
    packed = headers.get(b"content-encoding", b"identity").lower() != b"identity"
    if packed or _JSON_TYPE.fullmatch(headers.get(b"content-type", b"").strip()) is None:
        raise Refused(
            415,
            "unsupported_media_type",
            "the body must be JSON, not packed",
            remedy="Send `Content-Type: application/json` and no Content-Encoding.",
        )


def _check_json(body: bytes) -> None:
    """400 for what is not JSON to the letter."""
    try:
        msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(
            400,
            "malformed_json",
            str(error) if isinstance(error, msgspec.MsgspecError) else "the body is not JSON",
            remedy="Send JSON in UTF-8.",
        ) from None


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body once, then whatever the client does next."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return waiting.pop() if waiting else await receive()

    return again


# ── depth ────────────────────────────────────────────────────────────────────────────────

_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""Matches wherever there is a quotation mark, so that it looks at each byte once."""
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def too_deep(body: bytes) -> bool:
    """Whether JSON is nested deeper than parsers bear. Linear, and in C."""
    if body.count(b"[") + body.count(b"{") <= DEPTH_MOST:
        return False
    steps = _STRINGS.sub(b"", body).translate(_STEPS, _NO_BRACKETS)
    return max(accumulate(memoryview(steps).cast("b")), default=0) > DEPTH_MOST


def _check_depth(body: bytes) -> None:
    if too_deep(body):
        raise Refused(
            400,
            "nested_too_deep",
            f"more than {DEPTH_MOST} levels",
            remedy="Flatten it, or send it as text.",
        )
