"""The life of a worker: it drains, stops, runs again, and shares its app."""

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import datetime

import pytest

from tests.entering import facts_of, refusal_on_entering
from tests.waiting import HANGS, eventually_async, eventually_in_loop
from tests.worker.in_process_worker import SOON, LogLines, working
from towpath.app.app import Towpath
from towpath.clock import Duration, ManualClock, hours, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.channel import Limits
from towpath.engine.engine import Engine
from towpath.engine.model import JobRef
from towpath.engine.states import State
from towpath.errors import EngineClosed, ServerRefused
from towpath.worker.context import Context
from towpath.worker.worker import Worker


class TestDraining:
    async def test_runs_all_jobs_that_are_ready(self, app: Towpath, lines: LogLines) -> None:
        @app.handler("shop")
        async def sell(n: int) -> int:
            return n

        await sell.submit_many(range(250))
        later = await sell.submit(1, delay=hours(1))
        assert await Worker(app, concurrency=10).drain() == 0
        counts = await app.engine.inspect.counts("shop")
        assert (counts.totals["completed"], counts.leased) == (250, 0)
        assert await later.state() is State.DELAYED
        assert lines.of("worker.stopped")[0]["jobs"] == 250

    async def test_runs_jobs_that_its_jobs_submit_to_any_queue(self, app: Towpath) -> None:
        """The worker claims again from a queue that was empty before."""
        done: list[int] = []

        @app.handler("first")
        async def first(n: int) -> None:
            await second.submit(n)

        @app.handler("second")
        async def second(n: int) -> None:
            done.append(n)
            if n:
                await first.submit(n - 1)

        await first.submit(20)
        await Worker(app).drain()
        assert done == list(range(20, -1, -1))

    async def test_an_empty_queue_ends_at_once(self, app: Towpath) -> None:
        @app.handler("shop")
        async def sell() -> None: ...

        @app.handler("till")
        async def count() -> None: ...

        assert await asyncio.wait_for(Worker(app).drain(), HANGS) == 0

    async def test_can_be_repeated(self, app: Towpath) -> None:
        """Another drain by the same worker, or by another of the same name, works like the
        first.
        """

        @app.handler("shop")
        async def sell(n: int) -> int:
            return n

        worker = Worker(app, name="till-3")
        for again in (worker, worker, Worker(app, name="till-3")):
            await sell.submit_many(range(200))
            await asyncio.wait_for(again.drain(), HANGS)
        assert (await app.engine.inspect.counts("shop")).totals["completed"] == 600

    async def test_ends_when_the_worker_is_stopped(self, app: Towpath, lines: LogLines) -> None:
        @app.handler("shop")
        async def sell() -> None:
            await asyncio.Event().wait()

        job = await sell.submit()
        worker = Worker(app)
        draining = asyncio.create_task(worker.drain())
        await lines.next("job.started")
        worker.stop()
        worker.stop()
        assert await draining == 0
        assert await job.state() is State.READY


