"""Delayed jobs are never early, and late by less than 2 ms at p50 and 5 ms at p99."""

from __future__ import annotations

import asyncio
import random
import time
from statistics import median

from benchmarks.bench import QUEUE, Bench, Plan, bench
from benchmarks.claimer import ClaimedJob, claimer, stamp
from benchmarks.figure import Figure, Reference, at_most, below, measured
from benchmarks.measure import percentile
from towpath import milliseconds
from towpath.engine.model import new_job

ROUNDS = 3
FIRST_MS = 300
"""Nothing is due before the last job is in."""


async def run(plan: Plan) -> list[Figure]:
    rounds, timers = list[list[ClaimedJob]](), list[list[float]]()
    async with bench() as workbench:
        for number in range(ROUNDS):
            await workbench.clear()
            bare: list[float] = []
            timer = asyncio.create_task(_bare_timer(bare))
            rounds.append(await _round(workbench, plan, random.Random(number)))
            timer.cancel()
            timers.append(bare)
    return _figures(rounds, timers)


async def _round(workbench: Bench, plan: Plan, chance: random.Random) -> list[ClaimedJob]:
    count, longest = plan.count(300, 100), plan.count(6_000, 2_000)
    async with claimer("claim", workbench.server.url, QUEUE, count) as waiting:
        await workbench.meter.until_waiting(1)
        delays = [milliseconds(chance.randint(FIRST_MS, longest)) for _ in range(count)]
        await workbench.engine.submit_many(
            QUEUE, [new_job(stamp(), delay=delay) for delay in delays]
        )
        return await waiting.seen()


async def _bare_timer(late_ms: list[float]) -> None:
    """How late a plain timer of an event loop is on this machine, at the same time."""
    while True:
        due = time.perf_counter() + 0.02
        await asyncio.sleep(0.02)
        late_ms.append((time.perf_counter() - due) * 1000)


def _figures(rounds: list[list[ClaimedJob]], timers: list[list[float]]) -> list[Figure]:
    by_server = [[one.claimed_ms - one.due_ms for one in seen] for seen in rounds]
    by_claimer = [[one.returned_ms - one.due_ms for one in seen] for seen in rounds]
    early = [sum(late < 0 for times in by_server for late in times)]
    figures = [
        measured("punctuality.early", "delayed jobs claimed early", "jobs", early, at_most(0))
    ]
    for word, share, target in (("p50", 0.5, below(2.0)), ("p99", 0.99, below(5.0))):
        bare = [percentile(times, share) for times in timers]
        bound = f"a bare timer of an event loop was late by {median(bare):.2f} ms in this run"
        figures += [
            measured(
                f"punctuality.{word}",
                f"late by the server's clock, {word}",
                "ms",
                [percentile(times, share) for times in by_server],
                target,
                beside=Reference("ms, a bare asyncio timer", bare),
                bound=bound,
            ),
            measured(
                f"punctuality.{word}.returned",
                f"until the claim returned, {word}",
                "ms",
                [percentile(times, share) for times in by_claimer],
            ),
        ]
    return figures
