"""delete: delete an ended job before its retention is over."""

import pytest

from tests.spec.jobs_in_states import REVIEWS, buried, claim, claim_one, ids_of, leased, submit_ids
from towpath.clock import hours
from towpath.engine.engine import Engine
from towpath.engine.model import JobRef, job_ref
from towpath.engine.options import LanePolicy, QueueOptions
from towpath.engine.states import State
from towpath.errors import JobNotFound, JobOpen

KEEPING = QueueOptions(keep=hours(1))


class TestDeletingAJob:
    async def test_removes_a_dead_job(self, engine: Engine) -> None:
        ref = await buried(engine)
        await engine.delete(ref)
        assert await engine.inspect.state(ref) is State.GONE
        assert (await engine.inspect.counts(REVIEWS)).dead == 0

    async def test_removes_a_done_job(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, KEEPING)
        lease = await leased(engine)
        await engine.complete(lease, b"result")
        await engine.delete(lease.job)
        assert await engine.inspect.state(lease.job) is State.GONE
        assert (await engine.inspect.counts(REVIEWS)).kept == 0

    async def test_removes_a_cancelled_job(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, KEEPING)
        [ref] = await submit_ids(engine, "a")
        await engine.cancel(ref)
        await engine.delete(ref)
        assert await engine.inspect.state(ref) is State.GONE

    async def test_remembers_an_id_that_the_caller_chose(self, engine: Engine) -> None:
        ref = await buried(engine)
        await engine.delete(ref)
        again = await engine.submit(REVIEWS, b"", id=ref.id)
        assert (again.existed, again.state) == (True, State.GONE)

    async def test_lets_a_lane_go_on_that_the_job_parked(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(lanes=LanePolicy.PARK))
        ref = await buried(engine, "a", lane="octo")
        await submit_ids(engine, "b", lane="octo")
        await engine.delete(ref)
        assert ids_of(await claim(engine)) == ["b"]

    async def test_leaves_a_lane_that_was_not_parked_as_it_is(self, engine: Engine) -> None:
        ref = await buried(engine, "a", lane="octo")
        await submit_ids(engine, "b", "c", lane="octo")
        await engine.delete(ref)
        assert ids_of(await claim(engine, 2)) == ["b"]


class TestDeletingIsRefused:
    async def open_jobs(self, engine: Engine) -> dict[str, JobRef]:
        running = await leased(engine, "leased")
        ready, waiting = await submit_ids(engine, "ready", "waiting", lane="octo")
        delayed = await engine.submit(REVIEWS, b"", delay=hours(1))
        return {
            "leased": running.job,
            "ready": ready,
            "waiting": waiting,
            "delayed": delayed.job,
        }

    async def test_for_every_open_job(self, engine: Engine) -> None:
        for state, ref in (await self.open_jobs(engine)).items():
            with pytest.raises(JobOpen) as refusal:
                await engine.delete(ref)
            assert refusal.value.state == state
            assert await engine.inspect.state(ref) is State(state)

    async def test_for_a_job_that_does_not_exist(self, engine: Engine) -> None:
        with pytest.raises(JobNotFound):
            await engine.delete(job_ref(REVIEWS, "nobody"))

    async def test_for_a_job_that_was_deleted_already(self, engine: Engine) -> None:
        ref = await buried(engine)
        await engine.delete(ref)
        with pytest.raises(JobNotFound):
            await engine.delete(ref)

    async def test_for_a_dead_job_that_was_retried(self, engine: Engine) -> None:
        ref = await buried(engine)
        await engine.retry(ref)
        with pytest.raises(JobOpen):
            await engine.delete(ref)
        assert (await claim_one(engine)).job == ref
