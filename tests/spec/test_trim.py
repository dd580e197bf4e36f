"""trim: delete ended jobs whose retention is over, by age and by count."""

from tests.spec.deployment import Deployment
from tests.spec.jobs_in_states import REVIEWS, buried, claim, claim_one, leased, submit_ids
from towpath.clock import ManualClock, days, hours, milliseconds, seconds
from towpath.engine.engine import Engine
from towpath.engine.model import Complete, job_ref
from towpath.engine.options import LanePolicy, QueueOptions
from towpath.engine.states import State

FIXED = {
    "towpath:queues",
    *(f"{{reviews}}:{ending}" for ending in ("meta", "events", "wake", "history")),
}


async def done(engine: Engine, *ids: str) -> None:
    await submit_ids(engine, *ids)
    await engine.settle([Complete(lease) for lease in await claim(engine, len(ids))])


class TestTrimmingFinishedJobs:
    async def test_removes_jobs_whose_retention_is_over(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(keep=hours(1), remember=seconds(0)))
        await done(engine, "a")
        clock.advance(hours(1) - milliseconds(1))
        assert await engine.queues.trim(REVIEWS) == 0
        clock.advance(milliseconds(1))
        assert await engine.queues.trim(REVIEWS) > 0
        assert (await engine.inspect.counts(REVIEWS)).kept == 0

    async def test_removes_the_oldest_beyond_the_number_kept(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(keep=hours(1), keep_most=2))
        for id in ("a", "b", "c"):
            await done(engine, id)
        await engine.queues.trim(REVIEWS)
        states = [await engine.inspect.state(job_ref(REVIEWS, id)) for id in ("a", "b", "c")]
        assert states == [State.GONE, State.DONE, State.DONE]

    async def test_removes_cancelled_jobs_too(self, engine: Engine, clock: ManualClock) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(keep=hours(1)))
        [ref] = await submit_ids(engine, "a")
        await engine.cancel(ref)
        clock.advance(hours(1))
        await engine.queues.trim(REVIEWS)
        assert (await engine.inspect.counts(REVIEWS)).kept == 0

    async def test_takes_at_most_the_number_asked_for(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(keep=hours(1)))
        await done(engine, "a", "b", "c")
        clock.advance(hours(1))
        assert await engine.queues.trim(REVIEWS, 2) == 2
        assert await engine.queues.trim(REVIEWS, 2) == 1

    async def test_leaves_a_new_job_with_an_old_id_alone(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(keep=hours(1), remember=seconds(0)))
        await done(engine, "a")
        clock.advance(hours(2))
        await submit_ids(engine, "a")
        await engine.queues.trim(REVIEWS)
        assert (await claim_one(engine)).payload == b"a"


class TestTrimmingDeadJobs:
    async def test_removes_jobs_whose_retention_is_over(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        ref = await buried(engine)
        clock.advance(days(30) - milliseconds(1))
        assert await engine.queues.trim(REVIEWS) == 0
        clock.advance(milliseconds(1))
        assert await engine.queues.trim(REVIEWS) == 1
        assert await engine.inspect.state(ref) is State.GONE

    async def test_removes_the_oldest_beyond_the_number_kept(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(keep_dead_most=1))
        first = await buried(engine, "a")
        clock.advance(seconds(1))
        second = await buried(engine, "b")
        await engine.queues.trim(REVIEWS)
        assert await engine.inspect.state(first) is State.GONE
        assert await engine.inspect.state(second) is State.DEAD

    async def test_keeps_a_job_that_parks_its_lane(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        """An operator has to decide; until then the lane must stay explainable."""
        await engine.queues.configure(REVIEWS, QueueOptions(lanes=LanePolicy.PARK))
        ref = await buried(engine, lane="octo")
        clock.advance(days(31))
        await engine.queues.trim(REVIEWS)
        assert await engine.inspect.state(ref) is State.DEAD

    async def test_does_not_count_jobs_that_it_keeps(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        """A caller that trims until nothing is left to trim must come to an end."""
        options = QueueOptions(lanes=LanePolicy.PARK, keep_dead_most=1)
        await engine.queues.configure(REVIEWS, options)
        for lane in ("octo", "nova"):
            await buried(engine, lane, lane=lane)
        assert await engine.queues.trim(REVIEWS) == 0
        clock.advance(days(31))
        assert await engine.queues.trim(REVIEWS) == 0


class TestTrimmingRememberedIds:
    async def test_forgets_them_after_their_time(self, engine: Engine, clock: ManualClock) -> None:
        await done(engine, "a")
        assert (await engine.inspect.counts(REVIEWS)).remembered == 1
        clock.advance(hours(1))
        assert await engine.queues.trim(REVIEWS) == 1
        assert (await engine.inspect.counts(REVIEWS)).remembered == 0

    async def test_forgets_the_oldest_beyond_the_number_remembered(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(remember_most=1))
        await done(engine, "a")
        clock.advance(seconds(1))
        await done(engine, "b")
        await engine.queues.trim(REVIEWS)
        assert not (await engine.submit(REVIEWS, b"", id="a")).existed
        assert (await engine.submit(REVIEWS, b"", id="b")).existed

    async def test_remembers_the_id_of_a_dead_job_from_its_removal(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await buried(engine)
        clock.advance(days(30))
        await engine.queues.trim(REVIEWS)
        assert (await engine.submit(REVIEWS, b"", id="job")).existed
        clock.advance(hours(1))
        assert not (await engine.submit(REVIEWS, b"", id="job")).existed


class TestAfterEveryJobIsGone:
    async def test_only_the_fixed_keys_remain(
        self, engine: Engine, clock: ManualClock, deployment: Deployment
    ) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(keep=hours(1)))
        await submit_ids(engine, "a", "b", lane="octo")
        await engine.complete(await claim_one(engine), b"result")
        await engine.cancel(job_ref(REVIEWS, "b"))
        await engine.bury(await leased(engine, "c"), "broken")
        await engine.submit(REVIEWS, b"", id="d", delay=days(1))
        clock.advance(days(1))
        await engine.complete(await claim_one(engine))
        for _ in range(2):  # ids of dead jobs are remembered from the moment they are removed
            clock.advance(days(31))
            await engine.queues.trim(REVIEWS)
        left = {key for key in deployment.key_names() if ":call:" not in key}
        assert left <= FIXED
