"""cancel: end an open job; the worker of a running job is asked to stop."""

import pytest

from tests.spec.jobs_in_states import (
    LEASE,
    REVIEWS,
    buried,
    claim,
    claim_one,
    ids_of,
    leased,
    submit_ids,
)
from towpath.clock import ManualClock, hours, minutes, seconds
from towpath.engine.batcher import LARGEST_BATCH
from towpath.engine.engine import Engine
from towpath.engine.model import job_ref, new_job
from towpath.engine.options import QueueOptions
from towpath.engine.states import State
from towpath.errors import JobDead, JobDone, JobNotFound, JobOpen

KEEPING = QueueOptions(keep=hours(1))


class TestCancellingAJobThatIsNotLeased:
    async def test_ends_a_ready_job(self, engine: Engine, clock: ManualClock) -> None:
        await engine.queues.configure(REVIEWS, KEEPING)
        [ref] = await submit_ids(engine, "a")
        assert await engine.cancel(ref) is State.CANCELLED
        job = await engine.inspect.job(ref)
        assert (job.state, job.ended_at) == (State.CANCELLED, clock.now)
        assert await claim(engine) == []

    async def test_ends_a_delayed_job(self, engine: Engine, clock: ManualClock) -> None:
        submitted = await engine.submit(REVIEWS, b"", delay=seconds(5))
        assert await engine.cancel(submitted.job) is State.CANCELLED
        clock.advance(seconds(5))
        assert await claim(engine) == []
        assert (await engine.inspect.counts(REVIEWS)).delayed == 0

    async def test_ends_a_job_that_waits_in_its_lane(self, engine: Engine) -> None:
        _, middle, _ = await submit_ids(engine, "a", "b", "c", lane="octo")
        assert await engine.cancel(middle) is State.CANCELLED
        await engine.complete(await claim_one(engine))
        assert ids_of(await claim(engine)) == ["c"]
        assert (await engine.inspect.counts(REVIEWS)).waiting == 0

    async def test_of_the_head_lets_the_lane_go_on(self, engine: Engine) -> None:
        head, _ = await submit_ids(engine, "a", "b", lane="octo")
        await engine.cancel(head)
        assert ids_of(await claim(engine)) == ["b"]

    async def test_of_a_delayed_head_lets_the_lane_go_on(self, engine: Engine) -> None:
        head = await engine.submit(REVIEWS, b"", lane="octo", delay=hours(1))
        await submit_ids(engine, "b", lane="octo")
        await engine.cancel(head.job)
        assert ids_of(await claim(engine)) == ["b"]

    async def test_leaves_nothing_unless_the_queue_keeps_cancelled_jobs(
        self, engine: Engine
    ) -> None:
        [ref] = await submit_ids(engine, "a")
        await engine.cancel(ref)
        assert await engine.inspect.state(ref) is State.GONE

    async def test_remembers_an_id_that_the_caller_chose(self, engine: Engine) -> None:
        [ref] = await submit_ids(engine, "a")
        await engine.cancel(ref)
        assert (await engine.submit(REVIEWS, b"", id="a")).state is State.GONE

    async def test_a_second_time_gives_the_same_answer(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, KEEPING)
        [ref] = await submit_ids(engine, "a")
        await engine.cancel(ref)
        assert await engine.cancel(ref) is State.CANCELLED
        assert (await engine.inspect.counts(REVIEWS)).totals["cancelled"] == 1


class TestCancellingALeasedJob:
    async def test_asks_its_worker_to_stop(self, engine: Engine) -> None:
        lease = await leased(engine)
        assert await engine.cancel(lease.job) is State.LEASED
        job = await engine.inspect.job(lease.job)
        assert (job.state, job.worker, job.cancel_requested) == (State.LEASED, "anna", True)

    async def test_makes_the_job_available_to_no_other_worker(self, engine: Engine) -> None:
        lease = await leased(engine)
        await engine.cancel(lease.job)
        assert await claim(engine, worker="berta") == []

    async def test_ends_the_job_when_its_lease_ends(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.queues.configure(REVIEWS, KEEPING)
        lease = await leased(engine)
        await engine.cancel(lease.job)
        clock.advance(LEASE)
        assert await claim(engine, worker="berta") == []
        assert await engine.inspect.state(lease.job) is State.CANCELLED

    async def test_keeps_the_lane_until_the_worker_settles_the_job(self, engine: Engine) -> None:
        """A lane runs one job at a time: the next one may not start while the cancelled one may
        still run.
        """
        await submit_ids(engine, "a", "b", lane="octo")
        head = await claim_one(engine)
        await engine.cancel(head.job)
        assert await claim(engine) == []
        await engine.release(head)
        assert ids_of(await claim(engine)) == ["b"]

    async def test_a_second_time_gives_the_same_answer(self, engine: Engine) -> None:
        lease = await leased(engine)
        await engine.cancel(lease.job)
        assert await engine.cancel(lease.job) is State.LEASED


class TestCancelling:
    async def test_a_job_that_does_not_exist_is_refused(self, engine: Engine) -> None:
        with pytest.raises(JobNotFound):
            await engine.cancel(job_ref(REVIEWS, "nobody"))

    async def test_a_done_job_is_refused(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, KEEPING)
        lease = await leased(engine)
        await engine.complete(lease)
        with pytest.raises(JobDone):
            await engine.cancel(lease.job)

    async def test_a_dead_job_is_refused(self, engine: Engine) -> None:
        ref = await buried(engine)
        with pytest.raises(JobDead):
            await engine.cancel(ref)
        assert await engine.inspect.state(ref) is State.DEAD


class TestCancellingManyJobs:
    async def test_answers_for_each_job(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(keep=hours(1)))
        await submit_ids(engine, "runs", "waits", "done")
        leases = await engine.claim(REVIEWS, worker="w", lease=minutes(1), count=1)
        assert [lease.id for lease in leases] == ["runs"]
        answers = await engine.cancel_many(REVIEWS, ["waits", "runs", "nobody"])
        assert answers[:2] == [State.CANCELLED, State.LEASED]
        assert isinstance(answers[2], JobNotFound)
        answers = await engine.delete_many(REVIEWS, ["waits", "runs"])
        assert answers[0] is State.GONE
        assert isinstance(answers[1], JobOpen)

    async def test_takes_more_jobs_than_one_step_holds(self, engine: Engine) -> None:
        ids = [f"j{n}" for n in range(LARGEST_BATCH + 1)]
        await engine.submit_many(REVIEWS, [new_job(b"", id=id, keep=hours(1)) for id in ids])
        assert set(await engine.cancel_many(REVIEWS, ids)) == {State.CANCELLED}
        assert set(await engine.delete_many(REVIEWS, ids)) == {State.GONE}
        assert await engine.cancel_many(REVIEWS, []) == []
