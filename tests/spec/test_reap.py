"""reap: make jobs ready again whose lease has ended."""

from tests.spec.deployment import Deployment
from tests.spec.jobs_in_states import LEASE, REVIEWS, claim, claim_one, ids_of, leased, submit_ids
from towpath.clock import ZERO, ManualClock, hours, milliseconds, seconds
from towpath.engine.engine import Engine
from towpath.engine.keys import keys_of
from towpath.engine.options import LanePolicy, QueueOptions
from towpath.engine.retry import Never
from towpath.engine.states import State
from towpath.ids import QueueName


class TestReaping:
    async def test_makes_a_dead_workers_job_ready_again(
        self, engine: Engine, clock: ManualClock, deployment: Deployment
    ) -> None:
        lease = await leased(engine)
        clock.advance(LEASE)
        assert await engine.queues.reap(REVIEWS) == 1
        job = await engine.inspect.job(lease.job)
        assert (job.state, job.worker, job.attempts) == (State.READY, None, 1)
        assert deployment.ask("EXISTS", keys_of(QueueName(REVIEWS)).lock(lease.id)) == 0

    async def test_leaves_a_lease_that_ends_a_millisecond_later(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await leased(engine)
        clock.advance(LEASE - milliseconds(1))
        assert await engine.queues.reap(REVIEWS) == 0

    async def test_puts_the_job_at_its_old_place_without_delay(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await leased(engine, "first")
        await submit_ids(engine, "second")
        clock.advance(LEASE)
        await engine.queues.reap(REVIEWS)
        assert ids_of(await claim(engine, 2)) == ["first", "second"]

    async def test_counts_the_attempt(self, engine: Engine, clock: ManualClock) -> None:
        await leased(engine)
        clock.advance(LEASE)
        await engine.queues.reap(REVIEWS)
        assert (await claim_one(engine)).attempt == 2

    async def test_tells_the_next_worker_why_the_job_is_delivered_again(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        lease = await leased(engine)
        assert not lease.was_silent
        clock.advance(LEASE)
        again = await claim_one(engine, worker="berta")
        assert again.was_silent
        assert again.reason is not None
        assert lease.worker in again.reason
        assert (await engine.inspect.job(lease.job)).reason == again.reason

    async def test_ends_a_job_without_attempts_left_dead(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        """A job that kills its workers must not be delivered for ever."""
        await engine.queues.configure(REVIEWS, QueueOptions(max_attempts=2))
        lease = await leased(engine)
        clock.advance(LEASE)
        await claim_one(engine, worker="berta")
        clock.advance(LEASE)
        assert await engine.queues.reap(REVIEWS) == 1
        job = await engine.inspect.job(lease.job)
        assert (job.state, job.attempts, job.ended_at) == (State.DEAD, 2, clock.now)
        assert job.reason is not None
        assert job.reason.startswith("LEASE_ENDED")
        assert "berta" in job.reason

    async def test_ends_a_job_that_killed_five_workers_dead(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        """It has attempts left, but would kill every worker."""
        [job] = await submit_ids(engine, "poison")
        for deaths in range(5):
            assert (await claim_one(engine)).deaths == deaths
            clock.advance(LEASE)
        assert await claim(engine) == []
        dead = await engine.inspect.job(job)
        assert (dead.state, dead.attempts, dead.deaths) == (State.DEAD, 5, 5)
        assert (dead.reason or "").startswith("WORKERS_DIED")

    async def test_allows_as_many_deaths_of_workers_as_the_queue_says(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(max_deaths=2))
        lease = await leased(engine)
        await engine.fail(lease, "no printer", delay=ZERO)
        for _ in range(2):
            await claim_one(engine)
            clock.advance(LEASE)
            await engine.queues.reap(REVIEWS)
        assert await engine.inspect.state(lease.job) is State.DEAD

    async def test_counts_deaths_of_workers_anew_after_a_retry(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(max_deaths=1))
        lease = await leased(engine)
        clock.advance(LEASE)
        await engine.queues.reap(REVIEWS)
        assert await engine.retry(lease.job) is State.READY
        assert (await engine.inspect.job(lease.job)).deaths == 0

    async def test_makes_a_job_ready_whose_policy_allows_no_retry(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        """The policy is about failed attempts; a crash says nothing about the job."""
        await engine.queues.configure(REVIEWS, QueueOptions(retry=Never()))
        await leased(engine)
        clock.advance(LEASE)
        assert (await claim_one(engine)).attempt == 2

    async def test_cancels_a_job_that_was_asked_to_stop(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(keep=hours(1)))
        lease = await leased(engine)
        await engine.cancel(lease.job)
        clock.advance(LEASE)
        await engine.queues.reap(REVIEWS)
        assert await engine.inspect.state(lease.job) is State.CANCELLED

    async def test_takes_at_most_the_number_asked_for_the_longest_ended_first(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        longest = await leased(engine, "c")
        clock.advance(seconds(1))
        await leased(engine, "b")
        clock.advance(LEASE)
        assert await engine.queues.reap(REVIEWS, 1) == 1
        assert await engine.inspect.state(longest.job) is State.READY
        assert await engine.queues.reap(REVIEWS, 9) == 1
        assert await engine.queues.reap(REVIEWS, 9) == 0

    async def test_keeps_the_place_of_a_head_in_its_lane(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await submit_ids(engine, "a", "b", lane="octo")
        await claim_one(engine)
        clock.advance(LEASE)
        assert ids_of(await claim(engine, 2)) == ["a"]

    async def test_lets_the_lane_go_on_when_its_head_is_dead(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(max_attempts=1))
        await submit_ids(engine, "a", "b", lane="octo")
        await claim_one(engine)
        clock.advance(LEASE)
        assert ids_of(await claim(engine, 2)) == ["b"]

    async def test_parks_the_lane_of_a_dead_head_if_the_queue_parks(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(max_attempts=1, lanes=LanePolicy.PARK))
        await submit_ids(engine, "a", "b", lane="octo")
        await claim_one(engine)
        clock.advance(LEASE)
        assert await claim(engine, 2) == []

    async def test_goes_on_while_the_queue_is_paused(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await leased(engine)
        await engine.queues.pause(REVIEWS)
        clock.advance(LEASE)
        assert await engine.queues.reap(REVIEWS) == 1

    async def test_is_never_refused_by_a_full_queue(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(max_length=1))
        await leased(engine, "a")
        await submit_ids(engine, "b")
        clock.advance(LEASE)
        assert await engine.queues.reap(REVIEWS) == 1
        assert (await engine.inspect.counts(REVIEWS)).ready == 2

    async def test_is_counted_in_the_queues_totals(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await leased(engine)
        clock.advance(LEASE)
        await engine.queues.reap(REVIEWS)
        assert (await engine.inspect.counts(REVIEWS)).totals["reaped"] == 1


class TestAPoisonJob:
    async def test_is_delivered_at_most_as_often_as_its_attempts_and_releases(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(max_attempts=3))
        await submit_ids(engine, "poison")
        await engine.release(await claim_one(engine))
        deliveries = 1
        while await claim(engine):
            deliveries += 1
            clock.advance(LEASE)
        assert deliveries == 3 + 1
        assert (await engine.inspect.counts(REVIEWS)).dead == 1