class TestStopping:
    async def test_lets_running_jobs_finish(self, app: Towpath, lines: LogLines) -> None:
        @app.handler("shop")
        async def sell() -> str:
            await go.wait()
            return "sold"

        go = asyncio.Event()
        worker = Worker(app)
        running = asyncio.create_task(worker.run())
        job = await sell.submit()
        await lines.next("job.started")
        worker.stop("the shop closes")
        assert (await lines.next("worker.stopping"))["running"] == 1
        late = await sell.submit()
        go.set()
        assert await running == 0
        assert await job.state() is State.DONE
        assert await late.state() is State.READY
        assert lines.of("worker.stopped")[0]["reason"] == "the shop closes"

    async def test_releases_jobs_that_are_claimed_at_that_moment(self, app: Towpath) -> None:
        """The worker is stopped at many different moments and leaves no lease behind."""

        @app.handler("shop")
        async def sell(_: int) -> None:
            begun.append(1)

        begun: list[int] = []
        await sell.submit_many(range(2000))
        for most in (1, 40, 333):
            worker = Worker(app, concurrency=20)
            running = asyncio.create_task(worker.run())
            start = len(begun)
            await eventually_in_loop(lambda start=start, most=most: len(begun) >= start + most)
            worker.stop()
            worker.stop()
            await running
            assert (await app.engine.inspect.counts("shop")).leased == 0
        counts = await app.engine.inspect.counts("shop")
        assert counts.totals["completed"] == len(begun)
        assert counts.ready == 2000 - len(begun)

    async def test_releases_jobs_that_do_not_end(self, app: Towpath, lines: LogLines) -> None:
        @app.handler("shop")
        async def stubborn() -> None:
            while not go.is_set():
                try:
                    await go.wait()
                except asyncio.CancelledError:
                    continue

        go = asyncio.Event()
        worker = Worker(app, grace=seconds(0))
        running = asyncio.create_task(worker.run())
        job = await stubborn.submit()
        await lines.next("job.started")
        worker.stop()
        code = await running
        go.set()
        assert code == 0
        assert await job.state() is State.READY
        assert lines.of("job.released")

    async def test_completes_a_job_whose_thread_ends_when_asked_to(
        self, app: Towpath, gate: threading.Event, lines: LogLines
    ) -> None:
        """The thread has a moment to end, and its result is not discarded."""

        @app.handler("shop")
        def sell(_: int, ctx: Context) -> str:
            while not ctx.cancelled:
                gate.wait(0.01)
            return "half of it"

        async with working(app, grace=seconds(0)):
            job = await sell.submit(1)
            await lines.next("job.started")
        assert await job.result(within=SOON) == "half of it"
        assert not lines.of("job.released")

    async def test_releases_a_job_whose_thread_raises_when_asked_to_end(
        self, app: Towpath, gate: threading.Event, lines: LogLines
    ) -> None:
        @app.handler("shop")
        def sell(_: int, ctx: Context) -> str:
            while not ctx.cancelled:
                gate.wait(0.01)
            raise InterruptedError

        async with working(app, grace=seconds(0)):
            job = await sell.submit(1)
            await lines.next("job.started")
        found = await app.engine.inspect.job(job.ref)
        assert (found.state, found.attempts) == (State.READY, 0)

    async def test_for_the_third_time_is_harmless(self, app: Towpath) -> None:
        @app.handler("shop")
        async def sell() -> None: ...

        async with working(app) as worker:
            await (await sell.submit()).result(within=SOON)
            for _ in range(3):
                worker.stop()

    async def test_a_worker_before_it_runs_keeps_it_from_running(self, app: Towpath) -> None:
        @app.handler("shop")
        async def sell() -> None: ...

        job = await sell.submit()
        worker = Worker(app)
        worker.stop()
        assert await worker.run() == 0
        assert await job.state() is State.READY


class TestAWorker:
    async def test_can_run_again_after_it_was_stopped(self, app: Towpath) -> None:
        @app.handler("shop")
        async def sell(n: int) -> int:
            return n

        worker = Worker(app)
        for n in range(3):
            running = asyncio.create_task(worker.run())
            assert await (await sell.submit(n)).result(within=SOON) == n
            worker.stop()
            assert await running == 0

    def test_can_run_again_in_another_event_loop(self, server: EmbeddedServer) -> None:
        app = Towpath(server.url)
        done: list[int] = []

        @app.handler("shop")
        async def sell(n: int) -> None:
            done.append(n)
            worker.stop()

        async def once(n: int) -> None:
            async with app:
                await sell.submit(n)
                await worker.run()

        worker = Worker(app)
        for n in range(2):
            asyncio.run(once(n))
        assert done == [0, 1]

    async def test_can_run_in_a_thread_other_than_the_main_one(
        self, server: EmbeddedServer
    ) -> None:
        """It receives no signals there; `stop` ends it."""
        app = Towpath(server.url)

        @app.handler("shop")
        async def sell() -> str:
            return threading.current_thread().name

        async with Towpath(server.url) as front:
            job = await front.add("shop", sell.function, sell.options).submit()
            assert await asyncio.to_thread(Worker(app).run_until_drained) == 0
            assert await job.result(within=SOON) != threading.main_thread().name

    async def test_stops_in_an_orderly_way_when_a_background_task_fails(
        self, server: EmbeddedServer, lines: LogLines
    ) -> None:
        class Broken(Towpath):
            async def keep_firing(self, queues: object, log: object) -> None:
                await lines.next("job.started")
                raise RuntimeError("planted")

        async with Broken(server.url) as app:

            @app.handler("shop")
            async def sell() -> None:
                await asyncio.Event().wait()

            job = await sell.submit()
            with pytest.raises(ExceptionGroup, match="unhandled"):
                await Worker(app, grace=seconds(0)).run()
            assert await job.state() is State.READY


