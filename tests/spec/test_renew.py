"""renew: extend a lease under the same token."""

import pytest

from tests.spec.deployment import Deployment
from tests.spec.jobs_in_states import LEASE, REVIEWS, claim, claim_one, leased
from towpath.clock import ManualClock, hours, seconds
from towpath.engine.engine import Engine
from towpath.engine.keys import keys_of
from towpath.engine.options import QueueOptions
from towpath.engine.states import State
from towpath.errors import JobCancelled, JobDead, JobDone, JobNotFound, LeaseLost
from towpath.ids import QueueName


class TestRenewingALease:
    async def test_counts_the_new_time_from_now(self, engine: Engine, clock: ManualClock) -> None:
        lease = await leased(engine)
        clock.advance(seconds(20))
        renewed = await engine.renew(lease, LEASE)
        assert renewed.expires_at == clock.now + LEASE
        assert (await engine.inspect.job(lease.job)).expires_at == renewed.expires_at

    async def test_keeps_the_token_and_the_attempt(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        """The token of work that has begun stays valid."""
        lease = await leased(engine)
        clock.advance(seconds(20))
        renewed = await engine.renew(lease, LEASE)
        assert (renewed.token, renewed.attempt, renewed.payload) == (
            lease.token,
            lease.attempt,
            lease.payload,
        )

    async def test_keeps_other_workers_away_after_its_first_end(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        lease = await leased(engine)
        clock.advance(seconds(29))
        await engine.renew(lease, LEASE)
        clock.advance(seconds(29))
        assert await claim(engine, worker="berta") == []
        clock.advance(seconds(1))
        assert (await claim_one(engine, worker="berta")).id == lease.id

    async def test_can_make_it_shorter(self, engine: Engine, clock: ManualClock) -> None:
        lease = await leased(engine)
        await engine.renew(lease, seconds(1))
        clock.advance(seconds(1))
        assert (await claim_one(engine, worker="berta")).id == lease.id

    async def test_is_accepted_after_its_end_while_no_other_worker_has_the_job(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        lease = await leased(engine)
        clock.advance(hours(1))
        renewed = await engine.renew(lease, LEASE)
        assert renewed.expires_at == clock.now + LEASE
        assert await claim(engine, worker="berta") == []

    async def test_renews_the_outsiders_copy_of_the_lease(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        lease = await leased(engine)
        await engine.renew(lease, hours(1))
        left = deployment.ask("PTTL", keys_of(QueueName(REVIEWS)).lock(lease.id))
        assert isinstance(left, int)
        assert left > 3_500_000

    async def test_tells_the_worker_that_the_job_is_to_stop(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        """The lease is renewed all the same: no other worker may run the job while this one is
        alive.
        """
        lease = await leased(engine)
        await engine.cancel(lease.job)
        clock.advance(seconds(20))
        renewed = await engine.renew(lease, LEASE)
        assert renewed.cancel_requested
        assert renewed.expires_at == clock.now + LEASE


class TestRenewingIsRefused:
    async def test_once_another_worker_holds_the_job(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        stalled = await leased(engine)
        clock.advance(LEASE)
        current = await claim_one(engine, worker="berta")
        with pytest.raises(LeaseLost) as refusal:
            await engine.renew(stalled, hours(1))
        assert refusal.value.held == stalled.token
        assert refusal.value.current == current.token
        assert (refusal.value.worker, refusal.value.state) == ("berta", "leased")
        assert (await engine.inspect.job(current.job)).expires_at == current.expires_at

    async def test_after_the_job_was_reaped(self, engine: Engine, clock: ManualClock) -> None:
        lease = await leased(engine)
        clock.advance(LEASE)
        await engine.queues.reap(REVIEWS)
        with pytest.raises(LeaseLost) as refusal:
            await engine.renew(lease, LEASE)
        assert refusal.value.state == "ready"
        assert await engine.inspect.state(lease.job) is State.READY

    async def test_after_the_job_was_released(self, engine: Engine) -> None:
        lease = await leased(engine)
        await engine.release(lease)
        with pytest.raises(LeaseLost):
            await engine.renew(lease, LEASE)

    async def test_for_a_job_that_is_gone(self, engine: Engine) -> None:
        lease = await leased(engine)
        await engine.complete(lease)
        with pytest.raises(JobNotFound):
            await engine.renew(lease, LEASE)

    async def test_for_a_done_job(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(keep=hours(1)))
        lease = await leased(engine)
        await engine.complete(lease)
        with pytest.raises(JobDone):
            await engine.renew(lease, LEASE)

    async def test_for_a_dead_job(self, engine: Engine) -> None:
        lease = await leased(engine)
        await engine.bury(lease, "broken")
        with pytest.raises(JobDead):
            await engine.renew(lease, LEASE)

    async def test_for_a_cancelled_job(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(keep=hours(1)))
        lease = await leased(engine)
        await engine.cancel(lease.job)
        await engine.release(lease)
        with pytest.raises(JobCancelled):
            await engine.renew(lease, LEASE)
