"""Duties for queues that nobody claims from: bounded, harmless to repeat, run by anybody.

A claim reaps and promotes by itself, so a queue with workers needs none of this. There is no
single scheduler: every process may run the duties, and a pause left to chance keeps processes
that started together apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from random import uniform

from towpath.clock import Duration, seconds
from towpath.engine.engine import Engine

SWEEP_EVERY = seconds(5)


async def sweep(engine: Engine, queue: str, limit: int = 100) -> int:
    """Promote, reap and trim once, at most *limit* of each; how many it were. Three round trips."""
    promoted = await engine.promote(queue, limit)
    reaped = await engine.reap(queue, limit)
    return promoted + reaped + await engine.trim(queue, limit)


async def keep_sweeping(
    engine: Engine, queues: Iterable[str], *, every: Duration = SWEEP_EVERY
) -> None:
    """Sweep *queues* until cancelled; one with more than a sweep takes is swept again at once."""
    names = list(queues)
    while True:
        for queue in names:
            while await sweep(engine, queue) >= 100:
                pass
        await asyncio.sleep(every.total_seconds() * uniform(0.5, 1.5))  # noqa: S311 -- jitter
