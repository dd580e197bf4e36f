"""delete_queue: delete a queue that holds nothing, together with its options."""

import pytest

from tests.spec.jobs_in_states import REVIEWS, buried, claim_one, submit_ids
from towpath.clock import ManualClock, days, hours, minutes, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.engine.model import job_ref
from towpath.engine.options import QueueOptions
from towpath.engine.states import State
from towpath.errors import JobNotFound, LaneNotParked, QueueNotFound

OPTIONS = QueueOptions(max_attempts=7)


class TestDeletingAQueue:
    async def test_leaves_none_of_its_keys(self, engine: Engine, server: EmbeddedServer) -> None:
        await engine.queues.configure(REVIEWS, OPTIONS)
        await engine.submit(REVIEWS, b"")
        await engine.complete(await claim_one(engine))
        assert await engine.queues.delete(REVIEWS)
        assert await engine.queues.names() == []
        keys = str(server.ask("KEYS", "*"))
        assert ":meta" not in keys
        assert ":events" not in keys

    async def test_that_was_never_used_is_accepted(self, engine: Engine) -> None:
        assert await engine.queues.delete(REVIEWS)

    @pytest.mark.parametrize("what", ["ready", "delayed", "lane", "leased", "dead", "kept", "id"])
    async def test_is_refused_while_it_holds_anything(self, engine: Engine, what: str) -> None:
        await engine.queues.configure(REVIEWS, OPTIONS)
        match what:
            case "ready":
                await engine.submit(REVIEWS, b"")
            case "delayed":
                await engine.submit(REVIEWS, b"", delay=hours(1))
            case "lane":
                await engine.submit(REVIEWS, b"", lane="a", delay=hours(1))
            case "dead":
                await buried(engine, "a")
            case "leased":
                await engine.submit(REVIEWS, b"")
                await claim_one(engine)
            case "kept":
                await engine.submit(REVIEWS, b"", keep=hours(1))
                await engine.complete(await claim_one(engine))
            case _:
                await submit_ids(engine, "a")
                await engine.complete(await claim_one(engine))
        assert not await engine.queues.delete(REVIEWS)
        assert await engine.queues.names() == [REVIEWS]
        assert (await engine.queues.options(REVIEWS)).max_attempts == 7

    async def test_is_refused_while_it_is_paused(self, engine: Engine) -> None:
        await engine.queues.pause(REVIEWS)
        assert not await engine.queues.delete(REVIEWS)
        await engine.queues.resume(REVIEWS)
        assert await engine.queues.delete(REVIEWS)

    async def test_is_accepted_when_its_remembered_ids_are_forgotten(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await submit_ids(engine, "a")
        await engine.complete(await claim_one(engine))
        clock.advance(days(1))
        await engine.queues.trim(REVIEWS)
        assert await engine.queues.delete(REVIEWS)

    async def test_lets_its_next_use_create_it_anew(
        self, engine: Engine, engine_url: str, clock: ManualClock
    ) -> None:
        """An engine that introduced the queue before creates it with its own options again."""
        async with Engine(engine_url, clock=clock) as other:
            await other.queues.introduce(REVIEWS, OPTIONS)
            assert await engine.queues.delete(REVIEWS)
            await other.submit(REVIEWS, b"", id="a", delay=minutes(1))
        assert await engine.inspect.state(job_ref(REVIEWS, "a")) is State.DELAYED
        assert await engine.queues.names() == [REVIEWS]
        assert (await engine.queues.options(REVIEWS)).max_attempts == 7
        clock.advance(minutes(1))
        assert len(await engine.claim(REVIEWS, worker="w", lease=seconds(1))) == 1


class TestDeletingAQueueByForce:
    async def test_forgets_its_ids_and_ends_its_pause(self, engine: Engine) -> None:
        await submit_ids(engine, "a")
        await engine.complete(await claim_one(engine))
        await engine.queues.pause(REVIEWS)
        assert not await engine.queues.delete(REVIEWS)
        assert await engine.queues.delete(REVIEWS, forced=True)
        assert not (await engine.submit(REVIEWS, b"", id="a")).existed
        assert not (await engine.inspect.counts(REVIEWS)).paused

    async def test_is_refused_while_it_holds_a_job(self, engine: Engine) -> None:
        await submit_ids(engine, "a")
        assert not await engine.queues.delete(REVIEWS, forced=True)
        assert (await engine.inspect.counts(REVIEWS)).ready == 1


class TestAnUnusedQueue:
    async def test_is_deleted_once_it_was_unused_for_the_time(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.submit(REVIEWS, b"")
        await engine.complete(await claim_one(engine))
        clock.advance(days(29))
        assert not await engine.queues.delete_unused(REVIEWS, days(30))
        clock.advance(days(2))
        assert await engine.queues.delete_unused(REVIEWS, days(30))
        assert await engine.queues.names() == []

    async def test_that_was_only_declared_is_deleted_after_the_time(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        """Applications declare their queues when they start, before the first use."""
        await engine.queues.declare(REVIEWS, max_attempts=7)
        assert not await engine.queues.delete_unused(REVIEWS, days(30))
        clock.advance(days(29))
        assert not await engine.queues.delete_unused(REVIEWS, days(30))
        clock.advance(days(2))
        assert await engine.queues.delete_unused(REVIEWS, days(30))

    @pytest.mark.parametrize("selectors", [(), ("paper",)])
    async def test_is_kept_while_a_worker_claims_from_it(
        self, engine: Engine, clock: ManualClock, selectors: tuple[str, ...]
    ) -> None:
        await engine.submit(REVIEWS, b"")
        await engine.complete(await claim_one(engine))
        clock.advance(days(60))
        await engine.claim(REVIEWS, worker="w", lease=seconds(1), selectors=selectors)
        assert not await engine.queues.delete_unused(REVIEWS, days(30))

    @pytest.mark.parametrize("what", ["ready", "dead", "paused"])
    async def test_is_kept_while_it_holds_anything(
        self, engine: Engine, clock: ManualClock, what: str
    ) -> None:
        await engine.submit(REVIEWS, b"", id="a")
        if what != "ready":
            lease = await claim_one(engine)
            await (engine.bury(lease, "no") if what == "dead" else engine.complete(lease))
        if what == "paused":
            await engine.queues.pause(REVIEWS)
        clock.advance(days(60))
        assert not await engine.queues.delete_unused(REVIEWS, days(30))

    async def test_is_kept_if_an_operator_changed_its_options(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.queues.declare(REVIEWS, max_attempts=7)
        await engine.submit(REVIEWS, b"")
        await engine.complete(await claim_one(engine))
        clock.advance(days(60))
        await engine.queues.change_options(REVIEWS, lambda _: QueueOptions(max_attempts=9))
        assert not await engine.queues.delete_unused(REVIEWS, days(30))
        await engine.queues.reset(REVIEWS)
        assert await engine.queues.delete_unused(REVIEWS, days(30))


class TestRequiringAQueue:
    async def test_returns_its_name_and_creates_none(self, engine: Engine) -> None:
        await engine.submit("mails", b"")
        assert await engine.queues.require("mails") == "mails"
        with pytest.raises(QueueNotFound) as refused:
            await engine.queues.require("mail")
        assert (refused.value.queue, refused.value.near) == ("mail", "mails")
        with pytest.raises(QueueNotFound) as refused:
            await engine.queues.require("quite-another")
        assert refused.value.near is None
        assert await engine.queues.names() == ["mails"]

    async def test_does_not_name_hidden_queues_in_the_error(self, engine: Engine) -> None:
        await engine.submit("mails", b"")
        with pytest.raises(QueueNotFound) as refused:
            await engine.queues.require("mail", lambda name: name != "mails")
        assert refused.value.near is None


async def test_changing_jobs_of_a_queue_that_does_not_exist_creates_none(engine: Engine) -> None:
    ref = job_ref(REVIEWS, "a")
    for change in (
        engine.cancel(ref),
        engine.retry(ref),
        engine.delete(ref),
        engine.move(ref, delay=1),
    ):
        with pytest.raises(JobNotFound):
            await change
    with pytest.raises(LaneNotParked):
        await engine.drop(REVIEWS, "ann")
    [answer] = await engine.cancel_many(REVIEWS, ["a"])
    assert isinstance(answer, JobNotFound)
    assert await engine.queues.names() == []
