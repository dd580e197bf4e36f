"""One worker process drains at least 5 x as fast as any Python peer, 2.5 x BullMQ on Node."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from benchmarks.bench import Plan
from benchmarks.figure import Beside, Figure, Target, at_least, measured
from benchmarks.peers.environments import NotInstalled, prepare
from benchmarks.peers.progress import say
from benchmarks.peers.roster import Peer, roster
from benchmarks.peers.stage import Stage, stage
from benchmarks.peers.standing import Comparison, Standing, Who, fastest, keep, paired
from benchmarks.peers.visit import Counts, visit, watch_wire
from benchmarks.versions import versions


async def run(plan: Plan) -> list[Figure]:
    comparison = await compare(plan, roster())
    keep(comparison)
    return figures(comparison)


async def compare(plan: Plan, peers: list[Peer]) -> Comparison:
    """Visit all of them in turns, every other round backwards, on one server."""
    made_with = await versions()
    standings = {peer.name: _prepared(peer, made_with.towpath) for peer in peers}
    able = [peer for peer in peers if not standings[peer.name].not_measured]
    async with stage() as rig:
        for number in range(1 if plan.quick else 3):
            for peer in able if number % 2 == 0 else reversed(able):
                await _round(rig, peer, plan, number, standings[peer.name])
    today = datetime.now(UTC).date().isoformat()
    return Comparison(today, str(made_with), plan.quick, list(standings.values()))


def _prepared(peer: Peer, version: str) -> Standing:
    standing = Standing(Who.of(peer, version))
    try:
        prepare(peer)
    except NotInstalled as problem:
        standing.not_measured = f"it could not be installed: {problem}"
    return standing


async def _round(rig: Stage, peer: Peer, plan: Plan, number: int, standing: Standing) -> None:
    began = time.monotonic()
    counts = Counts.of(plan).for_(peer)
    seen = await visit(rig, peer, counts, seed=number)
    if number == 0 and not seen.stopped:
        await watch_wire(rig, peer, counts, seen)
    standing.visits.append(seen)
    trouble = f", {seen.stopped}" if seen.stopped else ""
    say(f"round {number + 1}: {peer.label} {time.monotonic() - began:.0f} s{trouble}")


def figures(comparison: Comparison) -> list[Figure]:
    """The two promises, and what every row did."""
    ours = next((one for one in comparison.standings if one.who.ours), None)
    peers = [one for one in comparison.standings if not one.who.ours]
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


def _promise(name: str, target: Target, ours: Standing | None, other: Standing | None) -> Figure:
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
        beside=Beside(f"jobs/s, {other.who.label}", theirs),
        bound=f"{_spent(ours)}; {_spent(other)}",
    )


def _unknown(name: str, target: Target, bound: str) -> Figure:
    return measured(name, "no-op jobs by one worker process", "jobs/s", [0.0], target, bound=bound)


def _why_not(one: Standing | None) -> str:
    return one.reason if one else "it took no part"


def _spent(one: Standing) -> str:
    """Where the time of one job went."""
    wall = 1e6 / (one.middle("drain") or 1)
    return (
        f"{one.who.label} takes {wall:.0f} µs a job: {one.middle('worker_us') or 0:.0f} of the "
        f"worker's CPU, {one.middle('run_cpu_us') or 0:.0f} of the server's"
    )
