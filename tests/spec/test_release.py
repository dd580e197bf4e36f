"""release: give a leased job back; the attempt does not count."""

import pytest

from tests.spec.deployment import Deployment
from tests.spec.jobs_in_states import LEASE, REVIEWS, claim, claim_one, ids_of, leased, submit_ids
from towpath.clock import ManualClock, hours, seconds
from towpath.engine.engine import Engine
from towpath.engine.keys import keys_of
from towpath.engine.model import HIGH
from towpath.engine.options import QueueOptions
from towpath.engine.states import State
from towpath.errors import JobDead, JobNotFound, LeaseLost
from towpath.ids import QueueName


class TestReleasing:
    async def test_makes_the_job_ready_again(self, engine: Engine, deployment: Deployment) -> None:
        lease = await leased(engine)
        assert await engine.release(lease) is State.READY
        job = await engine.inspect.job(lease.job)
        assert (job.state, job.worker, job.expires_at) == (State.READY, None, None)
        assert deployment.ask("EXISTS", keys_of(QueueName(REVIEWS)).lock(lease.id)) == 0

    async def test_does_not_count_the_attempt(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(max_attempts=1))
        [ref] = await submit_ids(engine, "a")
        for _ in range(3):
            lease = await claim_one(engine)
            assert lease.attempt == 1
            await engine.release(lease)
        assert (await engine.inspect.job(ref)).attempts == 0

    async def test_gives_a_new_token_to_the_next_claim(self, engine: Engine) -> None:
        lease = await leased(engine)
        await engine.release(lease)
        assert (await claim_one(engine)).token > lease.token

    async def test_puts_it_at_its_old_place(self, engine: Engine) -> None:
        lease = await leased(engine, "first")
        await submit_ids(engine, "second")
        await engine.release(lease)
        assert ids_of(await claim(engine, 2)) == ["first", "second"]

    async def test_keeps_its_priority(self, engine: Engine) -> None:
        await engine.submit(REVIEWS, b"", id="high", priority=HIGH)
        lease = await claim_one(engine)
        await submit_ids(engine, "normal")
        await engine.release(lease)
        assert ids_of(await claim(engine, 2)) == ["high", "normal"]

    async def test_keeps_its_place_in_its_lane(self, engine: Engine) -> None:
        await submit_ids(engine, "a", "b", lane="octo")
        await engine.release(await claim_one(engine))
        assert ids_of(await claim(engine, 2)) == ["a"]

    async def test_with_a_delay_makes_it_delayed(self, engine: Engine, clock: ManualClock) -> None:
        lease = await leased(engine)
        assert await engine.release(lease, delay=seconds(5)) is State.DELAYED
        assert await claim(engine) == []
        clock.advance(seconds(5))
        assert (await claim_one(engine)).attempt == 1

    async def test_cancels_a_job_that_was_asked_to_stop(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(keep=hours(1)))
        lease = await leased(engine)
        await engine.cancel(lease.job)
        assert await engine.release(lease, delay=seconds(5)) is State.CANCELLED
        job = await engine.inspect.job(lease.job)
        assert (job.state, job.attempts) == (State.CANCELLED, 1)

    async def test_is_never_refused_by_a_full_queue(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(max_length=1))
        lease = await leased(engine, "a")
        await submit_ids(engine, "b")
        await engine.release(lease)
        assert (await engine.inspect.counts(REVIEWS)).ready == 2

    async def test_is_counted_in_the_queues_totals(self, engine: Engine) -> None:
        await engine.release(await leased(engine))
        assert (await engine.inspect.counts(REVIEWS)).totals["released"] == 1


class TestReleasingIsRefused:
    async def test_once_another_worker_holds_the_job(
        self, engine: Engine, clock: ManualClock, deployment: Deployment
    ) -> None:
        stalled = await leased(engine)
        clock.advance(LEASE)
        current = await claim_one(engine, worker="berta")
        before = deployment.dump()
        with pytest.raises(LeaseLost) as refusal:
            await engine.release(stalled)
        assert refusal.value.current == current.token
        assert deployment.dump() == before

    async def test_for_a_lease_that_was_released_already(self, engine: Engine) -> None:
        lease = await leased(engine)
        await engine.release(lease)
        with pytest.raises(LeaseLost) as refusal:
            await engine.release(lease)
        assert refusal.value.state == "ready"

    async def test_for_an_ended_job(self, engine: Engine) -> None:
        gone = await leased(engine, "gone")
        await engine.complete(gone)
        with pytest.raises(JobNotFound):
            await engine.release(gone)
        dead = await leased(engine, "dead")
        await engine.bury(dead, "broken")
        with pytest.raises(JobDead):
            await engine.release(dead)
