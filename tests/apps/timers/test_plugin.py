"""Plug-in mode: functions and classes that work on timers in processes of their own."""

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

import pytest

from tests.waiting import HANGS, eventually_async
from towpath import Context
from towpath.apps.timers.errors import TimerTypeTaken
from towpath.apps.timers.log import FiringOutcome
from towpath.apps.timers.model import TypeKey
from towpath.apps.timers.options import TimersOptions
from towpath.apps.timers.plugin import Timers
from towpath.apps.timers.types import Owner, Types, queue_of
from towpath.clock import ServerClock, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.engine.retry import Fixed
from towpath.engine.states import State
from towpath.errors import HandlerInvalid, InvalidOption
from towpath.worker.context import Discard

SOON = Fixed(seconds(0.01))


@pytest.fixture
def clock() -> ServerClock:
    return ServerClock()


@pytest.fixture
def timers(server: EmbeddedServer) -> Timers:
    return Timers(server.url)


async def ended(timers: Timers, task_id: str, task_type: str = "t") -> State:
    async def has_ended() -> bool:
        return (await timers.get(task_type, task_id)).state in (State.DONE, State.DEAD)

    await eventually_async(has_ended)
    return (await timers.get(task_type, task_id)).state


@dataclass
class Order:
    number: int


class TestPlugInWorkers:
    async def test_an_async_function_gets_the_params_by_its_annotation(
        self, timers: Timers
    ) -> None:
        seen: list[Any] = []

        @timers.worker("t")
        async def work(order: Order, ctx: Context) -> None:
            seen.append((order, ctx.id, threading.current_thread() is threading.main_thread()))

        async with timers.working():
            await timers.submit("t", {"number": 7}, task_id="x", delay=0.01)
            assert await ended(timers, "x") is State.DONE
        assert seen == [(Order(7), "x", True)]

    async def test_a_plain_function_runs_in_a_thread(self, timers: Timers) -> None:
        seen: list[Any] = []

        @timers.worker("t")
        def work(number: int) -> None:
            seen.append((number, threading.current_thread() is threading.main_thread()))

        async with timers.working():
            await timers.submit("t", 7, task_id="x", delay=0)
            assert await ended(timers, "x") is State.DONE
        assert seen == [(7, False)]

    @pytest.mark.parametrize(
        ("params", "message"), [("plain", "plain"), ({"a": [1]}, '{"a":[1]}'), (None, "null")]
    )
    async def test_a_class_gets_the_params_as_text(
        self, timers: Timers, params: Any, message: str
    ) -> None:
        seen: list[str] = []

        @timers.worker
        class Work:
            def type(self) -> str:
                return "t"

            def clazz(self) -> object:
                return Work

            def invoke(self, message: str) -> None:
                seen.append(message)

        async with timers.working():
            await timers.submit("t", params, task_id="x", delay=0)
            assert await ended(timers, "x") is State.DONE
        assert seen == [message]

    async def test_a_timer_whose_params_do_not_fit_the_annotation_is_dead(
        self, timers: Timers
    ) -> None:
        @timers.worker("t")
        async def work(order: Order) -> None:
            raise AssertionError

        async with timers.working():
            await timers.submit("t", "nonsense", task_id="x", delay=0)
            assert await ended(timers, "x") is State.DEAD

    async def test_a_type_that_is_added_at_run_time_is_served(self, timers: Timers) -> None:
        @timers.worker("t")
        async def work() -> None: ...

        async with timers.working():
            await timers.submit("取消/订单", task_id="x", delay=0)

            @timers.worker("取消/订单")
            async def more() -> None: ...

            assert await ended(timers, "x", "取消/订单") is State.DONE

    def test_that_can_t_be_called_are_refused(self, timers: Timers) -> None:
        def work() -> None: ...

        timers.add(work, task_type="t")
        wrong: list[Any] = [
            lambda: timers.worker(work),
            lambda: timers.add(work, task_type="t"),
            lambda: timers.worker("t", concurrency=1)(lambda: None),
            lambda: timers.add(object(), task_type="t"),  # pyright: ignore[reportArgumentType] -- what is refused
            lambda: timers.register("u", 1),
        ]
        for attempt in wrong:
            with pytest.raises(HandlerInvalid):
                attempt()


