"""One submit at a time reaches 85 % of one bare EVALSHA at a time."""

from __future__ import annotations

from benchmarks.bench import PAYLOAD, QUEUE, Bench, Persistence, Plan, bench
from benchmarks.figure import Figure, Reference, at_least, measured
from benchmarks.measure import Cost, in_turns, rates, spent
from benchmarks.raw import Raw


async def run(plan: Plan) -> list[Figure]:
    return [await _figure(plan, Persistence.MEMORY), await _figure(plan, Persistence.DISK)]


async def _figure(plan: Plan, kept: Persistence) -> Figure:
    disk = kept is Persistence.DISK
    calls = plan.count(500, 200)
    async with bench(kept) as workbench, Raw(workbench) as raw:
        costs = await in_turns(
            3 * plan.rounds if kept is Persistence.MEMORY else plan.rounds,
            {"raw": lambda: raw.one_by_one(calls), "ours": lambda: one_by_one(workbench, calls)},
        )
    return measured(
        "submit_single.disk" if disk else "submit_single",
        "the same, class disk" if disk else "one submit at a time",
        "jobs/s",
        rates(costs["ours"]),
        None if disk else at_least(0.85, "raw"),
        beside=Reference("EVALSHA/s, one at a time", rates(costs["raw"])),
        bound=f"{spent(costs['ours'])}; bare {spent(costs['raw'])}",
    )


async def one_by_one(workbench: Bench, jobs: int) -> Cost:
    """The cost of submitting so many jobs, each after the answer to the one before."""

    async def work() -> None:
        for _ in range(jobs):
            await workbench.engine.submit(QUEUE, PAYLOAD)

    await workbench.clear()
    return await workbench.meter.cost(jobs, work())
