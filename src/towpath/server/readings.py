"""How all queues of the store stand, for whoever scrapes the server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from towpath.engine.engine import Engine
from towpath.ledger.keys.key import KeyInfo
from towpath.telemetry.metrics import QueueReading, Reading
from towpath.worker.readings import queue_reading

PLACE = "server"
_WITHIN = 2.0
_AT_ONCE = 16


class QueueReadings:
    """Answers a scrape, from the scraper's own thread. One round trip per queue."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._loop = engine, asyncio.get_running_loop()

    def read(self) -> Reading:
        """How every queue stands. Raises TowpathError, TimeoutError."""
        asked = asyncio.run_coroutine_threadsafe(self._read(), self._loop)
        try:
            return asked.result(_WITHIN)
        finally:
            asked.cancel()

    async def _read(self) -> Reading:
        names = sorted(await self._engine.queues())
        found: list[QueueReading] = []
        for start in range(0, len(names), _AT_ONCE):
            part = names[start : start + _AT_ONCE]
            found += await asyncio.gather(*map(self._queue, part))
        return Reading(queues=found)

    async def _queue(self, name: str) -> QueueReading:
        return queue_reading(name, await self._engine.counts(name))


class _Seen(Collector):
    def __init__(self, registry: CollectorRegistry, key: KeyInfo) -> None:
        self._registry, self._key = registry, key

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            family.samples = [
                it for it in family.samples if self._covers(it.labels.get("queue", ""))
            ]
            yield family

    def _covers(self, queue: str) -> bool:
        return not queue or self._key.covers(queue)


def seen_with(key: KeyInfo, registry: CollectorRegistry) -> CollectorRegistry:
    """What *key* lets its holder see of *registry*: nothing about queues that it is not for."""
    seen = CollectorRegistry()
    seen.register(_Seen(registry, key))
    return seen
