"""claim: take ready jobs and lease them to a worker, in one step."""

import asyncio

import pytest

from tests.spec.deployment import Deployment
from tests.spec.jobs_in_states import LEASE, REVIEWS, claim, claim_one, ids_of, leased, submit_ids
from towpath.clock import ManualClock, milliseconds, seconds
from towpath.engine.engine import LARGEST_BATCH, Engine
from towpath.engine.keys import keys_of
from towpath.engine.model import new_job
from towpath.engine.states import State
from towpath.errors import InvalidOption
from towpath.ids import QueueName

KEYS = keys_of(QueueName(REVIEWS))


class TestClaimingAJob:
    async def test_leases_it_to_the_worker(self, engine: Engine, clock: ManualClock) -> None:
        [ref] = await submit_ids(engine, "a")
        lease = await claim_one(engine, worker="anna")
        assert (lease.job, lease.payload, lease.worker) == (ref, b"a", "anna")
        assert (lease.attempt, lease.priority, lease.lane) == (1, 50, None)
        assert (lease.submitted_at, lease.expires_at) == (clock.now, clock.now + LEASE)
        assert not lease.cancel_requested

    async def test_shows_its_worker_and_the_end_of_its_lease(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        lease = await leased(engine)
        job = await engine.inspect.job(lease.job)
        assert (job.state, job.worker, job.token) == (State.LEASED, "anna", lease.token)
        assert (job.attempts, job.claimed_at) == (1, clock.now)
        assert job.expires_at == clock.now + LEASE

    async def test_gives_it_to_no_second_worker(self, engine: Engine, other_engine: Engine) -> None:
        await leased(engine)
        assert await claim(engine, worker="anna") == []
        assert await claim(other_engine, worker="berta") == []

    async def test_gives_each_job_to_one_of_several_workers_that_claim_at_once(
        self, engine: Engine, other_engine: Engine
    ) -> None:
        ids = [f"{n}" for n in range(40)]
        await submit_ids(engine, *ids)
        asking = [claim(caller, 3) for caller in (engine, other_engine) for _ in range(10)]
        claimed = [id for leases in await asyncio.gather(*asking) for id in ids_of(leases)]
        assert sorted(claimed) == sorted(ids)

    async def test_on_an_empty_queue_returns_none(self, engine: Engine) -> None:
        assert await claim(engine) == []

    async def test_is_one_round_trip(self, engine: Engine, deployment: Deployment) -> None:
        await leased(engine, "warm")
        await submit_ids(engine, "a", "b")
        before = deployment.calls("evalsha", "eval")
        assert len(await claim(engine, 10)) == 2
        assert deployment.calls("evalsha", "eval") - before == 1

    async def test_copies_the_lease_into_a_key_for_outsiders(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        lease = await leased(engine)
        lock = KEYS.lock(lease.id)
        assert deployment.ask("GET", lock) == f"anna {lease.token}".encode()
        left = deployment.ask("PTTL", lock)
        assert isinstance(left, int)
        assert 0 < left <= 30_000


class TestClaimingSeveralJobs:
    async def test_takes_at_most_the_number_asked_for(self, engine: Engine) -> None:
        await submit_ids(engine, "a", "b", "c")
        assert ids_of(await claim(engine, 2)) == ["a", "b"]
        assert ids_of(await claim(engine, 2)) == ["c"]

    async def test_gives_each_a_growing_token_of_its_own(self, engine: Engine) -> None:
        await submit_ids(engine, "a", "b", "c")
        tokens = [lease.token for lease in await claim(engine, 3)]
        assert sorted(set(tokens)) == tokens

    async def test_takes_up_to_the_largest_batch(self, engine: Engine) -> None:
        await engine.submit_many(REVIEWS, [new_job(b"") for _ in range(LARGEST_BATCH + 1)])
        assert len(await claim(engine, LARGEST_BATCH)) == LARGEST_BATCH

    async def test_beyond_the_largest_batch_is_refused(self, engine: Engine) -> None:
        with pytest.raises(InvalidOption, match="count"):
            await claim(engine, LARGEST_BATCH + 1)


class TestTheLeaseTime:
    async def test_of_the_job_takes_precedence_over_that_of_the_claim(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.submit(REVIEWS, b"", lease=seconds(300))
        assert (await claim_one(engine)).expires_at == clock.now + seconds(300)

    async def test_is_exact_to_the_millisecond(self, engine: Engine, clock: ManualClock) -> None:
        await leased(engine)
        clock.advance(LEASE - milliseconds(1))
        assert await claim(engine, worker="berta") == []
        clock.advance(milliseconds(1))
        assert (await claim_one(engine, worker="berta")).worker == "berta"

    async def test_is_a_whole_number_of_milliseconds(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await submit_ids(engine, "a")
        [lease] = await engine.claim(REVIEWS, worker="anna", lease=milliseconds(1.5))
        assert lease.expires_at == clock.now + milliseconds(2)


class TestAClaimReapsPromotesAndTrims:
    """A queue that is claimed from needs no other upkeep."""

    async def test_a_job_whose_lease_has_ended_is_claimed_again(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        first = await leased(engine)
        clock.advance(LEASE)
        second = await claim_one(engine, worker="berta")
        assert (second.id, second.attempt) == (first.id, 2)
        assert second.token > first.token

    async def test_a_job_whose_lease_has_ended_comes_back_at_its_place(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await leased(engine, "crashed")
        await submit_ids(engine, "later")
        clock.advance(LEASE)
        assert ids_of(await claim(engine)) == ["crashed"]

    async def test_a_job_that_fell_due_competes_with_its_priority(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.submit(REVIEWS, b"", id="due", delay=seconds(10), priority=60)
        await submit_ids(engine, "ready")
        clock.advance(seconds(10))
        assert ids_of(await claim(engine)) == ["due"]

    async def test_a_job_that_fell_due_is_claimed(self, engine: Engine, clock: ManualClock) -> None:
        await engine.submit(REVIEWS, b"", id="later", delay=seconds(10))
        clock.advance(seconds(10))
        assert ids_of(await claim(engine)) == ["later"]

    async def test_as_many_jobs_are_promoted_as_it_asks_for(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.submit_many(REVIEWS, [new_job(b"", delay=seconds(1)) for _ in range(250)])
        clock.advance(seconds(1))
        assert len(await claim(engine, 250)) == 250

    async def test_a_hundred_ended_leases_at_most_are_reaped_at_once(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        """A crash of many workers must not make one claim slow."""
        await engine.submit_many(REVIEWS, [new_job(b"") for _ in range(150)])
        await claim(engine, 150)
        clock.advance(LEASE)
        assert len(await claim(engine, 150)) == 100
        assert len(await claim(engine, 150)) == 50

    async def test_finished_jobs_whose_retention_is_over_are_removed(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.submit(REVIEWS, b"", id="a", keep=seconds(10))
        await engine.complete(await claim_one(engine))
        assert (await engine.inspect.counts(REVIEWS)).kept == 1
        clock.advance(seconds(11))
        await claim(engine)
        assert (await engine.inspect.counts(REVIEWS)).kept == 0


class TestTheClockOfAClaim:
    async def test_is_that_of_redis_not_of_the_worker(self, deployment: Deployment) -> None:
        """Without a manual clock every engine goes by the clock of Redis."""
        async with Engine(deployment.url) as engine:
            submitted = await engine.submit(REVIEWS, b"")
            lease = await claim_one(engine)
        assert lease.job == submitted.job
        assert abs(lease.submitted_at - deployment.time()) < seconds(60)
