"""drop: let a parked lane go on without its dead head."""

import pytest

from tests.spec.jobs_in_states import REVIEWS, buried, claim, claim_one, ids_of, leased, submit_ids
from towpath.clock import ManualClock, seconds
from towpath.engine.engine import Engine
from towpath.engine.options import LanePolicy, QueueOptions
from towpath.engine.states import State
from towpath.errors import LaneNotParked

PARKING = QueueOptions(lanes=LanePolicy.PARK)


class TestDroppingTheHeadOfAParkedLane:
    async def test_lets_the_lane_go_on(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, PARKING)
        head = await buried(engine, "a", lane="octo")
        await submit_ids(engine, "b", "c", lane="octo")
        assert await engine.drop(REVIEWS, "octo") == head
        assert ids_of(await claim(engine, 2)) == ["b"]

    async def test_leaves_the_head_listed_as_dead(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, PARKING)
        head = await buried(engine, lane="octo")
        await engine.drop(REVIEWS, "octo")
        assert await engine.inspect.state(head) is State.DEAD

    async def test_frees_a_lane_without_waiting_jobs(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, PARKING)
        await buried(engine, "a", lane="octo")
        await engine.drop(REVIEWS, "octo")
        await submit_ids(engine, "b", lane="octo")
        assert ids_of(await claim(engine)) == ["b"]

    async def test_lets_the_retried_head_come_back_in_its_turn(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, PARKING)
        head = await buried(engine, "a", lane="octo")
        await submit_ids(engine, "b", "c", lane="octo")
        await engine.drop(REVIEWS, "octo")
        assert await engine.retry(head) is State.WAITING
        await engine.complete(await claim_one(engine))
        assert ids_of(await claim(engine)) == ["a"]

    async def test_keeps_the_delay_of_the_next_job(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.queues.configure(REVIEWS, PARKING)
        await buried(engine, "a", lane="octo")
        later = await engine.submit(REVIEWS, b"", lane="octo", delay=seconds(9))
        await engine.drop(REVIEWS, "octo")
        assert await engine.inspect.state(later.job) is State.DELAYED
        clock.advance(seconds(9))
        assert ids_of(await claim(engine)) == [later.id]


class TestDroppingIsRefused:
    async def test_for_a_lane_that_does_not_exist(self, engine: Engine) -> None:
        with pytest.raises(LaneNotParked):
            await engine.drop(REVIEWS, "nobody")

    async def test_for_a_lane_whose_head_is_open(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, PARKING)
        await leased(engine, lane="octo")
        with pytest.raises(LaneNotParked) as refusal:
            await engine.drop(REVIEWS, "octo")
        assert (refusal.value.queue, refusal.value.lane) == (REVIEWS, "octo")

    async def test_for_a_lane_that_went_on_after_its_dead_head(self, engine: Engine) -> None:
        await buried(engine, lane="octo")
        with pytest.raises(LaneNotParked):
            await engine.drop(REVIEWS, "octo")

    async def test_for_a_lane_that_was_dropped_already(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, PARKING)
        await buried(engine, lane="octo")
        await engine.drop(REVIEWS, "octo")
        with pytest.raises(LaneNotParked):
            await engine.drop(REVIEWS, "octo")
