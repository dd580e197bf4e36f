"""A waiting plain job with a payload of 100 bytes takes at most 450 bytes of Redis memory."""

from __future__ import annotations

from benchmarks.bench import QUEUE, Plan, bench
from benchmarks.figure import Figure, at_most, measured
from towpath.engine.keys import keys_of
from towpath.ids import queue_name

BATCH = 100


async def run(plan: Plan) -> list[Figure]:
    jobs = plan.count(100_000, 20_000)
    taken, of_events = list[float](), list[float]()
    events = keys_of(queue_name(QUEUE)).events
    for _ in range(3):
        async with bench() as workbench:
            await workbench.clear()
            before = workbench.meter.memory()
            await workbench.submit(jobs, BATCH)
            taken.append((workbench.meter.memory() - before) / jobs)
            of_events.append(workbench.meter.size_of(events) / jobs)
    bound = f"of it {of_events[0]:.0f} bytes are the stream of events, which does not grow further"
    return [
        measured(
            "memory", f"{jobs:,} plain jobs waiting", "bytes/job", taken, at_most(450), bound=bound
        ),
        measured("memory.events", "of it: the stream of events", "bytes/job", of_events),
    ]
