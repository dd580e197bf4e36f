"""Timers reach their handlers within 2.5 ms of their time at p50 and 6 ms at p99, never early.

End to end: from the due time, by the wall clock of the machine, to the first line of the handler,
in one worker process that has nothing else to do. Celery's ETA, RQ's scheduler, arq, Dramatiq's
delay and BullMQ take turns on the same server, each in its best setting.
"""

from __future__ import annotations

import asyncio
import random
import time
from statistics import median

from benchmarks.bench import Plan
from benchmarks.figure import Figure, Target, at_most, below, measured, not_measured
from benchmarks.measure import percentile
from benchmarks.peers.environments import NotInstalled, prepare
from benchmarks.peers.peer_bench import (
    HandlerReports,
    NotMeasured,
    PeerBench,
    peer_bench,
    producing,
    running,
)
from benchmarks.peers.peer_list import HERE, Peer, all_peers, read_row
from benchmarks.peers.progress import say

PEERS = ("celery", "rq", "arq", "dramatiq", "bullmq")
FIRST_MS = 5_000
"""Nothing is due before the last one is in."""
_STARTS_WITHIN = 40.0
_LATE_WITHIN = 60.0
_MS = "ms"


def contenders(*names: str) -> list[Peer]:
    """These peers, and Towpath's timers."""
    return [*(peer for peer in all_peers() if peer.name in names), read_row(HERE / "timers_row.py")]


async def run(plan: Plan) -> list[Figure]:
    late: dict[str, list[list[float]]] = {}
    why: dict[str, str] = {}
    bare: list[float] = []
    count, span = plan.count(1_000, 200), plan.count(10_000, 3_000)
    rows = contenders(*PEERS)
    async with peer_bench() as bench:
        for number in range(1 if plan.quick else 3):
            for row in rows if number % 2 == 0 else reversed(rows):
                timer = asyncio.create_task(_bare_timer(bare))
                try:
                    prepare(row)
                    seen = await late_by(bench, row, count=count, span_ms=span, seed=number)
                    late.setdefault(row.name, []).append(seen)
                    say(f"round {number + 1}: {row.label}, p50 {percentile(seen, 0.5):.2f} ms")
                except (NotInstalled, NotMeasured) as problem:
                    why[row.name] = str(problem)
                finally:
                    timer.cancel()
    *others, ours = rows
    bound = f"a bare timer of an event loop was late by {median(bare):.2f} ms at p50 and "
    bound += f"{percentile(bare, 0.99):.2f} ms at p99 in this run"
    return [
        *_figures("timers_accuracy", ours, count, late, why, bound=bound),
        *(
            figure
            for row in others
            for figure in _figures(f"timers_accuracy.{row.name}", row, count, late, why)
        ),
    ]


async def late_by(
    bench: PeerBench,
    row: Peer,
    *,
    count: int,
    span_ms: int,
    first_ms: int = FIRST_MS,
    seed: int = 0,
) -> list[float]:
    """By how many ms each of so many timers was late. Raises NotMeasured."""
    chance = random.Random(seed)
    delays = [first_ms + chance.randrange(span_ms) for _ in range(count)]
    bench.clear()
    told = HandlerReports(bench.report)
    async with producing(bench, row) as producer, running(bench, row, row.worker) as worker:
        await producer.order("pickup")
        await told.next("pickup", within=_STARTS_WITHIN, worker=worker)
        began = time.monotonic()
        await producer.order("delayed", delays_ms=delays)
        if time.monotonic() - began > first_ms / 1000:
            raise NotMeasured(f"its producer took {time.monotonic() - began:.1f} s to submit them")
        # The report is not read meanwhile, because this process must be idle too.
        await asyncio.sleep(began + max(delays) / 1000 - time.monotonic())
        return [
            (await told.next("delayed", within=_LATE_WITHIN, worker=worker))["ms"] for _ in delays
        ]


async def _bare_timer(late_ms: list[float]) -> None:
    """How late a plain timer of an event loop is on this machine, at the same time."""
    while True:
        due = time.perf_counter() + 0.1
        await asyncio.sleep(0.1)
        late_ms.append((time.perf_counter() - due) * 1000)


def _figures(
    name: str,
    row: Peer,
    count: int,
    late: dict[str, list[list[float]]],
    why: dict[str, str],
    *,
    bound: str = "",
) -> list[Figure]:
    """The figures of Towpath with targets, and those of the others for comparison."""
    ours, rounds = bool(bound), late.get(row.name, [])
    what = f"{count:,} by {row.label}, end to end"
    if not rounds:
        return [not_measured(name, what, _MS, why=why.get(row.name, "it took no part"))]

    def aimed(target: Target) -> Target | None:
        return target if ours else None

    def at(share: float) -> list[float]:
        return [percentile(times, share) for times in rounds]

    early = [sum(ms < 0 for ms in times) for times in rounds]
    worst = [max(times) for times in rounds]
    return [
        measured(f"{name}.early", f"{what}: early", "timers", early, aimed(at_most(0))),
        measured(f"{name}.p50", f"{what}: late, p50", _MS, at(0.5), aimed(below(2.5)), bound=bound),
        measured(
            f"{name}.p99", f"{what}: late, p99", _MS, at(0.99), aimed(below(6.0)), bound=bound
        ),
        measured(f"{name}.max", f"{what}: late, the latest", _MS, worst),
    ]
