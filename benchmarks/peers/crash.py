"""A killed worker's job runs again within its lease of 15 s."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

from benchmarks.bench import Plan
from benchmarks.figure import Figure, at_most, measured
from benchmarks.peers.environments import NotInstalled, prepare
from benchmarks.peers.peer_bench import (
    HandlerReports,
    NotMeasured,
    PeerBench,
    peer_bench,
    producing,
    running,
)
from benchmarks.peers.peer_list import Peer, all_peers
from benchmarks.peers.progress import say
from benchmarks.peers.run_results import Recoveries, Recovery, RowIdentity, keep
from benchmarks.versions import versions

LEASE_SECONDS = 15
KILLED_AFTER = 3.0
JOB_SECONDS = 300
_STARTS_WITHIN = 30.0


async def run(plan: Plan) -> list[Figure]:
    recoveries = await crash_all(plan, all_peers())
    keep(recoveries)
    return figures(recoveries)


async def crash_all(plan: Plan, peers: list[Peer]) -> Recoveries:
    """One row after the other: each has the machine for itself."""
    made_with = await versions()
    found: list[Recovery] = []
    async with peer_bench() as bench:
        for peer in peers:
            found.append(await _recovery(bench, peer, plan.watch, made_with.towpath))
            one = found[-1]
            say(f"{peer.label}: {told(one, plan.watch)}")
    today = datetime.now(UTC).date().isoformat()
    return Recoveries(today, str(made_with), plan.quick, plan.watch, found)


async def _recovery(bench: PeerBench, peer: Peer, watch: float, version: str) -> Recovery:
    recovery = Recovery(RowIdentity.of(peer, version))
    try:
        prepare(peer)
        recovery.seconds = await _crash(bench, peer, watch)
    except (NotInstalled, NotMeasured) as problem:
        recovery.not_measured = str(problem)
    return recovery


async def _crash(bench: PeerBench, peer: Peer, watch: float) -> float | None:
    """Kills a worker 3 s into a job, starts another at once, and waits until the job runs again."""
    bench.clear()
    told = HandlerReports(bench.report)
    async with producing(bench, peer) as producer:
        async with running(bench, peer, peer.worker) as first:
            await producer.order("long", seconds=JOB_SECONDS)
            began = await told.next("long", within=_STARTS_WITHIN, worker=first)
            await asyncio.sleep(max(0.0, began["at"] + KILLED_AFTER - time.monotonic()))
            first.kill()
            killed = time.monotonic()
        async with running(bench, peer, peer.worker) as second:
            try:
                again = await told.next("long", within=watch, worker=second)
            except NotMeasured:
                second.check()
                return None
            return again["at"] - killed


def told(one: Recovery, watched: float) -> str:
    """What became of the job, in words."""
    if one.not_measured:
        return f"not measured: {one.not_measured}"
    return f"not within {watched:g} s" if one.seconds is None else f"{one.seconds:.1f} s"


def figures(recoveries: Recoveries) -> list[Figure]:
    return [_figure(one, recoveries.watched) for one in recoveries.recoveries if one.who.ours] + [
        measured(f"crash.{one.who.name}", one.who.label, "s", [one.seconds])
        for one in recoveries.recoveries
        if one.seconds is not None and not one.who.ours
    ]


def _figure(ours: Recovery, watched: float) -> Figure:
    what = "from SIGKILL of a worker until its job runs again"
    target = at_most(LEASE_SECONDS)
    if ours.seconds is None:
        # The job was not seen again: the time watched is a lower bound, and not reached.
        return measured("crash", what, "s", [watched], target, bound=told(ours, watched))
    bound = "the lease is renewed until the kill, and another worker must notice its end"
    return measured("crash", what, "s", [ours.seconds], target, bound=bound)