class TestTheApp:
    async def test_that_is_entered_twice_is_open_until_the_last_exit(
        self, server: EmbeddedServer
    ) -> None:
        app = Towpath(server.url)

        @app.handler("shop")
        async def sell() -> str:
            return "sold"

        with pytest.raises(EngineClosed):
            await sell.submit()
        async with app:
            engine = app.engine
            async with app:
                assert app.engine is engine
                async with working(app):
                    await (await sell.submit()).result(within=SOON)
            assert await (await sell.submit()).state() is State.READY
        with pytest.raises(EngineClosed):
            await sell.submit()

    async def test_that_is_entered_by_several_tasks_at_once_connects_once(
        self, server: EmbeddedServer
    ) -> None:
        app = Towpath(server.url)

        async def enter() -> object:
            async with app:
                return app.engine

        async with app:
            assert (
                len({id(engine) for engine in await asyncio.gather(*(enter() for _ in range(5)))})
                == 1
            )

    async def test_may_be_entered_again_after_redis_refused_it(
        self, server: EmbeddedServer
    ) -> None:
        app = Towpath(server.url.replace("unix://", "unix://nobody:secret@"))

        @asynccontextmanager
        async def entered() -> AsyncGenerator[Engine]:
            async with app:
                yield app.engine

        await refusal_on_entering(ServerRefused, entered)
        app.url = server.url
        async with app:
            assert (await facts_of(app.engine)).version


class TestTheClockOfRedis:
    async def test_may_be_set_back_while_jobs_run(self, server: EmbeddedServer) -> None:
        """Fencing tokens keep growing without following the clock; leases are renewed all the
        same.
        """
        clock = SettableClock()
        app = Towpath(server.url, clock=clock)

        @app.handler("shop")
        async def sell(ctx: Context) -> int:
            seen.append(ctx.token)
            await go.wait()
            return ctx.token

        seen: list[int] = []
        go = asyncio.Event()
        async with app:
            await app.engine.submit("shop", b"null")
            await app.engine.claim("shop", worker="before", lease=hours(2))
            clock.set_back(hours(1))
            async with working(app, lease=seconds(1)):
                job = await sell.submit()
                await eventually_in_loop(lambda: bool(seen))
                held = await app.engine.inspect.job(job.ref)
                assert held.expires_at is not None
                clock.advance(seconds(0.9))
                await renewed(app, job.ref, held.expires_at)
                go.set()
                assert await job.result(within=SOON) == seen[0]
        assert len(seen) == 1


class SettableClock(ManualClock):
    """A clock that the test sets."""

    def set_back(self, duration: Duration) -> None:
        self._now -= int(duration.total_seconds() * 1000)


async def renewed(app: Towpath, job: JobRef, before: datetime) -> None:
    """Returns when the job's lease ends later than *before*."""

    async def later() -> bool:
        ends = (await app.engine.inspect.job(job)).expires_at
        return ends is not None and ends > before

    await eventually_async(later)


class TestAHeartbeatThatFails:
    async def test_ends_the_worker_before_its_leases_end(self, server: EmbeddedServer) -> None:
        """Otherwise every job would be delivered to another worker while it still runs here."""

        class Unlucky(Towpath):
            def new_engine(self, limits: Limits | None = None) -> Engine:
                if limits is not None:
                    raise RuntimeError("no threads left")
                return super().new_engine()

        app = Unlucky(server.url)

        @app.handler("shop")
        async def sell() -> None: ...

        with pytest.raises(ExceptionGroup) as failure:
            await Worker(app).run()
        assert failure.group_contains(RuntimeError, match="no threads left")
