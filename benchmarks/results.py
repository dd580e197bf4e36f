"""Ten thousand results are gathered in three seconds, beside one worker process."""

from __future__ import annotations

import asyncio
import time

from benchmarks.bench import Plan
from benchmarks.figure import Figure, below, measured
from towpath import Towpath
from towpath.clock import minutes
from towpath.embedded import EmbeddedServer
from towpath.testing.process import WorkerProcess

app = Towpath("redis://localhost")
_APP = "benchmarks.results:app"


@app.handler("bench_results", keep=minutes(10))
async def double(number: int) -> int:
    """The handler of every job."""
    return 2 * number


async def run(plan: Plan) -> list[Figure]:
    jobs = plan.count(10_000, 3_000)
    whole, waits = list[float](), list[float]()
    async with EmbeddedServer() as server, WorkerProcess(_APP, url=server.url):
        with app.pointed_at(server.url):
            async with app:
                await _gathered(10)
                for _ in range(3):
                    submits, results = await _gathered(jobs)
                    whole.append(submits + results)
                    waits.append(results)
    target = below(3.0) if jobs == 10_000 else None
    return [
        measured(f"results.{jobs}", f"{jobs} submits, then their results", "s", whole, target),
        measured(f"results.{jobs}.waits", "of that, from the last submit", "s", waits),
    ]


async def _gathered(jobs: int) -> tuple[float, float]:
    """The seconds until all jobs were submitted, and from there until all results were there."""
    began = time.perf_counter()
    tickets = await asyncio.gather(*(double.submit(n) for n in range(jobs)))
    submitted = time.perf_counter()
    results = await asyncio.gather(*(ticket.result(within=minutes(5)) for ticket in tickets))
    if results != [2 * n for n in range(jobs)]:
        raise AssertionError("results are wrong")
    return submitted - began, time.perf_counter() - submitted
