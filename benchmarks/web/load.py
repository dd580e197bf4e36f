"""Load by a number of connections, each of which sends its next request when one is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Iterator
from time import perf_counter
from typing import Protocol

import msgspec

from benchmarks.bench import Bench
from benchmarks.measure import Cost
from benchmarks.web.serving import KEY, ServerProcess
from benchmarks.web.wire import HttpAnswer, HttpConnection, request

CONNECTIONS = 32
_SETTLED = (200, 202)


class LoadResult(msgspec.Struct, frozen=True):
    """The time and CPU for a number of requests."""

    cost: Cost
    """`client` is the load's own CPU, `server` the store's."""
    web: float
    """Seconds of CPU of the process that answered."""
    times_ms: list[float]
    """From the request to its answer, each."""

    @property
    def web_us(self) -> float:
        return self.web / self.cost.jobs * 1e6

    def spent(self) -> str:
        """How the time of one request was spent, in words."""
        cost = self.cost
        return (
            f"{cost.wall_us:.0f} µs, {self.web_us:.0f} of the server process's CPU, "
            f"{cost.server_us:.0f} of the store's and {cost.client_us:.0f} of the client's"
        )


class Costs(Protocol):
    """Measures the cost of work; a Meter, or a substitute while there is no Redis."""

    async def cost(self, jobs: int, work: Awaitable[object]) -> Cost: ...


async def load(workbench: Bench, serving: ServerProcess, bodies: Iterable[bytes]) -> LoadResult:
    """Posts each of *bodies* as a message, as fast as they are answered."""
    requests = [request("POST", "/api/v1/message", KEY, body) for body in bodies]
    return await send(workbench.meter, serving, iter(requests), len(requests))


async def send(
    meter: Costs, serving: ServerProcess, requests: Iterator[bytes], count: int
) -> LoadResult:
    """Sends each of *count* requests once. Any answer other than accepted is an error."""
    senders = [_Sender(requests) for _ in range(CONNECTIONS)]
    loop = asyncio.get_running_loop()
    for sender in senders:
        await loop.create_connection(lambda to=sender: to.wire, *serving.place)
    web = serving.cpu()
    try:
        cost = await meter.cost(count, asyncio.gather(*(one.go() for one in senders)))
    finally:
        for sender in senders:
            sender.wire.close()
    times = [ms for sender in senders for ms in sender.times_ms]
    assert len(times) == count, "not all were answered"
    return LoadResult(cost, serving.cpu() - web, times)


class _Sender:
    """One connection. No task is woken between an answer and the next request, which is cheap."""

    def __init__(self, requests: Iterator[bytes]) -> None:
        self.wire = HttpConnection(self._answered, self._lost)
        self.times_ms: list[float] = []
        self._requests = requests
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sent = 0.0

    async def go(self) -> None:
        self._next()
        await self._done

    def _next(self) -> None:
        following = next(self._requests, None)
        if following is None:
            self._done.set_result(None)
            return
        self._sent = perf_counter()
        self.wire.send(following)

    def _answered(self, answer: HttpAnswer) -> None:
        self.times_ms.append((perf_counter() - self._sent) * 1000)
        if answer.status in _SETTLED:
            self._next()
        elif not self._done.done():
            self._done.set_exception(AssertionError(f"{answer.status}: {answer.body[:200]!r}"))

    def _lost(self) -> None:
        if not self._done.done():
            self._done.set_exception(AssertionError("the server closed a connection"))
