"""A bench runs a user's own app on a private Redis, with a clock that the test advances."""

import asyncio
import signal
import threading
from typing import Any

import pytest

from tests.testing import shop
from tests.testing.conftest import NewBench
from tests.testing.shop import Order, bill, circle, flaky, hold, later, nightly, place, remind
from tests.waiting import HANGS
from towpath import Context, Every, Middleware, State, Towpath, hours, seconds
from towpath.clock import ManualClock
from towpath.engine.model import job_ref
from towpath.errors import EngineClosed, HandlerInvalid
from towpath.testing import Bench, NotDrained, running


def states(ran: list[Any]) -> list[State]:
    return [attempt.state for attempt in ran]


class TestADrain:
    async def test_runs_the_ready_jobs_and_returns_their_outcomes(self, bench: Bench) -> None:
        job = await bill.submit(20)
        assert await bench.drain() == [(job.ref, State.DONE)]
        assert await job.result(within=seconds(HANGS)) == 20

    async def test_without_jobs_runs_nothing(self, bench: Bench) -> None:
        assert await bench.drain() == []

    async def test_runs_jobs_that_its_jobs_submit(self, bench: Bench) -> None:
        """They may be in another queue: an order submits a bill."""
        await place.submit(Order("kite", 2))
        ran = await bench.drain()
        assert [(attempt.job.queue, attempt.state) for attempt in ran] == [
            ("orders", State.DONE),
            ("bills", State.DONE),
        ]

    async def test_returns_how_each_attempt_ended(self, bench: Bench) -> None:
        dead = await place.submit(Order("kite", 0))
        failed = await flaky.submit(2)
        ran = dict(await bench.drain())
        assert ran == {dead.ref: State.DEAD, failed.ref: State.DELAYED}

    async def test_with_one_slot_keeps_the_guaranteed_order(self, bench: Bench) -> None:
        low = await bill.submit(1, priority=0)
        high = await bill.submit(2, priority=100)
        middle = await bill.submit(3)
        ran = await bench.drain(concurrency=1)
        assert [attempt.job for attempt in ran] == [high.ref, middle.ref, low.ref]

    async def test_runs_what_was_submitted_without_an_event_loop(self, bench: Bench) -> None:
        job = await asyncio.to_thread(bill.blocking.submit, 30)
        assert await bench.drain() == [(job.ref, State.DONE)]
        assert bench.submitted(bill) == [30]

    async def test_that_would_never_end_is_refused(self, bench: Bench) -> None:
        await circle.submit(1)
        with pytest.raises(NotDrained) as refusal:
            await bench.drain(within=seconds(2))
        assert refusal.value.within == seconds(2)
        assert refusal.value.settled > 0

    async def test_does_not_touch_the_signals_of_the_process(self, towpath_bench: NewBench) -> None:
        """Ctrl-C ends the tests, not only the drain."""
        before, seen = signal.getsignal(signal.SIGINT), list[object]()
        app = Towpath(shop.PRODUCTION)

        @app.handler("signals")
        async def look() -> None:  # pyright: ignore[reportUnusedFunction] -- by its queue
            seen.append(signal.getsignal(signal.SIGINT))

        async with towpath_bench(app) as bench:
            await app.handlers[0].submit()
            await bench.drain()
        assert seen == [before]

    async def test_uses_the_middleware_of_the_worker(self, towpath_bench: NewBench) -> None:
        class RecordingMiddleware(Middleware):
            seen: list[str] = []  # noqa: RUF012 -- for this test only

            async def before(self, ctx: Context) -> None:
                self.seen.append(ctx.handler)

        async with towpath_bench(shop.app, middleware=[RecordingMiddleware()]) as bench:
            await bill.submit(1)
            await bench.drain()
        assert RecordingMiddleware.seen == ["bill"]

    async def test_needs_a_handler(self, towpath_bench: NewBench) -> None:
        async with towpath_bench(Towpath(shop.PRODUCTION)) as bench:
            with pytest.raises(HandlerInvalid):
                await bench.drain()


