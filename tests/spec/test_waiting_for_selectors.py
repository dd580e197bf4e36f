"""Waiting for jobs with some selectors: a claim is woken for its own jobs, and takes no wake-up
from others.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from tests.spec.deployment import Deployment
from tests.spec.jobs_in_states import LEASE, REVIEWS, claim_one
from tests.spec.test_selectors import DEV, OTHER, REVIEW, claim, submit
from tests.spec.test_waiting import blocked, ids_within_moments
from tests.waiting import eventually_async
from towpath.clock import ManualClock, milliseconds, minutes, seconds
from towpath.engine.engine import Engine
from towpath.engine.model import Lease

Waiting = asyncio.Task[list[Lease]]


@asynccontextmanager
async def waiting(
    engine: Engine,
    deployment: Deployment,
    *wanted: Sequence[str],
    reads: int = 1,
    max_held: int | None = None,
) -> AsyncGenerator[list[Waiting]]:
    """Claims that found nothing and wait, one for each list of selectors."""
    claims = [
        asyncio.create_task(
            engine.claim(
                REVIEWS, worker=f"w{n}", lease=LEASE, selectors=selectors, max_held=max_held,
                wait=minutes(1),
            )
        )
        for n, selectors in enumerate(wanted)
    ]  # fmt: skip
    await listening(deployment, reads)
    try:
        yield claims
    finally:
        for task in claims:
            task.cancel()
        await asyncio.wait(claims)


async def listening(deployment: Deployment, reads: int) -> None:
    """Returns once that many blocking reads wait, for all claims that wait."""
    await blocked(deployment, reads)

    async def called_back() -> bool:
        return not any(":recall:" in name for name in deployment.key_names())

    await eventually_async(called_back)
    await blocked(deployment, reads)


async def calls_made(deployment: Deployment, count: int) -> None:
    """Returns once Redis has seen so many calls."""

    async def seen() -> bool:
        return deployment.calls("evalsha") >= count

    await eventually_async(seen)


class TestABlockedClaimForSelectors:
    """The manual clock stands still: only a wake-up makes the claim look again."""

    async def test_returns_when_such_a_job_is_submitted(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        async with waiting(engine, deployment, [DEV, REVIEW]) as claims:
            await submit(engine, ("a", REVIEW))
            assert await ids_within_moments(*claims) == ["a"]

    async def test_is_not_woken_for_other_jobs(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        async with waiting(engine, deployment, [DEV]) as claims:
            before = deployment.calls("evalsha")
            await submit(engine, ("a", OTHER), ("b", None))
            await engine.inspect.counts(REVIEWS)
            assert deployment.calls("evalsha") - before == 2
            assert not claims[0].done()
            await submit(engine, ("c", DEV))
            assert await ids_within_moments(*claims) == ["c"]

    async def test_among_several_gets_a_job_of_its_own(
        self, engine: Engine, other_engine: Engine, deployment: Deployment
    ) -> None:
        async with (
            waiting(engine, deployment, [DEV], [REVIEW]) as mine,
            waiting(other_engine, deployment, [OTHER], [DEV], reads=2) as others,
        ):
            await submit(engine, ("o", OTHER), ("r", REVIEW), ("d1", DEV), ("d2", DEV))
            got = await ids_within_moments(*mine, *others)
            assert (got[1], got[2]) == ("r", "o")
            assert {got[0], got[3]} == {"d1", "d2"}

    async def test_wakes_the_next_claim_if_it_leaves_such_jobs_behind(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        async with waiting(engine, deployment, [DEV], [DEV], [DEV, REVIEW]) as claims:
            await submit(engine, *((str(n), DEV) for n in range(3)))
            assert sorted(await ids_within_moments(*claims)) == ["0", "1", "2"]

    async def test_returns_beside_a_claim_without_selectors(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        async with (
            waiting(engine, deployment, [DEV]) as choosy,
            waiting(engine, deployment, [], reads=2) as any_of,
        ):
            await submit(engine, ("plain", None))
            assert await ids_within_moments(*any_of) == ["plain"]
            assert not choosy[0].done()
            await submit(engine, ("a", DEV))
            assert await ids_within_moments(*choosy) == ["a"]

    async def test_returns_when_such_a_job_is_released_or_its_queue_is_resumed(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        await submit(engine, ("a", DEV))
        lease = await claim_one(engine)
        async with waiting(engine, deployment, [DEV]) as claims:
            await engine.release(lease)
            assert await ids_within_moments(*claims) == ["a"]
        await submit(engine, ("b", DEV))
        await engine.queues.pause(REVIEWS)
        async with waiting(engine, deployment, [DEV]) as claims:
            await engine.queues.resume(REVIEWS)
            assert await ids_within_moments(*claims) == ["b"]

    async def test_learns_of_a_due_time_that_was_submitted_meanwhile(
        self, engine: Engine, deployment: Deployment, clock: ManualClock
    ) -> None:
        async with waiting(engine, deployment, [DEV]) as claims:
            before = deployment.calls("evalsha")
            await engine.submit(REVIEWS, b"", id="later", selector=DEV, delay=seconds(2))
            await calls_made(deployment, before + 2)
            await blocked(deployment)
            clock.advance(seconds(2))
            assert await ids_within_moments(*claims) == ["later"]

    async def test_that_got_a_job_passes_the_next_due_time_on(
        self, engine: Engine, other_engine: Engine, deployment: Deployment, clock: ManualClock
    ) -> None:
        """The claim that was told of it is cancelled, the next one gets a job: a third one is
        told.
        """
        async with (
            waiting(engine, deployment, [DEV]) as [first],
            waiting(other_engine, deployment, [DEV], [DEV], reads=2) as [second, third],
        ):
            before = deployment.calls("evalsha")
            await other_engine.submit(REVIEWS, b"", id="later", selector=DEV, delay=seconds(2))
            await calls_made(deployment, before + 2)
            first.cancel()
            before = deployment.calls("evalsha")
            await submit(other_engine, ("now", DEV))
            assert await ids_within_moments(second) == ["now"]
            await calls_made(deployment, before + 3)
            for _ in range(40):  # less than the time after which it would poll anyway
                await asyncio.wait([third], timeout=0.05)
                clock.advance(milliseconds(100))
            assert await ids_within_moments(third) == ["later"]

    async def test_that_is_cancelled_takes_no_wake_up_with_it(
        self, engine: Engine, other_engine: Engine, deployment: Deployment
    ) -> None:
        async with waiting(other_engine, deployment, [DEV]) as others:
            async with waiting(engine, deployment, [DEV], reads=2):
                pass
            await submit(engine, ("a", DEV))
            assert await ids_within_moments(*others) == ["a"]

    async def test_polls_while_its_worker_holds_its_limit(
        self, engine: Engine, deployment: Deployment, clock: ManualClock
    ) -> None:
        """It is not woken: it could only pass the wake-up on."""
        await submit(engine, ("a", DEV), ("b", DEV))
        [held] = await claim(engine, DEV, worker="w0", max_held=1)
        async with waiting(engine, deployment, [DEV], reads=0, max_held=1) as claims:
            await engine.complete(held)

            async def returned() -> bool:
                clock.advance(milliseconds(500))
                return claims[0].done()

            await eventually_async(returned)
            assert await ids_within_moments(*claims) == ["b"]

    async def test_of_a_worker_at_its_limit_leaves_the_job_to_another(
        self, engine: Engine, other_engine: Engine, deployment: Deployment
    ) -> None:
        await submit(engine, ("a", DEV))
        await claim(engine, DEV, worker="w0", max_held=1)
        async with (
            waiting(engine, deployment, [DEV], reads=0, max_held=1) as full,
            waiting(other_engine, deployment, [DEV]) as others,
        ):
            await submit(engine, ("b", DEV))
            assert await ids_within_moments(*others) == ["b"]
            assert not full[0].done()
