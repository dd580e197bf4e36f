"""submit_many in batches of 100 reaches the raw EVALSHA rate of one connection pool."""

from __future__ import annotations

from benchmarks.bench import Bench, Persistence, Plan, bench
from benchmarks.figure import Figure, Reference, at_least, measured
from benchmarks.measure import Cost, in_turns, rates, spent
from benchmarks.raw import Raw

BATCH = 100
POOL = "EVALSHA/s, redis-py pool of 50"
BARE = "EVALSHA/s, 50 bare sockets"


async def run(plan: Plan) -> list[Figure]:
    async with bench() as workbench, Raw(workbench) as raw:
        memory = await _in_memory(plan, workbench, raw)
    async with bench(Persistence.DISK) as workbench, Raw(workbench) as raw:
        return [*memory, await _on_disk(plan, workbench, raw)]


async def _in_memory(plan: Plan, workbench: Bench, raw: Raw) -> list[Figure]:
    calls = plan.count(5_000, 1_500)
    costs = await in_turns(
        plan.rounds,
        {
            "raw": lambda: raw.pooled(calls),
            "bare": lambda: raw.bare(calls),
            "ours": lambda: bulk(workbench, plan.count(20_000, 5_000)),
        },
    )
    ours = rates(costs["ours"])
    return [
        measured(
            "submit_bulk",
            "submit_many, batches of 100",
            "jobs/s",
            ours,
            at_least(1.0, "raw"),
            beside=Reference(POOL, rates(costs["raw"])),
            bound=spent(costs["ours"]),
        ),
        measured(
            "submit_bulk.bare",
            "the same beside no client library",
            "jobs/s",
            ours,
            beside=Reference(BARE, rates(costs["bare"])),
        ),
    ]


async def _on_disk(plan: Plan, workbench: Bench, raw: Raw) -> Figure:
    costs = await in_turns(
        3,
        {
            "raw": lambda: raw.pooled(plan.count(3_000, 1_000)),
            "ours": lambda: bulk(workbench, plan.count(20_000, 5_000)),
        },
    )
    return measured(
        "submit_bulk.disk",
        "the same, class disk",
        "jobs/s",
        rates(costs["ours"]),
        beside=Reference(POOL, rates(costs["raw"])),
    )


async def bulk(workbench: Bench, jobs: int) -> Cost:
    """The cost of submitting so many jobs in bulk to an empty queue."""
    await workbench.clear()
    return await workbench.submit(jobs, BATCH)
