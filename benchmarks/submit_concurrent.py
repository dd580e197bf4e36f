"""200 concurrent single submits reach 60 % of the bulk rate: the micro-batcher joins them."""

from __future__ import annotations

import asyncio

from benchmarks.bench import PAYLOAD, QUEUE, Bench, Persistence, Plan, bench
from benchmarks.figure import Figure, Reference, at_least, measured
from benchmarks.measure import Cost, in_turns, rates, spent
from benchmarks.submit_bulk import bulk

TASKS = 200


async def run(plan: Plan) -> list[Figure]:
    return [await _figure(plan, Persistence.MEMORY), await _figure(plan, Persistence.DISK)]


async def _figure(plan: Plan, kept: Persistence) -> Figure:
    jobs = plan.count(20_000, 5_000)
    async with bench(kept) as workbench:
        costs = await in_turns(
            plan.rounds if kept is Persistence.MEMORY else 3,
            {"bulk": lambda: bulk(workbench, jobs), "ours": lambda: concurrent(workbench, jobs)},
        )
    disk = kept is Persistence.DISK
    return measured(
        "submit_concurrent.disk" if disk else "submit_concurrent",
        "the same, class disk" if disk else "200 tasks, each a loop of submit",
        "jobs/s",
        rates(costs["ours"]),
        None if disk else at_least(0.6, "bulk"),
        beside=Reference("jobs/s in bulk", rates(costs["bulk"])),
        bound=f"{spent(costs['ours'])}; in bulk {spent(costs['bulk'])}",
    )


async def concurrent(workbench: Bench, jobs: int) -> Cost:
    """The cost of submitting so many jobs one at a time, by 200 tasks at once."""

    async def task() -> None:
        for _ in range(jobs // TASKS):
            await workbench.engine.submit(QUEUE, PAYLOAD)

    async def work() -> None:
        await asyncio.gather(*(task() for _ in range(TASKS)))

    await workbench.clear()
    return await workbench.meter.cost(jobs, work())