class TestTheClockOfABench:
    async def test_makes_delayed_jobs_due(self, bench: Bench) -> None:
        job = await bill.submit(1, delay=hours(2))
        bench.advance(hours=1, minutes=59)
        assert await bench.drain() == []
        bench.advance(minutes=1)
        assert await bench.drain() == [(job.ref, State.DONE)]

    async def test_makes_retries_due(self, bench: Bench) -> None:
        """The handler's policy is: every ten minutes, three attempts."""
        job = await flaky.submit(3)
        assert states(await bench.drain()) == [State.DELAYED]
        bench.advance(minutes=9)
        assert await bench.drain() == []
        bench.advance(minutes=1)
        assert states(await bench.drain()) == [State.DELAYED]
        bench.advance(minutes=10)
        assert states(await bench.drain()) == [State.DONE]
        assert await job.result(within=seconds(HANGS)) == 3
        assert shop.attempts == [1, 2, 3]

    async def test_brings_a_failing_job_to_its_end(self, bench: Bench) -> None:
        await flaky.submit(99)
        for _ in range(3):
            await bench.drain()
            bench.advance(minutes=10)
        [job] = await bench.jobs(flaky)
        assert (job.state, job.attempts) == (State.DEAD, 3)
        assert job.reason is not None
        assert "the bank does not answer" in job.reason

    async def test_wakes_a_snoozed_job(self, bench: Bench) -> None:
        await later.submit(7)
        assert states(await bench.drain()) == [State.DELAYED]
        bench.advance(hours(2))
        assert states(await bench.drain()) == [State.DONE]

    async def test_makes_schedules_due(self, bench: Bench) -> None:
        """The schedule fires at three in the night; the clock begins at midnight, and nothing is
        fired for the past.
        """
        bench.advance(hours=2, minutes=59)
        assert await bench.drain() == []
        bench.advance(minutes=1)
        assert states(await bench.drain()) == [State.DONE]
        bench.advance(days=2)
        assert states(await bench.drain()) == [State.DONE, State.DONE]
        bench.advance(minutes=59)
        assert [job.result for job in await bench.jobs(nightly)] == [
            "2026-01-02T03:00:00.000Z",
            "2026-01-03T03:00:00.000Z",
        ], "the first is no longer kept"
        assert bench.submitted(nightly) == [None] * 3

    async def test_makes_all_schedules_due_before_any_job_runs(
        self, towpath_bench: NewBench
    ) -> None:
        app = Towpath(shop.PRODUCTION)

        @app.handler("hours")
        async def hourly(number: int) -> None:
            """Does nothing."""

        for number in range(100):
            app.recur(hourly, Every(hours(1)), number, name=f"work-{number}")
        async with towpath_bench(app) as bench:
            bench.advance(hours=1)
            await bench.drain()
            assert sorted(bench.submitted(hourly)) == list(range(100))

    @pytest.mark.parametrize("in_a_thread", [False, True])
    async def test_ends_no_lease_of_a_live_worker(
        self, towpath_bench: NewBench, towpath_clock: ManualClock, *, in_a_thread: bool
    ) -> None:
        """A day passes while a handler runs; another claim from its queue still finds the job
        leased.

        The handler does not run into its time limit either: handlers take real time.
        """
        app, runs = Towpath(shop.PRODUCTION), list[str]()

        @app.handler("days", name="other")
        async def other() -> str:
            return "other"

        @app.handler("days", name="thread")
        def in_thread() -> None:
            runs.append("thread")
            towpath_clock.advance(days=1)
            other.blocking.submit().result(within=seconds(HANGS))

        @app.handler("days", name="loop")
        async def in_loop() -> None:
            runs.append("loop")
            towpath_clock.advance(days=1)
            await (await other.submit()).result(within=seconds(HANGS))

        day = in_thread if in_a_thread else in_loop
        async with towpath_bench(app) as bench:
            job = await day.submit()
            ran = await bench.drain()
        assert runs == [day.name]
        assert states(ran) == [State.DONE, State.DONE]
        assert ran[1].job == job.ref

    async def test_may_be_advanced_in_any_thread(self) -> None:
        clock = ManualClock()
        pause = clock.sleep  # of this clock: no real time passes meanwhile
        # refuses actions that another thread must not do
        asyncio.get_running_loop().set_debug(True)
        sleeper = asyncio.create_task(pause(hours(1)))
        await asyncio.sleep(0)
        threading.Thread(target=lambda: clock.advance(hours=1)).start()
        async with asyncio.timeout(HANGS):
            await sleeper


