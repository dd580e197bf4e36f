"""Clients that each wait for an answer on an event stream, at the cost of a socket and a few
bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Self, cast

from benchmarks.web.serving import KEY
from benchmarks.web.wire import Place, request

_AT_ONCE = 16
"""Clients that connect at the same time."""
_WITHIN = 120.0
_TAIL = 32
"""An event's name may come in two pieces."""


class Listeners:
    """All clients of one server; they disconnect at the end of the block."""

    def __init__(self, place: Place) -> None:
        self._place, self._all = place, list[_Listener]()
        self._connecting = asyncio.Semaphore(_AT_ONCE)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for listener in self._all:
            listener.close()

    async def add(self, ids: Sequence[str]) -> None:
        """Adds a client for each of these messages; returns when all know their position."""
        async with asyncio.timeout(_WITHIN):
            await asyncio.gather(*(self._add(id) for id in ids))

    async def answered(self) -> None:
        """Returns when each client has its answer. Raises TimeoutError."""
        async with asyncio.timeout(_WITHIN):
            await asyncio.gather(*(listener.answer for listener in self._all))

    async def _add(self, id: str) -> None:
        async with self._connecting:
            listener = _Listener(request("GET", f"/api/v1/message/{id}/events", KEY))
            self._all.append(listener)
            loop = asyncio.get_running_loop()
            await loop.create_connection(lambda: listener, *self._place)
            await listener.position


class _Listener(asyncio.Protocol):
    def __init__(self, wish: bytes) -> None:
        self._wish, self._tail = wish, b""
        self._transport: asyncio.Transport | None = None
        self.position: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._wish)

    def data_received(self, data: bytes) -> None:
        text = self._tail + data
        for event, future in ((b"event: position", self.position), (b"event: answer", self.answer)):
            if event in text and not future.done():
                future.set_result(None)
        self._tail = text[-_TAIL:]

    def connection_lost(self, exc: Exception | None) -> None:
        for future in (self.position, self.answer):
            if not future.done():
                future.set_exception(AssertionError("the server ended a stream early"))

    def close(self) -> None:
        for future in (self.position, self.answer):
            future.cancel()
        if self._transport is not None:
            self._transport.abort()
