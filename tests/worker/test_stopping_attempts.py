"""Attempts that are ended from outside: jobs cancelled while they run, leases that are lost."""

import asyncio
import threading
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import HANGS, eventually_async, eventually_in_loop
from tests.worker import process_handlers
from tests.worker.in_process_worker import SOON, LogLines, ended, job_once, working
from tests.worker.worker_programs import is_gone
from towpath.app.app import Towpath
from towpath.app.job import Job
from towpath.clock import hours, instant, seconds, wall_ms
from towpath.engine.engine import Engine
from towpath.engine.model import Lease
from towpath.engine.states import State
from towpath.errors import JobUnfinished
from towpath.worker.attempt import StopReason
from towpath.worker.context import AttemptStopped, Context
from towpath.worker.handler import HandlerOptions
from towpath.worker.middleware import CallNext, Middleware

pytestmark = pytest.mark.usefixtures("quick_heartbeat")

LEASE = seconds(HANGS)
"""Longer than any test: no lease ends by itself, however busy the machine is."""


class Outcomes(Middleware):
    """Notes the cancellations that middleware sees."""

    def __init__(self) -> None:
        self.stops: list[StopReason] = []

    async def error(self, ctx: Context, error: Exception) -> None:
        if isinstance(error, AttemptStopped):
            self.stops.append(error.why)


