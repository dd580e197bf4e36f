"""Jobs of a higher priority run first; within one priority, the first submitted runs first."""

from random import Random

import pytest

from tests.spec.deployment import Deployment
from tests.spec.jobs_in_states import REVIEWS, claim, claim_one, ids_of, submit_ids
from towpath.clock import ManualClock, hours, seconds
from towpath.engine.engine import Engine
from towpath.engine.model import HIGH, LOW, NORMAL, new_job


class TestPriority:
    async def test_lets_higher_ones_run_first(self, engine: Engine) -> None:
        await engine.submit(REVIEWS, b"", id="low", priority=LOW)
        await engine.submit(REVIEWS, b"", id="normal")
        await engine.submit(REVIEWS, b"", id="high", priority=HIGH)
        assert ids_of(await claim(engine, 3)) == ["high", "normal", "low"]

    async def test_is_strict_whatever_the_age_of_a_job(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.submit(REVIEWS, b"", id="old", priority=LOW)
        clock.advance(hours(24 * 365))
        await engine.submit(REVIEWS, b"", id="new", priority=LOW + 1)
        assert ids_of(await claim(engine, 2)) == ["new", "old"]

    async def test_may_be_any_number_from_0_to_100(self, engine: Engine) -> None:
        order = list(range(101))
        Random(7).shuffle(order)
        jobs = [new_job(b"", id=f"{n}", priority=n) for n in order]
        await engine.submit_many(REVIEWS, jobs)
        claimed = await claim(engine, 101)
        assert [lease.priority for lease in claimed] == list(range(100, -1, -1))

    async def test_is_normal_by_default(self, engine: Engine) -> None:
        await submit_ids(engine, "a")
        assert (await claim_one(engine)).priority == NORMAL

    async def test_decides_at_the_moment_of_the_claim(self, engine: Engine) -> None:
        await submit_ids(engine, "normal1", "normal2")
        await claim_one(engine)
        await engine.submit(REVIEWS, b"", id="high", priority=HIGH)
        assert ids_of(await claim(engine, 2)) == ["high", "normal2"]


class TestOrderWithinOnePriority:
    async def test_is_that_of_submission(self, engine: Engine, clock: ManualClock) -> None:
        for id in ("c", "a", "b"):
            await submit_ids(engine, id)
            clock.advance(seconds(1))
        assert ids_of(await claim(engine, 3)) == ["c", "a", "b"]

    async def test_does_not_depend_on_the_text_of_ids(self, engine: Engine) -> None:
        await submit_ids(engine, "9", "10", "8", "z", "A")
        assert ids_of(await claim(engine, 5)) == ["9", "10", "8", "z", "A"]

    @pytest.mark.parametrize("priority", [LOW, HIGH])
    async def test_holds_for_thousands_in_one_millisecond(
        self, engine: Engine, priority: int
    ) -> None:
        """The clock stands still: a counter orders the jobs, not the time."""
        jobs = [new_job(b"", id=f"{n}", priority=priority) for n in range(2000)]
        await engine.submit_many(REVIEWS, jobs)
        claimed = [id for _ in range(4) for id in ids_of(await claim(engine, 500))]
        assert claimed == [f"{n}" for n in range(2000)]

    async def test_holds_when_the_clock_goes_back(
        self, engine: Engine, deployment: Deployment, clock: ManualClock
    ) -> None:
        await submit_ids(engine, "first")
        async with Engine(deployment.url, clock=ManualClock(clock.now - hours(1))) as behind:
            await submit_ids(behind, "second")
        assert ids_of(await claim(engine, 2)) == ["first", "second"]

    async def test_holds_over_several_processes(self, engine: Engine, other_engine: Engine) -> None:
        for n in range(6):
            await submit_ids(engine if n % 2 else other_engine, f"{n}")
        assert ids_of(await claim(engine, 6)) == [f"{n}" for n in range(6)]
