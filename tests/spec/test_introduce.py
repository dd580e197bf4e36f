"""Introducing a queue: its options are set unless somebody chose others, and held leases are
remembered.
"""

import asyncio

from tests.spec.jobs_in_states import REVIEWS, submit_ids
from towpath.clock import ManualClock, hours, seconds
from towpath.engine.engine import Engine
from towpath.engine.leases import HeldLeases, lease_by_token
from towpath.engine.options import QueueOptions

BROUGHT = QueueOptions(keep=hours(1), events_most=100)
CHOSEN = QueueOptions(keep=hours(2), max_attempts=3)


class TestIntroducing:
    async def test_gives_a_new_queue_its_options(self, engine: Engine) -> None:
        assert await engine.queues.introduce(REVIEWS, BROUGHT) == BROUGHT
        assert await engine.queues.options(REVIEWS) == BROUGHT

    async def test_keeps_options_that_were_chosen(
        self, engine: Engine, other_engine: Engine
    ) -> None:
        """Each option is treated by itself: where nobody chose a value, the introduced one takes
        effect.
        """
        await other_engine.queues.configure(REVIEWS, CHOSEN)
        both = QueueOptions(keep=hours(2), max_attempts=3, events_most=100)
        assert await engine.queues.introduce(REVIEWS, BROUGHT) == both
        assert await engine.queues.options(REVIEWS) == both

    async def test_replaces_options_that_are_still_the_defaults(
        self, engine: Engine, other_engine: Engine
    ) -> None:
        """Another program used the queue before the one that introduces it."""
        await submit_ids(other_engine, "a")
        assert await engine.queues.introduce(REVIEWS, BROUGHT) == BROUGHT
        assert await other_engine.queues.options(REVIEWS) == BROUGHT

    async def test_takes_effect_once(self, engine: Engine, other_engine: Engine) -> None:
        """Later changes by an operator stay."""
        await engine.queues.introduce(REVIEWS, BROUGHT)
        await other_engine.queues.reconfigure(REVIEWS, QueueOptions())
        await engine.queues.introduce(REVIEWS, BROUGHT)
        assert await engine.queues.options(REVIEWS) == QueueOptions()

    async def test_may_happen_in_many_processes_at_once(
        self, engine: Engine, other_engine: Engine
    ) -> None:
        calls = [each.queues.introduce(REVIEWS, BROUGHT) for each in (engine, other_engine) * 10]
        assert await asyncio.gather(*calls) == [BROUGHT] * 20


class TestHeldLeases:
    async def test_are_found_by_job_until_they_are_settled(self, engine: Engine) -> None:
        await submit_ids(engine, "a", "b")
        held = HeldLeases(seconds(30))
        for lease in await engine.claim(REVIEWS, worker="w", lease=seconds(30), count=2):
            held.hold(lease)
        found = held.get("a")
        assert found is not None
        await engine.complete(found)
        held.settled("a")
        assert held.get("a") is None
        assert held.get("b") is not None

    async def test_that_nobody_settles_do_not_pile_up(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        held = HeldLeases(seconds(30))
        for n in range(10):
            await submit_ids(engine, f"job{n}")
            [lease] = await engine.claim(REVIEWS, worker="w", lease=seconds(30))
            held.hold(lease)
            # settled by another process, of which this engine does not know
            await engine.complete(lease)
            clock.advance(seconds(30))
        assert len(held) <= 3

    async def test_can_be_identified_by_their_token_alone(self, engine: Engine) -> None:
        await submit_ids(engine, "a")
        [lease] = await engine.claim(REVIEWS, worker="w", lease=seconds(30))
        named = lease_by_token(lease.job, lease.token, worker="elsewhere")
        renewed = await engine.renew(named, seconds(60))
        await engine.complete(renewed, b"done")
        assert (await engine.inspect.counts(REVIEWS)).leased == 0
