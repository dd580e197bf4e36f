"""Time limits: what becomes of handlers that take too long, in every executor."""

import asyncio
import threading
from pathlib import Path

import pytest

from tests.waiting import HANGS, eventually, eventually_in_loop
from tests.worker import process_handlers
from tests.worker.in_process_worker import SOON, LogLines, ended, until_slots, working
from tests.worker.worker_programs import is_gone
from towpath.app.app import Towpath
from towpath.app.blocking import Blocking
from towpath.clock import milliseconds, minutes, seconds
from towpath.engine.engine import Engine
from towpath.engine.model import JobInfo
from towpath.engine.retry import Never
from towpath.engine.states import State
from towpath.worker.context import Context
from towpath.worker.handler import HandlerOptions
from towpath.worker.worker import ExitCode, Worker

SHORT = milliseconds(300)


def require_timed_out(job: JobInfo, limit: str = "300ms") -> None:
    reason = job.reason or ""
    assert job.state is State.DEAD
    assert reason.startswith("TimeLimit: ")
    assert limit in reason.split()


class TestAnAsyncHandler:
    async def test_is_cancelled_and_its_slot_is_free(self, app: Towpath, lines: LogLines) -> None:
        cancelled: list[bool] = []

        @app.handler("shop", time_limit=SHORT, retry=Never())
        async def sell(ctx: Context) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.append(ctx.cancelled)

        @app.handler("till")
        async def count() -> str:
            return "counted"

        async with working(app, concurrency=1):
            dead = await ended(await sell.submit())
            assert await (await count.submit()).result(within=SOON) == "counted"
        require_timed_out(dead)
        assert cancelled == [True]
        [line] = lines.of("job.timed_out")
        assert (line["limit"], line["ended"]) == (0.3, "cancelled")
        assert not lines.of("slot.lost")

    async def test_that_does_not_end_loses_its_slot_until_it_does(
        self, app: Towpath, lines: LogLines
    ) -> None:
        """The job does not wait for that: its attempt fails when the patience is over."""
        go = asyncio.Event()

        @app.handler("shop", time_limit=SHORT, retry=Never())
        async def sell() -> None:
            while not go.is_set():
                try:
                    await go.wait()
                except asyncio.CancelledError:
                    continue

        @app.handler("till")
        async def count() -> str:
            return "counted"

        async with working(app, concurrency=2) as worker:
            dead = await ended(await sell.submit())
            assert (await lines.next("slot.lost"))["slots"] == 1
            assert await (await count.submit()).result(within=SOON) == "counted"
            go.set()
            await until_slots(worker, lost=0, free=2)
        require_timed_out(dead)
        assert (await app.engine.inspect.counts("shop")).totals["failed"] == 1

    @pytest.mark.usefixtures("quick_heartbeat")
    async def test_that_blocks_the_loop_is_failed_by_the_heartbeat(
        self, app: Towpath, lines: LogLines, gate: threading.Event
    ) -> None:
        """Its job is delivered to others while it still blocks; the leases beside it stay."""

        @app.handler("shop", time_limit=SHORT, retry=Never())
        async def block() -> None:
            gate.wait(HANGS)

        @app.handler("till")
        async def patient(ctx: Context) -> int:
            await go.wait()
            return ctx.token

        go = asyncio.Event()
        async with working(app, lease=minutes(9)):
            beside = await patient.submit()
            await lines.next("job.started")
            watching = _open_when_dead(app, gate)
            dead = await ended(await block.submit())
            reaped = await watching
            go.set()
            token = await beside.result(within=SOON)
        require_timed_out(dead)
        assert reaped == 0
        assert (await app.engine.inspect.job(beside.ref)).token == token
        assert {"loop.blocked"} == {"loop.blocked", "job.lost"} & lines.events()

    async def test_goes_on_when_the_loop_does(
        self, app: Towpath, lines: LogLines, gate: threading.Event
    ) -> None:
        """No slot is lost to a handler that ends as soon as it gets its cancellation."""
        cancelled: list[bool] = []

        @app.handler("shop", time_limit=SHORT, retry=Never())
        async def sell() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.append(True)

        @app.handler("till", time_limit=SHORT, retry=Never())
        async def block() -> None:
            gate.wait(HANGS)

        async with working(app, concurrency=2) as worker:
            watching = _open_when_dead(app, gate, blocking="till")
            await sell.submit()
            await lines.next("job.started")
            dead = await ended(await block.submit())
            await watching
            await until_slots(worker, busy=0, free=2, lost=0)
        require_timed_out(dead)
        assert cancelled == [True]
        assert not {"slot.lost", "slots.exhausted"} & lines.events()
        assert len(lines.of("job.dead")) == 2

    async def test_that_blocks_the_loop_takes_no_time_from_jobs_beside_it(
        self, app: Towpath, gate: threading.Event
    ) -> None:
        """They were claimed with it and could not begin: their time counts from their start."""
        ran: list[int] = []

        @app.handler("shop", time_limit=SHORT, retry=Never())
        async def sell(n: int) -> int:
            ran.append(n)
            if n == 0:
                gate.wait(HANGS)
            return n

        jobs = [await sell.submit(n) for n in range(4)]
        async with working(app, concurrency=10):
            await _open_when_dead(app, gate)
            found = [await ended(job) for job in jobs]
        assert [job.state for job in found] == [State.DEAD, *[State.DONE] * 3]
        assert sorted(ran) == [0, 1, 2, 3]

    async def test_is_logged_while_it_still_blocks(
        self, app: Towpath, lines: LogLines, gate: threading.Event
    ) -> None:
        """A reader of the log at that time has to learn which job it is."""
        told: list[str] = []

        @app.handler("shop", time_limit=SHORT, retry=Never())
        async def block() -> None:
            eventually(lambda: "job.dead" in lines.events())
            told.extend(sorted(lines.events() & {"job.dead", "job.timed_out", "loop.blocked"}))

        async with working(app):
            await ended(await block.submit())
            await eventually_in_loop(lambda: bool(told))
        assert told == ["job.dead", "job.timed_out", "loop.blocked"]
        assert len(lines.of("job.timed_out")) == len(lines.of("job.dead")) == 1


