"""A running worker follows its app's handlers: queues are added and removed."""

import asyncio
import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import HANGS, eventually_async, eventually_in_loop
from tests.worker.in_process_worker import SOON, LogLines, ended, slots, spoil, until_slots, working
from towpath.app.app import Towpath
from towpath.clock import ZERO, hours, milliseconds, seconds
from towpath.embedded import EmbeddedServer
from towpath.embedded.process import ask_fields
from towpath.engine.channel import Limits
from towpath.engine.schedule import Every
from towpath.engine.states import State
from towpath.errors import HandlerInvalid, TowpathError
from towpath.testing.proxy import Hole, Proxy
from towpath.worker.handler import HandlerOptions
from towpath.worker.worker import Worker


def doubling(app: Towpath, queue: str, **options: Any) -> Any:
    """Adds a handler of *queue*."""

    @app.handler(queue, **options)
    async def double(n: int) -> int:
        return 2 * n

    return double


def own_thread() -> int:
    return threading.get_ident()


importable = Towpath("")
"""Has the handlers that another process must be able to import."""


@importable.handler("processes", processes=1, name="one")
def own_process() -> int:
    return os.getpid()


@importable.handler("processes", processes=1, name="other")
def own_parent() -> int:
    return os.getppid()


class TestAWorkerThatGainsAHandler:
    async def test_serves_the_handler_while_it_runs(self, app: Towpath, lines: LogLines) -> None:
        doubling(app, "first")
        async with working(app) as worker:
            await lines.next("worker.started")
            second = doubling(app, "second", weight=3)
            assert await (await second.submit(4)).result(within=SOON) == 8
            assert worker.weights == {"first": 1, "second": 3}
            assert (
                lines.of("queue.added")[0] | {"queue": "second", "weight": 3}
                == (lines.of("queue.added")[0])
            )

    async def test_may_start_without_any_handler(self, app: Towpath, lines: LogLines) -> None:
        async with working(app, handlers_later=True):
            assert (await lines.next("worker.started"))["queues"] == []
            assert await (await doubling(app, "shop").submit(4)).result(within=SOON) == 8

    async def test_serves_a_handler_that_another_thread_adds(
        self, app: Towpath, lines: LogLines
    ) -> None:
        async with working(app, handlers_later=True):
            await lines.next("worker.started")
            double = await asyncio.to_thread(doubling, app, "shop")
            assert await (await double.submit(4)).result(within=SOON) == 8

    async def test_sets_the_queues_options_that_the_handler_declares(
        self, app: Towpath, lines: LogLines
    ) -> None:
        async with working(app, handlers_later=True):
            await lines.next("worker.started")
            double = doubling(app, "shop", keep=hours(7), max_attempts=9)
            await (await double.submit(4)).result(within=SOON)
            options = await app.engine.queues.options("shop")
            assert (options.keep, options.max_attempts) == (hours(7), 9)

    async def test_respects_the_handlers_concurrency(self, app: Towpath, lines: LogLines) -> None:
        async with working(app, handlers_later=True) as worker:
            await lines.next("worker.started")
            go = asyncio.Event()

            @app.handler("shop", concurrency=2)
            async def sell(_: int) -> None:
                await go.wait()

            jobs = await sell.submit_many(range(5))
            await until_slots(worker, busy=2)
            assert (await app.engine.inspect.counts("shop")).leased == 2
            go.set()
            for job in jobs:
                assert not isinstance(job, TowpathError)
                await ended(job)

    async def test_fires_the_handlers_schedule(self, app: Towpath, lines: LogLines) -> None:
        fired = asyncio.Event()
        async with working(app, handlers_later=True):
            await lines.next("worker.started")

            @app.recurring(Every(milliseconds(1000)))
            async def tick() -> None:
                fired.set()

            await asyncio.wait_for(fired.wait(), SOON.total_seconds())

    async def test_runs_the_handler_in_threads_and_processes(
        self, app: Towpath, lines: LogLines
    ) -> None:
        async with working(app, handlers_later=True):
            await lines.next("worker.started")
            threaded = app.add("threads", own_thread, HandlerOptions())
            processed = app.add("processes", own_process.function, HandlerOptions(processes=1))
            assert await (await threaded.submit()).result(within=SOON) != threading.get_ident()
            assert await (await processed.submit()).result(within=SOON) != os.getpid()

    async def test_keeps_the_first_of_two_handlers_with_one_name(
        self, app: Towpath, lines: LogLines
    ) -> None:
        """The refused handler changes nothing for those that run."""
        double = doubling(app, "shop")
        async with working(app):
            await lines.next("worker.started")
            with pytest.raises(HandlerInvalid):
                doubling(app, "shop")
            assert await (await double.submit(4)).result(within=SOON) == 8

    async def test_serves_other_queues_while_the_handlers_queue_is_broken(
        self, app: Towpath, server: EmbeddedServer, lines: LogLines
    ) -> None:
        """The queue is served as soon as it is repaired."""
        double = doubling(app, "shop")
        async with working(app):
            await lines.next("worker.started")
            spoil(server, "{bad}:meta")
            bad = doubling(app, "bad")
            await lines.next("duty.failed")
            assert await (await double.submit(4)).result(within=SOON) == 8
            server.ask("DEL", "{bad}:meta")
            assert await (await bad.submit(5)).result(within=SOON) == 10

    async def test_waits_for_a_redis_that_is_away(self, proxy: Proxy, lines: LogLines) -> None:
        app = Towpath(proxy.url, limits=Limits(answer=seconds(0.5), give_up=seconds(1)))
        async with app, working(app, handlers_later=True):
            await lines.next("worker.started")
            proxy.faults.hole = Hole.REQUESTS
            gone, stays = doubling(app, "gone"), doubling(app, "stays")
            await lines.next("server.unreachable")
            app.remove(gone)
            proxy.faults.hole = Hole.NOTHING
            await lines.next("server.back")
            waits = await gone.submit(1)
            assert await (await stays.submit(4)).result(within=SOON) == 8
            assert await waits.state() is State.READY


