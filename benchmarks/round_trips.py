"""A worker needs one round trip per batch, a producer too: two EVALSHA per batch of jobs."""

from __future__ import annotations

from benchmarks.bench import Plan, bench
from benchmarks.figure import Figure, at_most, measured
from benchmarks.measure import Meter
from benchmarks.server_cpu import exchange_all
from benchmarks.submit_concurrent import TASKS, concurrent

BATCHES = (1, 10, 100)
SCRIPTS = ("evalsha", "eval")


async def run(plan: Plan) -> list[Figure]:
    jobs = plan.count(2_000, 1_000)
    figures: list[Figure] = []
    async with bench() as workbench:
        await workbench.submit(1, 1)  # Redis loads the scripts, unmeasured
        await exchange_all(workbench, 1, 1)
        for batch in BATCHES:
            trips, inside = list[float](), list[float]()
            for _ in range(3):
                await workbench.clear()
                workbench.meter.forget_calls()
                await workbench.submit(jobs, batch)
                await exchange_all(workbench, jobs, batch)
                trips.append(_round_trips(workbench.meter) / jobs)
                inside.append(_all_calls(workbench.meter) / jobs)
            figures += _figures(batch, trips, inside, jobs)
        shared = list[float]()
        for _ in range(3):
            workbench.meter.forget_calls()
            await concurrent(workbench, jobs)
            shared.append(_round_trips(workbench.meter) / jobs)
    what = f"single submits by {TASKS} tasks at once"
    return [*figures, measured("round_trips.concurrent", what, "EVALSHA/job", shared)]


def _figures(batch: int, trips: list[float], inside: list[float], jobs: int) -> list[Figure]:
    most = 2 / batch + 1 / jobs
    return [
        measured(
            f"round_trips.{batch}",
            f"submit + exchange, batches of {batch}",
            "EVALSHA/job",
            trips,
            at_most(round(most, 4)),
        ),
        measured(
            f"round_trips.{batch}.inside",
            "commands that the scripts call",
            "commands/job",
            inside,
        ),
    ]


def _round_trips(meter: Meter) -> int:
    calls = meter.calls()
    return sum(calls.get(name, 0) for name in SCRIPTS)


def _all_calls(meter: Meter) -> int:
    """The commands called inside of scripts: all except EVALSHA and those of the meter."""
    asked = {*SCRIPTS, "info", "config|resetstat"}
    return sum(count for name, count in meter.calls().items() if name not in asked)
