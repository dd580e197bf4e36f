"""incarnation: tells whether the data of a queue was lost, and from which floor its tokens grow."""

from tests.spec.deployment import Deployment
from towpath.clock import ManualClock, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.engine.model import new_job

REVIEWS = "reviews"


class TestTheLifeOfAQueue:
    async def test_has_one_name_for_all_engines(self, engine: Engine, other_engine: Engine) -> None:
        life = await engine.queues.incarnation(REVIEWS)
        await engine.submit(REVIEWS, b"")
        assert await other_engine.queues.incarnation(REVIEWS) == life
        assert await other_engine.queues.incarnation("others") != life

    async def test_has_another_name_after_its_data_was_lost(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        life = await engine.queues.incarnation(REVIEWS)
        deployment.flush()
        # Also after other engines have used the queue since.
        await engine.submit(REVIEWS, b"")
        assert await engine.queues.incarnation(REVIEWS) != life

    async def test_has_another_name_after_redis_was_restarted(self) -> None:
        """The last writes may be lost, even if the rest is there."""
        with EmbeddedServer() as server:
            async with Engine(server.url) as engine:
                life = await engine.queues.incarnation(REVIEWS)
                server.kill()
                server.start()
                assert await engine.queues.incarnation(REVIEWS) != life


class TestTheFloorOfTokens:
    async def test_is_below_all_later_tokens(self, engine: Engine, clock: ManualClock) -> None:
        floor = (int(clock.stamp()) + 3_600_000) * 1000 + 1
        await engine.queues.incarnation(REVIEWS, floor=floor)
        await engine.submit(REVIEWS, b"")
        [lease] = await engine.claim(REVIEWS, worker="w", lease=seconds(30))
        assert lease.token > floor

    async def test_never_goes_down(self, engine: Engine) -> None:
        await engine.submit(REVIEWS, b"")
        [lease] = await engine.claim(REVIEWS, worker="w", lease=seconds(30))
        await engine.queues.incarnation(REVIEWS, floor=1)
        await engine.release(lease)
        [again] = await engine.claim(REVIEWS, worker="w", lease=seconds(30))
        assert again.token > lease.token

    async def test_stays_where_tokens_are_above_it_already(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.submit_many(REVIEWS, [new_job(b"") for _ in range(4)])
        last = int(clock.stamp()) * 1000
        for _ in range(4):
            await engine.queues.incarnation(REVIEWS, floor=last - 1)
            [lease] = await engine.claim(REVIEWS, worker="w", lease=seconds(30))
            assert last <= lease.token < last + 10
            last = lease.token

    async def test_is_the_last_token_while_a_job_is_leased(self, engine: Engine) -> None:
        """Nothing was lost: a ledger looks while somebody works."""
        await engine.submit_many(REVIEWS, [new_job(b"") for _ in range(4)])
        tokens: list[int] = []
        for _ in range(4):
            [lease] = await engine.claim(REVIEWS, worker="w", lease=seconds(30))
            tokens.append(lease.token)
            await engine.queues.incarnation(REVIEWS, floor=lease.token)
        assert tokens == [tokens[0] + n for n in range(4)]

    async def test_rises_above_a_lost_token(self, engine: Engine, clock: ManualClock) -> None:
        """The next token would be this very one: the clock stands still."""
        floor = int(clock.stamp()) * 1000
        await engine.queues.incarnation(REVIEWS, floor=floor)
        await engine.submit(REVIEWS, b"")
        [lease] = await engine.claim(REVIEWS, worker="w", lease=seconds(30))
        assert lease.token > floor

    async def test_rises_once_however_many_processes_ask(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.submit(REVIEWS, b"")
        floor = (int(clock.stamp()) + 3_600_000) * 1000
        for _ in range(50):
            await engine.queues.incarnation(REVIEWS, floor=floor)
        [lease] = await engine.claim(REVIEWS, worker="w", lease=seconds(30))
        assert floor < lease.token < floor + 61_000_000
