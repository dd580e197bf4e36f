"""retry: make a dead job ready with all its attempts."""

import pytest

from tests.spec.jobs_in_states import REVIEWS, buried, claim, claim_one, ids_of, leased, submit_ids
from towpath.clock import ZERO, ManualClock, hours, seconds
from towpath.engine.engine import Engine
from towpath.engine.model import job_ref
from towpath.engine.options import LanePolicy, QueueOptions
from towpath.engine.states import State
from towpath.errors import JobNotDead, JobNotFound


class TestRetryingADeadJob:
    async def test_makes_it_ready(self, engine: Engine) -> None:
        ref = await buried(engine)
        assert await engine.retry(ref) is State.READY
        job = await engine.inspect.job(ref)
        assert (job.state, job.attempts, job.ended_at) == (State.READY, 0, None)
        assert (await engine.inspect.counts(REVIEWS)).dead == 0

    async def test_restores_all_its_attempts(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(max_attempts=2))
        ref = await buried(engine)
        await engine.retry(ref)
        first = await claim_one(engine)
        assert first.attempt == 1
        assert await engine.fail(first, "503", delay=ZERO) is State.DELAYED

    async def test_keeps_payload_priority_and_reason(self, engine: Engine) -> None:
        await engine.submit(REVIEWS, b"load", priority=90)
        lease = await claim_one(engine)
        await engine.bury(lease, "broken")
        await engine.retry(lease.job)
        job = await engine.inspect.job(lease.job)
        assert (job.payload, job.priority, job.reason) == (b"load", 90, "broken")

    async def test_puts_it_behind_ready_jobs(self, engine: Engine) -> None:
        ref = await buried(engine, "dead")
        await submit_ids(engine, "ready")
        await engine.retry(ref)
        assert ids_of(await claim(engine, 2)) == ["ready", "dead"]

    async def test_lets_its_tokens_grow_on(self, engine: Engine) -> None:
        lease = await leased(engine)
        await engine.bury(lease, "broken")
        await engine.retry(lease.job)
        assert (await claim_one(engine)).token > lease.token

    async def test_drops_its_earlier_delay(self, engine: Engine, clock: ManualClock) -> None:
        await engine.submit(REVIEWS, b"", id="a", delay=seconds(5))
        clock.advance(seconds(5))
        lease = await claim_one(engine)
        await engine.bury(lease, "broken")
        assert await engine.retry(lease.job) is State.READY

    async def test_makes_it_wait_behind_the_head_of_its_lane(self, engine: Engine) -> None:
        ref = await buried(engine, "a", lane="octo")
        await submit_ids(engine, "b", "c", lane="octo")
        assert await engine.retry(ref) is State.WAITING
        await engine.complete(await claim_one(engine))
        assert ids_of(await claim(engine)) == ["a"]

    async def test_lets_a_lane_go_on_that_it_parked(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(lanes=LanePolicy.PARK))
        ref = await buried(engine, "a", lane="octo")
        await submit_ids(engine, "b", lane="octo")
        assert await claim(engine) == []
        assert await engine.retry(ref) is State.READY
        await engine.complete(await claim_one(engine))
        assert ids_of(await claim(engine)) == ["b"]

    async def test_is_never_refused_by_a_full_queue(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(max_length=1))
        ref = await buried(engine, "a")
        await submit_ids(engine, "b")
        assert await engine.retry(ref) is State.READY


class TestRetryingIsRefused:
    async def test_for_a_job_that_does_not_exist(self, engine: Engine) -> None:
        with pytest.raises(JobNotFound):
            await engine.retry(job_ref(REVIEWS, "nobody"))

    async def test_for_a_job_that_is_not_dead(self, engine: Engine) -> None:
        [ref] = await submit_ids(engine, "a")
        with pytest.raises(JobNotDead) as refusal:
            await engine.retry(ref)
        assert refusal.value.state == "ready"

    async def test_for_a_done_job(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(keep=hours(1)))
        lease = await leased(engine)
        await engine.complete(lease)
        with pytest.raises(JobNotDead) as refusal:
            await engine.retry(lease.job)
        assert refusal.value.state == "done"

    async def test_for_a_job_that_was_retried_already(self, engine: Engine) -> None:
        ref = await buried(engine)
        await engine.retry(ref)
        with pytest.raises(JobNotDead):
            await engine.retry(ref)