class TestSeveralWorkersOfAType:
    async def test_are_all_invoked_in_their_order(self, timers: Timers) -> None:
        seen: list[str] = []

        @timers.worker("t")
        async def first() -> None:
            seen.append("first")

        @timers.worker("t")
        def second() -> None:
            seen.append("second")

        @timers.worker
        class Third:
            def type(self) -> str:
                return "t"

            def clazz(self) -> object:
                return Third

            async def invoke(self, message: str) -> None:
                seen.append(f"third {message}")

        async with timers.working():
            await timers.submit("t", "hello", task_id="x", delay=0)
            assert await ended(timers, "x") is State.DONE
        assert seen == ["first", "second", "third hello"]

    async def test_that_succeeded_are_not_invoked_again_by_a_retry(self, timers: Timers) -> None:
        seen: list[str] = []

        @timers.worker("t", retry=SOON)
        async def first() -> None:
            seen.append("first")

        @timers.worker("t")
        async def second(ctx: Context) -> None:
            seen.append(f"second {ctx.attempt}")
            if ctx.attempt < 3:
                raise RuntimeError("not yet")

        @timers.worker("t")
        async def third() -> None:
            seen.append("third")

        async with timers.working():
            await timers.submit("t", task_id="x", delay=0)
            assert await ended(timers, "x") is State.DONE
        assert seen == ["first", "second 1", "third", "second 2", "second 3"]

    async def test_may_store_progress_notes_without_being_invoked_twice(
        self, timers: Timers
    ) -> None:
        seen: list[str] = []

        @timers.worker("t", retry=SOON)
        async def first(ctx: Context) -> None:
            seen.append("first")
            ctx.progress({"half": True})

        @timers.worker("t")
        async def second(ctx: Context) -> None:
            seen.append("second")
            ctx.progress(b"half")
            if ctx.attempt == 1:
                raise RuntimeError("not yet")

        async with timers.working():
            await timers.submit("t", task_id="x", delay=0)
            assert await ended(timers, "x") is State.DONE
        assert seen == ["first", "second", "second"]

    async def test_are_all_invoked_if_one_of_them_gives_up(self, timers: Timers) -> None:
        seen: list[str] = []

        @timers.worker("t", retry=SOON)
        async def first() -> None:
            raise Discard("never")

        @timers.worker("t")
        async def second() -> None:
            seen.append("second")

        async with timers.working():
            await timers.submit("t", task_id="x", delay=0)
            assert await ended(timers, "x") is State.DEAD
        assert seen == ["second"]

    async def test_are_all_invoked_for_a_timer_that_was_set_again(self, timers: Timers) -> None:
        seen: list[str] = []
        failing = True

        @timers.worker("t", retry=Fixed(seconds(3600)))
        async def first() -> None:
            seen.append("first")

        @timers.worker("t")
        async def second() -> None:
            if failing:
                raise RuntimeError("not yet")
            seen.append("second")

        async with timers.working():
            await timers.submit("t", task_id="x", delay=0)

            async def failed() -> bool:
                return (await timers.get("t", "x")).state is State.DELAYED

            await eventually_async(failed)
            failing = False
            await timers.set("t", "x", delay=0)
            assert await ended(timers, "x") is State.DONE
        assert seen == ["first", "first", "second"]


