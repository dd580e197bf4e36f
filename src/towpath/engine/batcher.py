"""The micro-batcher: submits that come at the same time travel in one script call.

A lone submit waits for nobody: it is sent in the same turn of the event loop. While calls are
in flight, what comes meanwhile is gathered and sent together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from towpath.engine.durability import Durability
from towpath.engine.model import NewJob
from towpath.errors import ScriptDefect
from towpath.ids import QueueName

FLIGHTS = 2
"""Calls in flight per lot: while the server works on one, the next is being made."""
LARGEST = 500

Send = Callable[[QueueName, list[NewJob], Durability | None], Awaitable[list[Any]]]


class _Lot:
    """Submits that may share a call: one queue, one durability class."""

    __slots__ = ("durability", "flying", "pending", "queue")

    def __init__(self, queue: QueueName, durability: Durability | None) -> None:
        self.queue, self.durability = queue, durability
        self.pending: list[tuple[NewJob, asyncio.Future[Any]]] = []
        self.flying = 0


class Batcher:
    """Joins concurrent submits; *send* carries a batch and answers job by job."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._lots: dict[tuple[QueueName, Durability | None], _Lot] = {}
        self._flights: set[asyncio.Task[None]] = set()

    def submit(
        self, queue: QueueName, job: NewJob, durability: Durability | None
    ) -> asyncio.Future[Any]:
        """The raw answer to *job*, as a future."""
        lot = self._lots.get((queue, durability))
        if lot is None:
            lot = self._lots[queue, durability] = _Lot(queue, durability)
        future = asyncio.get_running_loop().create_future()
        lot.pending.append((job, future))
        if lot.flying < FLIGHTS and (lot.flying == 0 or len(lot.pending) >= LARGEST):
            lot.flying += 1
            flight = asyncio.create_task(self._fly(lot))
            self._flights.add(flight)
            flight.add_done_callback(self._flights.discard)
        return future

    async def close(self) -> None:
        """Wait for what is under way."""
        while self._flights:
            await asyncio.wait(self._flights)

    async def _fly(self, lot: _Lot) -> None:
        try:
            while lot.pending:
                batch, lot.pending = lot.pending[:LARGEST], lot.pending[LARGEST:]
                await self._carry(lot, batch)
        finally:
            lot.flying -= 1

    async def _carry(self, lot: _Lot, batch: list[tuple[NewJob, asyncio.Future[Any]]]) -> None:
        try:
            answers = await self._send(lot.queue, [job for job, _ in batch], lot.durability)
        except BaseException as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        if len(answers) != len(batch):
            defect = ScriptDefect(f"{len(batch)} jobs were submitted, {len(answers)} answered")
            answers = [defect] * len(batch)
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)
