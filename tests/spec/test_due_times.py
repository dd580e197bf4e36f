"""The due time of a job is the one that was asked for; the time of its next attempt is another."""

from datetime import datetime

from tests.spec.jobs_in_states import REVIEWS, claim, claim_one, ids_of, leased, submit_ids
from towpath.clock import ManualClock, hours, instant_ms, minutes, seconds
from towpath.engine.engine import Engine
from towpath.engine.explain import Why
from towpath.engine.model import JobRef
from towpath.engine.states import State


async def times(engine: Engine, job: JobRef) -> tuple[datetime | None, datetime | None]:
    found = await engine.inspect.job(job)
    return found.due_at, found.next_try_at


async def delayed(engine: Engine, clock: ManualClock, id: str = "a") -> datetime:
    """A job that was due a minute after its submit, and its due time; the minute is over."""
    due = clock.now + minutes(1)
    await engine.submit(REVIEWS, b"", id=id, due=due)
    clock.advance(minutes(1))
    return due


class TestADueTime:
    async def test_stays_when_an_attempt_fails(self, engine: Engine, clock: ManualClock) -> None:
        due = await delayed(engine, clock)
        lease = await claim_one(engine)
        assert (lease.due_at, lease.next_try_ms) == (due, 0)
        await engine.fail(lease, "503", delay=seconds(5))
        assert await times(engine, lease.job) == (due, clock.now + seconds(5))

    async def test_stays_when_the_job_is_released_with_a_delay(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        due = await delayed(engine, clock)
        lease = await claim_one(engine)
        await engine.release(lease, delay=seconds(5))
        assert await times(engine, lease.job) == (due, clock.now + seconds(5))

    async def test_is_in_the_lease_of_every_attempt(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        due = await delayed(engine, clock)
        for _ in range(3):
            lease = await claim_one(engine)
            await engine.fail(lease, "503", delay=seconds(5))
            clock.advance(seconds(5))
        again = await claim_one(engine)
        assert (again.due_at, again.next_try_ms) == (due, instant_ms("now", clock.now))
        assert await times(engine, again.job) == (due, None), "it is being tried"

    async def test_stays_none_for_a_job_without_one(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        lease = await leased(engine)
        await engine.fail(lease, "503", delay=seconds(5))
        assert await times(engine, lease.job) == (None, clock.now + seconds(5))
        clock.advance(seconds(5))
        assert (await claim_one(engine)).due_at is None

    async def test_is_the_new_one_after_a_move(self, engine: Engine, clock: ManualClock) -> None:
        await delayed(engine, clock)
        lease = await claim_one(engine)
        await engine.fail(lease, "503", delay=seconds(5))
        moved = clock.now + hours(1)
        await engine.move(lease.job, due=moved)
        assert await times(engine, lease.job) == (moved, None)

    async def test_stays_when_a_dead_job_is_retried(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        due = await delayed(engine, clock)
        lease = await claim_one(engine)
        await engine.bury(lease, "broken")
        clock.advance(hours(1))
        assert await engine.retry(lease.job) is State.READY
        assert await times(engine, lease.job) == (due, None)
        assert (await claim_one(engine)).due_at == due

    async def test_orders_jobs_that_become_ready_together(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        """The order of their failed attempts does not matter."""
        await engine.submit(REVIEWS, b"", id="first", delay=seconds(1))
        await engine.submit(REVIEWS, b"", id="second", delay=seconds(2))
        clock.advance(seconds(1))
        await engine.fail(await claim_one(engine), "503", delay=seconds(9))
        clock.advance(seconds(9))
        assert ids_of(await claim(engine, 2)) == ["first", "second"]


class TestThePlaceInTheOrder:
    async def test_is_kept_if_the_caller_asks_for_it(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await submit_ids(engine, "a", "b", "c")
        for keeps in (True, False):
            lease = await claim_one(engine)
            await engine.fail(lease, "503", delay=seconds(1), keep_turn=keeps)
        clock.advance(seconds(1))
        assert ids_of(await claim(engine, 3)) == ["a", "c", "b"]

    async def test_is_kept_for_one_attempt(self, engine: Engine, clock: ManualClock) -> None:
        await submit_ids(engine, "a", "b")
        for keeps in (True, False):
            lease = await claim_one(engine)
            assert lease.id == "a"
            await engine.fail(lease, "503", delay=seconds(1), keep_turn=keeps)
            clock.advance(seconds(1))
        assert ids_of(await claim(engine, 2)) == ["b", "a"]

    async def test_is_that_of_the_first_due_time(self, engine: Engine, clock: ManualClock) -> None:
        for n in range(1, 4):
            await engine.submit(REVIEWS, b"", id=f"due-{n}", delay=seconds(n))
        clock.advance(seconds(3))
        first = await claim_one(engine)
        await engine.fail(first, "503", delay=seconds(9), keep_turn=True)
        clock.advance(seconds(9))
        assert ids_of(await claim(engine, 3)) == ["due-1", "due-2", "due-3"]


class TestExplaining:
    async def test_names_the_time_of_the_next_attempt(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        due = await delayed(engine, clock)
        lease = await claim_one(engine)
        await engine.fail(lease, "503", delay=seconds(5))
        found = await engine.inspect.explain(lease.job)
        assert found.why is Why.NOT_DUE
        assert str(clock.now + seconds(5)) in found.text
        assert str(due) in found.text
