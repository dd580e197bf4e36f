"""Attempts that somebody else ends: jobs cancelled while they run, leases that are lost."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.faults.meanwhile import meanwhile
from tests.waiting import eventually_async
from tests.worker import pool
from tests.worker.programs import is_gone
from tests.worker.running import SOON, LogLines, ended, looked_at, working
from towpath.app.app import Towpath
from towpath.app.job import Job
from towpath.clock import hours, milliseconds, seconds
from towpath.engine.engine import Engine
from towpath.engine.model import Lease
from towpath.engine.states import State
from towpath.errors import JobUnfinished
from towpath.worker.context import Context
from towpath.worker.handler import HandlerOptions

LEASE = seconds(1)


class TestCancellingAJobThatRuns:
    async def test_an_async_handler_is_cancelled(self, app: Towpath, lines: LogLines) -> None:
        @app.handler("shop")
        async def sell(ctx: Context) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                seen.append(ctx.cancelled)

        seen: list[bool] = []
        async with working(app, lease=LEASE):
            job = await sell.submit()
            await lines.next("job.started")
            assert await job.cancel() is State.LEASED
            assert (await ended(job)).state is State.CANCELLED
            await lines.next("job.cancelled")
        assert seen == [True]

    async def test_one_that_does_not_let_itself_be_cancelled_completes(
        self, app: Towpath, lines: LogLines
    ) -> None:
        """A completion that comes first wins."""

        @app.handler("shop")
        async def sell() -> str:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return "sold all the same"
            return ""

        async with working(app, lease=LEASE):
            job = await sell.submit()
            await lines.next("job.started")
            await job.cancel()
            assert await job.result(within=SOON) == "sold all the same"

    async def test_a_handler_in_a_thread_sees_it_and_may_end(
        self, app: Towpath, gate: threading.Event, lines: LogLines
    ) -> None:
        class Stopped(Exception): ...

        @app.handler("shop")
        def sell(_: int, ctx: Context) -> None:
            while not ctx.cancelled:
                gate.wait(0.01)
            raise Stopped

        async with working(app, lease=LEASE):
            job = await sell.submit(1)
            await lines.next("job.started")
            await job.cancel()
            assert (await ended(job)).state is State.CANCELLED

    async def test_a_handler_in_a_process_sees_it_and_may_end(
        self, app: Towpath, tmp_path: Path
    ) -> None:
        options = HandlerOptions(processes=1)
        watch = app.add("watch", pool.until_cancelled.function, options)
        async with working(app, lease=LEASE):
            job = await watch.submit(str(tmp_path / "begun"))
            await meanwhile((tmp_path / "begun").exists)
            await job.cancel()
            assert await job.result(within=SOON) == "it was cancelled"

    async def test_a_process_that_does_not_heed_it_is_killed(
        self, app: Towpath, tmp_path: Path
    ) -> None:
        loop = app.add("loops", pool.never_end.function, HandlerOptions(processes=1))
        async with working(app, lease=LEASE, concurrency=1):
            job = await loop.submit(str(tmp_path / "begun"), keep=hours(1))
            await meanwhile((tmp_path / "begun").exists)
            await job.cancel()
            with pytest.raises(JobUnfinished, match="cancelled"):
                await job.result(within=SOON)
            pids = (tmp_path / "begun").read_text().split()
            await meanwhile(lambda: all(is_gone(pid) for pid in pids))

    async def test_a_cancelled_job_has_no_result(self, app: Towpath) -> None:
        @app.handler("shop")
        async def sell() -> None: ...

        job = await sell.submit(keep=hours(1))
        await job.cancel()
        with pytest.raises(JobUnfinished, match="cancelled"):
            await job.result(within=SOON)


class TestALostLease:
    """Taken away by hand: the engine gives the job back under the lease's own token."""

    async def test_ends_the_attempt_and_changes_nothing(
        self, app: Towpath, lines: LogLines
    ) -> None:
        @app.handler("shop")
        async def sell(ctx: Context) -> int:
            tokens.append(ctx.token)
            if len(tokens) == 1:
                await asyncio.Event().wait()
            return ctx.token

        tokens: list[int] = []
        async with working(app, lease=LEASE, concurrency=1):
            job = await sell.submit()
            await lines.next("job.started")
            await take_away(app.engine, job)
            token = await job.result(within=SOON)
        assert tokens[0] < tokens[1] == token
        assert len(lines.of("job.lost")) == 1
        assert (await app.engine.inspect.counts("shop")).totals["completed"] == 1

    async def test_what_a_thread_does_under_it_is_refused(
        self, app: Towpath, lines: LogLines, gate: threading.Event
    ) -> None:
        @app.handler("shop")
        def sell(_: int, ctx: Context) -> int:
            tokens.append(ctx.token)
            if len(tokens) == 1:
                gate.wait(20)
            return ctx.token

        tokens: list[int] = []
        async with working(app, lease=LEASE):
            job = await sell.submit(1)
            await lines.next("job.started")
            await take_away(app.engine, job)
            token = await job.result(within=SOON)
            await lines.next("job.lost")
            gate.set()
            assert (await lines.next("job.stale_refused"))["verb"] == "complete"
        assert tokens[0] < tokens[1] == token
        assert app.metrics.of("shop", "sell").stale_refused._value.get() == 1  # noqa: SLF001 # pyright: ignore

    async def test_kills_the_process_that_works_under_it(
        self, app: Towpath, lines: LogLines, tmp_path: Path
    ) -> None:
        loop = app.add("loops", pool.never_end.function, HandlerOptions(processes=1))
        async with working(app, lease=LEASE, concurrency=1):
            job = await loop.submit(str(tmp_path / "begun"))
            await meanwhile((tmp_path / "begun").exists)
            pids = (tmp_path / "begun").read_text().split()
            await app.engine.cancel(job.ref)
            await take_away(app.engine, job)
            await lines.next("job.lost")
            await meanwhile(lambda: all(is_gone(pid) for pid in pids))
        assert await job.state() is State.CANCELLED


