"""A claim that waits on an idle queue has a job within a millisecond of its submit."""

from __future__ import annotations

import asyncio
from statistics import median
from typing import Any

from redis.asyncio import Redis

from benchmarks.bench import QUEUE, Bench, Plan, bench
from benchmarks.claimer import ClaimedJob, claim_all, claimer, stamp
from benchmarks.figure import Figure, Reference, below, measured
from benchmarks.measure import percentile
from towpath import Engine

LIST = "{raw}:list"
ROUNDS = 3
_PAUSE = 0.001


async def run(plan: Plan) -> list[Figure]:
    samples = plan.count(1_000, 250)
    ours, raw, same = list[list[float]](), list[list[float]](), list[list[float]]()
    async with bench() as workbench:
        for _ in range(ROUNDS):
            await workbench.clear()
            seen, popped = await _two_processes(workbench, samples)
            ours.append(_times(seen))
            raw.append(_times(popped))
            same.append(_times(await _one_process(workbench, samples // 4)))
    return _figures(ours, raw, same)


def _figures(
    ours: list[list[float]], raw: list[list[float]], same: list[list[float]]
) -> list[Figure]:
    figures: list[Figure] = []
    for word, share, target in (("p50", 0.5, below(1.0)), ("p99", 0.99, below(2.5))):
        bare = _at(share, raw)
        name, what = f"pickup.{word}", f"submit to claimed, {word}"
        bound = (
            f"a bare RPUSH to BLPOP between two processes took {median(bare):.2f} ms in this run; "
            f"ours is two of these (wake and claim), and the scripts"
        )
        figures += [
            measured(
                name,
                f"{what}, two processes",
                "ms",
                _at(share, ours),
                target,
                beside=Reference("ms, a bare RPUSH to BLPOP", bare),
                bound=bound,
            ),
            measured(f"{name}.same", f"{what}, one process", "ms", _at(share, same)),
        ]
    return figures


def _at(share: float, rounds: list[list[float]]) -> list[float]:
    return [percentile(times, share) for times in rounds]


async def _two_processes(
    workbench: Bench, samples: int
) -> tuple[list[ClaimedJob], list[ClaimedJob]]:
    """Jobs and bare list items take turns, each sent when both claimers wait again."""
    raw: Any = Redis(unix_socket_path=workbench.socket, protocol=2)
    async with (
        claimer("claim", workbench.server.url, QUEUE, samples) as ours,
        claimer("blpop", workbench.socket, LIST, samples) as bare,
    ):
        for left in range(samples, 0, -1):
            await _both_wait(workbench)
            await workbench.engine.submit(QUEUE, stamp())
            await workbench.meter.until_waiting(1 if left == 1 else 2)
            await asyncio.sleep(_PAUSE)
            await raw.rpush(LIST, stamp())
        await raw.aclose()
        return await ours.seen(), await bare.seen()


async def _both_wait(workbench: Bench) -> None:
    await workbench.meter.until_waiting(2)
    await asyncio.sleep(_PAUSE)


async def _one_process(workbench: Bench, samples: int) -> list[ClaimedJob]:
    """Two engines in one event loop."""
    async with Engine(workbench.server.url) as other:
        claiming = asyncio.create_task(claim_all(other, QUEUE, samples))
        for _ in range(samples):
            await workbench.meter.until_waiting(1)
            await asyncio.sleep(_PAUSE)
            await workbench.engine.submit(QUEUE, stamp())
        return await claiming


def _times(seen: list[ClaimedJob]) -> list[float]:
    return [one.pickup_ms for one in seen]
