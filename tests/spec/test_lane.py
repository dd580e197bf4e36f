"""Looking at a lane: its head, and the jobs that wait behind it."""

from tests.spec.jobs_in_states import LEASE, REVIEWS, claim_one, submit_ids
from towpath.clock import ManualClock, seconds
from towpath.engine.engine import Engine
from towpath.engine.inspect import Lane
from towpath.engine.states import State
from towpath.ids import JobId

A = JobId("a")


class TestLookingAtALane:
    async def test_that_was_never_used_finds_it_empty(self, engine: Engine) -> None:
        assert await engine.inspect.lane(REVIEWS, "octo") == Lane(None, None, 0, None)

    async def test_names_the_head_and_counts_the_jobs_behind_it(self, engine: Engine) -> None:
        await submit_ids(engine, "a", "b", "c", lane="octo")
        await submit_ids(engine, "d", lane="other")
        assert await engine.inspect.lane(REVIEWS, "octo") == Lane(A, State.READY, 2)

    async def test_tells_how_many_jobs_come_before_a_job(self, engine: Engine) -> None:
        await submit_ids(engine, "a", "b", "c", lane="octo")
        found = {
            id: (await engine.inspect.lane(REVIEWS, "octo", job=id)).before
            for id in ("a", "b", "c")
        }
        assert found == {"a": None, "b": 0, "c": 1}

    async def test_shows_the_head_as_leased_only_while_its_lease_lasts(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        """No sweep is needed for that."""
        await submit_ids(engine, "a", lane="octo")
        await claim_one(engine)
        assert (await engine.inspect.lane(REVIEWS, "octo")).head_state is State.LEASED
        clock.advance(LEASE + seconds(1))
        assert await engine.inspect.lane(REVIEWS, "octo") == Lane(A, State.READY, 0)

    async def test_shows_a_head_that_waits_for_its_next_attempt(self, engine: Engine) -> None:
        await submit_ids(engine, "a", "b", lane="octo")
        await engine.fail(await claim_one(engine), "not now", delay=seconds(10))
        assert await engine.inspect.lane(REVIEWS, "octo") == Lane(A, State.DELAYED, 1)


class TestTheLanesWithWaitingJobs:
    async def test_are_those_with_a_job_that_no_worker_holds(self, engine: Engine) -> None:
        await submit_ids(engine, "a", lane="busy")
        await submit_ids(engine, "b", "c", lane="busy-and-waiting")
        assert len(await engine.claim(REVIEWS, worker="anna", lease=LEASE, count=2)) == 2
        await submit_ids(engine, "d", "e", lane="waiting")
        await submit_ids(engine, "f")
        assert await engine.inspect.lanes_waiting(REVIEWS) == 2

    async def test_include_a_lane_whose_lease_has_ended(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await submit_ids(engine, "a", lane="busy")
        await claim_one(engine)
        assert await engine.inspect.lanes_waiting(REVIEWS) == 0
        clock.advance(LEASE)
        assert await engine.inspect.lanes_waiting(REVIEWS) == 1
