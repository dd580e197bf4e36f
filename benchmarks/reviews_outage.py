"""10,000 tasks are accepted while Redis is down, and all are queued within 10 s of its return."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import NamedTuple

from benchmarks.bench import Bench, Plan, bench
from benchmarks.databases import CommitRates, Database, DatabaseKind, database, on_each
from benchmarks.figure import Figure, Reference, at_most, measured
from benchmarks.measure import Cost
from benchmarks.web.deliveries import deliveries
from benchmarks.web.load import LoadResult, send
from benchmarks.web.serving import ServerProcess, served_with
from towpath.ledger.ledger import Ledger
from towpath.ledger.records.record import RecordState

ROUNDS = 3
WITHIN_S = 10
_QUEUE = "reviews"
_NAME = "reviews_outage"
_LOOK_S = 0.02
_PATIENCE_S = 120.0


class OutageRound(NamedTuple):
    """One outage."""

    before: LoadResult
    """Webhooks while all was well."""
    during: LoadResult
    queued_s: float
    """From the first answer of the store that came back to the last task in its queue."""
    cpu_us: float
    """CPU of the server process for that, per task."""
    commits: CommitRates


async def run(plan: Plan) -> list[Figure]:
    tasks = plan.count(10_000, 300)

    async def of(kind: DatabaseKind) -> list[Figure]:
        return _figures(kind, tasks, [await _outage(plan, kind, tasks) for _ in range(ROUNDS)])

    return await on_each(of, name=_NAME, what=f"{tasks:,} tasks queued again", unit="s")


def _figures(kind: DatabaseKind, tasks: int, seen: list[OutageRound]) -> list[Figure]:
    name, last = f"{_NAME}.{kind}", seen[-1]
    bound = f"{last.cpu_us:.0f} µs of the server process's CPU a task; {last.commits}"
    return [
        measured(
            name,
            f"{tasks:,} tasks, {kind.said}: from the store's return until all are queued",
            "s",
            [round_.queued_s for round_ in seen],
            at_most(WITHIN_S),
            bound=bound,
        ),
        measured(
            f"{name}.accepted",
            f"{tasks:,} webhooks taken while the store is down",
            "webhooks/s",
            [round_.during.cost.rate for round_ in seen],
            beside=Reference(
                "webhooks/s before that", [round_.before.cost.rate for round_ in seen]
            ),
        ),
        measured(
            f"{name}.cpu",
            "CPU of the server process to queue one, after the outage",
            "µs",
            [round_.cpu_us for round_ in seen],
        ),
    ]


async def _outage(plan: Plan, kind: DatabaseKind, tasks: int) -> OutageRound:
    some = plan.count(1_000, 100)
    # Its log lines about the missing Redis are not wanted.
    quiet = {"TOWPATH_LOG__LEVEL": "error"}
    async with (
        database(kind) as kept,
        bench() as workbench,
        served_with(workbench, kept.url, **quiet) as serving,
    ):
        commits = await kept.commits(plan.count(200, 20))
        await _taken(serving, some // 2)
        before = await _taken(serving, some)
        workbench.server.kill()
        during = await _taken(serving, tasks)
        queued_s, cpu = await _back(workbench, kept, serving, tasks)
    return OutageRound(before, during, queued_s, cpu / tasks * 1e6, commits)


async def _back(
    workbench: Bench, kept: Database, serving: ServerProcess, tasks: int
) -> tuple[float, float]:
    """Starts Redis again, empty; returns the seconds until it has all tasks, and the CPU seconds
    for that.
    """
    expected = await _open_records(kept)
    assert expected >= tasks
    workbench.server.start()
    began, cpu = time.perf_counter(), serving.cpu()
    async with asyncio.timeout(_PATIENCE_S):
        while (await workbench.engine.inspect.counts(_QUEUE)).ready < expected:  # noqa: ASYNC110 -- only the server knows
            await asyncio.sleep(_LOOK_S)
    took = time.perf_counter() - began
    return took, serving.cpu() - cpu


async def _open_records(kept: Database) -> int:
    async with Ledger(kept.url) as ledger:
        return (await ledger.jobs.counts(_QUEUE))[RecordState.PENDING]


class _ClientMeter:
    """Measures costs without Redis, which may be down."""

    async def cost(self, jobs: int, work: Awaitable[object]) -> Cost:
        client, wall = time.process_time(), time.perf_counter()
        await work
        return Cost(jobs, time.perf_counter() - wall, time.process_time() - client, 0.0)


async def _taken(serving: ServerProcess, webhooks: int) -> LoadResult:
    requests = (request for _, request in deliveries(webhooks))
    return await send(_ClientMeter(), serving, requests, webhooks)
