"""progress: store a note on a running job."""

import pytest

from tests.spec.deployment import Deployment
from tests.spec.jobs_in_states import LEASE, REVIEWS, claim_one, leased
from towpath.clock import ManualClock, hours
from towpath.engine.check import LARGEST_NOTE
from towpath.engine.engine import Engine
from towpath.engine.options import QueueOptions
from towpath.errors import JobNotFound, LeaseLost, PayloadTooLarge


class TestProgress:
    async def test_is_shown_to_readers(self, engine: Engine) -> None:
        lease = await leased(engine)
        assert (await engine.inspect.job(lease.job)).progress is None
        await engine.progress(lease, b"\x00 40 %")
        assert (await engine.inspect.job(lease.job)).progress == b"\x00 40 %"

    async def test_replaces_the_last_note(self, engine: Engine) -> None:
        lease = await leased(engine)
        await engine.progress(lease, b"40 %")
        await engine.progress(lease, b"50 %")
        assert (await engine.inspect.job(lease.job)).progress == b"50 %"

    async def test_does_not_renew_the_lease(self, engine: Engine, clock: ManualClock) -> None:
        lease = await leased(engine)
        await engine.progress(lease, b"40 %")
        assert (await engine.inspect.job(lease.job)).expires_at == clock.now + LEASE

    async def test_is_kept_when_the_job_is_done(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(keep=hours(1)))
        lease = await leased(engine)
        await engine.progress(lease, b"99 %")
        await engine.complete(lease)
        assert (await engine.inspect.job(lease.job)).progress == b"99 %"

    async def test_is_accepted_from_a_worker_that_was_asked_to_stop(self, engine: Engine) -> None:
        lease = await leased(engine)
        await engine.cancel(lease.job)
        await engine.progress(lease, b"cleaning up")
        assert (await engine.inspect.job(lease.job)).progress == b"cleaning up"

    async def test_under_a_stale_lease_changes_nothing(
        self, engine: Engine, clock: ManualClock, deployment: Deployment
    ) -> None:
        stalled = await leased(engine)
        clock.advance(LEASE)
        current = await claim_one(engine, worker="berta")
        before = deployment.dump()
        with pytest.raises(LeaseLost) as refusal:
            await engine.progress(stalled, b"late")
        assert refusal.value.current == current.token
        assert deployment.dump() == before

    async def test_of_a_job_that_is_gone_is_refused(self, engine: Engine) -> None:
        lease = await leased(engine)
        await engine.complete(lease)
        with pytest.raises(JobNotFound):
            await engine.progress(lease, b"late")

    async def test_has_a_size_limit(self, engine: Engine) -> None:
        lease = await leased(engine)
        await engine.progress(lease, b"x" * LARGEST_NOTE)
        with pytest.raises(PayloadTooLarge):
            await engine.progress(lease, b"x" * (LARGEST_NOTE + 1))
