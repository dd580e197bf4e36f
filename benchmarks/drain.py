"""How fast one process drains a queue by exchange, in batches of 100 (no-op jobs)."""

from __future__ import annotations

from benchmarks.bench import Bench, Plan, bench
from benchmarks.figure import Figure, Reference, measured
from benchmarks.measure import Cost, in_turns, rates
from benchmarks.raw import Raw
from benchmarks.server_cpu import exchange_all
from benchmarks.submit_bulk import BATCH, POOL


async def run(plan: Plan) -> list[Figure]:
    jobs = plan.count(20_000, 5_000)
    async with bench() as workbench, Raw(workbench) as raw:
        costs = await in_turns(
            plan.rounds,
            {
                "raw": lambda: raw.pooled(plan.count(4_000, 1_500)),
                "ours": lambda: _drain(workbench, jobs),
            },
        )
    return [
        measured(
            "drain",
            "claim + complete by exchange, batches of 100",
            "jobs/s",
            rates(costs["ours"]),
            beside=Reference(POOL, rates(costs["raw"])),
        )
    ]


async def _drain(workbench: Bench, jobs: int) -> Cost:
    await workbench.clear()
    await workbench.fill(jobs)
    return await workbench.meter.cost(jobs, exchange_all(workbench, jobs, BATCH))
