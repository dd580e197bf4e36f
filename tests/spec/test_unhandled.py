"""release with `unhandled`: a worker that cannot run the job leaves it to other workers."""

from datetime import datetime

import pytest

from tests.spec.jobs_in_states import (
    LEASE,
    REVIEWS,
    claim,
    claim_one,
    ids_of,
    leased,
    run_all,
    submit_ids,
)
from towpath.clock import ZERO, ManualClock, hours, minutes, seconds
from towpath.engine.engine import Engine
from towpath.engine.explain import Why
from towpath.engine.model import JobRef, Lease, Release
from towpath.engine.options import LanePolicy, QueueOptions
from towpath.engine.states import State
from towpath.engine.worker_registry import HandlerReport, WorkerReport

NOBODY = "HandlerNotFound"


async def given_back(engine: Engine, clock: ManualClock, id: str = "job") -> tuple[Lease, datetime]:
    """A job that no worker could run a second ago, leased again; and since when it is unhandled."""
    lease = await leased(engine, id)
    assert await engine.release(lease, delay=seconds(1), unhandled=NOBODY) is State.DELAYED
    clock.advance(seconds(1))
    return await claim_one(engine), lease.claimed_at


async def unhandled_since(engine: Engine, job: JobRef) -> datetime | None:
    return (await engine.inspect.job(job)).unhandled_since


