"""Waiting without polling: a blocked claim returns when there is work, and costs little."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from tests.amounts import deployments
from tests.spec.deployment import Deployment
from tests.spec.jobs_in_states import LEASE, REVIEWS, buried, claim_one, ids_of, leased, submit_ids
from tests.waiting import HANGS, eventually_async
from towpath.clock import ManualClock, milliseconds, minutes, seconds
from towpath.engine.engine import Engine
from towpath.engine.keys import keys_of
from towpath.engine.model import Call, Lease
from towpath.errors import CallStale
from towpath.ids import QueueName

pytestmark = deployments

WAKE = keys_of(QueueName(REVIEWS)).wake

Waiting = asyncio.Task[list[Lease]]


async def blocked(deployment: Deployment, count: int = 1) -> None:
    """Returns once so many clients are blocked in Redis."""

    async def reached() -> bool:
        return deployment.blocked() == count

    await eventually_async(reached)


@asynccontextmanager
async def waiting_claim(engine: Engine, deployment: Deployment) -> AsyncGenerator[Waiting]:
    """A claim that found nothing and waits, for a minute at most."""
    claim = asyncio.create_task(engine.claim(REVIEWS, worker="anna", lease=LEASE, wait=minutes(1)))
    await blocked(deployment)
    try:
        yield claim
    finally:
        claim.cancel()
        await asyncio.wait([claim])


async def ids_within_moments(*claims: Waiting) -> list[str]:
    async with asyncio.timeout(HANGS):
        return [id for leases in await asyncio.gather(*claims) for id in ids_of(leases)]


class TestABlockedClaim:
    """The manual clock stands still: only a wake-up makes the claim look again."""

    async def test_returns_on_a_submit(self, engine: Engine, deployment: Deployment) -> None:
        async with waiting_claim(engine, deployment) as claim:
            await submit_ids(engine, "a")
            assert await ids_within_moments(claim) == ["a"]

    async def test_returns_on_a_submit_of_another_process(
        self, engine: Engine, other_engine: Engine, deployment: Deployment
    ) -> None:
        async with waiting_claim(engine, deployment) as claim:
            await submit_ids(other_engine, "a")
            assert await ids_within_moments(claim) == ["a"]

    async def test_returns_when_a_job_falls_due(
        self, engine: Engine, deployment: Deployment, clock: ManualClock
    ) -> None:
        await engine.submit(REVIEWS, b"", id="later", delay=seconds(4))
        async with waiting_claim(engine, deployment) as claim:
            clock.advance(seconds(4) - milliseconds(1))
            await engine.inspect.counts(REVIEWS)
            assert not claim.done()
            clock.advance(milliseconds(1))
            assert await ids_within_moments(claim) == ["later"]

    async def test_returns_when_a_job_falls_due_that_was_submitted_meanwhile(
        self, engine: Engine, deployment: Deployment, clock: ManualClock
    ) -> None:
        async with waiting_claim(engine, deployment) as claim:
            before = deployment.calls("evalsha")
            await engine.submit(REVIEWS, b"", id="later", delay=seconds(2))

            async def looked() -> bool:
                return deployment.calls("evalsha") - before >= 2

            await eventually_async(looked)
            await blocked(deployment)
            clock.advance(seconds(2))
            assert await ids_within_moments(claim) == ["later"]

    async def test_returns_on_resume(self, engine: Engine, deployment: Deployment) -> None:
        await submit_ids(engine, "a")
        await engine.queues.pause(REVIEWS)
        async with waiting_claim(engine, deployment) as claim:
            await engine.queues.resume(REVIEWS)
            assert await ids_within_moments(claim) == ["a"]

    async def test_returns_when_the_lease_of_another_worker_ends(
        self, engine: Engine, deployment: Deployment, clock: ManualClock
    ) -> None:
        await submit_ids(engine, "crashed")
        await engine.claim(REVIEWS, worker="berta", lease=seconds(3))
        async with waiting_claim(engine, deployment) as claim:
            clock.advance(seconds(3))
            assert await ids_within_moments(claim) == ["crashed"]

    async def test_returns_on_a_release(self, engine: Engine, deployment: Deployment) -> None:
        lease = await leased(engine, "a")
        async with waiting_claim(engine, deployment) as claim:
            await engine.release(lease)
            assert await ids_within_moments(claim) == ["a"]

    async def test_returns_on_a_retry(self, engine: Engine, deployment: Deployment) -> None:
        dead = await buried(engine, "a")
        async with waiting_claim(engine, deployment) as claim:
            await engine.retry(dead)
            assert await ids_within_moments(claim) == ["a"]

    async def test_returns_when_a_lane_goes_on(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        await submit_ids(engine, "a", "b", lane="octo")
        head = await claim_one(engine)
        async with waiting_claim(engine, deployment) as claim:
            await engine.complete(head)
            assert await ids_within_moments(claim) == ["b"]

    async def test_returns_nothing_when_its_time_is_over(
        self, engine: Engine, deployment: Deployment, clock: ManualClock
    ) -> None:
        async with waiting_claim(engine, deployment) as claim:
            clock.advance(minutes(1))
            assert await ids_within_moments(claim) == []

    async def test_does_not_wait_if_there_is_work(self, engine: Engine) -> None:
        await submit_ids(engine, "a")
        [lease] = await engine.claim(REVIEWS, worker="anna", lease=LEASE, wait=minutes(1))
        assert lease.id == "a"

    async def test_takes_several_jobs_if_it_asked_for_them(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        claim = asyncio.create_task(
            engine.claim(REVIEWS, worker="anna", lease=LEASE, count=5, wait=minutes(1))
        )
        await blocked(deployment)
        await submit_ids(engine, "a", "b", "c")
        assert await ids_within_moments(claim) == ["a", "b", "c"]

    async def test_that_is_cancelled_takes_no_job_with_it(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        async with waiting_claim(engine, deployment):
            pass
        await submit_ids(engine, "a")
        assert (await claim_one(engine)).id == "a"


class TestSeveralBlockedClaims:
    async def test_are_woken_one_per_job(self, engine: Engine, deployment: Deployment) -> None:
        async with (
            waiting_claim(engine, deployment) as one,
            waiting_claim(engine, deployment) as two,
        ):
            await submit_ids(engine, "a")
            async with asyncio.timeout(HANGS):
                done, others = await asyncio.wait([one, two], return_when="FIRST_COMPLETED")
            assert (len(done), len(others)) == (1, 1)
            await submit_ids(engine, "b")
            assert await ids_within_moments(*done, *others) == ["a", "b"]

    async def test_wake_one_another_for_jobs_that_came_together(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        async with (
            waiting_claim(engine, deployment) as one,
            waiting_claim(engine, deployment) as two,
            waiting_claim(engine, deployment) as three,
        ):
            await submit_ids(engine, "a", "b", "c")
            assert sorted(await ids_within_moments(one, two, three)) == ["a", "b", "c"]

    async def test_in_several_processes_all_get_work(
        self, engine: Engine, other_engine: Engine, deployment: Deployment
    ) -> None:
        claims = [
            asyncio.create_task(caller.claim(REVIEWS, worker="w", lease=LEASE, wait=minutes(1)))
            for caller in (engine, other_engine) * 5
        ]
        await blocked(deployment, 2)
        ids = [f"{n}" for n in range(10)]
        await submit_ids(engine, *ids)
        assert sorted(await ids_within_moments(*claims)) == ids

    async def test_share_one_blocking_read_per_process(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        async with waiting_claim(engine, deployment), waiting_claim(engine, deployment):
            assert deployment.blocked() == 1

    async def test_lose_no_wake_up_to_a_process_without_waiting_claims(
        self, engine: Engine, other_engine: Engine, deployment: Deployment
    ) -> None:
        """The blocking read of the first process is still under way; the process passes wake-ups
        on.
        """
        async with waiting_claim(engine, deployment):
            pass
        claim = asyncio.create_task(
            other_engine.claim(REVIEWS, worker="w", lease=LEASE, wait=minutes(1))
        )
        await blocked(deployment, 2)
        await submit_ids(engine, "a")
        assert await ids_within_moments(claim) == ["a"]


class TestALostWakeUp:
    async def test_delays_a_claim_by_seconds_at_most(
        self, engine: Engine, deployment: Deployment, clock: ManualClock
    ) -> None:
        thief = asyncio.create_task(asyncio.to_thread(deployment.ask, "BLPOP", WAKE, 5))
        await blocked(deployment)
        claim = asyncio.create_task(
            engine.claim(REVIEWS, worker="anna", lease=LEASE, wait=minutes(1))
        )
        await blocked(deployment, 2)
        await submit_ids(engine, "a")
        assert await thief == [WAKE.encode(), b"1"]
        assert not claim.done()
        clock.advance(seconds(5))
        assert await ids_within_moments(claim) == ["a"]


class TestAnIdleProcess:
    async def test_polls_every_five_seconds_and_not_before(
        self, engine: Engine, deployment: Deployment, clock: ManualClock
    ) -> None:
        async with waiting_claim(engine, deployment):
            assert await engine.events.list(REVIEWS) == []
            before = deployment.calls("evalsha", "eval")
            clock.advance(seconds(5) - milliseconds(1))
            await engine.queues.list()
            await engine.queues.list()
            assert deployment.calls("evalsha", "eval") == before
            clock.advance(milliseconds(1))

            async def looked() -> bool:
                return deployment.calls("evalsha", "eval") == before + 1

            await eventually_async(looked)


class TestAClaimThatIsCancelledAsItIsWoken:
    async def test_passes_the_wake_up_on(
        self,
        engine: Engine,
        other_engine: Engine,
        deployment: Deployment,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The wake-up was meant for it alone: otherwise the other claim would wait for seconds."""
        waiting = asyncio.create_task(engine.wait_for_work(REVIEWS, within=minutes(1)))
        await blocked(deployment)
        [listener] = engine._waker._own  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- the moment between the call and the look has no other handle
        call_one = listener.waiters.call_one

        def call_and_cancel(name: str) -> bool:
            was_called = call_one(name)
            waiting.cancel()
            return was_called

        monkeypatch.setattr(listener.waiters, "call_one", call_and_cancel)
        await submit_ids(other_engine, "a")
        await asyncio.wait([waiting])
        assert waiting.cancelled()

        async def given_back() -> bool:
            return deployment.ask("LLEN", WAKE) == 1

        await eventually_async(given_back)


