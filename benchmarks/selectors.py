"""A claim by selector takes at most 1.5 x as long (p99) with 50,000 jobs as with 50.

Two Redis servers take turns. Each claim names 100 selectors, or none; its job is completed and
another is submitted, so that the backlog keeps its size.
"""

from __future__ import annotations

import random
from contextlib import AsyncExitStack
from time import perf_counter

from benchmarks.bench import PAYLOAD, QUEUE, WORKER, Bench, Plan, bench
from benchmarks.figure import Figure, at_most, measured
from benchmarks.measure import percentile
from towpath import minutes
from towpath.engine.model import new_job

LARGE, SMALL, SELECTORS, NAMED = 50_000, 50, 200, 100
LEASE = minutes(10)
NAMES = [f"octo/repository-{n % 50}|role-{n // 50}" for n in range(SELECTORS)]


async def run(plan: Plan) -> list[Figure]:
    claims = plan.count(2_000, 300)
    p99: dict[str, list[float]] = {}
    async with AsyncExitStack() as stack:
        small, large = [await stack.enter_async_context(bench()) for _ in "12"]
        for workbench, jobs in ((small, SMALL), (large, plan.count(LARGE, 5_000))):
            await _fill(workbench, jobs)
        for _ in range(plan.rounds):
            for name, workbench in (("small", small), ("large", large)):
                for kind, most in (("named", NAMED), ("any", 0)):
                    took = await _claims(workbench, claims, most)
                    p99.setdefault(f"{name} {kind}", []).append(percentile(took, 0.99) * 1000)
    return [figure for kind in ("named", "any") for figure in _figures(p99, kind)]


def _figures(p99: dict[str, list[float]], kind: str) -> list[Figure]:
    small, large = p99[f"small {kind}"], p99[f"large {kind}"]
    times = [a / b for a, b in zip(large, small, strict=True)]
    what = f"claim naming {NAMED} selectors" if kind == "named" else "claim naming none"
    target = at_most(1.5)
    return [
        measured(f"selectors.{kind}", f"{what}, p99: 50,000 jobs to 50", "x", times, target),
        measured(f"selectors.{kind}.large", f"{what}, p99 with 50,000 jobs", "ms", large),
        measured(f"selectors.{kind}.small", f"{what}, p99 with 50 jobs", "ms", small),
    ]


async def _fill(workbench: Bench, jobs: int) -> None:
    await workbench.clear()
    wanted = [new_job(PAYLOAD, selector=NAMES[n % SELECTORS]) for n in range(jobs)]
    for start in range(0, jobs, 500):
        await workbench.engine.submit_many(QUEUE, wanted[start : start + 500])


async def _claims(workbench: Bench, count: int, named: int) -> list[float]:
    """The seconds of each claim."""
    chance, took = random.Random(7), list[float]()
    for _ in range(count):
        selectors = chance.sample(NAMES, named) if named else []
        began = perf_counter()
        leases = await workbench.engine.claim(
            QUEUE, worker=WORKER, lease=LEASE, selectors=selectors, max_held=5
        )
        took.append(perf_counter() - began)
        for lease in leases:
            await workbench.engine.complete(lease)
            await workbench.engine.submit(QUEUE, PAYLOAD, selector=lease.selector)
    return took