def _open_when_dead(
    app: Towpath, gate: threading.Event, *, blocking: str = "shop"
) -> asyncio.Future[int]:
    """Opens the gate once the job of the queue *blocking* is dead; counts how many leases have
    ended. It asks from another thread, because the worker's loop stands still.
    """

    def look() -> int:
        with Blocking(Engine(app.url)) as other:
            eventually(lambda: other.run(lambda engine: engine.inspect.counts(blocking)).dead)
            till = other.run(lambda engine: engine.inspect.counts("till"))
        gate.set()
        return till.totals["reaped"]

    return asyncio.get_running_loop().run_in_executor(None, look)


class TestAHandlerInAThread:
    async def test_is_left_behind_and_its_slot_is_lost(
        self, app: Towpath, lines: LogLines, gate: threading.Event
    ) -> None:
        @app.handler("shop", time_limit=SHORT, retry=Never())
        def sell(_: int, ctx: Context) -> None:
            gate.wait(HANGS)

        async with working(app, concurrency=2) as worker:
            dead = await ended(await sell.submit(1))
            assert (await lines.next("slot.lost"))["slots"] == 1
            await until_slots(worker, busy=0, free=1, lost=1)
            gate.set()
            await until_slots(worker, busy=0, free=2, lost=0)
            await (await sell.submit(2)).result(within=SOON)
        require_timed_out(dead)
        assert [line["ended"] for line in lines.of("job.timed_out")] == ["abandoned"]

    async def test_ends_the_worker_when_all_slots_are_lost(
        self, app: Towpath, lines: LogLines, gate: threading.Event
    ) -> None:
        """The exit code makes a supervisor restart it."""

        @app.handler("shop", time_limit=SHORT, retry=Never())
        def sell(_: int) -> None:
            gate.wait(HANGS)

        jobs = await sell.submit_many([1, 2])
        code = await Worker(app, concurrency=2).run()
        assert code == ExitCode.SLOTS_LOST == 1
        for job in jobs:
            require_timed_out(await ended(job))
        assert lines.of("slots.exhausted")[0]["concurrency"] == 2
        assert lines.of("worker.stopped")[0]["code"] == 1


class TestAHandlerInAProcess:
    async def test_is_killed_and_its_slot_is_free(
        self, app: Towpath, lines: LogLines, tmp_path: Path
    ) -> None:
        options = HandlerOptions(processes=1, time_limit=seconds(5), retry=Never())
        loop = app.add("loops", process_handlers.never_end.function, options)
        async with working(app, concurrency=1):
            first = await loop.submit(str(tmp_path / "1"))
            dead = await ended(first)
            second = await loop.submit(str(tmp_path / "2"))
            await eventually_in_loop((tmp_path / "2").exists)
        pids = (tmp_path / "1").read_text().split()
        await eventually_in_loop(lambda: all(is_gone(pid) for pid in pids))
        assert len(pids) == 2, "its own and that of what it has started"
        require_timed_out(dead, "5s")
        assert [line["ended"] for line in lines.of("job.timed_out")] == ["killed"]
        assert (await app.engine.inspect.job(second.ref)).state is State.READY
