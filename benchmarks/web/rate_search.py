"""A server, a worker and their database under load; and the highest rate without delays."""

from __future__ import annotations

import time
from typing import NamedTuple, Protocol

from benchmarks.databases import Database
from benchmarks.measure import Meter, percentile
from benchmarks.web.deliveries import deliveries
from benchmarks.web.offered import OfferedLoad
from benchmarks.web.reviewing import ReviewWorker
from benchmarks.web.serving import ServerProcess

RATES = (
    25, 50, 100, 200, 300, 400, 500, 600, 750, 1_000, 1_250, 1_500, 1_750, 2_000, 2_500, 3_000,
    4_000, 5_000,
)  # fmt: skip
_LATE_S = 120.0


class CpuSpent(NamedTuple):
    """The CPU of each process, first in seconds, then in µs per task."""

    server: float
    worker: float
    database: float
    store: float
    client: float


class RateStep(NamedTuple):
    """The result of one rate."""

    rate: int
    times_ms: list[float]
    """From when each webhook was due to be sent to the start of its reviewer."""
    spent: CpuSpent

    def started(self, share: float) -> float:
        return percentile(self.times_ms, share)

    @property
    def went_well(self) -> bool:
        return self.started(0.95) < 1_000 and self.started(0.99) < 2_000


class ReviewPipeline:
    """The path of a task from its webhook to its reviewer."""

    def __init__(
        self, serving: ServerProcess, worker: ReviewWorker, meter: Meter, kept: Database
    ) -> None:
        self._serving, self._worker, self.meter, self._kept = serving, worker, meter, kept
        self.sent = 0

    async def step(self, rate: int, count: int) -> RateStep:
        """Offers so many webhooks at that rate; all must have started, however late."""
        before, offered = self._used(), OfferedLoad()
        await offered.send(self._serving.place, deliveries(count), rate=rate, count=count)
        self.sent += count
        await self._worker.until(self.sent, within=_LATE_S)
        spent = (now - then for now, then in zip(self._used(), before, strict=True))
        began = self._worker.began
        times = [(began[id] - due) / 1e6 for id, due in offered.due.items()]
        return RateStep(rate, times, CpuSpent(*(each / count * 1e6 for each in spent)))

    def _used(self) -> CpuSpent:
        return CpuSpent(
            self._serving.cpu(),
            self._worker.cpu(),
            self._kept.cpu(),
            self.meter.server_cpu(),
            time.process_time(),
        )


class Pipeline(Protocol):
    async def step(self, rate: int, count: int) -> RateStep: ...


async def highest_rate(pipeline: Pipeline, start: int, seconds: int) -> RateStep:
    """Goes up from *start* until a rate fails, or down until one succeeds."""
    at = RATES.index(start)
    step = await pipeline.step(RATES[at], RATES[at] * seconds)
    if step.went_well:
        while at + 1 < len(RATES):
            further = await pipeline.step(RATES[at + 1], RATES[at + 1] * seconds)
            if not further.went_well:
                break
            step, at = further, at + 1
        return step
    while not step.went_well and at > 0:
        at -= 1
        step = await pipeline.step(RATES[at], RATES[at] * seconds)
    return step
