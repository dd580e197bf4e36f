"""A timer is set, moved, cancelled, listed and explained; unused types are deleted."""

from datetime import datetime, timedelta

import pytest

from towpath.apps.timers.errors import TimerEnded, TimerNotFound, TimerRunning
from towpath.apps.timers.listing import TimerQuery
from towpath.apps.timers.log import FiringOutcome, firing_of
from towpath.apps.timers.model import NewTimer, Timer, TypeKey, When, new_timer, when
from towpath.apps.timers.service import TimerService
from towpath.apps.timers.types import TypeInfo, queue_of
from towpath.clock import ManualClock, days, hours, instant_ms, minutes, seconds
from towpath.engine.engine import Engine
from towpath.engine.model import Lease, job_ref
from towpath.engine.states import State
from towpath.errors import InvalidOption

KEY = TypeKey("order.timeout")
QUEUE = queue_of(KEY)


def a_timer(task_id: str = "x", params: object = None, **more: object) -> NewTimer:
    times = more if {"delay", "due", "delay_time"} & more.keys() else {"delay": 60, **more}
    return new_timer("order.timeout", params, task_id=task_id, **times)  # pyright: ignore[reportArgumentType] -- as tests give it


async def claim(engine: Engine) -> Lease:
    [lease] = await engine.claim(QUEUE, worker="w", lease=seconds(30))
    return lease


async def log_a_firing(timers: TimerService, clock: ManualClock) -> None:
    now = instant_ms("now", clock.now)
    done = firing_of(
        "x", FiringOutcome.DONE, due_ms=now, started_ms=now, ran=0, attempt=1, worker="w"
    )
    timers.log.add(KEY, [done])
    await timers.log.flush()


class TestSettingATimer:
    async def test_creates_it_or_replaces_a_waiting_one(
        self, timers: TimerService, clock: ManualClock
    ) -> None:
        first = await timers.set(a_timer("x", 1))
        second = await timers.set(a_timer("x", 2, delay=120))
        assert (first.existed, second.existed) == (False, True)
        assert second.due == clock.now + seconds(120)
        assert (await timers.get(KEY, "x")).params == 2

    async def test_lets_a_cancelled_one_fire_again(
        self, timers: TimerService, engine: Engine, clock: ManualClock
    ) -> None:
        await timers.submit(a_timer())
        await timers.cancel(KEY, "x")
        with pytest.raises(TimerEnded, match="cancelled"):
            await timers.submit(a_timer())
        assert not (await timers.set(a_timer())).existed
        clock.advance(minutes(1))
        assert (await claim(engine)).id == "x"

    async def test_is_refused_while_it_runs(self, timers: TimerService, engine: Engine) -> None:
        await timers.submit(a_timer(delay=0))
        await claim(engine)
        with pytest.raises(TimerRunning):
            await timers.set(a_timer())


class TestMovingATimer:
    async def test_gives_the_timer_another_time(
        self, timers: TimerService, engine: Engine, clock: ManualClock
    ) -> None:
        await timers.submit(a_timer("x", {"a": 1}))
        moved = await timers.move(KEY, "x", when(delay="2m"))
        assert (moved.due, moved.state) == (clock.now + minutes(2), State.DELAYED)
        assert moved.params == {"a": 1}
        now = await timers.move(KEY, "x", when(due=clock.now - hours(1)))
        assert now.state is State.READY
        later = await timers.move(KEY, "x", when(delay_time=instant_ms("t", clock.now + hours(1))))
        assert (later.due, later.state) == (clock.now + hours(1), State.DELAYED)

    async def test_the_same_submit_after_a_move_is_still_the_same_timer(
        self, timers: TimerService, clock: ManualClock
    ) -> None:
        await timers.submit(a_timer())
        await timers.move(KEY, "x", when(delay="2h"))
        again = await timers.submit(a_timer())
        assert (again.existed, again.due) == (True, clock.now + hours(2))

    async def test_is_refused_with_the_state_of_the_timer(
        self, timers: TimerService, engine: Engine
    ) -> None:
        with pytest.raises(TimerNotFound):
            await timers.move(KEY, "x", When(delay=1))
        await timers.submit(a_timer(delay=0))
        lease = await claim(engine)
        with pytest.raises(TimerRunning, match="leased"):
            await timers.move(KEY, "x", When(delay=1))
        await engine.complete(lease)
        with pytest.raises(TimerEnded, match="done"):
            await timers.move(KEY, "x", When(delay=1))