class TestOwningATypeOfTimers:
    async def test_a_worker_is_alive_while_it_runs(self, timers: Timers, engine: Engine) -> None:
        @timers.worker("t")
        async def work() -> None: ...

        async def status() -> list[tuple[str, int]]:
            return [(view.status, view.alive) for view in await timers.types()]

        async with timers:
            async with timers.working():

                async def served() -> bool:
                    return await status() == [("served", 1)]

                await eventually_async(served)
                with pytest.raises(TimerTypeTaken):
                    await timers._service.types.serve("shop", ["t"], who="i1")  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- as a scheduler does
            assert await status() == [("no_worker", 0)]
            [view] = await timers.types()
            assert view.owner == str(Owner())

    async def test_a_type_of_an_app_is_not_served_by_workers(self, timers: Timers) -> None:
        @timers.worker("t")
        async def work() -> None:
            raise AssertionError

        @timers.worker("u")
        async def other() -> None: ...

        async with timers:
            await timers.submit("t", task_id="x", delay=3600)
            await Types(timers.app.engine, TimersOptions()).serve("shop", ["t"], who="i1")
            async with timers.working():
                await timers.submit("u", task_id="y", delay=0)
                assert await ended(timers, "y", "u") is State.DONE

                async def withdrawn() -> bool:
                    return [handler.queue for handler in timers.app.handlers].count(
                        queue_of(TypeKey("t"))
                    ) == 0

                await eventually_async(withdrawn)
                await timers.move("t", "x", delay=0)
            assert (await timers.get("t", "x")).state is State.READY


class TestTheLog:
    async def test_shows_each_attempt_with_its_outcome(self, timers: Timers) -> None:
        @timers.worker("t", retry=SOON, max_attempts=2)
        async def work(ctx: Context) -> None:
            if ctx.id != "good":
                raise RuntimeError("no luck")

        async with timers:
            async with timers.working():
                good = await timers.submit("t", task_id="good", delay=0.02)
                assert await ended(timers, "good") is State.DONE
                await timers.submit("t", task_id="bad", delay=0)
                assert await ended(timers, "bad") is State.DEAD
            page = await timers.log("t")
        dead, failed, done = page.firings
        assert [firing.outcome for firing in page.firings] == [
            FiringOutcome.DEAD, FiringOutcome.FAILED, FiringOutcome.DONE,
        ]  # fmt: skip
        assert (done.task_id, done.attempt, done.reason) == ("good", 1, None)
        assert (dead.task_id, dead.attempt, failed.attempt) == ("bad", 2, 1)
        assert "no luck" in (dead.reason or "")
        assert done.due == good.due
        assert done.late >= 0
        assert done.worker

    async def test_is_counted_in_the_metrics(self, timers: Timers) -> None:
        @timers.worker("t")
        async def work() -> None: ...

        def value(name: str, **labels: str) -> float | None:
            return timers.app.metrics.registry.get_sample_value(
                name, {"queue": "timers.t", **labels}
            )

        async with timers.working():
            for number in range(3):
                await timers.submit("t", task_id=str(number), delay=0)
                assert await ended(timers, str(number)) is State.DONE

            async def counted() -> bool:
                return value("towpath_timers_fired_total", state="done") == 3

            await eventually_async(counted)
        assert value("towpath_timers_late_seconds_count") == 3
        assert value("towpath_timers_late_seconds_bucket", le="0.001") is not None


class TestTheThreadsOfAPlugIn:
    async def test_limit_how_many_timers_run_at_once(self, timers: Timers) -> None:
        """Two timers run at a time, and never a third one."""
        both, running, seen = threading.Barrier(2), list[int](), list[int]()

        @timers.worker("t")
        def work(number: int) -> None:
            running.append(number)
            seen.append(len(running))
            both.wait(HANGS)
            running.remove(number)
            both.wait(HANGS)

        timers.set_threads(2)
        async with timers.working():
            for number in range(6):
                await timers.submit("t", number, task_id=f"x{number}", delay=0)
            for number in range(6):
                assert await ended(timers, f"x{number}") is State.DONE
        assert max(seen) == 2

    @pytest.mark.parametrize("size", [0, -1, True, 1.5, 10**6])
    def test_are_refused_if_their_number_is_invalid(self, timers: Timers, size: Any) -> None:
        with pytest.raises(InvalidOption, match="threads"):
            timers.set_threads(size)


class TestAPlugIn:
    async def test_starts_a_worker_in_the_running_loop(self, timers: Timers) -> None:
        done = asyncio.Event()

        @timers.worker("t")
        async def work() -> None:
            done.set()

        timers.register("t", 1)
        async with timers:
            await timers.submit("t", delay=0)
            async with asyncio.timeout(HANGS):
                await done.wait()
            await timers.stopped()
