"""Glances: one look at many queues for all waiters, instead of a claim for each.

If the waiters of a thousand idle queues claimed every few seconds, Redis and the process would be
busy for nothing. Instead, one message per Redis server asks which of these queues have jobs at all.
Only queues that have some are looked at more closely, and waiters claim only from those that can
give a job. So a job is found even if its wake-up was lost.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from towpath.clock import Clock
from towpath.engine.cluster import Cluster
from towpath.engine.connection import Place
from towpath.engine.keys import keys_of
from towpath.engine.resp import TROUBLE
from towpath.ids import QueueName
from towpath.supervise import detached

_AT_ONCE = 50
"""Queues in one command."""
_ANSWER_S = 5.0


class Waiter(Protocol):
    """A waiter for work: a future, or an object that acts as soon as it is called."""

    def done(self) -> bool:
        """Whether the waiter was called, or waits no longer."""
        ...

    def set_result(self, result: str, /) -> None:
        """Call the waiter: there may be work under that name."""
        ...


class Waiters:
    """The waiters for work, by the name of a queue or selector. The oldest is called first."""

    def __init__(self) -> None:
        self._by_name: dict[str, deque[Waiter]] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def add(self, waiter: Waiter, *names: str) -> None:
        """Let *waiter* be called once, for any of *names*, unless it is done by then."""
        for name in names:
            self._by_name.setdefault(name, deque()).append(waiter)

    def call_one(self, name: str) -> bool:
        """Call the oldest waiter for *name*. Returns False if there is none."""
        waiters = self._by_name.get(name, ())
        while waiters and waiters[0].done():
            waiters.popleft()
        if not waiters:
            self._by_name.pop(name, None)
            return False
        waiters.popleft().set_result(name)
        return True

    def call_all(self) -> None:
        """Call all waiters."""
        for name in list(self._by_name):
            for waiter in self._by_name.pop(name, ()):
                if not waiter.done():
                    waiter.set_result(name)

    def names(self) -> list[str]:
        """The names that have waiters."""
        for name, waiters in list(self._by_name.items()):
            while waiters and waiters[0].done():
                waiters.popleft()
            if not waiters:
                del self._by_name[name]
        return list(self._by_name)


class Glances:
    """Looks at the queues of *waiters* while there are any. *every* gives the seconds between looks
    for a number of queues.
    """

    def __init__(
        self, cluster: Cluster, clock: Clock, waiters: Waiters, every: Callable[[int], float]
    ) -> None:
        self._cluster, self._clock, self._waiters, self._every = cluster, clock, waiters, every
        self._channel = cluster.channel()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start looking; without effect if it runs already."""
        if self._task is None or self._task.done():
            self._task = detached("glance at queues", self._look_repeatedly())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        await self._channel.close()

    async def _look_repeatedly(self) -> None:
        while count := len(self._waiters.names()):
            every = self._every(count)
            await asyncio.sleep(every)
            try:
                async with asyncio.timeout(_ANSWER_S):
                    for queues in self._by_server(self._waiters.names()):
                        await self._look(queues, every)
            except TROUBLE:
                # Each waiter claims, and meets the trouble or finds it over.
                await self._channel.hang_up()
                self._waiters.call_all()
        await self._channel.close()

    def _by_server(self, names: Sequence[str]) -> list[list[QueueName]]:
        found: dict[Place | None, list[QueueName]] = {}
        for queue in map(QueueName, names):
            found.setdefault(self._cluster.owner(keys_of(queue).queue), []).append(queue)
        return list(found.values())

    async def _look(self, queues: Sequence[QueueName], every: float) -> None:
        """Call a waiter for each of these queues, all of one server, that has a job now or soon."""
        # In a cluster a command can't span slots.
        groups = list(_chunks(queues, 1 if self._cluster.in_slots else _AT_ONCE))
        asked = [("EXISTS", *(key for queue in group for key in _keys(queue))) for group in groups]
        answers = await self._channel.send_all(asked)
        there = [
            name for group, some in zip(groups, answers, strict=True) if some for name in group
        ]
        if not there:
            return
        details: list[tuple[Any, ...]] = []
        for queue in there:
            ready, *times = _keys(queue)
            details += [("ZCARD", ready), *(("ZRANGE", key, 0, 0, "WITHSCORES") for key in times)]
        # The clock is read in the same message, from the server that has the queues.
        *replies, clock = await self._channel.send_all([*details, ("TIME",)])
        stamp = self._clock.stamp()
        now = int(stamp) if stamp else int(clock[0]) * 1000 + int(clock[1]) // 1000
        for queue, answer in zip(there, _chunks(replies, 3), strict=True):
            self._call_waiter(queue, _wait_ms(answer, now), every)

    def _call_waiter(self, queue: QueueName, wait_ms: float, every: float) -> None:
        if wait_ms <= 0:
            self._waiters.call_one(queue)
        elif wait_ms < every * 1000:
            loop = asyncio.get_running_loop()
            loop.call_later(wait_ms / 1000, self._waiters.call_one, queue)


def _keys(queue: QueueName) -> tuple[str, str, str]:
    keys = keys_of(queue)
    return keys.queue, keys.retry, keys.leases


def _chunks(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (items[at : at + size] for at in range(0, len(items), size))


def _wait_ms(answer: Sequence[Any], now: int) -> float:
    """Milliseconds until the queue has a job, as far as is known; 0 or less = now."""
    if any(isinstance(reply, Exception) for reply in answer):
        return 0  # a broken key, or on another server by now: a claim will meet that
    ready, *firsts = answer
    if ready:
        return 0
    return min([float(first[1]) - now for first in firsts if first], default=float("inf"))
