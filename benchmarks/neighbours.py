"""A healthy queue beside a broken one keeps 95 % of its rate."""

from __future__ import annotations

import asyncio
import time

from benchmarks.bench import Plan
from benchmarks.figure import Figure, Reference, at_least, measured
from towpath import Towpath, Worker
from towpath.embedded import EmbeddedServer
from towpath.engine.model import NewJob, new_job

GOOD, BAD = "bench_good", "bench_bad"


async def run(plan: Plan) -> list[Figure]:
    jobs = plan.count(20_000, 5_000)
    alone, beside = list[float](), list[float]()
    async with EmbeddedServer() as server:
        for _ in range(plan.rounds):
            alone.append(await _rate(server, jobs, broken=False))
            beside.append(await _rate(server, jobs, broken=True))
    return [
        measured(
            "neighbours",
            "no-op jobs of one queue, the worker's other queue broken",
            "jobs/s",
            beside,
            at_least(0.95, "both queues whole"),
            beside=Reference("both queues whole", alone),
        )
    ]


async def _rate(server: EmbeddedServer, jobs: int, *, broken: bool) -> float:
    """Jobs per second, from the first to the last."""
    server.ask("FLUSHALL")
    app, done, times = Towpath(server.url), asyncio.Event(), list[float]()

    @app.handler(GOOD)
    async def good() -> None:
        times.append(time.perf_counter())
        if len(times) == jobs:
            done.set()

    @app.handler(BAD)
    async def bad() -> None: ...

    async with app:
        for start in range(0, jobs, 500):
            await app.engine.submit_many(GOOD, _plain(min(500, jobs - start)))
        await app.engine.queues.options(BAD)
        if broken:
            server.ask("SET", f"{{{BAD}}}:queue", "not what it should be")
        worker = Worker(app, signals=())
        running = asyncio.create_task(worker.run())
        await done.wait()
        worker.stop()
        await running
    return (jobs - 1) / (times[-1] - times[0])


def _plain(count: int) -> list[NewJob]:
    return [new_job(b"null") for _ in range(count)]
