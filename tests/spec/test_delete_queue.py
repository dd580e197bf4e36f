"""delete_queue: delete a queue that holds nothing, and its options with it."""

import pytest

from tests.spec.jobs import REVIEWS, buried, claim_one, submit_ids
from towpath.clock import ManualClock, days, hours, minutes, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.engine.model import job_ref
from towpath.engine.options import QueueOptions
from towpath.engine.states import State

OPTIONS = QueueOptions(max_attempts=7)


class TestDeletingAQueue:
    async def test_leaves_nothing_of_it(self, engine: Engine, server: EmbeddedServer) -> None:
        await engine.queues.configure(REVIEWS, OPTIONS)
        await engine.submit(REVIEWS, b"")
        await engine.complete(await claim_one(engine))
        assert await engine.queues.delete(REVIEWS)
        assert await engine.queues.names() == []
        keys = str(server.ask("KEYS", "*"))
        assert ":meta" not in keys
        assert ":events" not in keys

    async def test_a_queue_that_nobody_used_is_deleted_too(self, engine: Engine) -> None:
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

    async def test_is_possible_when_its_ids_are_forgotten(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await submit_ids(engine, "a")
        await engine.complete(await claim_one(engine))
        clock.advance(days(1))
        await engine.queues.trim(REVIEWS)
        assert await engine.queues.delete(REVIEWS)

    async def test_who_uses_it_again_makes_it_anew(
        self, engine: Engine, engine_url: str, clock: ManualClock
    ) -> None:
        """Also somebody who knew it before: with the options that it had there."""
        async with Engine(engine_url, clock=clock) as other:
            await other.queues.introduce(REVIEWS, OPTIONS)
            assert await engine.queues.delete(REVIEWS)
            await other.submit(REVIEWS, b"", id="a", delay=minutes(1))
        assert await engine.inspect.state(job_ref(REVIEWS, "a")) is State.DELAYED
        assert await engine.queues.names() == [REVIEWS]
        assert (await engine.queues.options(REVIEWS)).max_attempts == 7
        clock.advance(minutes(1))
        assert len(await engine.claim(REVIEWS, worker="w", lease=seconds(1))) == 1
