"""`towpath bench`: measures how fast Redis takes, hands out and settles jobs, from here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from time import monotonic
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from towpath.console.verb import Session, verb

if TYPE_CHECKING:
    from towpath.console.output import Output
    from towpath.engine.engine import Engine

EXAMPLES = """
    towpath bench
    towpath bench --jobs 50000 --json
    towpath bench --url redis://queue.example:6379 --yes
"""
_HERE = {"localhost", "127.0.0.1", "::1"}
_SINGLE = 20
"""One in this many jobs is done one by one, with its own round trips."""


async def bench(
    session: Session,
    *,
    jobs: Annotated[
        int, typer.Option("--jobs", "-n", min=100, max=10_000_000, help="How many jobs in bulk.")
    ] = 10_000,
    batch: Annotated[int, typer.Option(min=1, max=500, help="How many jobs per batch.")] = 100,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Allow a Redis on another machine.")
    ] = False,
) -> None:
    """Measure the speed of Redis, from this machine.

    Submits, claims and completes empty jobs in a queue of its own, which is deleted afterwards.
    One process makes one call after the other, with leases and tokens like a worker; it runs no
    handlers. A Redis on another machine may be in use: for this, pass --yes.
    """
    from towpath.engine.scratch import scratch_queue  # noqa: PLC0415 -- slow to import

    if not all(host in _HERE for host, _ in session.settings.address.hosts):
        session.confirm(f"{session.settings.shown} is not on this machine.", yes=yes)
    out = session.out
    async with session.engine() as engine, scratch_queue(engine) as queue:
        facts = engine.facts
        out.note(f"{facts.flavour} {facts.version}, class {facts.durability}, {jobs} jobs")
        async for measure in measured(engine, queue, out, jobs=jobs, batch=batch):
            out.answer(measure._asdict(), measure.in_words())


class Measure(NamedTuple):
    """The number of jobs of a step, and its times."""

    step: str
    jobs: int
    calls: int
    seconds: float
    per_second: float
    p50_ms: float
    p99_ms: float

    def in_words(self) -> str:
        rare = f", 1 in 100 more than {self.p99_ms:.2f} ms" if self.calls >= 100 else ""
        return (
            f"{self.step:<26} {self.per_second:>9,.0f}/s   "
            f"{self.calls} calls of {self.p50_ms:.2f} ms{rare}"
        )


async def measured(
    engine: Engine, queue: str, out: Output, *, jobs: int, batch: int
) -> AsyncIterator[Measure]:
    """Measure one step after the other; the queue is empty after the last one."""
    from towpath.clock import minutes  # noqa: PLC0415 -- slow to import
    from towpath.engine.batcher import LARGEST_BATCH  # noqa: PLC0415 -- the same
    from towpath.engine.model import Complete, Settlement, new_job  # noqa: PLC0415 -- the same

    lease_time = minutes(1)
    singles = max(100, jobs // _SINGLE)
    with out.progress("measuring", 2 * (singles + jobs)) as advance:
        timer = _Timer(advance)
        for _ in range(singles):
            await timer.time(1, engine.submit(queue, b"null"))
        yield timer.measure("submit one by one")
        for _ in range(singles):
            timer.start()
            [lease] = await engine.claim(queue, worker="bench", lease=lease_time)
            await engine.complete(lease)
            timer.stop(1)
        yield timer.measure("claim and complete, one")
        for start in range(0, jobs, LARGEST_BATCH):
            portion = [new_job(b"null") for _ in range(min(LARGEST_BATCH, jobs - start))]
            await timer.time(len(portion), engine.submit_many(queue, portion))
        yield timer.measure("submit in bulk")
        finished: list[Settlement] = []
        while True:
            timer.start()
            exchanged = await engine.exchange(
                queue, finished, worker="bench", lease=lease_time, count=batch
            )
            timer.stop(len(finished))
            finished = [Complete(lease) for lease in exchanged.leases]
            if not finished:
                break
        yield timer.measure("claim and complete, batch")


class _Timer:
    """Adds up calls of one step."""

    def __init__(self, advance: Callable[[int], None]) -> None:
        self._advance = advance
        self._jobs, self._calls, self._began = 0, list[float](), 0.0

    def start(self) -> None:
        self._began = monotonic()

    def stop(self, jobs: int) -> None:
        self._calls.append(monotonic() - self._began)
        self._jobs += jobs
        self._advance(jobs)

    async def time(self, jobs: int, call: Awaitable[object]) -> None:
        self.start()
        await call
        self.stop(jobs)

    def measure(self, step: str) -> Measure:
        """The measurement of the times since the last call."""
        calls, jobs = sorted(self._calls), self._jobs
        self._calls, self._jobs = [], 0
        total = sum(calls)
        at_99 = calls[min(len(calls) - 1, len(calls) * 99 // 100)]
        half = calls[len(calls) // 2]
        rate = jobs / total
        return Measure(step, jobs, len(calls), total, rate, half * 1000, at_99 * 1000)


def register(towpath: typer.Typer) -> None:
    verb(towpath, "bench", examples=EXAMPLES)(bench)
