"""A private Redis with an engine on it, and how much to measure there."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from benchmarks.measure import Cost, Meter
from towpath import Engine
from towpath.clock import Clock
from towpath.embedded import EmbeddedServer
from towpath.engine.model import NewJob, new_job

QUEUE = "bench"
WORKER = "bench"
PAYLOAD = b"x" * 100


class Plan(msgspec.Struct, frozen=True):
    """How much to measure."""

    quick: bool = False
    long: bool = False
    """Watch each crash for longer."""
    only: tuple[str, ...] = ()
    """The rows of `peers` to run; all of them if none are named."""

    @property
    def rounds(self) -> int:
        return 3 if self.quick else 7

    @property
    def watch(self) -> float:
        """The seconds for which a killed worker's job is watched."""
        return 110.0 if self.long else 20.0 if self.quick else 30.0

    def count(self, full: int, quick: int) -> int:
        return quick if self.quick else full


class Persistence(StrEnum):
    """The durability class of a Redis."""

    MEMORY = "memory"
    DISK = "disk"


class Bench:
    """One Redis, one engine, one meter."""

    def __init__(self, server: EmbeddedServer, engine: Engine, meter: Meter) -> None:
        self.server, self.engine, self.meter = server, engine, meter

    @property
    def socket(self) -> str:
        return str(self.server.socket)

    async def clear(self) -> None:
        """Empties Redis and lets the engine introduce the queue again, unmeasured."""
        self.meter.empty()
        await self.engine.queues.declare(QUEUE)

    async def fill(self, jobs: int) -> None:
        for start in range(0, jobs, 500):
            await self.engine.submit_many(QUEUE, plain(min(500, jobs - start)))

    async def submit(self, jobs: int, batch: int) -> Cost:
        """The cost of submitting so many plain jobs in batches."""

        async def work() -> None:
            for _ in range(jobs // batch):
                await self.engine.submit_many(QUEUE, plain(batch))

        return await self.meter.cost(jobs, work())


@asynccontextmanager
async def bench(
    kept: Persistence = Persistence.MEMORY, clock: Clock | None = None
) -> AsyncGenerator[Bench]:
    """A bench with a private Redis on a Unix socket; `disk`: every write is synced."""
    with TemporaryDirectory(prefix="towpath-bench-") as folder:
        data = Path(folder) if kept is Persistence.DISK else None
        async with EmbeddedServer(data=data) as server, Engine(server.url, clock=clock) as engine:
            meter = Meter(server)
            try:
                yield Bench(server, engine, meter)
            finally:
                meter.close()


def plain(count: int) -> list[NewJob]:
    """Plain jobs, which have a payload and default options."""
    return [new_job(PAYLOAD) for _ in range(count)]
