"""HTTP on a socket: uvicorn's protocol, with the bounds that it leaves to others."""

from __future__ import annotations

import asyncio
import json
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from towpath.clock import Duration
from towpath.web.problems import TYPES

HEAD_MOST = 64 * 1024
"""Bytes of a request's line and headers."""
LINGER_S = 15.0
"""How long a body goes on being thrown away after its request was answered."""


class BoundedProtocol(HttpToolsProtocol):
    """Refuses a head that is too large (431) or too slow (408).

    A body that nobody wants is thrown away for a while: who is still sending reads the refusal
    then, instead of a connection that was reset.
    """

    head_within: ClassVar[float] = 15.0
    """Seconds that a request's line and headers may take to arrive."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head, self._in_head = 0, True
        self._refusal = 400
        self._timer: asyncio.TimerHandle | None = None

    # ── the connection ───────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] -- as uvicorn has it
        super().connection_made(transport)
        self._start(self.head_within, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self._in_head:
            self._head += len(data)
            if self._head > HEAD_MOST and not self.transport.is_closing():
                self._refuse(431)

    # ── what the parser tells ────────────────────────────────────────────────────────────

    def on_message_begin(self) -> None:
        self._head, self._in_head = 0, True
        self._start(self.head_within, self._too_slow)
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head += len(name) + len(value) + 4
        if self._head + len(self.url) > HEAD_MOST:
            self._refusal = 431
            raise ValueError("the head is too large")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self.cycle.response_complete and self._timer is None:
            self._start(LINGER_S, self.transport.close)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._stop()
        super().on_message_complete()

    # ── refusals below the application ───────────────────────────────────────────────────

    def send_400_response(self, msg: str) -> None:
        """What the parser could not read, or would not."""
        self._refuse(self._refusal)

    def _too_slow(self) -> None:
        if self._head:
            self._refuse(408)
        else:
            self.transport.close()

    def _refuse(self, status: int) -> None:
        code, detail = _REFUSALS[status]
        problem = {"type": TYPES + code, "title": code, "status": status, "detail": detail}
        body = json.dumps(problem).encode()
        head = b"content-type: application/problem+json\r\nconnection: close\r\n"
        length = f"content-length: {len(body)}\r\n\r\n".encode()
        self.transport.write(STATUS_LINE[status] + head + length + body)
        self.transport.close()

    def _start(self, after: float, what: Any) -> None:
        self._stop()
        self._timer = self.loop.call_later(after, what)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def bounded(*, head_within: Duration) -> type[BoundedProtocol]:
    """The protocol with another time for heads."""
    limit = head_within.total_seconds()
    return type("Bounded", (BoundedProtocol,), {"head_within": limit})


_REFUSALS = {
    400: ("malformed-request", "this is not HTTP"),
    408: ("head-too-slow", "the headers did not come in time"),
    431: ("head-too-large", f"at most {HEAD_MOST} bytes of headers"),
}
