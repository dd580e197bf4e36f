"""Load at a rate that does not depend on the answers, like webhooks.

A request that finds no free connection waits, and its time counts from when it was due: a server
that falls behind cannot hide it by slowing down its clients.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from itertools import islice
from time import perf_counter_ns

from benchmarks.web.wire import HttpAnswer, HttpConnection, Place

CONNECTIONS = 128
_LATE_S = 60.0
_TICK_S = 0.002


class OfferedLoad:
    """Connections over which requests are offered."""

    def __init__(self) -> None:
        self.due: dict[str, int] = {}
        """When each request was to be sent, in ns."""
        self.answered: dict[str, int] = {}
        """When each was answered."""
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._free: list[_Sender] = []
        self._all: list[_Sender] = []
        self._left = 0
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def send(
        self, place: Place, requests: Iterator[tuple[str, bytes]], *, rate: int, count: int
    ) -> None:
        """Offers *count* requests, each when it is due. Raises the first error of any."""
        loop = asyncio.get_running_loop()
        self._all = [_Sender(self) for _ in range(min(CONNECTIONS, count))]
        for sender in self._all:
            await loop.create_connection(lambda to=sender: to.wire, *place)
        self._free = list(self._all)
        self._left = count
        try:
            await self._offer(requests, rate, count)
            async with asyncio.timeout(_LATE_S):
                await self._done
        finally:
            self._left = 0
            for sender in self._all:
                sender.wire.close()

    async def _offer(self, requests: Iterator[tuple[str, bytes]], rate: int, count: int) -> None:
        """Offers the due requests every few milliseconds."""
        began, number = perf_counter_ns(), 0
        while number < count and not self._done.done():
            await asyncio.sleep(_TICK_S)
            passed = perf_counter_ns() - began
            for id, request in islice(requests, min(count, passed * rate // 10**9) - number):
                self.due[id] = began + number * 10**9 // rate
                self._waiting.append((id, request))
                number += 1
            self._use_free()

    def _use_free(self) -> None:
        while self._waiting and self._free:
            self._free.pop().send(*self._waiting.popleft())

    def heard(self, sender: _Sender, id: str, answer: HttpAnswer) -> None:
        if answer.status != 202:
            self.failed(f"{answer.status}: {answer.body[:200]!r}")
            return
        self.answered[id] = perf_counter_ns()
        self._free.append(sender)
        self._left -= 1
        if self._left == 0 and not self._done.done():
            self._done.set_result(None)
        self._use_free()

    def failed(self, why: str) -> None:
        if self._left and not self._done.done():
            self._done.set_exception(AssertionError(why))


class _Sender:
    def __init__(self, offered: OfferedLoad) -> None:
        self.wire = HttpConnection(self._answered, self._lost)
        self._offered, self._id = offered, ""

    def send(self, id: str, request: bytes) -> None:
        self._id = id
        self.wire.send(request)

    def _answered(self, answer: HttpAnswer) -> None:
        self._offered.heard(self, self._id, answer)

    def _lost(self) -> None:
        self._offered.failed("the server closed a connection")
