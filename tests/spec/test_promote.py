"""promote: make delayed jobs ready whose time has come."""

from tests.spec.jobs_in_states import REVIEWS, claim, claim_one, ids_of, leased, submit_ids
from towpath.clock import ManualClock, milliseconds, seconds
from towpath.engine.engine import Engine
from towpath.engine.model import job_ref, new_job
from towpath.engine.options import LanePolicy, QueueOptions
from towpath.engine.states import State
from towpath.worker.duties import sweep


async def submit_delayed(engine: Engine, **delays: float) -> None:
    jobs = [new_job(b"", id=id, delay=seconds(delay)) for id, delay in delays.items()]
    await engine.submit_many(REVIEWS, jobs)


class TestPromoting:
    async def test_makes_due_jobs_ready(self, engine: Engine, clock: ManualClock) -> None:
        await submit_delayed(engine, due=5, later=6)
        clock.advance(seconds(5))
        assert await engine.queues.promote(REVIEWS) == 1
        assert await engine.inspect.state(job_ref(REVIEWS, "due")) is State.READY
        assert await engine.inspect.state(job_ref(REVIEWS, "later")) is State.DELAYED

    async def test_leaves_a_job_that_is_a_millisecond_early(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await submit_delayed(engine, a=5)
        clock.advance(seconds(5) - milliseconds(1))
        assert await engine.queues.promote(REVIEWS) == 0

    async def test_orders_jobs_by_due_time_and_then_by_submission(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await submit_delayed(engine, z=2, b=2, a=2, last=3, first=1)
        clock.advance(seconds(9))
        await engine.queues.promote(REVIEWS)
        assert ids_of(await claim(engine, 9)) == ["first", "z", "b", "a", "last"]

    async def test_puts_jobs_behind_those_that_are_ready(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        """A due job competes from the moment it is ready, not from its submission."""
        await submit_delayed(engine, due=5)
        await submit_ids(engine, "ready")
        clock.advance(seconds(5))
        await engine.queues.promote(REVIEWS)
        assert ids_of(await claim(engine, 2)) == ["ready", "due"]

    async def test_keeps_their_priority(self, engine: Engine, clock: ManualClock) -> None:
        await engine.submit(REVIEWS, b"", id="high", delay=seconds(5), priority=60)
        await submit_ids(engine, "ready")
        clock.advance(seconds(5))
        await engine.queues.promote(REVIEWS)
        assert ids_of(await claim(engine, 2)) == ["high", "ready"]

    async def test_takes_at_most_the_number_asked_for_the_earliest_first(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await submit_delayed(engine, c=3, b=2, a=1)
        clock.advance(seconds(3))
        assert await engine.queues.promote(REVIEWS, 2) == 2
        assert await engine.inspect.state(job_ref(REVIEWS, "c")) is State.DELAYED
        assert await engine.queues.promote(REVIEWS, 2) == 1
        assert await engine.queues.promote(REVIEWS, 2) == 0

    async def test_makes_a_job_wait_whose_lane_went_on_without_it(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(lanes=LanePolicy.SKIP))
        failed, _ = await submit_ids(engine, "a", "b", lane="octo")
        await engine.fail(await claim_one(engine), "503", delay=seconds(1))
        await claim_one(engine)
        clock.advance(seconds(1))
        assert await engine.queues.promote(REVIEWS) == 1
        assert await engine.inspect.state(failed) is State.WAITING

    async def test_goes_on_while_the_queue_is_paused(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await submit_delayed(engine, a=1)
        await engine.queues.pause(REVIEWS)
        clock.advance(seconds(1))
        assert await engine.queues.promote(REVIEWS) == 1

    async def test_is_counted_in_the_queues_totals(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await submit_delayed(engine, a=1, b=1)
        clock.advance(seconds(1))
        await engine.queues.promote(REVIEWS)
        assert (await engine.inspect.counts(REVIEWS)).totals["promoted"] == 2


class TestASweep:
    async def test_promotes_reaps_and_trims(self, engine: Engine, clock: ManualClock) -> None:
        await engine.submit(REVIEWS, b"", id="kept", keep=seconds(10))
        await engine.complete(await claim_one(engine))
        await leased(engine, "crashed")
        await submit_delayed(engine, due=5)
        clock.advance(seconds(60))
        assert await sweep(engine, REVIEWS) == 3
        counts = await engine.inspect.counts(REVIEWS)
        assert (counts.ready, counts.leased, counts.delayed, counts.kept) == (2, 0, 0, 0)

    async def test_of_a_quiet_queue_changes_nothing(self, engine: Engine) -> None:
        assert await sweep(engine, REVIEWS) == 0
