"""One worker process drains at least 5 x as fast as any Python peer, 2.5 x BullMQ on Node."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from benchmarks.bench import Plan
from benchmarks.figure import Figure, Reference, Target, at_least, measured
from benchmarks.peers.environments import NotInstalled, prepare
from benchmarks.peers.peer_bench import PeerBench, peer_bench
from benchmarks.peers.peer_list import Peer, all_peers
from benchmarks.peers.progress import say
from benchmarks.peers.row_round import RowCounts, measure_row, watch_wire
from benchmarks.peers.run_results import Comparison, RowIdentity, RowResults, fastest, keep, paired
from benchmarks.versions import versions


async def run(plan: Plan) -> list[Figure]:
    comparison = await compare(plan, all_peers())
    keep(comparison)
    return figures(comparison)


async def compare(plan: Plan, peers: list[Peer]) -> Comparison:
    """Measure all of them in turns, every other round backwards, on one server."""
    made_with = await versions()
    results_by_name = {peer.name: _prepared(peer, made_with.towpath) for peer in peers}
    able = [peer for peer in peers if not results_by_name[peer.name].not_measured]
    async with peer_bench() as bench:
        for number in range(1 if plan.quick else 3):
            for peer in able if number % 2 == 0 else reversed(able):
                await _round(bench, peer, plan, number, results_by_name[peer.name])
    today = datetime.now(UTC).date().isoformat()
    return Comparison(today, str(made_with), plan.quick, list(results_by_name.values()))


def _prepared(peer: Peer, version: str) -> RowResults:
    results = RowResults(RowIdentity.of(peer, version))
    try:
        prepare(peer)
    except NotInstalled as problem:
        results.not_measured = f"it could not be installed: {problem}"
    return results


async def _round(
    bench: PeerBench, peer: Peer, plan: Plan, number: int, results: RowResults
) -> None:
    began = time.monotonic()
    counts = RowCounts.of(plan).for_(peer)
    seen = await measure_row(bench, peer, counts, seed=number)
    if number == 0 and not seen.stopped:
        await watch_wire(bench, peer, counts, seen)
    results.measured.append(seen)
    trouble = f", {seen.stopped}" if seen.stopped else ""
    say(f"round {number + 1}: {peer.label} {time.monotonic() - began:.0f} s{trouble}")


def figures(comparison: Comparison) -> list[Figure]:
    """The two promises, and what every row did."""
    ours = next((one for one in comparison.rows if one.who.ours), None)
    peers = [one for one in comparison.rows if not one.who.ours]
    python = fastest(one for one in peers if one.who.in_python)
    node = fastest(one for one in peers if not one.who.in_python)
    promises = [
        _promise("peers.python", at_least(5, "fastest Python peer"), ours, python),
        _promise("peers.node", at_least(2.5, "BullMQ on Node"), ours, node),
    ]
    others = [
        measured(
            f"peers.{one.who.name}",
            f"{one.jobs:,} by {one.who.label}",
            "jobs/s",
            one.rounds("drain"),
        )
        for one in comparison.by_drain
        if one.rounds("drain") and not one.who.ours
    ]
    return [*promises, *others]


def _promise(
    name: str, target: Target, ours: RowResults | None, other: RowResults | None
) -> Figure:
    """Ours beside another; not reached as long as one of them was not measured."""
    for one, which in ((ours, "ours"), (other, target.times)):
        if one is None or not one.rounds("drain"):
            return _unknown(name, target, f"{which} was not measured: {_why_not(one)}")
    assert ours is not None
    assert other is not None
    mine, theirs = paired(ours, other, "drain")
    if not mine:
        return _unknown(name, target, f"no round has both ours and {other.who.label}")
    return measured(
        name,
        f"{ours.jobs:,} no-op jobs by one worker process",
        "jobs/s",
        mine,
        target,
        beside=Reference(f"jobs/s, {other.who.label}", theirs),
        bound=f"{_spent(ours)}; {_spent(other)}",
    )


def _unknown(name: str, target: Target, bound: str) -> Figure:
    return measured(name, "no-op jobs by one worker process", "jobs/s", [0.0], target, bound=bound)


def _why_not(one: RowResults | None) -> str:
    return one.reason if one else "it took no part"


def _spent(one: RowResults) -> str:
    """Where the time of one job went."""
    wall = 1e6 / (one.middle("drain") or 1)
    return (
        f"{one.who.label} takes {wall:.0f} µs a job: {one.middle('worker_us') or 0:.0f} of the "
        f"worker's CPU, {one.middle('run_cpu_us') or 0:.0f} of the server's"
    )
