"""50,000 timers that fall due within one second run in the order of their due times.

End to end: from the first due time to the start of the last handler, in one worker process that
has nothing else to do. They were submitted in any order. BullMQ takes turns on the same server.
"""

from __future__ import annotations

import asyncio
from statistics import median

import msgspec

from benchmarks.bench import Plan
from benchmarks.figure import Figure, Reference, at_most, measured, not_measured
from benchmarks.peers.environments import NotInstalled, prepare
from benchmarks.peers.peer_bench import (
    HandlerReports,
    NotMeasured,
    PeerBench,
    peer_bench,
    producing,
    running,
)
from benchmarks.peers.peer_list import Peer
from benchmarks.peers.progress import say
from benchmarks.timers_accuracy import contenders

PEER = "bullmq"
SPAN_S = 1.0
_STARTS_WITHIN = 40.0
_RUN_WITHIN = 300.0
_SETTLED_AFTER = 1.0


class StormRound(msgspec.Struct, frozen=True):
    """The observations of one round."""

    seconds: float
    """From the first due time to the start of the last handler."""
    behind: int
    """Timers that began after one that was due later."""
    early: int
    cpu_us: float
    """Of the server, per timer, from the first due time until all were settled."""


async def run(plan: Plan) -> list[Figure]:
    count = plan.count(50_000, 5_000)
    lead = 5.0 + count / 1500
    [peer, ours] = contenders(PEER)
    seen: dict[str, list[StormRound]] = {peer.name: [], ours.name: []}
    why = ""
    async with peer_bench() as bench:
        for number in range(1 if plan.quick else 3):
            for row in (ours, peer) if number % 2 == 0 else (peer, ours):
                try:
                    prepare(row)
                    storm = await storm_of(bench, row, count, f"storm-{number}", lead=lead)
                except (NotInstalled, NotMeasured) as problem:
                    why = f"{row.label}: {problem}"
                    continue
                seen[row.name].append(storm)
                say(f"round {number + 1}: {row.label}, {storm.seconds:.2f} s")
    if not seen[ours.name]:
        return [not_measured("timers_storm", f"{count:,} timers due in a second", "s", why=why)]
    return _figures(count, seen[ours.name], seen[peer.name], why)


async def storm_of(
    bench: PeerBench, row: Peer, count: int, name: str, *, lead: float
) -> StormRound:
    """Submits so many timers that fall due within a second, *lead* seconds from now. Raises
    NotMeasured.
    """
    bench.clear()
    told = HandlerReports(bench.report)
    async with producing(bench, row) as producer, running(bench, row, row.worker) as worker:
        await producer.order("pickup")
        await told.next("pickup", within=_STARTS_WITHIN, worker=worker)
        order = {"run": name, "count": count, "lead_s": lead, "span_s": SPAN_S}
        answer = await producer.order("storm", within=2 * lead, **order)
        if not answer["in_time"]:
            raise NotMeasured(f"its producer took longer than {lead:.0f} s to submit them")
        before = bench.reading()
        done = await told.next("storm", within=lead + _RUN_WITHIN, worker=worker)
        await asyncio.sleep(_SETTLED_AFTER)
        used = bench.reading().cpu - before.cpu
    return StormRound(
        (done["at"] - answer["first_ms"]) / 1000,
        done["behind"],
        done["early"],
        used / count * 1e6,
    )


def _figures(count: int, ours: list[StormRound], peers: list[StormRound], why: str) -> list[Figure]:
    what = f"{count:,} timers due within a second"
    label = "BullMQ"
    both = min(len(ours), len(peers))

    def of(name: str, about: str, unit: str, field: str) -> Figure:
        mine = [getattr(storm, field) for storm in ours]
        theirs = [getattr(storm, field) for storm in peers][:both]
        beside = Reference(f"{unit}, {label}", theirs) if both else None
        return measured(
            name, f"{what}: {about}", unit, mine[:both] if both else mine, beside=beside
        )

    figures = [
        of("timers_storm", "from the first due time until all ran, end to end", "s", "seconds"),
        measured(
            "timers_storm.behind",
            f"{what}: began after one that was due later",
            "timers",
            [storm.behind for storm in ours],
            at_most(0),
            bound=f"of {label}, {median([storm.behind for storm in peers] or [0]):,.0f} began so",
        ),
        measured(
            "timers_storm.early",
            f"{what}: early",
            "timers",
            [storm.early for storm in ours],
            at_most(0),
        ),
        of("timers_storm.cpu", "CPU of the server", "µs/timer", "cpu_us"),
    ]
    if not peers:
        figures.append(not_measured(f"timers_storm.{PEER}", what, "s", why=why))
    return figures
