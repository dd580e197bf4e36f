"""Headers travel beside the payload; the engine does not read them."""

import pytest

from tests.spec.deployment import Deployment
from tests.spec.jobs_in_states import LEASE, REVIEWS, claim_one
from towpath.clock import ManualClock, hours, seconds
from towpath.engine.engine import Engine
from towpath.engine.keys import keys_of
from towpath.engine.model import NewJob, job_ref
from towpath.engine.options import QueueOptions
from towpath.engine.record import decode
from towpath.errors import InvalidOption
from towpath.ids import JobId

HEADERS = {"traceparent": "00-0af7-b7ad-01", "handler": "größe"}


class TestHeaders:
    async def test_are_shown_to_the_worker_and_to_readers(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(keep=hours(1)))
        job = (await engine.submit(REVIEWS, b"x", headers=HEADERS)).job
        lease = await claim_one(engine)
        assert lease.headers == HEADERS
        await engine.complete(lease)
        assert (await engine.inspect.job(job)).headers == HEADERS

    async def test_are_empty_by_default(self, engine: Engine) -> None:
        job = (await engine.submit(REVIEWS, b"x")).job
        assert (await claim_one(engine)).headers == {}
        assert (await engine.inspect.job(job)).headers == {}

    async def test_are_kept_after_a_failed_attempt(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.submit(REVIEWS, b"x", headers=HEADERS)
        await engine.fail(await claim_one(engine), "no", delay=seconds(1))
        clock.advance(seconds(1))
        assert (await claim_one(engine)).headers == HEADERS

    @pytest.mark.parametrize(
        "headers",
        [{"Upper": "x"}, {"": "x"}, {"a b": "x"}, {"a": 1}, {1: "a"}, ["a"], {"a": "x" * 5000}],
    )
    async def test_that_are_invalid_are_refused(self, engine: Engine, headers: object) -> None:
        with pytest.raises(InvalidOption):
            await engine.submit(REVIEWS, b"x", headers=headers)  # pyright: ignore[reportArgumentType] -- the point


class TestAnExchange:
    async def test_tells_how_many_jobs_it_left_ready(self, engine: Engine) -> None:
        for _ in range(3):
            await engine.submit(REVIEWS, b"x")
        got = await engine.exchange(REVIEWS, [], worker="w", lease=LEASE, count=2)
        assert (len(got.leases), got.left) == (2, 1)

    async def test_tells_when_the_next_job_falls_due(self, engine: Engine) -> None:
        await engine.submit(REVIEWS, b"x", delay=seconds(2))
        got = await engine.exchange(REVIEWS, [], worker="w", lease=LEASE, count=1)
        assert got.due_in == seconds(2)

    async def test_on_an_empty_queue_names_no_due_time(self, engine: Engine) -> None:
        got = await engine.exchange(REVIEWS, [], worker="w", lease=LEASE, count=1)
        assert (got.left, got.due_in) == (0, None)


class TestAFieldThatOnlyANewerReleaseKnows:
    async def test_stays_with_the_job_through_every_verb(
        self, engine: Engine, deployment: Deployment, clock: ManualClock
    ) -> None:
        """Workers of both releases may run side by side."""
        newer = NewJob(JobId("a"), b"x", {"tier": 7, "priority": 90})
        await engine.submit_many(REVIEWS, [newer])
        await engine.fail(await claim_one(engine), "no", delay=seconds(1))
        clock.advance(seconds(1))
        await engine.bury(await claim_one(engine), "no")
        await engine.retry(job_ref(REVIEWS, "a"))
        await engine.release(await claim_one(engine))
        text = deployment.ask("GET", keys_of(REVIEWS).job("a"))
        assert isinstance(text, bytes)
        assert decode(text).more["tier"] == 7
        assert (await claim_one(engine)).priority == 90