class TestAWorkerThatLosesAHandler:
    async def test_claims_no_more_jobs_for_it(self, app: Towpath, lines: LogLines) -> None:
        gone, stays = doubling(app, "gone"), doubling(app, "stays")
        async with working(app) as worker:
            await (await gone.submit(1)).result(within=SOON)
            app.remove(gone)
            app.remove(gone)
            job = await gone.submit(2)
            assert await (await stays.submit(4)).result(within=SOON) == 8
            assert worker.weights == {"stays": 1}
            assert await job.state() is State.READY
            assert lines.of("queue.removed")[0]["queue"] == "gone"

    async def test_lets_running_jobs_of_the_handler_end(
        self, app: Towpath, lines: LogLines
    ) -> None:
        go = asyncio.Event()

        @app.handler("shop")
        async def sell() -> str:
            await go.wait()
            return "sold"

        async with working(app) as worker:
            job = await sell.submit()
            await lines.next("job.started")
            app.remove(sell)
            late = await sell.submit()
            go.set()
            assert await job.result(within=SOON) == "sold"
            await until_slots(worker, busy=0)
            assert await late.state() is State.READY

    async def test_serves_the_handler_again_when_it_is_added_again(
        self, app: Towpath, lines: LogLines
    ) -> None:
        """It does so at once, even while a job of the removed handler still runs."""
        go = asyncio.Event()

        async def sell(n: int) -> int:
            await go.wait()
            return n

        first = app.add("shop", sell, HandlerOptions())
        async with working(app):
            before = await first.submit(1)
            await lines.next("job.started")
            app.remove(first)
            again = doubling(app, "shop")
            assert await (await again.submit(4)).result(within=SOON) == 8
            go.set()
            assert await before.result(within=SOON) == 1

    async def test_keeps_serving_the_other_handler_of_the_queue(
        self, app: Towpath, lines: LogLines
    ) -> None:
        one, other = doubling(app, "shop", name="one"), doubling(app, "shop", name="other")
        async with working(app, unhandled_for=ZERO):
            await lines.next("worker.started")
            app.remove(one)
            assert await (await other.submit(4)).result(within=SOON) == 8
            lost = await ended(await one.submit(4))
            assert lost.state is State.DEAD
            assert str(lost.reason).startswith("HandlerNotFound: ")
            assert {"one", "other"} <= set(re.findall(r"\w+", str(lost.reason)))

    async def test_gives_the_handlers_slots_to_others(self, app: Towpath, lines: LogLines) -> None:
        go = asyncio.Event()

        @app.handler("busy")
        async def wait(_: int) -> None:
            await go.wait()

        other = doubling(app, "other")
        async with working(app, concurrency=4) as worker:
            await wait.submit_many(range(10))
            await until_slots(worker, busy=4)
            app.remove(wait)
            jobs = await other.submit_many(range(10))
            go.set()
            for job in jobs:
                assert not isinstance(job, TowpathError)
                await job.result(within=SOON)

            async def others_are_left() -> bool:
                # Jobs that had not begun when the handler was removed are released.
                counts = await app.engine.inspect.counts("busy")
                done = counts.totals["completed"]
                return done <= 4 and counts.ready + counts.delayed == 10 - done

            await eventually_async(others_are_left)

    async def test_removes_the_handlers_queue_from_the_metrics(
        self, app: Towpath, lines: LogLines
    ) -> None:
        gone, stays = doubling(app, "gone"), doubling(app, "stays")
        async with working(app) as worker:
            for handler in (gone, stays):
                await (await handler.submit(1)).result(within=SOON)
            assert await _queues_shown(worker) == {"gone", "stays"}
            app.remove(gone)

            async def shown() -> bool:
                return await _queues_shown(worker) == {"stays"}

            await eventually_async(shown)

    async def test_stops_firing_the_handlers_schedules(self, app: Towpath, lines: LogLines) -> None:
        @app.recurring(Every(milliseconds(1000)))
        async def tick() -> None: ...

        doubling(app, "stays")
        async with working(app):
            await lines.next("schedule.fired")
            app.remove(tick)
            assert len(app.declared_schedules) == 0
            later = doubling(app, "later")
            await (await later.submit(1, delay=seconds(1.5))).result(within=SOON)
            seen = (await app.engine.schedules.of("recurring")).last
            await (await later.submit(1, delay=seconds(1.5))).result(within=SOON)
            assert (await app.engine.schedules.of("recurring")).last == seen

    async def test_releases_jobs_that_a_claim_under_way_brings(
        self, app: Towpath, lines: LogLines
    ) -> None:
        """The handler is removed at many different moments: each job ran, or waits as if it had not
        been claimed.
        """
        ran: list[int] = []

        async def sell(n: int) -> None:
            ran.append(n)

        async with working(app, handlers_later=True, concurrency=4):
            await lines.next("worker.started")
            # the last jobs must not start before their handler is removed
            for steps in reversed(range(60)):
                handler = app.add("shop", sell, HandlerOptions())
                await handler.submit_many(range(4))
                for _ in range(steps):
                    await asyncio.sleep(0)
                app.remove(handler)
            last = doubling(app, "last")
            await (await last.submit(1)).result(within=SOON)

            async def none_is_leased() -> bool:
                return (await app.engine.inspect.counts("shop")).leased == 0

            await eventually_async(none_is_leased)
            counts = await app.engine.inspect.counts("shop")
            assert counts.totals["completed"] == len(ran)
            assert counts.ready == 240 - len(ran)
            waiting = await app.engine.claim("shop", worker="w", lease=seconds(30), count=240)
            assert [job.attempt for job in waiting] == [1] * counts.ready

    async def test_ends_the_processes_of_the_handler(self, app: Towpath, lines: LogLines) -> None:
        """Another function under the same name does not get the removed handler's process."""
        options = HandlerOptions(processes=1, name="sell")
        first = app.add("shop", own_process.function, options)
        async with working(app):
            pid = await (await first.submit()).result(within=SOON)
            app.remove(first)
            again = app.add("shop", own_parent.function, options)
            assert await (await again.submit()).result(within=SOON) == os.getpid()
            await eventually_in_loop(lambda: not Path(f"/proc/{pid}").exists())