class TestCancellingATimer:
    async def test_ends_the_timer(
        self, timers: TimerService, engine: Engine, clock: ManualClock
    ) -> None:
        await timers.submit(a_timer())
        assert (await timers.cancel(KEY, "x")).state is State.CANCELLED
        clock.advance(hours(1))
        assert await engine.claim(QUEUE, worker="w", lease=seconds(30)) == []

    async def test_that_runs_asks_it_to_stop(self, timers: TimerService, engine: Engine) -> None:
        await timers.submit(a_timer(delay=0))
        lease = await claim(engine)
        assert (await timers.cancel(KEY, "x")).state is State.LEASED
        assert (await engine.renew(lease, seconds(30))).cancel_requested

    async def test_that_has_ended_is_refused(self, timers: TimerService, engine: Engine) -> None:
        with pytest.raises(TimerNotFound):
            await timers.cancel(KEY, "x")
        await timers.submit(a_timer(delay=0))
        await engine.complete(await claim(engine))
        with pytest.raises(TimerEnded, match="done"):
            await timers.cancel(KEY, "x")


def named(timers: list[Timer]) -> list[str]:
    return [timer.task_id for timer in timers]


async def everything(timers: TimerService, wanted: TimerQuery, size: int) -> list[str]:
    found: list[str] = []
    after, pages = None, 0
    while after is not None or not pages:
        page = await timers.list(wanted, after=after, size=size)
        assert len(page.timers) <= size
        found += named(page.timers)
        after, pages = page.after, pages + 1
    return found


class TestListingTimers:
    async def filled(self, timers: TimerService, engine: Engine) -> None:
        await timers.submit(new_timer("b", task_id="b1", delay=20, app="shop"))
        await timers.submit(new_timer("b", task_id="b2", delay=10, app="shop"))
        await timers.submit(new_timer("b", task_id="b3", delay=5))
        await timers.submit(new_timer("a", task_id="a1", delay=0))
        await timers.submit(new_timer("a", task_id="a2", delay=0))
        await timers.submit(new_timer("a", task_id="a3", delay=30))
        [lease] = await engine.claim("timers.a", worker="w", lease=seconds(30))
        await engine.complete(lease)

    @pytest.mark.parametrize("size", [1, 2, 100])
    async def test_filters_by_type_state_and_time(
        self, timers: TimerService, engine: Engine, clock: ManualClock, size: int
    ) -> None:
        await self.filled(timers, engine)
        now: datetime = clock.now
        expected: dict[str, tuple[TimerQuery, list[str]]] = {
            "all": (TimerQuery(), ["a3", "a2", "a1", "b3", "b2", "b1"]),
            "app": (TimerQuery(app="shop"), ["b2", "b1"]),
            "without": (TimerQuery(app=""), ["a3", "a2", "a1", "b3"]),
            "type": (TimerQuery(task_type="b"), ["b3", "b2", "b1"]),
            "state": (TimerQuery(state=State.DELAYED), ["a3", "b3", "b2", "b1"]),
            "ready": (TimerQuery(state=State.READY), ["a2"]),
            "done": (TimerQuery(state=State.DONE), ["a1"]),
            "since": (TimerQuery(since=now + seconds(20)), ["a3", "b1"]),
            "until": (TimerQuery(until=now + seconds(20)), ["a2", "a1", "b3", "b2"]),
            "range": (TimerQuery(since=now + seconds(6), until=now + seconds(30)), ["b2", "b1"]),
            "nothing": (TimerQuery(task_type="c"), []),
        }
        for what, (wanted, ids) in expected.items():
            assert await everything(timers, wanted, size) == ids, what

    async def test_leaves_params_out(self, timers: TimerService) -> None:
        await timers.submit(a_timer("x", {"large": 1}))
        [timer] = (await timers.list(TimerQuery())).timers
        assert (timer.task_id, timer.params) == ("x", None)

    async def test_shows_only_queues_that_the_key_covers(
        self, timers: TimerService, engine: Engine
    ) -> None:
        await self.filled(timers, engine)
        page = await timers.list(TimerQuery(), covers=lambda queue: queue == "timers.b")
        assert named(page.timers) == ["b3"]
        views = await timers.all_types(lambda queue: queue == "timers.b")
        assert [view.queue for view in views] == ["timers.b"]

    async def test_refuses_invalid_options(self, timers: TimerService) -> None:
        with pytest.raises(InvalidOption, match="state"):
            TimerQuery(state=State.GONE)
        with pytest.raises(InvalidOption, match="after"):
            await timers.list(TimerQuery(), after="nonsense")
        with pytest.raises(InvalidOption, match="size"):
            await timers.list(TimerQuery(), size=0)


class TestTypesOfTimers:
    async def test_show_their_timers_and_their_owner(
        self, timers: TimerService, engine: Engine
    ) -> None:
        await timers.submit(a_timer("x"))
        await timers.submit(a_timer("y", delay=0))
        await timers.submit(a_timer("z", delay=0))
        await claim(engine)
        [view] = await timers.all_types()
        assert (view.task_type, view.status, view.owner) == ("order.timeout", "no_worker", None)
        assert (view.waiting, view.running, view.dead) == (2, 1, 0)
        await timers.types.serve("shop", ["order.timeout"], who="i1")
        by_app = {view.app: view for view in await timers.all_types()}
        assert by_app[None].owner == by_app["shop"].owner == "shop"
        assert by_app[None].status == by_app["shop"].status == "served"
        await timers.types.leave("shop", ["order.timeout"], who="i1")
        assert {view.status for view in await timers.all_types()} == {"no_instance"}


