"""Strays, entries without a job's record, are set aside as dead with a reason; the queue goes
on.
"""

import asyncio

import pytest

from tests.spec.deployment import Deployment
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
from tests.waiting import HANGS
from towpath.clock import ManualClock, seconds
from towpath.engine.engine import Engine
from towpath.engine.keys import keys_of
from towpath.engine.model import Complete, job_ref
from towpath.engine.options import QueueOptions
from towpath.engine.states import State
from towpath.errors import TowpathError
from towpath.ids import QueueName

KEYS = keys_of(QueueName(REVIEWS))
LARGE = b"x" * 1000
"""A payload that has a key of its own."""
STRAY = job_ref(REVIEWS, "stray")


async def reason_of_stray(engine: Engine) -> str:
    job = await engine.inspect.job(STRAY)
    assert job.state is State.DEAD
    assert job.reason is not None
    return job.reason


async def claim_until_found(engine: Engine) -> list[str]:
    """A claim may return nothing because it set strays aside; a second one does not."""
    return ids_of(await claim(engine, 10) or await claim(engine, 10))


class TestAStray:
    async def test_among_ready_jobs_is_set_aside_by_a_claim(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        await submit_ids(engine, "job")
        deployment.ask("ZADD", KEYS.queue, 1, "stray")
        assert await claim_until_found(engine) == ["job"]
        assert (
            await reason_of_stray(engine)
            == f"NO_RECORD: an entry of {KEYS.queue} has no job behind it"
        )
        assert (await engine.inspect.counts(REVIEWS)).ready == 0

    async def test_among_delayed_jobs_is_set_aside_by_a_promotion(
        self, engine: Engine, deployment: Deployment, clock: ManualClock
    ) -> None:
        await engine.submit(REVIEWS, b"", id="job", delay=seconds(5))
        deployment.ask("ZADD", KEYS.retry, 1, "stray")
        clock.advance(seconds(5))
        await engine.queues.promote(REVIEWS)
        assert KEYS.retry in await reason_of_stray(engine)
        assert ids_of(await claim(engine, 10)) == ["job"]
        assert (await engine.inspect.counts(REVIEWS)).delayed == 0

    async def test_among_leased_jobs_is_set_aside_by_a_reap(
        self, engine: Engine, deployment: Deployment, clock: ManualClock
    ) -> None:
        await leased(engine, "job")
        deployment.ask("ZADD", KEYS.leases, 1, "stray")
        clock.advance(LEASE)
        await engine.queues.reap(REVIEWS)
        assert KEYS.leases in await reason_of_stray(engine)
        assert ids_of(await claim(engine, 10)) == ["job"]

    async def test_in_a_lane_is_set_aside_when_it_would_become_the_head(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        await submit_ids(engine, "a", "b", lane="octo")
        deployment.ask("ZADD", KEYS.lane("octo"), 1, "stray")
        deployment.ask("ZADD", KEYS.waiting, 1, "stray")
        assert await run_all(engine) == ["a", "b"]
        assert KEYS.lane("octo") in await reason_of_stray(engine)
        assert (await engine.inspect.counts(REVIEWS)).waiting == 0

    async def test_in_a_lane_holds_up_no_job_however_many_strays_there_are(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        await submit_ids(engine, "a", "b", "c", lane="octo")
        for n in range(20):
            deployment.ask("ZADD", KEYS.lane("octo"), n, f"stray-{n}")
        assert await run_all(engine) == ["a", "b", "c"]
        assert (await engine.inspect.counts(REVIEWS)).dead == 20

    async def test_is_counted_and_writes_an_event(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        await engine.queues.options(REVIEWS)
        deployment.ask("ZADD", KEYS.queue, 1, "stray")
        await claim(engine)
        counts = await engine.inspect.counts(REVIEWS)
        assert (counts.dead, counts.totals["died"]) == (1, 1)
        [event] = await engine.events.list(REVIEWS)
        assert (event.verb, event.job) == ("dead", STRAY)

    async def test_can_be_listed_and_deleted(self, engine: Engine, deployment: Deployment) -> None:
        await engine.queues.options(REVIEWS)
        deployment.ask("ZADD", KEYS.queue, 1, "stray")
        await claim(engine)
        [job] = (await engine.inspect.list(REVIEWS, State.DEAD)).jobs
        assert job.ref == STRAY
        await engine.delete(STRAY)
        assert (await engine.inspect.counts(REVIEWS)).dead == 0

    async def test_is_dead_again_if_it_is_retried(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        """It has no payload that a worker could run."""
        await engine.queues.options(REVIEWS)
        deployment.ask("ZADD", KEYS.queue, 1, "stray")
        await claim(engine)
        await engine.retry(STRAY)
        assert await claim(engine) == []
        assert (await reason_of_stray(engine)).startswith("NO_PAYLOAD")

    async def test_that_names_a_job_in_another_state_leaves_the_job_alone(
        self, engine: Engine, deployment: Deployment, clock: ManualClock
    ) -> None:
        """The record says where the job is; only the entry is wrong."""
        later = await engine.submit(REVIEWS, b"", id="later", delay=seconds(5))
        deployment.ask("ZADD", KEYS.queue, 1, "later")
        assert await claim(engine, 10) == []
        assert await engine.inspect.state(later.job) is State.DELAYED
        clock.advance(seconds(5))
        assert ids_of(await claim(engine, 10)) == ["later"]

    async def test_among_many_strays_does_not_stop_the_queue(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        await submit_ids(engine, "job")
        for n in range(150):
            deployment.ask("ZADD", KEYS.queue, n, f"stray-{n}")
        found: list[str] = []
        for _ in range(20):
            found += ids_of(await claim(engine, 10))
        assert found == ["job"]
        assert (await engine.inspect.counts(REVIEWS)).dead == 150

    async def test_does_not_keep_a_waiting_claim_from_the_job_behind_it(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        await submit_ids(engine, "job")
        deployment.ask("ZADD", KEYS.queue, 1, "stray")
        async with asyncio.timeout(HANGS):
            [lease] = await engine.claim(REVIEWS, worker="anna", lease=LEASE, wait=seconds(60))
        assert lease.id == "job"


class TestAStrayThatIsNotText:
    """A program that writes into a queue without the engine may write anything."""

    @pytest.mark.parametrize("entry", [b"\xff\xfe\x00", b"two\nlines", b""])
    async def test_is_set_aside_and_listed_like_any_other(
        self, engine: Engine, deployment: Deployment, entry: bytes
    ) -> None:
        await submit_ids(engine, "job")
        deployment.ask("ZADD", KEYS.queue, 1, entry)
        assert await claim_until_found(engine) == ["job"]
        assert len((await engine.inspect.list(REVIEWS, State.DEAD)).jobs) == 1
        told = [event.verb for event in await engine.events.list(REVIEWS)]
        assert told.count("dead") == 1

    async def test_does_not_stop_followers(self, engine: Engine, deployment: Deployment) -> None:
        await engine.queues.options(REVIEWS)
        async with engine.events.follow(REVIEWS) as events:
            deployment.ask("ZADD", KEYS.queue, 1, b"\xff\xfe\x00")
            await claim(engine)
            await submit_ids(engine, "job")
            async with asyncio.timeout(HANGS):
                while (await anext(events)).job.id != "job":
                    pass


class TestAJobWithoutItsPayload:
    async def test_is_set_aside_by_a_claim(self, engine: Engine, deployment: Deployment) -> None:
        broken = (await engine.submit(REVIEWS, LARGE, id="broken")).job
        await submit_ids(engine, "job")
        deployment.ask("UNLINK", KEYS.load("broken"))
        assert await claim_until_found(engine) == ["job"]
        job = await engine.inspect.job(broken)
        assert job.state is State.DEAD
        assert str(job.reason).startswith("NO_PAYLOAD: ")

    async def test_lets_its_lane_go_on(self, engine: Engine, deployment: Deployment) -> None:
        await engine.submit(REVIEWS, LARGE, id="broken", lane="octo")
        await submit_ids(engine, "job", lane="octo")
        deployment.ask("UNLINK", KEYS.load("broken"))
        await claim(engine)
        assert (await claim_one(engine)).id == "job"


class TestAJobWithoutItsRecord:
    async def test_is_set_aside_by_a_claim(self, engine: Engine, deployment: Deployment) -> None:
        lost, _ = await submit_ids(engine, "lost", "job")
        deployment.ask("UNLINK", KEYS.job("lost"))
        assert await claim_until_found(engine) == ["job"]
        assert await engine.inspect.state(lost) is State.DEAD

    async def test_is_set_aside_when_its_lease_has_ended(
        self, engine: Engine, deployment: Deployment, clock: ManualClock
    ) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(max_attempts=1))
        lease = await leased(engine, "lost")
        deployment.ask("UNLINK", KEYS.job("lost"))
        clock.advance(LEASE)
        await engine.queues.reap(REVIEWS)
        assert await engine.inspect.state(lease.job) is State.DEAD

    async def test_parks_its_lane_until_an_operator_decides(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        """Nothing tells which lane it was in, so the lane is parked behind it."""
        lost, _ = await submit_ids(engine, "lost", "job", lane="octo")
        deployment.ask("UNLINK", KEYS.job("lost"))
        await claim(engine)
        assert await engine.drop(REVIEWS, "octo") == lost
        assert (await claim_one(engine)).id == "job"


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b"x",
        b"\x09" + b"\1" * 60,
        b"\x63" + b"\0" * 33,
        b"\x10" + b"\0" * 33,
        b"\x11" + b"\0" * 12 + b"\2\0\0\0\xc1\xff",
        b"\x11" + b"\0" * 12 + b"\xff\xff\xff\x7f\x80",
    ],
    ids=[
        *("nothing", "short", "endless", "with an unknown part", "in no state"),
        *("broken behind its head", "cut off behind its head"),
    ],
)
class TestAJobWhoseRecordIsCorrupt:
    """The record cannot be read, so the job counts as one without a record."""

    async def test_is_set_aside_by_a_claim(
        self, engine: Engine, deployment: Deployment, junk: bytes
    ) -> None:
        spoilt, *_ = await submit_ids(engine, "spoilt", "job", "other")
        deployment.ask("SET", KEYS.job("spoilt"), junk)
        assert (await engine.inspect.counts(REVIEWS)).ready == 3
        assert len((await engine.inspect.list(REVIEWS, State.READY)).jobs) == 2
        assert await engine.inspect.state(spoilt) is State.GONE
        assert await claim_until_found(engine) == ["job", "other"]
        assert (await engine.inspect.job(spoilt)).state is State.DEAD

    async def test_can_be_submitted_anew(
        self, engine: Engine, deployment: Deployment, junk: bytes
    ) -> None:
        await submit_ids(engine, "spoilt")
        deployment.ask("SET", KEYS.job("spoilt"), junk)
        await submit_ids(engine, "spoilt", "job")
        assert await run_all(engine) == ["spoilt", "job"]

    async def test_does_not_keep_other_jobs_from_being_completed(
        self, engine: Engine, deployment: Deployment, clock: ManualClock, junk: bytes
    ) -> None:
        await submit_ids(engine, "spoilt", "job")
        held = await claim(engine, 2)
        deployment.ask("SET", KEYS.job("spoilt"), junk)
        refused, done = await engine.settle([Complete(lease) for lease in held])
        assert isinstance(refused, TowpathError)
        assert done is State.DONE
        clock.advance(LEASE)
        await engine.queues.reap(REVIEWS)
        assert (await engine.inspect.job(held[0].job)).state is State.DEAD
