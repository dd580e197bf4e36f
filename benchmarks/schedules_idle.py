"""A process that fires schedules asks Redis one question a second, however many schedules there
are.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from benchmarks.bench import Bench, Plan, bench
from benchmarks.figure import Figure, at_most, measured
from towpath.clock import days, steady
from towpath.engine.schedule import Every
from towpath.worker.schedules import DeclaredSchedules, keep_firing

_FEW = 10
"""Scripts a second, below which the beginning is over."""


async def run(plan: Plan) -> list[Figure]:
    watched = 10.0 if plan.quick else 60.0
    many = 1_000
    async with bench() as workbench:
        none = await _rates(workbench, watched)
        began = steady()
        for n in range(many):
            await workbench.engine.schedules.set(f"queue-{n}", "daily", Every(days(1)))
        made = (steady() - began) / many * 1000
        one_each = await _rates(workbench, watched)
        workbench.meter.empty()
        for n in range(many):
            await workbench.engine.schedules.set("queue", f"daily-{n}", Every(days(1)))
        together = await _rates(workbench, watched)
    return [
        measured("schedules_idle.none", "no schedule", "scripts/s", none, at_most(1.5)),
        measured(
            "schedules_idle.queues", f"{many} queues, one each", "scripts/s", one_each, at_most(6)
        ),
        measured(
            "schedules_idle.queue", f"{many} in one queue", "scripts/s", together, at_most(1.5)
        ),
        measured("schedules_idle.set", f"making one, up to {many} queues", "ms", [made]),
    ]


async def _rates(workbench: Bench, watched: float) -> list[float]:
    """Scripts per second while nothing is due, after all queues were read: over three polls."""
    firing = asyncio.create_task(keep_firing(workbench.engine, DeclaredSchedules()))
    found: list[float] = []
    try:
        last, now = -_FEW, 0
        while now - last >= _FEW:  # until all queues were read once
            last = now
            await asyncio.sleep(1)
            now = _scripts(workbench)
        for _ in range(3):
            workbench.meter.forget_calls()
            await asyncio.sleep(watched / 3)
            found.append(_scripts(workbench) / (watched / 3))
    finally:
        firing.cancel()
        with suppress(asyncio.CancelledError):
            await firing
    return found


def _scripts(workbench: Bench) -> int:
    calls = workbench.meter.calls()
    return sum(calls.get(name, 0) for name in ("evalsha", "eval", "hlen"))
