"""A server, a worker and their database under load; and the highest rate that goes well."""

from __future__ import annotations

import time
from typing import NamedTuple, Protocol

from benchmarks.databases import Database
from benchmarks.measure import Meter, percentile
from benchmarks.web.deliveries import deliveries
from benchmarks.web.offered import Offered
from benchmarks.web.reviewing import Reviewing
from benchmarks.web.serving import Serving

RATES = (
    25, 50, 100, 200, 300, 400, 500, 600, 750, 1_000, 1_250, 1_500, 1_750, 2_000, 2_500, 3_000,
    4_000, 5_000,
)  # fmt: skip
_LATE_S = 120.0


class Spent(NamedTuple):
    """CPU of each process, at first in seconds, then in µs per task."""

    server: float
    worker: float
    database: float
    store: float
    client: float


class Step(NamedTuple):
    """What became of the tasks of one rate."""

    rate: int
    times_ms: list[float]
    """From when each webhook was due to be sent to the start of its reviewer."""
    spent: Spent

    def started(self, share: float) -> float:
        return percentile(self.times_ms, share)

    @property
    def went_well(self) -> bool:
        return self.started(0.95) < 1_000 and self.started(0.99) < 2_000


class Line:
    """The way of a task from its webhook to its reviewer."""

    def __init__(self, serving: Serving, worker: Reviewing, meter: Meter, kept: Database) -> None:
        self._serving, self._worker, self.meter, self._kept = serving, worker, meter, kept
        self.sent = 0

    async def step(self, rate: int, count: int) -> Step:
        """Offer so many webhooks at that rate; all must have started, however late."""
        before, offered = self._used(), Offered()
        await offered.send(self._serving.place, deliveries(count), rate=rate, count=count)
        self.sent += count
        await self._worker.until(self.sent, within=_LATE_S)
        spent = (now - then for now, then in zip(self._used(), before, strict=True))
        began = self._worker.began
        times = [(began[id] - due) / 1e6 for id, due in offered.due.items()]
        return Step(rate, times, Spent(*(each / count * 1e6 for each in spent)))

    def _used(self) -> Spent:
        return Spent(
            self._serving.cpu(),
            self._worker.cpu(),
            self._kept.cpu(),
            self.meter.server_cpu(),
            time.process_time(),
        )


class Steps(Protocol):
    async def step(self, rate: int, count: int) -> Step: ...


async def highest(line: Steps, start: int, seconds: int) -> Step:
    """Go up from *start* until a rate does not go well, or down until one does."""
    at = RATES.index(start)
    step = await line.step(RATES[at], RATES[at] * seconds)
    if step.went_well:
        while at + 1 < len(RATES):
            further = await line.step(RATES[at + 1], RATES[at + 1] * seconds)
            if not further.went_well:
                break
            step, at = further, at + 1
        return step
    while not step.went_well and at > 0:
        at -= 1
        step = await line.step(RATES[at], RATES[at] * seconds)
    return step