class TestAWaitingClaimWithACallNumber:
    async def test_that_is_repeated_after_its_end_gives_the_same_jobs(
        self, engine: Engine, other_engine: Engine, deployment: Deployment
    ) -> None:
        async def claim() -> list[Lease]:
            return await engine.claim(
                REVIEWS, worker="anna", lease=LEASE, wait=minutes(1), call=Call("http-1", 1)
            )

        first = asyncio.create_task(claim())
        await blocked(deployment)
        await submit_ids(other_engine, "a", "b")
        [lease] = await first
        assert await claim() == [lease]
        assert await claim() == [lease]

    async def test_that_is_repeated_while_nothing_came_waits_on(
        self, engine: Engine, clock: ManualClock, deployment: Deployment
    ) -> None:
        call = Call("http-1", 1)
        first = asyncio.create_task(
            engine.claim(REVIEWS, worker="anna", lease=LEASE, wait=seconds(3), call=call)
        )
        await blocked(deployment)
        clock.advance(seconds(3))
        assert await first == []
        await submit_ids(engine, "a")
        again = await engine.claim(REVIEWS, worker="anna", lease=LEASE, wait=seconds(3), call=call)
        assert ids_of(again) == ["a"]

    async def test_with_an_older_number_is_refused(self, engine: Engine) -> None:
        await submit_ids(engine, "a", "b")
        for number in (2, 1):
            claim = engine.claim(
                REVIEWS, worker="anna", lease=LEASE, wait=seconds(3), call=Call("http-1", number)
            )
            if number == 2:
                await claim
            else:
                with pytest.raises(CallStale):
                    await claim
