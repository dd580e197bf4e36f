"""anchor: has the data of a queue been lost, and from where on do tokens grow."""

from tests.spec.deployment import Deployment
from towpath.clock import ManualClock, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.engine.model import new_job

REVIEWS = "reviews"


class TestTheLifeOfAQueue:
    async def test_has_one_name_for_everybody(self, engine: Engine, other_engine: Engine) -> None:
        life = await engine.queues.anchor(REVIEWS)
        await engine.submit(REVIEWS, b"")
        assert await other_engine.queues.anchor(REVIEWS) == life
        assert await other_engine.queues.anchor("others") != life

    async def test_is_another_one_after_the_data_was_lost(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        life = await engine.queues.anchor(REVIEWS)
        deployment.flush()
        # Also when others have used it since.
        await engine.submit(REVIEWS, b"")
        assert await engine.queues.anchor(REVIEWS) != life

    async def test_is_another_one_after_its_server_was_started_again(self) -> None:
        """What was written last may be lost, even if the rest is there."""
        with EmbeddedServer() as server:
            async with Engine(server.url) as engine:
                life = await engine.queues.anchor(REVIEWS)
                server.kill()
                server.start()
                assert await engine.queues.anchor(REVIEWS) != life


class TestTheFloor:
    async def test_is_below_all_tokens_to_come(self, engine: Engine, clock: ManualClock) -> None:
        floor = (int(clock.stamp()) + 3_600_000) * 1000 + 1
        await engine.queues.anchor(REVIEWS, floor=floor)
        await engine.submit(REVIEWS, b"")
        [lease] = await engine.claim(REVIEWS, worker="w", lease=seconds(30))
        assert lease.token > floor

    async def test_never_goes_down(self, engine: Engine) -> None:
        await engine.submit(REVIEWS, b"")
        [lease] = await engine.claim(REVIEWS, worker="w", lease=seconds(30))
        await engine.queues.anchor(REVIEWS, floor=1)
        await engine.release(lease)
        [again] = await engine.claim(REVIEWS, worker="w", lease=seconds(30))
        assert again.token > lease.token

    async def test_rises_only_where_it_has_to(self, engine: Engine, clock: ManualClock) -> None:
        """Tokens that are above it by themselves stay as they are, however often they are asked."""
        await engine.submit_many(REVIEWS, [new_job(b"") for _ in range(4)])
        last = int(clock.stamp()) * 1000
        for _ in range(4):
            await engine.queues.anchor(REVIEWS, floor=last - 1)
            [lease] = await engine.claim(REVIEWS, worker="w", lease=seconds(30))
            assert last <= lease.token < last + 10
            last = lease.token

    async def test_is_the_last_token_where_a_job_is_leased(self, engine: Engine) -> None:
        """As in a ledger that is looked through while somebody works: nothing was lost."""
        await engine.submit_many(REVIEWS, [new_job(b"") for _ in range(4)])
        tokens: list[int] = []
        for _ in range(4):
            [lease] = await engine.claim(REVIEWS, worker="w", lease=seconds(30))
            tokens.append(lease.token)
            await engine.queues.anchor(REVIEWS, floor=lease.token)
        assert tokens == [tokens[0] + n for n in range(4)]

    async def test_rises_above_a_token_that_was_never_given(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        """The next one would be this very one: the clock stands where it was given."""
        floor = int(clock.stamp()) * 1000
        await engine.queues.anchor(REVIEWS, floor=floor)
        await engine.submit(REVIEWS, b"")
        [lease] = await engine.claim(REVIEWS, worker="w", lease=seconds(30))
        assert lease.token > floor

    async def test_rises_once_however_many_ask(self, engine: Engine, clock: ManualClock) -> None:
        await engine.submit(REVIEWS, b"")
        floor = (int(clock.stamp()) + 3_600_000) * 1000
        for _ in range(50):
            await engine.queues.anchor(REVIEWS, floor=floor)
        [lease] = await engine.claim(REVIEWS, worker="w", lease=seconds(30))
        assert floor < lease.token < floor + 61_000_000
