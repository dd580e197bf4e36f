"""Timers for the programs that set them."""

from datetime import timedelta

import pytest

from towpath.apps.timers.errors import TimerDiffers, TimerEnded, TimerNotFound, TimerTypesFull
from towpath.apps.timers.model import TypeKey, new_timer
from towpath.apps.timers.options import TimersOptions
from towpath.apps.timers.service import TimerService
from towpath.apps.timers.types import queue_of
from towpath.clock import ManualClock, minutes, seconds
from towpath.engine.engine import Engine
from towpath.engine.states import State
from towpath.errors import PayloadTooLarge

KEY = TypeKey("order.timeout")
QUEUE = queue_of(KEY)


async def run_next(engine: Engine) -> None:
    [lease] = await engine.claim(QUEUE, worker="w", lease=seconds(30))
    await engine.complete(lease)


class TestSubmittingATimer:
    async def test_stores_it_until_it_is_due(
        self, timers: TimerService, engine: Engine, clock: ManualClock
    ) -> None:
        timer = await timers.submit(new_timer("order.timeout", {"order": 7}, delay="30m"))
        assert timer.state is State.DELAYED
        assert timer.due == clock.now + minutes(30)
        assert timer.delay_time == round(timer.due.timestamp() * 1000)
        assert await timers.get(KEY, timer.task_id) == timer
        clock.advance(minutes(30) - timedelta(milliseconds=1))
        assert await engine.claim(QUEUE, worker="w", lease=seconds(30)) == []
        clock.advance(milliseconds=1)
        [lease] = await engine.claim(QUEUE, worker="w", lease=seconds(30))
        assert lease.id == timer.task_id

    async def test_with_a_past_time_makes_it_due_now(
        self, timers: TimerService, engine: Engine, clock: ManualClock
    ) -> None:
        past = clock.now - minutes(10)
        timer = await timers.submit(new_timer("order.timeout", due=past))
        assert (timer.state, timer.due) == (State.READY, past)
        assert (await timers.get(KEY, timer.task_id)).due == past
        await run_next(engine)

    async def test_the_same_timer_again_is_the_existing_one(self, timers: TimerService) -> None:
        """The order of the fields of its params does not matter."""
        one = new_timer("order.timeout", {"a": 1, "b": [2]}, task_id="x", delay=60)
        two = new_timer("order.timeout", {"b": [2], "a": 1}, task_id="x", delay="1m")
        first, again = await timers.submit(one), await timers.submit(two)
        assert (first.existed, again.existed) == (False, True)
        assert (again.state, again.due) == (State.DELAYED, first.due)

    @pytest.mark.parametrize("other", [{"delay": 61}, {"delay": 60, "params": {"a": 2}}])
    async def test_with_the_id_of_another_one_is_refused(
        self, timers: TimerService, other: dict[str, object]
    ) -> None:
        await timers.submit(new_timer("order.timeout", {"a": 1}, task_id="x", delay=60))
        asked = {"params": {"a": 1}, **other}
        with pytest.raises(TimerDiffers):
            await timers.submit(new_timer("order.timeout", task_id="x", **asked))  # pyright: ignore[reportArgumentType] -- as tests give it

    async def test_with_the_id_of_an_ended_one_is_refused(
        self, timers: TimerService, engine: Engine, clock: ManualClock
    ) -> None:
        """This holds even when the id is only remembered."""
        timer = new_timer("order.timeout", task_id="x", delay=0)
        await timers.submit(timer)
        await run_next(engine)
        with pytest.raises(TimerEnded, match="done"):
            await timers.submit(timer)
        clock.advance(hours=2)
        await engine.queues.trim(QUEUE)
        with pytest.raises(TimerEnded):
            await timers.submit(timer)

    async def test_with_one_id_in_two_types_and_two_apps_makes_four(
        self, timers: TimerService
    ) -> None:
        for app in (None, "shop"):
            for task_type in ("a", "b"):
                timer = new_timer(task_type, [app, task_type], app=app, task_id="x", delay=60)
                assert not (await timers.submit(timer)).existed
        assert (await timers.get(TypeKey("b", "shop"), "x")).params == ["shop", "b"]

    async def test_together_with_others_is_answered_for_each(self, engine: Engine) -> None:
        timers = TimerService(engine, TimersOptions(types=1))
        await timers.submit(new_timer("a", task_id="1", delay=60))
        wanted = [
            new_timer("a", task_id="2", delay=60),
            new_timer("b", task_id="3", delay=60),
            new_timer("a", task_id="1", delay=61),
            new_timer("a", "x" * 2_000_000, task_id="4", delay=60),
            new_timer("a", task_id="1", delay=60),
        ]
        new, full, differs, large, existed = await timers.submit_many(wanted)
        assert (getattr(new, "existed", None), getattr(existed, "existed", None)) == (False, True)
        assert isinstance(full, TimerTypesFull)
        assert isinstance(differs, TimerDiffers)
        assert isinstance(large, PayloadTooLarge)
        assert (await engine.inspect.counts("timers.a")).delayed == 2

    async def test_an_unknown_timer_is_not_found(self, timers: TimerService) -> None:
        with pytest.raises(TimerNotFound):
            await timers.get(KEY, "x")