async def test_an_app_does_not_remove_a_handler_of_another_app(
    app: Towpath, server: EmbeddedServer
) -> None:
    other = Towpath(server.url)
    theirs = doubling(other, "shop")
    with pytest.raises(HandlerInvalid) as refusal:
        app.remove(theirs)
    assert refusal.value.handler == theirs.name
    assert list(other.handlers) == [theirs]


class TestAWorkerRestrictedToQueues:
    async def test_serves_added_handlers_of_those_queues_only(
        self, app: Towpath, lines: LogLines
    ) -> None:
        first = doubling(app, "first")
        async with working(app, queues={"first": 5}) as worker:
            await lines.next("worker.started")
            second = doubling(app, "second")
            app.remove(first)
            waits = await second.submit(1)
            first = doubling(app, "first", weight=2)
            assert await (await first.submit(4)).result(within=SOON) == 8
            assert await waits.state() is State.READY
            assert worker.weights == {"first": 5}


class TestAWorkerThatStops:
    async def test_serves_no_added_handler(self, app: Towpath, lines: LogLines) -> None:
        go = asyncio.Event()

        @app.handler("shop")
        async def sell() -> None:
            await go.wait()

        worker = Worker(app)
        running = asyncio.create_task(worker.run())
        await sell.submit()
        await lines.next("job.started")
        worker.stop()
        await lines.next("worker.stopping")
        job = await doubling(app, "late").submit(1)
        app.remove(sell)
        go.set()
        assert await running == 0
        assert await job.state() is State.READY

    async def test_drains_jobs_of_handlers_that_its_jobs_add(
        self, app: Towpath, lines: LogLines
    ) -> None:
        done: list[int] = []

        @app.handler("first")
        async def first(n: int) -> None:
            @app.handler("second")
            async def second(n: int) -> None:
                done.append(n)

            await second.submit(n)

        await first.submit(7)
        assert await asyncio.wait_for(Worker(app).drain(), HANGS) == 0
        assert done == [7]

    async def test_drains_an_app_without_handlers_at_once(self, app: Towpath) -> None:
        assert await asyncio.wait_for(Worker(app, handlers_later=True).drain(), HANGS) == 0


class TestAThousandHandlersAddedAndRemoved:
    async def test_leave_no_task_connection_or_metric_behind(
        self, app: Towpath, server: EmbeddedServer
    ) -> None:
        stays = doubling(app, "stays")
        async with working(app) as worker:
            await (await stays.submit(1)).result(within=SOON)
            tasks = len(asyncio.all_tasks())
            for n in range(1000):
                handler = doubling(app, f"type.{n}")
                if n % 100 == 0:
                    await (await handler.submit(n)).result(within=SOON)
                app.remove(handler)
            assert await (await stays.submit(4)).result(within=SOON) == 8
            await eventually_in_loop(lambda: len(asyncio.all_tasks()) <= tasks + 20)
            assert await _queues_shown(worker) == {"stays"}
            assert int(ask_fields(server.address, "INFO", "clients")["connected_clients"]) < 60


async def _queues_shown(worker: Worker) -> set[str]:
    await slots(worker)
    families = await asyncio.to_thread(lambda: list(worker.metrics.registry.collect()))
    samples = [sample for family in families for sample in family.samples]
    return {sample.labels["queue"] for sample in samples if "queue" in sample.labels}
