"""Limits: how large, how deep, how slow and how often a request may be. Memory stays flat."""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Generator
from contextlib import contextmanager

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from towpath.clock import Duration, seconds, steady
from towpath.server.problems import Refused

_DEPTH_MOST = 64
_KEYS_MOST = 10_000


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
    wait: Duration = seconds(60)
    """How long a claim may wait."""


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
            after = max(1, round((1 - left) / self._rate))
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
        """Count a stream while it is open. 503 if there are too many."""
        self.refuse_if_full()
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1

    def refuse_if_full(self) -> None:
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

    The length is counted as it comes, whatever Content-Length says. Nesting is bounded here
    because parsers are recursive.
    """

    def __init__(self, app: ASGIApp, limits: ServerLimits) -> None:
        self._app, self._limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, send)
            return
        try:
            body = await self._read(scope, receive)
        except Refused as refused:
            await refused.response()(scope, receive, send)
            return
        if body is None:
            return
        await self._app(scope, _replay(body, receive), send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """The body; None if the client left."""
        limit = self._limits.body
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > limit:
            raise _too_large(limit)
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._limits.body_within.total_seconds()):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    part: bytes = message.get("body", b"")
                    size += len(part)
                    if size > limit:
                        raise _too_large(limit)
                    parts.append(part)
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            raise Refused(
                408,
                "body_too_slow",
                "the body did not come in time",
                remedy="Send it again.",
                headers={"Connection": "close"},
            ) from None
        body = b"".join(parts)
        _check_depth(body)
        return body


def _too_large(limit: int) -> Refused:
    return Refused(
        413,
        "body_too_large",
        f"at most {limit} bytes",
        remedy="Store the data elsewhere and send a reference.",
        headers={"Connection": "close"},
    )


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body once, then whatever the client does next."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return waiting.pop() if waiting else await receive()

    return again


_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_PAIRS = re.compile(rb"\[\]|\{\}")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def _check_depth(body: bytes) -> None:
    """400 for JSON that is nested too deep. Each round takes one level away, in C."""
    if body.count(b"[") + body.count(b"{") <= _DEPTH_MOST:
        return
    left = _STRINGS.sub(b"", body).translate(None, _NO_BRACKETS)
    for _ in range(_DEPTH_MOST):
        left, taken = _PAIRS.subn(b"", left)
        if not taken:
            break
    # What is left over by a few brackets is malformed: the parser says it better.
    if len(left) > _DEPTH_MOST or _PAIRS.search(left):
        raise Refused(
            400,
            "nested_too_deep",
            f"more than {_DEPTH_MOST} levels",
            remedy="Flatten it, or send it as text.",
        )
