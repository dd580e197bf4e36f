"""complete: end a job under a lease that is still held."""

import pytest

from tests.spec.deployment import Deployment
from tests.spec.jobs_in_states import LEASE, REVIEWS, claim, claim_one, ids_of, leased, submit_ids
from towpath.clock import ZERO, ManualClock, hours, milliseconds, seconds
from towpath.engine.engine import Engine
from towpath.engine.keys import keys_of
from towpath.engine.options import QueueOptions
from towpath.engine.states import State
from towpath.errors import (
    JobCancelled,
    JobDead,
    JobDone,
    JobNotFound,
    LeaseLost,
    PayloadTooLarge,
)
from towpath.ids import QueueName

KEEPING = QueueOptions(keep=hours(1))
FIXED_KEYS = {"meta", "events", "wake", "history"}


class TestCompletingAJob:
    async def test_ends_it(self, engine: Engine) -> None:
        lease = await leased(engine)
        await engine.complete(lease)
        assert await engine.inspect.state(lease.job) is State.GONE
        assert (await engine.inspect.counts(REVIEWS)).leased == 0
        assert (await engine.inspect.counts(REVIEWS)).totals["completed"] == 1

    async def test_leaves_none_of_its_keys_behind(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        await engine.submit(REVIEWS, b"x")
        await engine.complete(await claim_one(engine), b"result")
        left = {key.removeprefix("{reviews}:") for key in deployment.key_names()}
        assert {key for key in left if not key.startswith("call:")} <= {
            *FIXED_KEYS,
            "towpath:queues",
        }

    async def test_is_never_claimed_again(self, engine: Engine, clock: ManualClock) -> None:
        await engine.complete(await leased(engine))
        clock.advance(hours(1))
        assert await claim(engine) == []

    async def test_is_accepted_after_the_lease_ended_while_no_other_worker_has_the_job(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        lease = await leased(engine)
        clock.advance(hours(1))
        await engine.complete(lease)
        assert await claim(engine) == []

    async def test_wins_over_a_cancel_that_asked_the_worker_to_stop(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, KEEPING)
        lease = await leased(engine)
        await engine.cancel(lease.job)
        await engine.complete(lease, b"finished anyway")
        assert await engine.inspect.state(lease.job) is State.DONE

    async def test_removes_the_outsiders_copy_of_the_lease(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        lease = await leased(engine)
        await engine.complete(lease)
        assert deployment.ask("EXISTS", keys_of(QueueName(REVIEWS)).lock(lease.id)) == 0

    async def test_lets_the_lane_go_on(self, engine: Engine) -> None:
        await submit_ids(engine, "a", "b", lane="octo")
        lease = await claim_one(engine)
        assert await claim(engine) == []
        await engine.complete(lease)
        assert ids_of(await claim(engine)) == ["b"]


class TestTheResult:
    async def test_is_kept_for_the_queues_retention(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.queues.configure(REVIEWS, KEEPING)
        lease = await leased(engine)
        clock.advance(seconds(3))
        await engine.complete(lease, b"\x00\xffbytes")
        job = await engine.inspect.job(lease.job)
        assert (job.state, job.result, job.payload) == (State.DONE, b"\x00\xffbytes", b"job")
        assert (job.ended_at, job.worker) == (clock.now, None)

    async def test_is_gone_after_the_retention(self, engine: Engine, clock: ManualClock) -> None:
        """This does not depend on a trim."""
        await engine.queues.configure(REVIEWS, KEEPING)
        lease = await leased(engine)
        await engine.complete(lease)
        clock.advance(hours(1) - milliseconds(1))
        assert await engine.inspect.state(lease.job) is State.DONE
        clock.advance(milliseconds(1))
        assert await engine.inspect.state(lease.job) is State.GONE
        with pytest.raises(JobNotFound):
            await engine.inspect.job(lease.job)

    async def test_is_kept_for_the_jobs_own_retention(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.queues.configure(REVIEWS, KEEPING)
        await engine.submit(REVIEWS, b"", keep=seconds(10))
        lease = await claim_one(engine)
        await engine.complete(lease)
        clock.advance(seconds(10))
        assert await engine.inspect.state(lease.job) is State.GONE

    async def test_is_not_kept_if_the_job_asks_for_that(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, KEEPING)
        await engine.submit(REVIEWS, b"", keep=ZERO)
        lease = await claim_one(engine)
        await engine.complete(lease)
        assert await engine.inspect.state(lease.job) is State.GONE

    async def test_is_none_if_there_was_none(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, KEEPING)
        lease = await leased(engine)
        await engine.complete(lease)
        assert not (await engine.inspect.job(lease.job)).result

    async def test_may_be_as_large_as_a_payload(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(keep=hours(1), max_payload=10))
        lease = await leased(engine)
        with pytest.raises(PayloadTooLarge):
            await engine.complete(lease, b"x" * 11)
        await engine.complete(lease, b"x" * 10)
        assert (await engine.inspect.job(lease.job)).result == b"x" * 10

    async def test_expires_in_redis_when_its_retention_is_over(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        """Its key has a time to live, for queues in which nothing claims or trims."""
        await engine.queues.configure(REVIEWS, KEEPING)
        await engine.submit(REVIEWS, b"large" * 200)
        lease = await claim_one(engine)
        await engine.complete(lease, b"result")
        keys = keys_of(QueueName(REVIEWS))
        for key in (keys.job(lease.id), keys.load(lease.id), keys.result(lease.id)):
            left = deployment.ask("PTTL", key)
            assert isinstance(left, int)
            assert 0 < left <= 3_600_000


class TestCompletingIsRefused:
    async def test_once_another_worker_holds_the_lease(
        self, engine: Engine, clock: ManualClock, deployment: Deployment
    ) -> None:
        """The newer lease decides; the older worker changes nothing."""
        stalled = await leased(engine)
        clock.advance(seconds(31))
        await engine.queues.reap(REVIEWS)
        current = await claim_one(engine, worker="berta")
        before = deployment.dump()

        with pytest.raises(LeaseLost) as refusal:
            await engine.complete(stalled)

        assert refusal.value.current == current.token
        assert deployment.dump() == before
        assert await engine.inspect.state(current.job) is State.LEASED

    async def test_after_the_job_was_reaped(self, engine: Engine, clock: ManualClock) -> None:
        lease = await leased(engine)
        clock.advance(LEASE)
        await engine.queues.reap(REVIEWS)
        with pytest.raises(LeaseLost):
            await engine.complete(lease)
        assert (await claim_one(engine)).id == lease.id

    async def test_for_a_job_that_is_gone(self, engine: Engine) -> None:
        lease = await leased(engine)
        await engine.complete(lease)
        with pytest.raises(JobNotFound):
            await engine.complete(lease)

    async def test_for_a_dead_job(self, engine: Engine) -> None:
        lease = await leased(engine)
        await engine.bury(lease, "broken")
        with pytest.raises(JobDead):
            await engine.complete(lease)

    async def test_for_a_cancelled_job(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, KEEPING)
        lease = await leased(engine)
        await engine.cancel(lease.job)
        await engine.release(lease)
        with pytest.raises(JobCancelled):
            await engine.complete(lease)


class TestCompletingTwice:
    async def test_under_the_same_lease_gives_the_same_answer_while_the_job_is_kept(
        self, engine: Engine
    ) -> None:
        await engine.queues.configure(REVIEWS, KEEPING)
        lease = await leased(engine)
        await engine.complete(lease, b"first")
        await engine.complete(lease, b"second")
        assert (await engine.inspect.job(lease.job)).result == b"first"
        assert (await engine.inspect.counts(REVIEWS)).totals["completed"] == 1

    async def test_accepts_only_one_of_two_workers(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.queues.configure(REVIEWS, KEEPING)
        stalled = await leased(engine)
        clock.advance(LEASE)
        current = await claim_one(engine, worker="berta")
        await engine.complete(current, b"of berta")
        with pytest.raises(JobDone):
            await engine.complete(stalled, b"of anna")
        assert (await engine.inspect.job(current.job)).result == b"of berta"