class TestAnUnhandledJob:
    async def test_shows_since_when_and_why_it_is_unhandled(self, engine: Engine) -> None:
        lease = await leased(engine)
        assert (lease.unhandled_since_ms, lease.unhandled) == (0, "")
        await engine.release(lease, delay=seconds(1), unhandled=NOBODY)
        job = await engine.inspect.job(lease.job)
        assert (job.state, job.attempts) == (State.DELAYED, 0)
        assert (job.unhandled_since, job.unhandled) == (lease.claimed_at, NOBODY)

    async def test_gives_the_same_to_its_next_worker(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        lease, since = await given_back(engine, clock)
        assert (lease.attempt, lease.unhandled) == (1, NOBODY)
        assert lease.claimed_ms - lease.unhandled_since_ms == 1000
        assert await unhandled_since(engine, lease.job) == since

    async def test_keeps_the_first_time(self, engine: Engine, clock: ManualClock) -> None:
        lease, since = await given_back(engine, clock)
        for _ in range(3):
            await engine.release(lease, delay=seconds(2), unhandled="PayloadInvalid: n")
            clock.advance(seconds(2))
            lease = await claim_one(engine)
        job = await engine.inspect.job(lease.job)
        assert (job.unhandled_since, job.unhandled) == (since, "PayloadInvalid: n")

    async def test_starts_its_time_anew_if_asked_to(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        lease, _ = await given_back(engine, clock)
        await engine.release(lease, delay=seconds(1), unhandled=NOBODY, anew=True)
        assert await unhandled_since(engine, lease.job) == lease.claimed_at

    async def test_that_is_released_without_a_delay_is_ready_at_once(self, engine: Engine) -> None:
        lease = await leased(engine)
        assert await engine.release(lease, unhandled=NOBODY) is State.READY
        assert (await claim_one(engine)).unhandled == NOBODY

    async def test_keeps_its_lease_and_time_when_renewed(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        lease, since = await given_back(engine, clock)
        await engine.renew(lease, LEASE)
        assert await unhandled_since(engine, lease.job) == since

    async def test_may_be_released_in_an_exchange_too(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        lease = await leased(engine)
        gone = Release(lease, ZERO, unhandled=NOBODY)
        exchanged = await engine.exchange(REVIEWS, [gone], worker="anna", lease=LEASE, count=1)
        assert [(one.id, one.unhandled) for one in exchanged.leases] == [(lease.id, NOBODY)]
        plain = Release(exchanged.leases[0], ZERO)
        exchanged = await engine.exchange(REVIEWS, [plain], worker="anna", lease=LEASE, count=1)
        assert [(one.id, one.unhandled) for one in exchanged.leases] == [(lease.id, "")]

    async def test_is_counted_in_the_queues_totals(self, engine: Engine) -> None:
        await engine.release(await leased(engine), unhandled=NOBODY)
        totals = (await engine.inspect.counts(REVIEWS)).totals
        assert (totals["released"], totals["unhandled"]) == (1, 1)


class TestAJobIsNoLongerUnhandled:
    async def test_when_the_job_is_done(self, engine: Engine, clock: ManualClock) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(keep=hours(1)))
        lease, _ = await given_back(engine, clock)
        await engine.complete(lease)
        assert await unhandled_since(engine, lease.job) is None

    async def test_after_a_failed_attempt(self, engine: Engine, clock: ManualClock) -> None:
        lease, _ = await given_back(engine, clock)
        await engine.fail(lease, "broken", delay=ZERO)
        assert await unhandled_since(engine, lease.job) is None

    async def test_when_the_job_is_dead(self, engine: Engine, clock: ManualClock) -> None:
        lease, _ = await given_back(engine, clock)
        await engine.bury(lease, "HandlerNotFound: nobody had it")
        assert await unhandled_since(engine, lease.job) is None
        await engine.retry(lease.job)
        assert (await claim_one(engine)).unhandled_since_ms == 0

    async def test_when_a_worker_released_it_for_another_reason(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        lease, _ = await given_back(engine, clock)
        await engine.release(lease)
        assert await unhandled_since(engine, lease.job) is None

    async def test_when_its_lease_expired(self, engine: Engine, clock: ManualClock) -> None:
        lease, _ = await given_back(engine, clock)
        clock.advance(LEASE)
        assert (await claim_one(engine, worker="berta")).unhandled_since_ms == 0
        assert await unhandled_since(engine, lease.job) is None


class TestTheLaneOfAnUnhandledJob:
    @pytest.mark.parametrize("policy", list(LanePolicy))
    async def test_waits_behind_it(
        self, engine: Engine, clock: ManualClock, policy: LanePolicy
    ) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(lanes=policy))
        await submit_ids(engine, "first", "second", lane="octo")
        await submit_ids(engine, "other")
        for _ in range(2):
            [head, *_] = [one for one in await claim(engine, 3) if one.lane]
            assert head.id == "first"
            await engine.release(head, delay=minutes(1), unhandled=NOBODY)
            assert ids_of(await claim(engine, 3)) == []
            clock.advance(minutes(1))
        assert [id for id in await run_all(engine) if id != "other"] == ["first", "second"]


def serving(*handlers: HandlerReport) -> WorkerReport:
    """A worker of the queue that has these handlers, and leaves other jobs to other workers for
    five minutes.
    """
    return WorkerReport(
        host="build-3", pid=7, queues=[REVIEWS], serving=1, slots=10, running=0, jobs=[],
        handlers=handlers, handling=len(handlers), unhandled_for_ms=300_000,
    )  # fmt: skip


class TestExplainingAnUnhandledJob:
    async def test_names_the_missing_handler_and_the_existing_ones(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.submit(REVIEWS, b"", headers={"handler": "shred"})
        lease = await claim_one(engine)
        await engine.release(lease, delay=seconds(4), unhandled=NOBODY)
        await engine.workers.report("anna", serving(HandlerReport(REVIEWS, "print", "1")))
        explained = await engine.inspect.explain(lease.job)
        assert explained.why is Why.NO_HANDLER
        told = [lease.claimed_at, clock.now + seconds(4), clock.now + minutes(5), "shred", "print"]
        assert [str(part) in explained.text for part in told] == [True] * len(told)

    async def test_says_why_the_payload_does_not_fit(self, engine: Engine) -> None:
        lease = await leased(engine)
        await engine.release(lease, delay=seconds(4), unhandled="PayloadInvalid: at $.n")
        explained = await engine.inspect.explain(lease.job)
        assert explained.why is Why.NO_HANDLER
        assert "$.n" in explained.text

    async def test_names_the_due_time_of_a_job_that_was_moved(self, engine: Engine) -> None:
        lease = await leased(engine)
        await engine.release(lease, delay=seconds(4), unhandled=NOBODY)
        await engine.move(lease.job, delay=hours(1))
        assert (await engine.inspect.explain(lease.job)).why is Why.NOT_DUE
