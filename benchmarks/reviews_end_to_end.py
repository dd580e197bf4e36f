"""From webhook to reviewer: the highest rate at which 95 % start within 1 s and 99 % within 2 s."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from benchmarks.bench import Plan, bench
from benchmarks.databases import BATCH, CommitRates, Database, DatabaseKind, database, on_each
from benchmarks.figure import Figure, Reference, at_least, below, measured
from benchmarks.web.deliveries import deliveries
from benchmarks.web.load import send
from benchmarks.web.rate_search import CpuSpent, RateStep, ReviewPipeline, highest_rate
from benchmarks.web.reviewing import reviewing
from benchmarks.web.serving import empty, served_with
from towpath.ledger.ledger import Ledger
from towpath.ledger.records.record import RecordState

ROUNDS = 3
BAR = 100
"""Tasks a second that were asked for; the targets below are a multiple of it."""
TARGETS = {DatabaseKind.SQLITE: 5 * BAR, DatabaseKind.POSTGRES: 10 * BAR}
_NAME = "reviews_end_to_end"
_WARM = 100
_PATIENCE_S = 60.0
_LOOK_S = 0.1


class EndToEndRound(NamedTuple):
    """One round."""

    bar: RateStep
    """At the rate that was asked for."""
    most: RateStep
    """At the highest that went well."""
    commits: CommitRates
    empty: float
    """Requests per second of an endpoint that does nothing."""


async def run(plan: Plan) -> list[Figure]:
    async def of(kind: DatabaseKind) -> list[Figure]:
        async with database(kind) as kept:
            return _figures(kind, await _rounds(plan, kept))

    return await on_each(of, name=_NAME, what="webhook to reviewer", unit="tasks/s")


async def _rounds(plan: Plan, kept: Database) -> list[EndToEndRound]:
    seconds, seen, start = plan.count(10, 2), list[EndToEndRound](), TARGETS[kept.kind]
    async with _pipeline(kept) as pipeline, empty(kept.url) as nothing:
        await pipeline.step(BAR, _WARM)
        for _ in range(ROUNDS):
            commits = await kept.commits(plan.count(200, 20))
            requests = (request for _, request in deliveries(plan.count(2_000, 200)))
            idle = await send(pipeline.meter, nothing, requests, plan.count(2_000, 200))
            bar = await pipeline.step(BAR, BAR * seconds)
            most = await highest_rate(pipeline, start, seconds)
            seen.append(EndToEndRound(bar, most, commits, idle.cost.rate))
            start = most.rate
    return seen


@asynccontextmanager
async def _pipeline(kept: Database) -> AsyncGenerator[ReviewPipeline]:
    """A server process and a worker process; at the end every task must be completed, once."""
    async with (
        bench() as workbench,
        served_with(workbench, kept.url) as serving,
        reviewing(workbench.server.url, kept) as worker,
    ):
        pipeline = ReviewPipeline(serving, worker, workbench.meter, kept)
        yield pipeline
        await _all_completed(kept, pipeline.sent)


async def _all_completed(kept: Database, sent: int) -> None:
    async with Ledger(kept.url) as ledger, asyncio.timeout(_PATIENCE_S):
        counts = await ledger.jobs.counts("reviews")
        while counts[RecordState.COMPLETED] < sent:
            await asyncio.sleep(_LOOK_S)
            counts = await ledger.jobs.counts("reviews")
    assert sum(counts.values()) == sent, f"of {sent} tasks there are {counts}"


def _figures(kind: DatabaseKind, seen: list[EndToEndRound]) -> list[Figure]:
    name, most = f"{_NAME}.{kind}", [round_.most for round_ in seen]
    what = f"{kind.said}: webhooks offered a second, p95 < 1 s and p99 < 2 s until the reviewer"
    return [
        measured(
            name,
            what,
            "tasks/s",
            [load.rate for load in most],
            at_least(TARGETS[kind]),
            beside=Reference("requests/s, empty endpoint", [round_.empty for round_ in seen]),
            bound=_bound(seen[-1]),
        ),
        *_latencies(name, seen),
        *(
            measured(f"{name}.{word}", f"at that rate: CPU of {whose}", "µs/task", values)
            for word, whose, values in _spent(most)
            if any(values)
        ),
        measured(
            f"{name}.raw",
            f"raw commits of one row; beside, of {BATCH} rows",
            "commits/s",
            [round_.commits.single for round_ in seen],
            beside=Reference(
                f"commits/s of {BATCH} rows", [round_.commits.joined for round_ in seen]
            ),
        ),
    ]


def _latencies(name: str, seen: list[EndToEndRound]) -> list[Figure]:
    figures: list[Figure] = []
    for word, target, value in (("p95", below(1000), _p95), ("p99", below(2000), _p99)):
        what = f"webhook sent to reviewer started, {word}, at {BAR} tasks/s; beside, at the most"
        beside = Reference("ms at the highest rate", [value(round_.most) for round_ in seen])
        bound = _bound(seen[-1])
        values = [value(round_.bar) for round_ in seen]
        figures.append(
            measured(f"{name}.{word}", what, "ms", values, target, beside=beside, bound=bound)
        )
    return figures


_WHOSE: tuple[tuple[str, str, Callable[[CpuSpent], float]], ...] = (
    ("server", "the server process", lambda spent: spent.server),
    ("worker", "the worker process", lambda spent: spent.worker),
    ("database", "the database", lambda spent: spent.database),
    ("store", "the store", lambda spent: spent.store),
    ("client", "the load", lambda spent: spent.client),
)


def _spent(steps: list[RateStep]) -> list[tuple[str, str, list[float]]]:
    return [(word, whose, [value(step.spent) for step in steps]) for word, whose, value in _WHOSE]


def _bound(seen: EndToEndRound) -> str:
    spent = seen.most.spent
    each = ", ".join(f"{value(spent):.0f} of {whose}" for _, whose, value in _WHOSE)
    return (
        f"a task takes {sum(spent):.0f} µs of {os.cpu_count()} CPUs: {each}; each process but the "
        f"database has one; {seen.commits}"
    )


def _p95(step: RateStep) -> float:
    return step.started(0.95)


def _p99(step: RateStep) -> float:
    return step.started(0.99)
