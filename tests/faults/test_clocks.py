"""I9: a worker whose clock is wrong by an hour changes nothing: the clock of Redis decides."""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.waiting import HANGS
from towpath.clock import ServerClock, hours, milliseconds, minutes, seconds, wall_ms
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.engine.model import Lease, new_job
from towpath.ids import JobId

ROOT = Path(__file__).parents[2]
QUEUE = "clocks"
LEASE_MS = 1500
HOUR_MS = 3_600_000
LATE_MS = int(HANGS * 1000)
"""A busy machine may be so late; a clock that is wrong would be late by an hour."""
DELAYS = [0, 300, 600, 900]
OFFSETS = pytest.mark.parametrize("offset", [-3600, 3600], ids=["an hour late", "an hour early"])


@dataclass(frozen=True)
class ClaimedJob:
    """A job that the process with the wrong clock got, with times by the clock of Redis."""

    id: JobId
    at_ms: int
    expires_ms: int
    due_ms: int

    @classmethod
    def of(cls, lease: Lease) -> "ClaimedJob":
        return cls(lease.id, lease.claimed_ms, lease.expires_ms, lease.due_ms)


class ShiftedWorker:
    """The process of `wrong_clock_program.py`."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def clock_error_ms(self) -> int:
        """How wrong the clock of the process is: its first output."""
        [_, at, *_] = await self._line()
        return int(at) - wall_ms()

    async def claimed(self, count: int) -> list[ClaimedJob]:
        rows = [await self._line() for _ in range(count)]
        return [ClaimedJob(JobId(id), int(at), int(end), int(due)) for id, at, end, due in rows]

    async def _line(self) -> list[str]:
        assert self._process.stdout is not None
        async with asyncio.timeout(HANGS):
            return (await self._process.stdout.readline()).decode().split()


@asynccontextmanager
async def shifted_worker(url: str, offset: int, jobs: int) -> AsyncGenerator[ShiftedWorker]:
    words = [url, QUEUE, str(offset), str(LEASE_MS), str(jobs)]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.faults.wrong_clock_program",
        *words,
        cwd=ROOT,
        stdin=PIPE,
        stdout=PIPE,
    )
    try:
        yield ShiftedWorker(process)
    finally:
        process.kill()
        await process.wait()


def early(claimed: list[ClaimedJob]) -> list[JobId]:
    """Jobs that were delivered before their time."""
    return [claim.id for claim in claimed if claim.at_ms < claim.due_ms]


@OFFSETS
async def test_no_job_is_delivered_early_or_late(server: EmbeddedServer, offset: int) -> None:
    """Neither jobs of others nor the one that the process itself submits with a delay by its own
    clock.
    """
    async with Engine(server.url) as engine:
        await engine.submit_many(
            QUEUE, [new_job(b"x", delay=milliseconds(delay)) for delay in DELAYS]
        )
        async with shifted_worker(server.url, offset, len(DELAYS) + 1) as worker:
            assert abs(await worker.clock_error_ms() - offset * 1000) < HOUR_MS / 2
            claimed = await worker.claimed(len(DELAYS) + 1)
    assert early(claimed) == []
    assert [
        claim.id for claim in claimed if claim.at_ms > claim.due_ms + LATE_MS and claim.due_ms
    ] == []
    assert {claim.expires_ms - claim.at_ms for claim in claimed} <= {LEASE_MS, LEASE_MS + 1}


@OFFSETS
async def test_no_lease_is_shorter_or_longer_than_asked_for(
    server: EmbeddedServer, offset: int
) -> None:
    async with Engine(server.url) as engine:
        await engine.submit(QUEUE, b"x")
        async with shifted_worker(server.url, offset, 1) as worker:
            await worker.clock_error_ms()
            [first] = await worker.claimed(1)
            [own] = await engine.claim(QUEUE, worker="w", lease=minutes(1), wait=seconds(HANGS))
            [second] = await engine.claim(QUEUE, worker="w", lease=minutes(1), wait=seconds(HANGS))
    again = {lease.id: ClaimedJob.of(lease) for lease in (own, second)}[first.id]
    assert first.expires_ms <= again.at_ms < first.expires_ms + LATE_MS


async def test_scripts_that_trust_a_workers_clock_would_be_caught(server: EmbeddedServer) -> None:
    """Shows that the check can fail: the scripts use the clock of a worker that is an hour
    ahead.
    """

    class WorkersClock(ServerClock):
        def stamp(self) -> str:
            return str(wall_ms() + HOUR_MS)

    async with Engine(server.url) as engine:
        await engine.submit(QUEUE, b"x", delay=minutes(30))
        submitted_at = wall_ms()
    async with Engine(server.url, clock=WorkersClock()) as trusting:
        leases = await trusting.claim(QUEUE, worker="w", lease=hours(1))
    really = [
        ClaimedJob(lease.id, submitted_at, lease.expires_ms, lease.due_ms) for lease in leases
    ]
    assert early(really) == [lease.id for lease in leases] != []
