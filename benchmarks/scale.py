"""A job costs at most 1.3 x as much with 1,000,000 jobs waiting, delayed, or in 100,000 lanes.

Two Redis servers, one with a large backlog and one with a small one, take turns. Every measured job
is submitted, claimed and completed while the backlog keeps its size.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import AsyncExitStack
from functools import partial

import msgspec

from benchmarks.bench import PAYLOAD, QUEUE, WORKER, Bench, Plan, bench
from benchmarks.figure import Figure, Reference, at_most, measured
from benchmarks.measure import Contender, Cost, in_turns, server_us, wall_us
from benchmarks.raw_queue import LuaTables, RawQueue
from benchmarks.report import number
from towpath import hours, milliseconds
from towpath.clock import ManualClock
from towpath.engine.model import Complete, NewJob, new_job
from towpath.ids import LaneKey, new_job_id

BATCH = 50
MOST = 1.3
LEASE = hours(1)
DAY_MS = 24 * 3600 * 1000
FAR_MS = 10 * DAY_MS
STEP = milliseconds(1000)
"""What the manual clock moves in a cycle: delayed jobs of the cycle fall due by it."""


class BacklogKind(msgspec.Struct, frozen=True):
    """A kind of job: those of the backlog, and those that are measured on top of it."""

    name: str
    what: str
    small: int
    large: int
    backlog: Callable[[int], Iterable[NewJob]]
    """So many jobs of the backlog."""
    jobs: Callable[[int], Iterable[NewJob]]
    """Measured jobs without end, beside a backlog of so many."""


async def run(plan: Plan) -> list[Figure]:
    waiting, lanes = plan.count(1_000_000, 100_000), plan.count(100_000, 10_000)
    loads = [
        BacklogKind("waiting", f"{waiting:,} waiting", 1_000, waiting, _plain_backlog, _plain_jobs),
        BacklogKind(
            "delayed", f"{waiting:,} delayed", 1_000, waiting, _delayed_backlog, _delayed_jobs
        ),
        BacklogKind("lanes", f"{lanes:,} lanes", 1_000, lanes, _laned_backlog, _laned_jobs),
    ]
    raw = await _compare_raw(plan, small=1_000, large=waiting)
    ours = [figure for load in loads for figure in await _compare(plan, load, raw)]
    return [*ours, raw]


async def _compare_raw(plan: Plan, *, small: int, large: int) -> Figure:
    """The effect of the same backlog on a bare queue, which is the part of Redis."""
    async with AsyncExitStack() as stack:
        contenders: dict[str, Contender] = {}
        for size in (small, large):
            queue = RawQueue(await stack.enter_async_context(bench()), size)
            await queue.cost(BATCH)
            contenders[str(size)] = partial(queue.cost, plan.count(3_000, 1_500))
        costs = await in_turns(plan.count(5, 3), contenders)
    return measured(
        "scale.raw",
        f"{large:,} waiting in a bare queue: server CPU",
        "µs/job",
        server_us(costs[str(large)]),
        beside=Reference(f"µs/job with {small:,}", server_us(costs[str(small)])),
    )


async def _compare(plan: Plan, load: BacklogKind, raw: Figure) -> list[Figure]:
    async with AsyncExitStack() as stack:
        contenders: dict[str, Contender] = {}
        for size in (load.small, load.large):
            clock = ManualClock()
            workbench = await stack.enter_async_context(bench(clock=clock))
            await _fill(workbench, iter(load.backlog(size)))
            cycles = _Cycles(workbench, clock, load.jobs(size))
            await cycles.cost(BATCH)
            contenders[f"{size}"] = partial(cycles.cost, plan.count(3_000, 1_500))
            contenders[f"{size} in Lua"] = partial(LuaTables(workbench).cost, 10_000)
        costs = await in_turns(plan.count(5, 3), contenders)
    return _figures(load, costs, raw)


async def _fill(workbench: Bench, jobs: Iterator[NewJob]) -> None:
    """Fills with two calls at a time: while Redis runs one batch, the next one is made."""

    async def task() -> None:
        while batch := list(itertools.islice(jobs, 500)):
            await workbench.engine.submit_many(QUEUE, batch)

    await asyncio.gather(task(), task())


class _Cycles:
    """Submits 50, lets time pass, claims 50, completes 50: over and over on one Redis."""

    def __init__(self, workbench: Bench, clock: ManualClock, jobs: Iterable[NewJob]) -> None:
        self._bench, self._clock, self._jobs = workbench, clock, iter(jobs)

    async def cost(self, jobs: int) -> Cost:
        return await self._bench.meter.cost(jobs, self._run(jobs // BATCH))

    async def _run(self, cycles: int) -> None:
        engine = self._bench.engine
        for _ in range(cycles):
            await engine.submit_many(QUEUE, itertools.islice(self._jobs, BATCH))
            self._clock.advance(STEP)
            leases = await engine.claim(QUEUE, worker=WORKER, lease=LEASE, count=BATCH)
            assert len(leases) == BATCH, "the backlog shrank"
            await engine.settle([Complete(lease) for lease in leases])


def _figures(load: BacklogKind, costs: dict[str, list[Cost]], raw: Figure) -> list[Figure]:
    small, large = costs[f"{load.small}"], costs[f"{load.large}"]
    target = at_most(MOST, f"{load.small:,}")
    lua = measured(
        f"scale.{load.name}.lua",
        f"{load.what}: a script that only makes tables",
        "µs/table",
        server_us(costs[f"{load.large} in Lua"]),
        beside=Reference(f"µs/table with {load.small:,}", server_us(costs[f"{load.small} in Lua"])),
    )
    bound = (
        f"memory that is in no cache: a bare queue of this shape, without any rule, costs "
        f"{number(raw.ratio)} x as much, and a script that only makes tables {number(lua.ratio)} x "
        f"(scripts and data share one allocator)"
    )
    return [
        measured(
            f"scale.{load.name}",
            f"{load.what}: server CPU of a job's life",
            "µs/job",
            server_us(large),
            target,
            beside=Reference(f"µs/job with {load.small:,}", server_us(small)),
            bound=bound,
        ),
        measured(
            f"scale.{load.name}.wall",
            f"{load.what}: wall time of it",
            "µs/job",
            wall_us(large),
            target,
            beside=Reference(f"µs/job with {load.small:,}", wall_us(small)),
            bound=bound,
        ),
        lua,
    ]


# ── the jobs ─────────────────────────────────────────────────────────────────────────────────


def _plain_backlog(size: int) -> Iterable[NewJob]:
    return (new_job(PAYLOAD) for _ in range(size))


def _plain_jobs(_size: int) -> Iterable[NewJob]:
    return (new_job(PAYLOAD) for _ in itertools.count())


def _delayed_backlog(size: int) -> Iterable[NewJob]:
    """Jobs due in some days of the manual clock, spread over a day; the run does not reach them."""
    chance = random.Random(size)
    # As `new_job` makes them, but without its checks: a million of these take a while.
    return (
        NewJob(new_job_id(), PAYLOAD, {"delay": int(FAR_MS + chance.random() * DAY_MS)})
        for _ in range(size)
    )


def _delayed_jobs(_size: int) -> Iterable[NewJob]:
    """Jobs due at the next step of the clock: the claim that follows promotes them."""
    return (new_job(PAYLOAD, delay=STEP) for _ in itertools.count())


def _laned_backlog(lanes: int) -> Iterable[NewJob]:
    """Two jobs in every lane: a ready head and one behind it."""
    return (new_job(PAYLOAD, lane=_lane(i % lanes)) for i in range(2 * lanes))


def _laned_jobs(lanes: int) -> Iterable[NewJob]:
    """One more job for each lane in turn; completing a head makes the next job of its lane
    ready.
    """
    return (new_job(PAYLOAD, lane=_lane(i % lanes)) for i in itertools.count())


def _lane(number: int) -> LaneKey:
    return LaneKey(f"lane-{number}")