class TestExplainingATimer:
    async def test_reports_that_no_worker_serves_the_type(
        self, timers: TimerService, clock: ManualClock
    ) -> None:
        await timers.submit(a_timer())
        waits = await timers.explain(KEY, "x")
        assert waits.why == "not_due"
        clock.advance(minutes(2))
        overdue = await timers.explain(KEY, "x")
        assert overdue.why == "no_worker"
        await timers.types.serve("shop", ["order.timeout"], who="i1")
        await timers.types.leave("shop", ["order.timeout"], who="i1")
        missing = await timers.explain(KEY, "x")
        assert missing.why == "no_instance"
        assert "shop" in missing.text

    async def test_reports_no_missing_worker_while_one_is_alive(self, timers: TimerService) -> None:
        await timers.submit(a_timer())
        without = await timers.explain(KEY, "x")
        await timers.types.serve(None, ["order.timeout"], who="w1")
        served = await timers.explain(KEY, "x")
        assert served.why == without.why == "not_due"
        assert len(served.text) < len(without.text)

    async def test_is_refused_for_an_unknown_id(self, timers: TimerService) -> None:
        with pytest.raises(TimerNotFound):
            await timers.explain(KEY, "x")


class TestUnusedTypes:
    async def test_are_deleted_with_their_queue_and_log_after_a_day(
        self, timers: TimerService, engine: Engine, clock: ManualClock
    ) -> None:
        await timers.submit(a_timer(delay=0))
        await engine.complete(await claim(engine))
        await log_a_firing(timers, clock)
        clock.advance(days(1))
        assert await timers.sweep() == 0  # its id is remembered for a day after its end
        clock.advance(hours(2))
        assert await timers.sweep() == 1
        assert await timers.types.all() == []
        assert await engine.queues.list() == {}
        assert (await timers.log.read(KEY)).firings == []
        await timers.log.close()

    async def test_are_kept_while_a_timer_waits_or_a_worker_serves_them(
        self, timers: TimerService, clock: ManualClock
    ) -> None:
        await timers.submit(a_timer(delay=days(10)))
        await timers.types.serve(None, ["served"], who="w", alive=days(20))
        clock.advance(days(5))
        assert await timers.sweep() == 0
        assert len(await timers.types.all()) == 2

    async def test_that_are_used_again_during_a_sweep_keep_their_log(
        self,
        timers: TimerService,
        engine: Engine,
        clock: ManualClock,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The timer is submitted after the sweep has deleted the type, and before its queue."""
        await timers.submit(a_timer(delay=0))
        await engine.complete(await claim(engine))
        clock.advance(days(3))
        await log_a_firing(timers, clock)
        delete = timers.types.delete

        async def delete_and_use(info: TypeInfo) -> bool:
            deleted = await delete(info)
            await timers.submit(a_timer(delay=0))
            return deleted

        monkeypatch.setattr(timers.types, "delete", delete_and_use)
        await timers.sweep()
        assert [entry.task_id for entry in (await timers.log.read(KEY)).firings] == ["x"]
        assert [info.key for info in await timers.types.all()] == [KEY]
        assert (await timers.get(KEY, "x")).state is State.READY

    async def test_in_a_paused_queue_lose_their_log_when_they_are_deleted(
        self, timers: TimerService, engine: Engine, clock: ManualClock
    ) -> None:
        await timers.submit(a_timer(delay=0))
        await engine.complete(await claim(engine))
        await engine.queues.pause(QUEUE)
        clock.advance(days(3))
        await log_a_firing(timers, clock)
        assert await timers.sweep() == 1
        assert (await timers.log.read(KEY)).firings == []

    async def test_can_be_used_again_after_they_were_deleted(
        self, timers: TimerService, engine: Engine, clock: ManualClock
    ) -> None:
        await timers.submit(a_timer(delay=0))
        await engine.complete(await claim(engine))
        clock.advance(days(3))
        assert await timers.sweep() == 1
        assert not (await timers.submit(a_timer(delay=0))).existed
        assert (await claim(engine)).job == job_ref(QUEUE, "x")
        assert (await engine.queues.options(QUEUE)).max_attempts == 10

    async def test_make_room_for_others_when_they_are_deleted(
        self, timers: TimerService, clock: ManualClock
    ) -> None:
        await timers.types.ensure(KEY)
        clock.advance(days(1) - timedelta(milliseconds=1))
        assert await timers.sweep() == 0
        clock.advance(milliseconds=1)
        assert await timers.sweep() == 1
