"""fail and bury: end a failed attempt; the job is tried again after a delay, or is dead."""

from typing import Any, cast

import pytest

from tests.spec.deployment import Deployment
from tests.spec.jobs_in_states import LEASE, REVIEWS, claim, claim_one, ids_of, leased, submit_ids
from towpath.clock import ZERO, ManualClock, hours, milliseconds, minutes, seconds
from towpath.engine.check import LARGEST_REASON, LARGEST_TRACEBACK
from towpath.engine.engine import Engine
from towpath.engine.model import JobInfo, Lease
from towpath.engine.options import QueueOptions
from towpath.engine.retry import Exponential, Fixed, Listed, Never
from towpath.engine.states import State
from towpath.errors import InvalidOption, JobDead, JobDone, JobNotFound, LeaseLost


class TestFailing:
    async def test_makes_the_job_ready_again_after_the_delay(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        lease = await leased(engine)
        assert await engine.fail(lease, "503", delay=seconds(5)) is State.DELAYED
        clock.advance(seconds(5) - milliseconds(1))
        assert await claim(engine) == []
        clock.advance(milliseconds(1))
        again = await claim_one(engine)
        assert (again.id, again.attempt) == (lease.id, 2)

    async def test_keeps_the_reason(self, engine: Engine, clock: ManualClock) -> None:
        lease = await leased(engine)
        await engine.fail(lease, "503 from the forge · 日本", delay=seconds(5))
        job = await engine.inspect.job(lease.job)
        assert (job.state, job.reason) == (State.DELAYED, "503 from the forge · 日本")
        assert (job.next_try_at, job.worker) == (clock.now + seconds(5), None)

    async def test_without_a_delay_makes_the_job_ready_at_once(self, engine: Engine) -> None:
        lease = await leased(engine)
        assert await engine.fail(lease, "again", delay=ZERO) is State.DELAYED
        assert (await claim_one(engine)).attempt == 2

    async def test_puts_the_job_behind_ready_jobs(self, engine: Engine, clock: ManualClock) -> None:
        lease = await leased(engine, "failed")
        await submit_ids(engine, "other")
        await engine.fail(lease, "503", delay=seconds(1))
        clock.advance(seconds(1))
        assert ids_of(await claim(engine, 2)) == ["other", "failed"]

    async def test_is_final_after_the_last_attempt(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(max_attempts=2))
        lease = await leased(engine)
        assert await engine.fail(lease, "first", delay=ZERO) is State.DELAYED
        second = await claim_one(engine)
        assert await engine.fail(second, "second", delay=ZERO) is State.DEAD
        job = await engine.inspect.job(lease.job)
        assert (job.state, job.reason, job.attempts) == (State.DEAD, "second", 2)
        assert job.ended_at == clock.now

    async def test_counts_against_the_jobs_own_attempts(self, engine: Engine) -> None:
        await engine.submit(REVIEWS, b"", max_attempts=1)
        assert await engine.fail(await claim_one(engine), "503", delay=ZERO) is State.DEAD

    async def test_is_counted_in_the_queues_totals(self, engine: Engine) -> None:
        await engine.fail(await leased(engine), "503", delay=ZERO)
        await engine.bury(await claim_one(engine), "broken")
        totals = (await engine.inspect.counts(REVIEWS)).totals
        assert (totals["failed"], totals["died"]) == (2, 1)

    async def test_cancels_a_job_that_was_asked_to_stop(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(keep=hours(1)))
        lease = await leased(engine)
        await engine.cancel(lease.job)
        assert await engine.fail(lease, "stopped") is State.CANCELLED
        assert await engine.inspect.state(lease.job) is State.CANCELLED

    async def test_is_accepted_after_the_lease_ended_while_no_other_worker_has_the_job(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        lease = await leased(engine)
        clock.advance(minutes(5))
        assert await engine.fail(lease, "slow", delay=seconds(1)) is State.DELAYED

    async def test_is_never_refused_by_a_full_queue(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(max_length=1))
        lease = await leased(engine, "a")
        await submit_ids(engine, "b")
        assert await engine.fail(lease, "503", delay=seconds(1)) is State.DELAYED
        assert (await engine.inspect.counts(REVIEWS)).delayed == 1


class TestTheRetryPolicy:
    async def due_in(self, engine: Engine, lease: Lease) -> float:
        await engine.fail(lease, "503")
        job = await engine.inspect.job(lease.job)
        assert job.next_try_at is not None
        return (job.next_try_at - job.submitted_at).total_seconds()

    async def test_of_the_queue_decides_by_default(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(retry=Fixed(minutes(2))))
        assert await self.due_in(engine, await leased(engine)) == 120

    async def test_of_the_job_takes_precedence_over_that_of_the_queue(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(retry=Fixed(minutes(2))))
        await engine.submit(REVIEWS, b"", retry=Fixed(seconds(7)))
        assert await self.due_in(engine, await claim_one(engine)) == 7

    async def test_is_overruled_by_an_explicit_delay(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(retry=Fixed(minutes(2))))
        lease = await leased(engine)
        await engine.fail(lease, "503", delay=seconds(3))
        assert (await engine.inspect.job(lease.job)).next_try_at == clock.now + seconds(3)

    async def test_waits_longer_after_each_attempt(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        policy = Exponential(first=seconds(1), factor=3, jitter=0)
        await engine.queues.configure(REVIEWS, QueueOptions(retry=policy))
        await submit_ids(engine, "a")
        waits: list[float] = []
        for _ in range(3):
            lease = await claim_one(engine)
            await engine.fail(lease, "503")
            due = (await engine.inspect.job(lease.job)).next_try_at
            assert due is not None
            waits.append((due - clock.now).total_seconds())
            clock.advance(due - clock.now)
        assert waits == [1, 3, 9]

    async def test_never_makes_a_job_dead_at_its_first_failure(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(retry=Never()))
        assert await engine.fail(await leased(engine), "503") is State.DEAD

    async def test_with_a_list_of_waits_ends_with_its_last(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(retry=Listed((seconds(1),))))
        assert await engine.fail(await leased(engine), "503") is State.DELAYED
        clock.advance(seconds(1))
        assert await engine.fail(await claim_one(engine), "503") is State.DEAD


class TestBurying:
    async def test_ends_the_job_however_many_attempts_are_left(self, engine: Engine) -> None:
        lease = await leased(engine)
        assert await engine.bury(lease, "not a picture") is State.DEAD
        job = await engine.inspect.job(lease.job)
        assert (job.state, job.reason, job.attempts) == (State.DEAD, "not a picture", 1)

    async def test_cancels_a_job_that_was_asked_to_stop(self, engine: Engine) -> None:
        lease = await leased(engine)
        await engine.cancel(lease.job)
        assert await engine.bury(lease, "broken") is State.CANCELLED


class TestTheReason:
    async def test_is_truncated_to_what_a_record_keeps(self, engine: Engine) -> None:
        """An error text of any length is a valid reason."""
        lease = await leased(engine)
        await engine.bury(lease, "ß" * 100_000)
        reason = (await engine.inspect.job(lease.job)).reason
        assert reason is not None
        assert reason.startswith("ßßß")
        assert reason.endswith("ß…")
        assert len(reason.encode()) <= LARGEST_REASON

    async def test_may_contain_bytes_that_are_not_text(self, engine: Engine) -> None:
        lease = await leased(engine)
        await engine.bury(lease, "lone \udcff surrogate\n\x00")
        assert (await engine.inspect.job(lease.job)).reason == "lone \\udcff surrogate\n\x00"

    async def test_must_not_be_empty(self, engine: Engine) -> None:
        lease = await leased(engine)
        with pytest.raises(InvalidOption, match="reason"):
            await engine.fail(lease, "")
        assert await engine.inspect.state(lease.job) is State.LEASED


class TestFailingIsRefused:
    async def test_once_another_worker_holds_the_job(
        self, engine: Engine, clock: ManualClock, deployment: Deployment
    ) -> None:
        stalled = await leased(engine)
        clock.advance(LEASE)
        current = await claim_one(engine, worker="berta")
        before = deployment.dump()
        for stale in (engine.fail(stalled, "late"), engine.bury(stalled, "late")):
            with pytest.raises(LeaseLost) as refusal:
                await stale
            assert refusal.value.current == current.token
        assert deployment.dump() == before

    async def test_for_an_attempt_that_was_failed_already(self, engine: Engine) -> None:
        """The attempt has ended, so there is no lease to end."""
        lease = await leased(engine)
        await engine.fail(lease, "503", delay=seconds(5))
        with pytest.raises(LeaseLost) as refusal:
            await engine.fail(lease, "503", delay=seconds(9))
        assert refusal.value.state == "delayed"

    async def test_for_an_ended_job(self, engine: Engine) -> None:
        gone = await leased(engine, "gone")
        await engine.complete(gone)
        with pytest.raises(JobNotFound):
            await engine.fail(gone, "late")
        dead = await leased(engine, "dead")
        await engine.bury(dead, "broken")
        with pytest.raises(JobDead):
            await engine.fail(dead, "late")

    async def test_for_a_done_job(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(keep=hours(1)))
        lease = await leased(engine)
        await engine.complete(lease)
        with pytest.raises(JobDone):
            await engine.fail(lease, "late")


class TestTheLastFailedAttempts:
    async def failed(self, engine: Engine, *reasons: str, with_tracebacks: bool = False) -> JobInfo:
        job = await leased(engine)
        await engine.release(job)
        for n, reason in enumerate(reasons):
            [lease] = await engine.claim(REVIEWS, worker=f"w{n}", lease=LEASE)
            traceback = f"frames of {reason}" if with_tracebacks else ""
            await engine.fail(lease, reason, delay=ZERO, traceback=traceback)
        return await engine.inspect.job(job.job)

    async def test_are_kept_with_time_worker_and_reason(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(max_attempts=9))
        job = await self.failed(engine, "one", "two")
        assert [(failure.at, failure.worker, failure.reason) for failure in job.failures] == [
            (clock.now, "w0", "one"), (clock.now, "w1", "two"),
        ]  # fmt: skip

    async def test_are_at_most_five_of_200_bytes_each(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(max_attempts=20))
        job = await self.failed(engine, *(f"{n} " + "ß" * 500 for n in range(8)))
        assert [failure.worker for failure in job.failures] == ["w3", "w4", "w5", "w6", "w7"]
        assert {len(failure.reason.encode()) for failure in job.failures} <= {199, 200}
        assert job.reason is not None
        assert len(job.reason) > 500

    async def test_include_expired_leases_and_outlive_death_and_retry(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        lease = await leased(engine)
        clock.advance(LEASE)
        [again] = await engine.claim(REVIEWS, worker="berta", lease=LEASE)
        await engine.bury(again, "no good")
        await engine.retry(lease.job)
        job = await engine.inspect.job(lease.job)
        assert [(failure.worker, failure.reason[:11]) for failure in job.failures] == [
            ("anna", "LEASE_ENDED"), ("berta", "no good"),
        ]  # fmt: skip

    async def test_have_the_tracebacks_of_the_three_newest(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(max_attempts=20))
        job = await self.failed(engine, *"abcd", with_tracebacks=True)
        kept = [failure.traceback for failure in job.failures]
        assert kept == ["", "frames of b", "frames of c", "frames of d"]

    async def test_keep_their_own_tracebacks_in_the_same_millisecond(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        """One lease expires between two failed attempts."""
        await engine.queues.configure(REVIEWS, QueueOptions(max_attempts=20))
        lease = await leased(engine)
        await engine.fail(lease, "a", delay=ZERO, traceback="frames of a")
        await claim_one(engine)
        clock.advance(LEASE)
        await engine.fail(await claim_one(engine), "c", delay=ZERO, traceback="frames of c")
        job = await engine.inspect.job(lease.job)
        assert [failure.traceback for failure in job.failures] == ["frames of a", "", "frames of c"]

    async def test_keep_the_end_of_a_long_traceback(self, engine: Engine) -> None:
        lease = await leased(engine)
        await engine.bury(lease, "no good", traceback="ß" * 5000 + "the error")
        [failure] = (await engine.inspect.job(lease.job)).failures
        assert failure.traceback.endswith("ßthe error")
        assert len(failure.traceback.encode()) in {LARGEST_TRACEBACK - 1, LARGEST_TRACEBACK}

    async def test_have_no_tracebacks_in_lists_of_jobs(self, engine: Engine) -> None:
        lease = await leased(engine)
        await engine.bury(lease, "no good", traceback="frames")
        [listed] = (await engine.inspect.list(REVIEWS, State.DEAD)).jobs
        assert [(failure.reason, failure.traceback) for failure in listed.failures] == [
            ("no good", "")
        ]

    async def test_refuse_a_traceback_that_is_not_text(self, engine: Engine) -> None:
        lease = await leased(engine)
        with pytest.raises(InvalidOption):
            await engine.fail(lease, "no good", traceback=cast("Any", b"frames"))
        assert await engine.inspect.state(lease.job) is State.LEASED

    async def test_of_a_job_that_never_failed_are_empty(self, engine: Engine) -> None:
        lease = await leased(engine)
        await engine.release(lease)
        assert (await engine.inspect.job(lease.job)).failures == ()
