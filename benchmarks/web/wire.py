"""HTTP/1.1 by hand: a client that costs little beside the server that it measures."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple, TypeAlias, cast

Place: TypeAlias = tuple[str, int]
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class HttpAnswer(NamedTuple):
    status: int
    body: bytes


class ConnectionLeft(Exception):
    """The server closed the connection."""


def request(
    method: str, path: str, key: str, body: bytes | None = None, *, name: str = ""
) -> bytes:
    """A request as bytes; with a *name* it can be repeated."""
    lines = [f"{method} {path} HTTP/1.1", "Host: bench", f"Authorization: Bearer {key}"]
    if name:
        lines.append(f"Idempotency-Key: {name}")
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


class HttpConnection(asyncio.Protocol):
    """One connection that is kept, with one request in flight. *answered* is called with each
    answer.
    """

    def __init__(self, answered: Callable[[HttpAnswer], None], lost: Callable[[], None]) -> None:
        self._answered, self._lost = answered, lost
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def send(self, data: bytes) -> None:
        assert self._transport is not None, "not connected"
        self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost()

    def data_received(self, data: bytes) -> None:
        """Most answers come in one piece."""
        self._buffer = data = self._buffer + data if self._buffer else data
        end = data.find(b"\r\n\r\n") + 4
        if end < 4:
            return
        length = _LENGTH.search(data, 0, end)
        whole = end + (int(length[1]) if length else 0)
        if len(data) >= whole:
            self._buffer = b""
            self._answered(HttpAnswer(int(data[9:12]), data[end:whole]))


class HttpClient:
    """A client that sends a request and waits for the answer."""

    def __init__(self, wire: Callable[[HttpClient], HttpConnection]) -> None:
        self.wire = wire(self)
        self._answer: asyncio.Future[HttpAnswer] | None = None

    async def ask(self, data: bytes) -> HttpAnswer:
        """The answer, whatever its status. Raises ConnectionLeft."""
        self._answer = asyncio.get_running_loop().create_future()
        self.wire.send(data)
        return await self._answer

    def heard(self, answer: HttpAnswer) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)

    def lost(self) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionLeft())


@asynccontextmanager
async def client(place: Place) -> AsyncGenerator[HttpClient]:
    """A client with a connection of its own. At the end it is cut off, like that of a killed
    process.
    """
    made = HttpClient(lambda self: HttpConnection(self.heard, self.lost))
    await asyncio.get_running_loop().create_connection(lambda: made.wire, *place)
    try:
        yield made
    finally:
        made.wire.close()