class TestLookingAtABench:
    async def test_shows_the_submitted_jobs_with_their_payloads(self, bench: Bench) -> None:
        await place.submit(Order("kite", 2))
        await place.submit_many([Order("boat"), Order("rope", 3)])
        assert bench.submitted(place) == [Order("kite", 2), Order("boat"), Order("rope", 3)]
        assert bench.submitted(bill) == []

    async def test_separates_the_handlers_of_a_queue(self, bench: Bench) -> None:
        await bill.submit(5)
        await remind.submit("anna")
        await remind.submit_many(["ben"])
        assert bench.submitted(bill) == [5]
        assert bench.submitted(remind) == ["anna", "ben"]
        assert [job.payload for job in await bench.jobs(bill)] == [5]
        assert [job.payload for job in await bench.jobs(remind)] == ["anna", "ben"]

    async def test_remembers_submits_after_their_jobs_are_gone(self, bench: Bench) -> None:
        await bill.submit(5)
        await bench.drain()
        bench.advance(days=7)
        await bench.drain()
        assert bench.submitted(bill) == [5]

    async def test_counts_a_job_once_by_its_id(self, bench: Bench) -> None:
        await bill.submit(5, id="bill-1")
        await bill.submit(6, id="bill-1", on_conflict="keep")
        assert bench.submitted(bill) == [5]

    async def test_shows_jobs_in_any_state(self, bench: Bench) -> None:
        await place.submit(Order("kite"))
        await place.submit(Order("kite", 0))
        await bench.drain()
        await place.submit(Order("boat"), delay=hours(1))
        await place.submit(Order("rope"))
        found = {
            job.payload.item + str(job.payload.count): job.state for job in await bench.jobs(place)
        }
        assert found == {
            "kite1": State.DONE,
            "kite0": State.DEAD,
            "boat1": State.DELAYED,
            "rope1": State.READY,
        }
        assert {job.result for job in await bench.jobs(place)} == {"1 kite", None}

    async def test_shows_any_number_of_jobs(self, bench: Bench) -> None:
        """There are more than fit on one page; they come in the order of their submits."""
        await bill.submit_many(range(250))
        assert [job.payload for job in await bench.jobs(bill)] == list(range(250))

    async def test_shows_nothing_for_an_unused_queue(self, bench: Bench) -> None:
        assert await bench.jobs(hold) == []


class TestTheAppOnABench:
    async def test_is_restored_afterwards(self) -> None:
        metrics = shop.app.metrics
        async with running(shop.app) as bench:
            assert shop.app.url == bench.url != shop.PRODUCTION
            assert shop.app.metrics is not metrics
        assert shop.app.url == shop.PRODUCTION
        assert shop.app.metrics is metrics
        with pytest.raises(EngineClosed):
            await bill.submit(1)

    async def test_is_restored_after_a_failure_too(self) -> None:
        with pytest.raises(LookupError):
            async with running(shop.app):
                raise LookupError
        assert shop.app.url == shop.PRODUCTION

    async def test_that_is_connected_to_another_redis_is_so_again(
        self, towpath_url: str, towpath_clock: ManualClock
    ) -> None:
        app = Towpath(towpath_url, clock=towpath_clock)

        @app.handler("counts")
        async def count(number: int) -> None:
            """Does nothing."""

        async with app:
            there = await count.submit(1)
            there_blocking = await asyncio.to_thread(count.blocking.submit, 2)
            async with running(app) as bench:
                here = await asyncio.to_thread(count.blocking.submit, 3)
                assert await bench.drain() == [(here.ref, State.DONE)]
                assert await app.engine.inspect.state(there.ref) is State.GONE
            assert await there.state() is State.READY
            again = await asyncio.to_thread(count.blocking.submit, 4)
            assert [await app.engine.inspect.state(job.ref) for job in (there_blocking, again)] == [
                State.READY,
                State.READY,
            ]
            assert await app.engine.inspect.state(job_ref("counts", here.id)) is State.GONE

    async def test_starts_with_an_empty_redis(self, bench: Bench) -> None:
        """Data of earlier tests is gone."""
        assert set(await bench.app.engine.queues.list()) == {nightly.queue}
        assert await bench.jobs(nightly) == []