class TestCancellingARunningJob:
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
            found = await ended(job)
            await lines.next("job.cancelled")
        assert (found.state, found.attempts) == (State.CANCELLED, 1)
        assert seen == [True]

    async def test_a_handler_that_ignores_its_cancellation_completes(
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

    @pytest.mark.parametrize("surrounded", [False, True])
    async def test_a_handler_in_a_process_that_sees_it_and_returns_ends_cancelled(
        self, app: Towpath, tmp_path: Path, *, surrounded: bool
    ) -> None:
        options = HandlerOptions(processes=1)
        watch = app.add("watch", process_handlers.until_cancelled.function, options)
        outcomes = Outcomes()
        async with working(app, lease=LEASE, middleware=[outcomes] if surrounded else []):
            job = await watch.submit(str(tmp_path / "begun"))
            await eventually_in_loop((tmp_path / "begun").exists)
            await job.cancel()
            found = await ended(job)
        assert (found.state, found.attempts) == (State.CANCELLED, 1)
        assert outcomes.stops == ([StopReason.CANCELLED] if surrounded else [])

    @pytest.mark.parametrize("surrounded", [False, True])
    async def test_a_handler_in_a_thread_that_sees_it_and_returns_ends_cancelled(
        self, app: Towpath, gate: threading.Event, lines: LogLines, *, surrounded: bool
    ) -> None:
        @app.handler("shop")
        def sell(ctx: Context) -> str:
            while not ctx.cancelled:
                gate.wait(0.01)
            return "sold some"

        outcomes = Outcomes()
        async with working(app, lease=LEASE, middleware=[outcomes] if surrounded else []):
            job = await sell.submit()
            await lines.next("job.started")
            await job.cancel()
            found = await ended(job)
        assert (found.state, found.attempts) == (State.CANCELLED, 1)
        assert outcomes.stops == ([StopReason.CANCELLED] if surrounded else [])

    async def test_an_async_handler_that_sees_it_and_returns_ends_cancelled(
        self, app: Towpath, lines: LogLines
    ) -> None:
        @app.handler("shop")
        async def sell(ctx: Context) -> str:
            while not ctx.cancelled:
                with suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
            return "sold some"

        async with working(app, lease=LEASE):
            job = await sell.submit()
            await lines.next("job.started")
            await job.cancel()
            found = await ended(job)
        assert (found.state, found.attempts) == (State.CANCELLED, 1)

    async def test_a_handler_in_a_thread_that_does_not_check_completes(
        self, app: Towpath, gate: threading.Event, lines: LogLines
    ) -> None:
        """It has done all of its work, even if middleware checks."""

        @app.handler("shop")
        def sell(_: int) -> str:
            gate.wait(20)
            return "sold all"

        async def look(ctx: Context, call_next: CallNext) -> Any:
            contexts.append(ctx)
            value = await call_next()
            seen.append(ctx.cancelled)
            return value

        seen, contexts = list[bool](), list[Context]()
        async with working(app, lease=LEASE, middleware=[look]):
            job = await sell.submit(1)
            await lines.next("job.started")
            await job.cancel()
            await eventually_in_loop(lambda: contexts[0].stopped is StopReason.CANCELLED)
            gate.set()
            assert await job.result(within=SOON) == "sold all"
        assert seen == [True]

    async def test_a_process_that_ignores_it_is_killed(self, app: Towpath, tmp_path: Path) -> None:
        loop = app.add("loops", process_handlers.never_end.function, HandlerOptions(processes=1))
        async with working(app, lease=LEASE, concurrency=1):
            job = await loop.submit(str(tmp_path / "begun"), keep=hours(1))
            await eventually_in_loop((tmp_path / "begun").exists)
            await job.cancel()
            with pytest.raises(JobUnfinished, match="cancelled"):
                await job.result(within=SOON)
            pids = (tmp_path / "begun").read_text().split()
            await eventually_in_loop(lambda: all(is_gone(pid) for pid in pids))

    async def test_a_cancelled_job_has_no_result(self, app: Towpath) -> None:
        @app.handler("shop")
        async def sell() -> None: ...

        job = await sell.submit(keep=hours(1))
        await job.cancel()
        with pytest.raises(JobUnfinished, match="cancelled"):
            await job.result(within=SOON)


class TestALostLease:
    """The test takes it away: it releases the job under the lease's own token."""

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

    async def test_refuses_the_result_of_a_thread(
        self, app: Towpath, lines: LogLines, gate: threading.Event
    ) -> None:
        @app.handler("shop")
        def sell(_: int, ctx: Context) -> int:
            tokens.append(ctx.token)
            if len(tokens) == 1:
                gate.wait(HANGS)
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

    async def test_kills_the_process_that_works_on_the_job(
        self, app: Towpath, lines: LogLines, tmp_path: Path
    ) -> None:
        loop = app.add("loops", process_handlers.never_end.function, HandlerOptions(processes=1))
        async with working(app, lease=LEASE, concurrency=1):
            job = await loop.submit(str(tmp_path / "begun"))
            await eventually_in_loop((tmp_path / "begun").exists)
            pids = (tmp_path / "begun").read_text().split()
            await app.engine.cancel(job.ref)
            await take_away(app.engine, job)
            await lines.next("job.lost")
            await eventually_in_loop(lambda: all(is_gone(pid) for pid in pids))
        assert await job.state() is State.CANCELLED


class TestARenewedLease:
    async def test_lasts_as_long_as_the_handler(self, app: Towpath, lines: LogLines) -> None:
        """The job's own lease time decides, even if it is shorter than the worker's."""

        @app.handler("shop")
        async def sell() -> str:
            await go.wait()
            return "sold"

        go = asyncio.Event()
        async with working(app, lease=hours(9)):
            job = await sell.submit(lease=LEASE)
            first = await job_once(job, lambda info: info.state is State.LEASED)
            assert first.expires_at is not None
            end = first.expires_at
            assert end < instant(wall_ms()) + hours(1)
            await job_once(job, lambda info: info.expires_at and info.expires_at > end + seconds(1))
            go.set()
            assert await job.result(within=SOON) == "sold"
        assert (await app.engine.inspect.counts("shop")).totals["reaped"] == 0

    async def test_lasts_until_the_job_is_settled(
        self, app: Towpath, gate: threading.Event
    ) -> None:
        """A loop that is blocked just then must not cost a done job its lease."""

        @app.handler("shop")
        async def sell() -> str:
            # It runs after the handler has returned, and before anything is sent.
            asyncio.get_running_loop().call_soon(gate.wait, HANGS)
            return "sold"

        def look() -> None:
            asyncio.run(renewed_for_two_seconds(app.url, gate))

        watching = asyncio.get_running_loop().run_in_executor(None, look)
        async with working(app, lease=LEASE):
            job = await sell.submit()
            assert await job.result(within=SOON) == "sold"
            await watching
        assert (await app.engine.inspect.job(job.ref)).attempts == 1


async def renewed_for_two_seconds(url: str, gate: threading.Event) -> None:
    """Returns when the worker has renewed its lease several times while its loop stands still."""
    ends: list[datetime] = []
    try:
        async with Engine(url) as other:

            async def later() -> bool:
                held = (await other.inspect.list("shop", State.LEASED)).jobs
                ends.extend(job.expires_at for job in held if job.expires_at is not None)
                return bool(ends) and ends[-1] >= ends[0] + seconds(2)

            await eventually_async(later)
    finally:
        gate.set()


async def take_away(engine: Engine, job: Job[Any]) -> None:
    """Ends the lease of the job, as a reap that came too early would."""
    held = await engine.inspect.job(job.ref)
    assert held.token is not None
    lease = Lease(job.ref, b"", held.token, held.attempts, held.worker or "", 0, 0)
    await engine.release(lease)
