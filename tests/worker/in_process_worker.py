"""Runs workers in this process, waits for what their jobs come to, and collects their log lines."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.waiting import HANGS, eventually_async, eventually_in_loop
from towpath.app.app import Towpath
from towpath.app.job import Job
from towpath.clock import seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.engine.model import JobInfo
from towpath.telemetry.logs import LogLine
from towpath.worker.worker import Worker

SOON = seconds(HANGS)
"""Longer than anything here takes."""


@asynccontextmanager
async def working(app: Towpath, **options: Any) -> AsyncGenerator[Worker]:
    """Runs a worker of *app* while the body runs; at the end it releases what it holds."""
    worker = Worker(app, **options)
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop("the test is over")
        worker.stop()
        await running


async def ended(ticket: Job[Any]) -> JobInfo:
    """Returns the job once it is done, dead or cancelled."""
    return await engine_of(ticket).events.ended(ticket.ref, within=SOON)


async def job_once(ticket: Job[Any], fact: Callable[[JobInfo], object]) -> JobInfo:
    """Returns the job as soon as *fact* holds for it."""
    found: list[JobInfo] = []

    async def holds() -> bool:
        found[:] = [await engine_of(ticket).inspect.job(ticket.ref)]
        return bool(fact(found[0]))

    await eventually_async(holds)
    return found[0]


async def slots(worker: Worker) -> dict[str, int]:
    """Returns the busy, free and lost slots that the worker's metrics show."""
    families = await asyncio.to_thread(lambda: list(worker.metrics.collect()))
    samples = [
        sample for family in families for sample in family.samples if sample.name == "towpath_slots"
    ]
    return {sample.labels["state"]: int(sample.value) for sample in samples}


async def until_slots(worker: Worker, **wanted: int) -> None:
    """Returns when so many slots are busy, free or lost."""

    async def so() -> bool:
        return wanted.items() <= (await slots(worker)).items()

    await eventually_async(so)


def engine_of(ticket: Job[Any]) -> Engine:
    return ticket._backend.engine  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]


class LogLines(logging.Handler):
    """Collects every log line of workers, as its fields."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.all: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        line: Any = record.msg
        if type(line) is LogLine:
            self.all.append(line)

    def of(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.all if line["event"] == event]

    def events(self) -> set[str]:
        return {line["event"] for line in self.all}

    async def next(self, event: str) -> dict[str, Any]:
        """Returns the first line of that event, once there is one."""
        await eventually_in_loop(lambda: bool(self.of(event)))
        return self.of(event)[0]


def spoil(server: EmbeddedServer, *keys: str) -> None:
    """Replaces a key by one of a type that no script expects."""
    for key in keys:
        server.ask("DEL", key)
        server.ask("SET", key, "not what it should be")
