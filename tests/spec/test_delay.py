"""A delayed job is never delivered before its time by the clock of Redis."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from tests.spec.jobs_in_states import REVIEWS, claim, claim_one, ids_of, submit_ids
from towpath.clock import ZERO, ManualClock, days, milliseconds, seconds
from towpath.engine.engine import Engine
from towpath.engine.model import HIGH, new_job
from towpath.engine.states import State
from towpath.errors import InvalidOption


class TestADelayedJob:
    async def test_is_not_claimed_before_its_time(self, engine: Engine, clock: ManualClock) -> None:
        """Neither an empty queue nor a high priority changes that."""
        submitted = await engine.submit(REVIEWS, b"", delay=seconds(5), priority=HIGH)
        assert submitted.state is State.DELAYED
        clock.advance(seconds(5) - milliseconds(1))
        assert await claim(engine) == []
        clock.advance(milliseconds(1))
        assert ids_of(await claim(engine)) == [submitted.id]

    async def test_does_not_hold_up_other_jobs(self, engine: Engine) -> None:
        await engine.submit(REVIEWS, b"", delay=seconds(5), priority=HIGH)
        await submit_ids(engine, "now")
        assert ids_of(await claim(engine, 2)) == ["now"]

    async def test_shows_when_it_is_due(self, engine: Engine, clock: ManualClock) -> None:
        submitted = await engine.submit(REVIEWS, b"", delay=seconds(5))
        assert (await engine.inspect.job(submitted.job)).due_at == clock.now + seconds(5)

    async def test_tells_its_worker_when_it_was_due(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        """So that a worker can tell how late it runs."""
        due = clock.now + seconds(5)
        await engine.submit(REVIEWS, b"", due=due)
        clock.advance(seconds(60))
        assert (await claim_one(engine)).due_at == due

    async def test_runs_at_once_if_it_fell_due_while_no_worker_was_there(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        for id, wait in (("b", 2), ("c", 3), ("a", 1)):
            await engine.submit(REVIEWS, b"", id=id, delay=days(wait))
        clock.advance(days(30))
        assert ids_of(await claim(engine, 9)) == ["a", "b", "c"]

    async def test_with_a_delay_of_zero_is_ready(self, engine: Engine) -> None:
        assert (await engine.submit(REVIEWS, b"", delay=ZERO)).state is State.READY
        assert (await engine.submit(REVIEWS, b"", delay=seconds(0))).state is State.READY

    async def test_rounds_its_delay_up_to_a_millisecond(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        """Rounded down, it would run before its time."""
        submitted = await engine.submit(REVIEWS, b"", delay=timedelta(microseconds=1))
        assert (await engine.inspect.job(submitted.job)).due_at == clock.now + milliseconds(1)

    async def test_may_wait_for_years(self, engine: Engine, clock: ManualClock) -> None:
        submitted = await engine.submit(REVIEWS, b"", delay=days(36_000))
        clock.advance(days(36_000) - milliseconds(1))
        assert await claim(engine) == []
        clock.advance(milliseconds(1))
        assert ids_of(await claim(engine)) == [submitted.id]


class TestADueTime:
    async def test_is_an_instant_in_any_time_zone(self, engine: Engine, clock: ManualClock) -> None:
        tokyo = timezone(timedelta(hours=9))
        due = (clock.now + seconds(5)).astimezone(tokyo)
        submitted = await engine.submit(REVIEWS, b"", due=due)
        assert submitted.state is State.DELAYED
        clock.advance(seconds(5))
        assert ids_of(await claim(engine)) == [submitted.id]

    async def test_in_the_past_is_ready(self, engine: Engine) -> None:
        past = datetime(1999, 12, 31, tzinfo=UTC)
        assert (await engine.submit(REVIEWS, b"", due=past)).state is State.READY

    async def test_that_is_now_is_ready(self, engine: Engine, clock: ManualClock) -> None:
        assert (await engine.submit(REVIEWS, b"", due=clock.now)).state is State.READY

    async def test_together_with_a_delay_is_refused(self, clock: ManualClock) -> None:
        due = clock.now
        with pytest.raises(InvalidOption) as refusal:
            new_job(b"", delay=seconds(1), due=due)
        assert (refusal.value.option, refusal.value.value) == ("due", due)