class TestARenewedLease:
    async def test_lasts_as_long_as_the_handler(self, app: Towpath, lines: LogLines) -> None:
        """The job's own lease time decides, also where it is shorter than the worker's."""

        @app.handler("shop")
        async def sell() -> str:
            await go.wait()
            return "sold"

        go = asyncio.Event()
        async with working(app, lease=seconds(30)):
            job = await sell.submit(lease=milliseconds(900))
            first = await looked_at(job, lambda info: info.state is State.LEASED)
            assert first.expires_at is not None
            end = first.expires_at
            await looked_at(
                job, lambda info: info.expires_at and info.expires_at > end + seconds(1)
            )
            go.set()
            assert await job.result(within=SOON) == "sold"
        assert (await app.engine.inspect.counts("shop")).totals["reaped"] == 0

    async def test_lasts_until_the_end_is_handed_in(
        self, app: Towpath, gate: threading.Event
    ) -> None:
        """A loop that is blocked just then must not cost a job that is done."""

        @app.handler("shop")
        async def sell() -> str:
            # It runs when the handler has returned, and before anything is sent.
            asyncio.get_running_loop().call_soon(gate.wait, 20)
            return "sold"

        def look() -> list[Lease]:
            return asyncio.run(claimed_by_another(app.url, gate))

        watching = asyncio.get_running_loop().run_in_executor(None, look)
        async with working(app, lease=LEASE):
            job = await sell.submit()
            assert await job.result(within=SOON) == "sold"
            assert await watching == []
        assert (await app.engine.inspect.job(job.ref)).attempts == 1


async def claimed_by_another(url: str, gate: threading.Event) -> list[Lease]:
    """What another worker gets within two leases while this one's loop stands still."""
    try:
        async with Engine(url) as other:

            async def leased() -> bool:
                return (await other.inspect.counts("shop")).leased == 1

            await eventually_async(leased)
            return await other.claim("shop", worker="other", lease=LEASE, wait=2 * LEASE)
    finally:
        gate.set()


async def take_away(engine: Engine, job: Job[Any]) -> None:
    """End the lease of whoever holds the job, as a reaper that was early would."""
    held = await engine.inspect.job(job.ref)
    assert held.token is not None
    lease = Lease(job.ref, b"", held.token, held.attempts, held.worker or "", 0, 0)
    await engine.release(lease)
