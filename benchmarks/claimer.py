"""A process that waits for work and reports when it got it, for two figures.

`python -m benchmarks.claimer claim URL QUEUE JOBS` waits by `claim`, `… blpop SOCKET KEY ITEMS`
by a bare BLPOP. Each prints its observations as one JSON list at its end.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from redis.asyncio import Redis

from benchmarks.bench import WORKER
from towpath import Engine, seconds
from towpath.engine.model import Lease

ROOT = Path(__file__).parents[1]
STAMPED = 100
"""Bytes of a payload that carries the time it was sent at."""


class ClaimedJob(msgspec.Struct, array_like=True, frozen=True):
    """The observation of one job. All times are of this machine's clock, which processes share."""

    sent_ns: int
    """When the submitter began to submit it, on the steady clock."""
    returned_ns: int
    """When the claim returned, on the steady clock."""
    returned_ms: float = 0
    """The same on the clock that the server goes by."""
    claimed_ms: float = 0
    """When the server claimed it."""
    due_ms: int = 0

    @property
    def pickup_ms(self) -> float:
        return (self.returned_ns - self.sent_ns) / 1e6


def stamp() -> bytes:
    """A payload of 100 bytes with the time at which it was made."""
    return str(time.perf_counter_ns()).encode().ljust(STAMPED)


@asynccontextmanager
async def claimer(kind: str, where: str, name: str, count: int) -> AsyncGenerator[Claimer]:
    """Starts a claimer in a process of its own, which ends with the block at the latest."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "benchmarks.claimer",
        kind,
        where,
        name,
        str(count),
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    try:
        yield Claimer(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


class Claimer:
    """A claimer process, for the submitter."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def seen(self) -> list[ClaimedJob]:
        """All observations; waits until there are as many as asked for."""
        async with asyncio.timeout(60):
            told, _ = await self._process.communicate()
        return msgspec.json.decode(told, type=list[ClaimedJob])


async def claim_all(engine: Engine, queue: str, count: int) -> list[ClaimedJob]:
    """Waits for *count* jobs, one after the other, as an idle worker does."""
    seen: list[ClaimedJob] = []
    while len(seen) < count:
        for lease in await engine.claim(queue, worker=WORKER, lease=seconds(30), wait=seconds(30)):
            seen.append(_seen(lease))
            await engine.complete(lease)
    return seen


def _seen(lease: Lease) -> ClaimedJob:
    returned, wall = time.perf_counter_ns(), time.time_ns() / 1e6
    # A token is the time of the claim by the clock of Redis, in µs.
    return ClaimedJob(int(lease.payload), returned, wall, lease.token / 1000, lease.due_ms)


async def _claim(url: str, queue: str, count: int) -> list[ClaimedJob]:
    async with Engine(url) as engine:
        return await claim_all(engine, queue, count)


async def _blpop(path: str, key: str, count: int) -> list[ClaimedJob]:
    client: Any = Redis(unix_socket_path=path, protocol=2)
    try:
        got = [
            ClaimedJob(int((await client.blpop(key, 30))[1]), time.perf_counter_ns())
            for _ in range(count)
        ]
    finally:
        await client.aclose()
    return got


def main() -> None:
    kind, where, name, count = sys.argv[1:]
    wait = _claim if kind == "claim" else _blpop
    print(msgspec.json.encode(asyncio.run(wait(where, name, int(count)))).decode())


if __name__ == "__main__":
    main()
