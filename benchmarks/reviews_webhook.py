"""A webhook is answered when its task is on disk and queued: how soon, beside an empty endpoint."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from benchmarks.bench import Plan, bench
from benchmarks.databases import BATCH, CommitRates, Database, DatabaseKind, database, on_each
from benchmarks.figure import Figure, Reference, measured
from benchmarks.measure import Cost, Meter, in_turns, percentile
from benchmarks.web.deliveries import deliveries
from benchmarks.web.load import CONNECTIONS, LoadResult, send
from benchmarks.web.serving import ServerProcess, empty, served_with
from towpath import Engine

_NAME = "reviews_webhook"
_WARM = 100
_WITHIN_S = 60.0
Of = Callable[[LoadResult], float]


async def run(plan: Plan) -> list[Figure]:
    async def of(kind: DatabaseKind) -> list[Figure]:
        async with database(kind) as kept:
            return await _measured(plan, kept)

    return await on_each(of, name=_NAME, what="POST /api/v1/webhooks/github", unit="webhooks/s")


async def _measured(plan: Plan, kept: Database) -> list[Figure]:
    webhooks = plan.count(3_000, 200)
    ours, nothing, commits = list[LoadResult](), list[LoadResult](), list[CommitRates]()
    async with bench() as on, served_with(on, kept.url) as serving, empty(kept.url) as idle:
        for one in (serving, idle):
            await _taken(on.meter, one, _WARM)

        def contender(to: ServerProcess, trials: list[LoadResult]) -> Callable[[], Awaitable[Cost]]:
            async def work() -> Cost:
                trials.append(await _taken(on.meter, to, webhooks))
                return trials[-1].cost

            return work

        contenders = {"empty": contender(idle, nothing), "ours": contender(serving, ours)}
        for _ in range(plan.rounds):
            commits.append(await kept.commits(plan.count(200, 20)))
            await in_turns(1, contenders)
        await _queued(on.engine, _WARM + webhooks * plan.rounds)
    return _figures(kept.kind, ours, nothing, commits)


async def _queued(engine: Engine, sent: int) -> None:
    """Waits for the last tasks: a webhook is answered before its task is queued if queuing is
    slow.
    """
    ends = time.monotonic() + _WITHIN_S
    while (ready := (await engine.inspect.counts("reviews")).ready) < sent:
        assert time.monotonic() < ends, f"of {sent} webhooks {ready} are queued"
        await asyncio.sleep(0.05)
    assert ready == sent, f"{sent} webhooks made {ready} jobs"


async def _taken(meter: Meter, to: ServerProcess, webhooks: int) -> LoadResult:
    requests = (request for _, request in deliveries(webhooks))
    return await send(meter, to, requests, webhooks)


def _figures(
    kind: DatabaseKind,
    ours: list[LoadResult],
    nothing: list[LoadResult],
    commits: list[CommitRates],
) -> list[Figure]:
    name, rate = f"{_NAME}.{kind}", _with_unit("requests/s", nothing, _rate)
    what = f"POST /api/v1/webhooks/github, {kind.said}, {CONNECTIONS} connections"
    figures = [
        measured(name, what, "webhooks/s", [_rate(trial) for trial in ours], beside=rate),
        measured(
            f"{name}.raw",
            f"raw commits of one row; beside, of {BATCH} rows",
            "commits/s",
            [commit.single for commit in commits],
            beside=Reference(f"commits/s of {BATCH} rows", [commit.joined for commit in commits]),
        ),
        measured(
            f"{name}.store", "CPU of the store", "µs", [trial.cost.server_us for trial in ours]
        ),
    ]
    for word, whole, unit, value in (
        ("cpu", "CPU of the server process", "µs", _web),
        ("client", "CPU of the client", "µs", _client),
        ("p50", "webhook to answer, p50", "ms", _p50),
        ("p99", "webhook to answer, p99", "ms", _p99),
    ):
        aside = _with_unit(unit, nothing, value)
        values = [value(trial) for trial in ours]
        figures.append(measured(f"{name}.{word}", whole, unit, values, beside=aside))
    return figures


def _with_unit(unit: str, trials: list[LoadResult], value: Of) -> Reference:
    return Reference(f"{unit}, empty endpoint", [value(trial) for trial in trials])


def _rate(trial: LoadResult) -> float:
    return trial.cost.rate


def _web(trial: LoadResult) -> float:
    return trial.web_us


def _client(trial: LoadResult) -> float:
    return trial.cost.client_us


def _p50(trial: LoadResult) -> float:
    return percentile(trial.times_ms, 0.5)


def _p99(trial: LoadResult) -> float:
    return percentile(trial.times_ms, 0.99)
