"""A worker is listed with its running jobs while it lives, and no longer once it has ended."""

import asyncio
import os
import socket

import pytest
from pydantic import BaseModel

from tests.waiting import eventually_async
from tests.worker.in_process_worker import working
from towpath.app.app import Towpath
from towpath.clock import milliseconds
from towpath.engine.worker_registry import LiveWorker
from towpath.worker import registration


async def test_a_worker_registers_what_it_runs_and_deregisters_at_its_end(
    app: Towpath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "REPORT_EVERY", milliseconds(50))
    go_on = asyncio.Event()

    @app.handler("shop")
    async def sell() -> None:
        await go_on.wait()

    found: list[LiveWorker] = []

    async def runs_it() -> bool:
        found[:] = await app.engine.workers.list()
        return bool(found and found[0].report.jobs)

    async with app:
        async with working(app, concurrency=3, name="anna"):
            job = await sell.submit()
            await eventually_async(runs_it)
            [(name, _, report)] = found
            assert (name, report.host, report.pid) == ("anna", socket.gethostname(), os.getpid())
            assert (list(report.queues), report.slots, report.running) == (["shop"], 3, 1)
            assert [running.job for running in report.jobs] == [job.ref]
            go_on.set()
        assert await app.engine.workers.list() == []


class Letter(BaseModel):
    to: str


async def test_a_worker_registers_its_handlers_and_release(app: Towpath) -> None:
    @app.handler("mails")
    async def send(letter: Letter) -> None: ...

    @app.handler("mails", name="count")
    async def count() -> None: ...

    @app.handler("prints")
    async def press(pages: list[int]) -> None: ...

    found: list[LiveWorker] = []

    async def lists(*names: str | None) -> bool:
        found[:] = await app.engine.workers.list()
        return bool(found) and [one.name for one in found[0].report.handlers or ()] == list(names)

    async with working(app, unhandled_for=milliseconds(7)):
        await eventually_async(lambda: lists(None, "count", None))
        report = found[0].report
        app.remove(count)
        await eventually_async(lambda: lists(None, None))
    told = [(one.queue, one.digest) for one in report.handlers or ()]
    assert told == [("mails", send.digest), ("mails", ""), ("prints", press.digest)]
    assert "" not in (send.digest, press.digest)
    assert (report.handling, report.release, report.unhandled_for_ms) == (3, app.version, 7)
