"""How a worker and its queues stand, for whoever scrapes its metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from towpath.engine.engine import Engine
from towpath.engine.inspect import Counts
from towpath.errors import EngineClosed
from towpath.telemetry.metrics import QueueReading, Reading
from towpath.worker.fetch import Feeder
from towpath.worker.slots import Slots

_WITHIN = 2.0


class Readings:
    """Answers a scrape, from the scraper's own thread."""

    def __init__(self, engine: Engine, feeders: Sequence[Feeder], slots: Slots) -> None:
        self._engine, self._feeders, self._slots = engine, feeders, slots
        self._loop = asyncio.get_running_loop()
        self._closed = False

    def close(self) -> None:
        """The worker ends: there is nothing to read any more."""
        self._closed = True

    def read(self) -> Reading:
        """How everything stands. Raises TowpathError, TimeoutError."""
        if self._closed:
            raise EngineClosed("the worker has ended")
        asked = asyncio.run_coroutine_threadsafe(self._read(), self._loop)
        return asked.result(_WITHIN)

    async def _read(self) -> Reading:
        slots = self._slots
        return Reading(
            queues=[await self._queue(feeder) for feeder in self._feeders],
            slots={"busy": slots.total - slots.free, "free": slots.free, "lost": slots.lost},
        )

    async def _queue(self, feeder: Feeder) -> QueueReading:
        counts = await self._engine.counts(feeder.queue)
        return queue_reading(feeder.queue, counts, leases=feeder.held)


def queue_reading(queue: str, counts: Counts, *, leases: int = 0) -> QueueReading:
    """How a queue stands whose jobs were counted just now."""
    return QueueReading(
        queue=queue,
        depth={
            "ready": counts.ready,
            "delayed": counts.delayed,
            "waiting": counts.waiting,
            "leased": counts.leased,
            "dead": counts.dead,
        },
        oldest=counts.oldest.total_seconds() if counts.oldest else 0.0,
        leases=leases,
    )
