"""Towpath is ahead of every peer: one worker process drains 6 x as fast as any in Python, 2.5 x
BullMQ.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

import msgspec

from benchmarks.bench import Plan
from benchmarks.figure import Bound, Figure, Reference, Target, at_least, at_most, measured
from benchmarks.measure import percentile
from benchmarks.peers.environments import NotInstalled, prepare
from benchmarks.peers.peer_bench import PeerBench, peer_bench
from benchmarks.peers.peer_list import Peer, rows_of_comparison
from benchmarks.peers.progress import say
from benchmarks.peers.row_round import RowCounts, measure_defaults, measure_row, watch_wire
from benchmarks.peers.run_results import Comparison, RowIdentity, RowResults, fastest, keep, paired
from benchmarks.versions import versions


async def run(plan: Plan) -> list[Figure]:
    rows = [peer for peer in rows_of_comparison() if not plan.only or peer.name in plan.only]
    comparison = await compare(plan, rows)
    keep(comparison)
    return figures(comparison)


async def compare(plan: Plan, peers: list[Peer]) -> Comparison:
    """Measures all rows in turns, every other round backwards, on one Redis."""
    made_with = await versions()
    results_by_name = {peer.name: _prepared(peer, made_with.towpath) for peer in peers}
    able = [peer for peer in peers if not results_by_name[peer.name].not_measured]
    async with peer_bench() as bench:
        for number in range(1 if plan.quick else 5):
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
    if peer.defaults and not seen.stopped:
        await measure_defaults(bench, peer, counts, seen)
    if number == 0 and not seen.stopped:
        await watch_wire(bench, peer, counts, seen)
    results.measured.append(seen)
    trouble = f", {seen.stopped}" if seen.stopped else ""
    say(f"round {number + 1}: {peer.label} {time.monotonic() - began:.0f} s{trouble}")


def figures(comparison: Comparison) -> list[Figure]:
    """The targets, and the figures of every row."""
    ours = next((one for one in comparison.rows if one.who.ours), None)
    peers = [one for one in comparison.rows if not one.who.ours and not one.who.watched]
    python = fastest(one for one in peers if one.who.in_python)
    node = fastest(one for one in peers if not one.who.in_python)
    promises = [
        _promise("peers.python", at_least(6, "fastest Python peer"), ours, python),
        _promise("peers.node", at_least(2.5, "BullMQ on Node"), ours, node),
        *_promises_of_submit(ours, peers),
        *_promises_of_delay(ours, peers),
        _bytes(ours),
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


def _promises_of_submit(ours: RowResults | None, peers: list[RowResults]) -> list[Figure]:
    asyncio = fastest((one for one in peers if one.who.in_python and one.who.asyncio), "submit_one")
    huey = next((one for one in peers if one.who.name == "huey"), None)
    tuned = at_least(0.85, "the drain at the best setting")
    return [
        _ratio(
            "peers.defaults",
            tuned,
            (ours, "drain_defaults"),
            (ours, "drain"),
            bound=_spent_by_default(ours),
        ),
        _ratio(
            "peers.submit_async",
            at_least(1.5, "fastest asyncio peer"),
            (ours, "submit_one"),
            (asyncio, "submit_one"),
            bound=_spent_on_submit(ours, asyncio),
        ),
        _ratio(
            "peers.submit_blocking",
            at_least(1, "Huey"),
            (ours, "submit_blocking"),
            (huey, "submit_one"),
            bound=_spent_on_submit(ours, huey),
        ),
    ]


def _promises_of_delay(ours: RowResults | None, peers: list[RowResults]) -> list[Figure]:
    """Towpath beside the peer with the best delays; for lateness, beside Celery."""
    celery = [one for one in peers if one.who.name == "celery"]
    return [
        _sooner(f"peers.{name}_p{share * 100:.0f}", kind, share, ours, others)
        for name, kind, others in (("pickup", "pickup_ms", peers), ("late", "late_ms", celery))
        for share in (0.5, 0.99)
    ]


def _sooner(
    name: str, kind: str, share: float, ours: RowResults | None, others: list[RowResults]
) -> Figure:
    target = below_other("Celery" if kind == "late_ms" else "the best peer")
    rows = [one for one in others if one.at(share, kind) is not None]
    best = min(rows, key=lambda one: one.at(share, kind) or 0, default=None)
    if ours is None or ours.at(share, kind) is None or best is None:
        which = f"{target.times} was" if ours and ours.at(share, kind) is not None else "ours was"
        return _unknown(name, target, f"{which} not measured", unit="ms")
    pairs = [
        (percentile(getattr(mine, kind), share), percentile(getattr(theirs, kind), share))
        for mine, theirs in zip(ours.measured, best.measured, strict=True)
        if getattr(mine, kind) and getattr(theirs, kind)
    ]
    if not pairs:
        why = f"no round has both ours and {best.who.label}"
        return _unknown(name, target, why, unit="ms")
    beside = Reference(f"ms, {best.who.label}", [theirs for _, theirs in pairs])
    what = f"{kind.removesuffix('_ms')}, of {len(pairs)} rounds"
    bound = f"the worker hears of a job, then asks for it: {_spent_on_submit(ours, best)}"
    mine = [mine for mine, _ in pairs]
    return measured(name, what, "ms", mine, target, beside=beside, bound=bound)


def below_other(other: str) -> Target:
    return Target(Bound.BELOW, 1, other)


def _bytes(ours: RowResults | None) -> Figure:
    rounds = ours.rounds("bytes_per_job") if ours else []
    if not rounds:
        return _unknown("peers.bytes", at_most(310), _why_not(ours), unit="bytes")
    bound = (
        "where all jobs are submitted in the first second of their queue, their events are written "
        "too (24 bytes a job); a job of an older queue takes 300"
    )
    what = "server memory per waiting job"
    return measured("peers.bytes", what, "bytes", rounds, at_most(310), bound=bound)


def _promise(
    name: str, target: Target, ours: RowResults | None, other: RowResults | None
) -> Figure:
    figure = _ratio(name, target, (ours, "drain"), (other, "drain"))
    if ours is None or other is None or figure.ratio is None:
        return figure
    return msgspec.structs.replace(figure, bound=f"{_spent(ours)}; {_spent(other)}")


def _ratio(
    name: str,
    target: Target,
    ours: tuple[RowResults | None, str],
    other: tuple[RowResults | None, str],
    *,
    bound: str = "",
) -> Figure:
    """The ratio to another row; not reached while one of them was not measured."""
    for (one, kind), which in ((ours, "ours"), (other, target.times)):
        if one is None or not one.rounds(kind):
            return _unknown(name, target, f"{which} was not measured: {_why_not(one)}")
    mine, theirs = paired(ours, other)
    label = other[0].who.label if other[0] else ""
    if not mine:
        return _unknown(name, target, f"no round has both ours and {label}")
    what = f"{ours[0].jobs if ours[0] else 0:,} no-op jobs: {ours[1]}"
    return measured(
        name,
        what,
        "jobs/s",
        mine,
        target,
        beside=Reference(f"jobs/s, {label}", theirs),
        bound=bound,
    )


def _unknown(name: str, target: Target, bound: str, *, unit: str = "jobs/s") -> Figure:
    return measured(name, "no-op jobs by one worker process", unit, [0.0], target, bound=bound)


def _why_not(one: RowResults | None) -> str:
    return one.reason if one else "it took no part"


def _spent(one: RowResults) -> str:
    """How the time of one job was spent."""
    wall = 1e6 / (one.middle("drain") or 1)
    return (
        f"{one.who.label} takes {wall:.0f} µs a job: {one.middle('worker_us') or 0:.0f} of the "
        f"worker's CPU, {one.middle('run_cpu_us') or 0:.0f} of the server's"
    )


def _spent_by_default(ours: RowResults | None) -> str:
    """How the time of one job was spent with default settings, beside that with the best ones."""
    if ours is None:
        return ""
    worker, server = ours.middle("defaults_worker_us"), ours.middle("defaults_run_cpu_us")
    return (
        f"with its defaults a job takes {1e6 / (ours.middle('drain_defaults') or 1):.0f} µs: "
        f"{worker or 0:.0f} of the worker's CPU (it writes a line to its log) and "
        f"{server or 0:.0f} of the server's (it keeps the job), in batches of 50 instead of 250, "
        f"which overlap less; at the best setting {_spent(ours)}"
    )


def _spent_on_submit(ours: RowResults | None, other: RowResults | None) -> str:
    """The cost of a submit for Redis, in two rows."""
    costs = [
        f"a submit takes the server {one.middle('submit_cpu_us') or 0:.0f} µs of CPU in the row of "
        f"{one.who.label}"
        for one in (ours, other)
        if one is not None
    ]
    return ", ".join(costs)
