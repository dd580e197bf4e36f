"""The work of `wrong_clock_program.py`, imported after the clock is shifted."""

import asyncio
import sys

from tests.waiting import HANGS
from towpath.clock import milliseconds, seconds, wall_ms
from towpath.engine.engine import Engine
from towpath.engine.model import new_job

SUBMITTED_DELAY = seconds(1)


def work(url: str, queue: str, lease_ms: int, jobs: int) -> None:
    print("clock", wall_ms(), 0, 0, flush=True)  # noqa: T201  what it is for
    asyncio.run(_work(url, queue, lease_ms, jobs))


async def _work(url: str, queue: str, lease_ms: int, jobs: int) -> None:
    async with Engine(url) as engine:
        await engine.submit_many(queue, [new_job(b"its own", delay=SUBMITTED_DELAY)])
        for _ in range(jobs):
            leases = await engine.claim(
                queue, worker="shifted", lease=milliseconds(lease_ms), wait=seconds(HANGS)
            )
            for lease in leases:
                print(lease.id, lease.claimed_ms, lease.expires_ms, lease.due_ms, flush=True)  # noqa: T201
        await asyncio.to_thread(sys.stdin.read)
