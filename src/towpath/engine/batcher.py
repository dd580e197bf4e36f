"""The micro-batcher: submits that come at the same time travel in one script call.

A lone submit waits for nobody: it is sent in the same turn of the event loop. While calls are
in flight, what comes meanwhile is gathered and sent together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from towpath.engine.durability import Durability
from towpath.engine.model import NewJob
from towpath.errors import ScriptDefect
from towpath.ids import QueueName

FLIGHTS = 2
"""Calls in flight per lot: while the server works on one, the next is being made."""
LARGEST_BATCH = 500
"""Jobs in one script call. A longer list of submits becomes several calls."""
_LARGEST_CALL_BYTES = 8 * 1024 * 1024

Send = Callable[[QueueName, list[NewJob], Durability | None], Awaitable[list[Any]]]


class _Lot:
    """Submits that may share a call: one queue, one durability class."""

    __slots__ = ("crowded", "durability", "flying", "pending", "queue")

    def __init__(self, queue: QueueName, durability: Durability | None) -> None:
        self.queue, self.durability = queue, durability
        self.pending: list[tuple[NewJob, asyncio.Future[Any]]] = []
        self.flying = 0
        self.crowded = True
        """Whether others came at the same time as the last one that could have gone alone."""


def _promise(lot: _Lot, job: NewJob, place: int) -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    lot.pending.insert(place, (job, future))
    lot.crowded = True
    return future


class Batcher:
    """Joins concurrent submits; *send* carries a batch and answers job by job."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._lots: dict[tuple[QueueName, Durability | None], _Lot] = {}
        self._flights: set[asyncio.Task[None]] = set()
        self._landed = asyncio.Event()

    async def submit(self, queue: QueueName, job: NewJob, durability: Durability | None) -> Any:
        """The raw answer to *job*."""
        lot = self._lots.get((queue, durability))
        if lot is None:
            lot = self._lots[queue, durability] = _Lot(queue, durability)
        if lot.flying or lot.pending:
            return await self._join(lot, job)
        lot.flying = 1
        try:
            if lot.crowded:
                # One turn of the loop, in which those that come at the same time show up.
                await asyncio.sleep(0)
                lot.crowded = bool(lot.pending)
            if not lot.pending:
                [answer] = await self._send(queue, [job], durability)
                return answer
            future = _promise(lot, job, 0)
        finally:
            self._land(lot)
        return await future

    def _join(self, lot: _Lot, job: NewJob) -> asyncio.Future[Any]:
        future = _promise(lot, job, len(lot.pending))
        self._take_off(lot)
        return future

    def _take_off(self, lot: _Lot) -> None:
        """Send what is pending, unless it can still gather behind calls in flight."""
        waiting = len(lot.pending)
        if waiting and (lot.flying == 0 or (lot.flying < FLIGHTS and waiting >= LARGEST_BATCH)):
            lot.flying += 1
            flight = asyncio.create_task(self._fly(lot))
            self._flights.add(flight)
            flight.add_done_callback(self._flights.discard)

    async def close(self) -> None:
        """Wait for what is under way."""
        while any(lot.flying for lot in self._lots.values()):
            self._landed.clear()
            await self._landed.wait()

    def _land(self, lot: _Lot) -> None:
        lot.flying -= 1
        self._take_off(lot)
        self._landed.set()

    async def _fly(self, lot: _Lot) -> None:
        try:
            while lot.pending:
                portion = next(portions([job for job, _ in lot.pending]))
                batch, lot.pending = lot.pending[: len(portion)], lot.pending[len(portion) :]
                await self._carry(lot, portion, [future for _, future in batch])
        finally:
            self._land(lot)

    async def _carry(
        self, lot: _Lot, jobs: list[NewJob], futures: list[asyncio.Future[Any]]
    ) -> None:
        try:
            answers = await self._send(lot.queue, jobs, lot.durability)
        except BaseException as error:
            for future in futures:
                if not future.done():
                    future.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        if len(answers) != len(jobs):
            defect = ScriptDefect(f"{len(jobs)} jobs were submitted, {len(answers)} answered")
            answers = [defect] * len(jobs)
        for future, answer in zip(futures, answers, strict=True):
            if not future.done():
                future.set_result(answer)


def portions(jobs: list[NewJob]) -> Iterator[list[NewJob]]:
    """*jobs* in portions that are one script call each: bounded in number and in bytes."""
    start = size = 0
    for i, job in enumerate(jobs):
        size += len(job.payload)
        if i - start == LARGEST_BATCH or (i > start and size > _LARGEST_CALL_BYTES):
            yield jobs[start:i]
            start, size = i, len(job.payload)
    if start < len(jobs):
        yield jobs[start:]
