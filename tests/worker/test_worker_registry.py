"""A worker is listed with its running jobs while it lives, and no longer once it has ended."""

import asyncio
import os
import socket

import pytest
from pydantic import BaseModel

from tests.waiting import eventually_async
from tests.worker.running import working
from towpath.app.app import Towpath
from towpath.clock import milliseconds
from towpath.engine.worker_registry import LivingWorker
from towpath.worker import registration


async def test_a_worker_registers_what_it_runs_and_deregisters_at_its_end(
    app: Towpath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "TELL_EVERY", milliseconds(50))
    go_on = asyncio.Event()

    @app.handler("shop")
    async def sell() -> None:
        await go_on.wait()

    found: list[LivingWorker] = []

    async def runs_it() -> bool:
        found[:] = await app.engine.workers.list()
        return bool(found and found[0].doing.jobs)

    async with app:
        async with working(app, concurrency=3, name="anna"):
            job = await sell.submit()
            await eventually_async(runs_it)
            [(name, _, doing)] = found
            assert (name, doing.host, doing.pid) == ("anna", socket.gethostname(), os.getpid())
            assert (list(doing.queues), doing.slots, doing.running) == (["shop"], 3, 1)
            assert [running.job for running in doing.jobs] == [job.ref]
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

    found: list[LivingWorker] = []

    async def lists(*names: str | None) -> bool:
        found[:] = await app.engine.workers.list()
        return bool(found) and [one.name for one in found[0].doing.handlers or ()] == list(names)

    async with working(app, unhandled_for=milliseconds(7)):
        await eventually_async(lambda: lists(None, "count", None))
        doing = found[0].doing
        app.remove(count)
        await eventually_async(lambda: lists(None, None))
    told = [(one.queue, one.digest) for one in doing.handlers or ()]
    assert told == [("mails", send.digest), ("mails", ""), ("prints", press.digest)]
    assert "" not in (send.digest, press.digest)
    assert (doing.handling, doing.release, doing.unhandled_for_ms) == (3, app.version, 7)
