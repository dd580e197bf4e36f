"""Fencing tokens grow with every delivery, and every digit counts."""

from typing import Literal

import pytest
from msgspec.structs import replace

from tests.queue_numbers import number
from tests.spec.deployment import Deployment
from tests.spec.jobs_in_states import LEASE, REVIEWS, claim, claim_one, leased, submit_ids
from towpath.clock import ManualClock, hours, milliseconds, seconds
from towpath.engine.engine import Engine
from towpath.engine.keys import keys_of
from towpath.engine.model import (
    Bury,
    Call,
    Complete,
    Fail,
    Lease,
    Release,
    Renew,
    Settlement,
    new_job,
)
from towpath.engine.states import State
from towpath.errors import LeaseLost
from towpath.ids import QueueName, Token


def off_by_one(lease: Lease, step: int) -> Lease:
    return replace(lease, token=Token(lease.token + step))


class TestATokenThatDiffersInItsLastDigit:
    """Lua's tostring keeps only 14 digits; a token has 16."""

    @pytest.mark.parametrize("step", [-1, 1])
    async def test_settles_nothing(self, engine: Engine, deployment: Deployment, step: int) -> None:
        lease = await leased(engine)
        wrong = off_by_one(lease, step)
        before = deployment.dump()
        settlements: list[Settlement] = [
            Complete(wrong),
            Fail(wrong, "503"),
            Bury(wrong, "broken"),
            Release(wrong),
            Renew(wrong, LEASE),
        ]
        for outcome in await engine.settle(settlements):
            assert isinstance(outcome, LeaseLost)
            assert (outcome.held, outcome.current) == (wrong.token, lease.token)
        with pytest.raises(LeaseLost):
            await engine.progress(wrong, b"50 %")
        assert deployment.dump() == before
        await engine.complete(lease)

    async def test_settles_only_the_job_that_it_belongs_to(self, engine: Engine) -> None:
        """The clock stands still: the tokens of two jobs in one claim differ by one."""
        await submit_ids(engine, "a", "b")
        one, two = await claim(engine, 2)
        assert two.token == one.token + 1
        with pytest.raises(LeaseLost):
            await engine.complete(replace(one, token=two.token))
        with pytest.raises(LeaseLost):
            await engine.complete(replace(two, token=one.token))


class TestATokenIsExact:
    async def test_in_every_answer(self, engine: Engine, deployment: Deployment) -> None:
        await engine.submit_many(REVIEWS, [new_job(b"") for _ in range(30)])
        leases = await claim(engine, 30)
        first = leases[0].token
        assert len(str(first)) == 16
        assert [lease.token for lease in leases] == list(range(first, first + 30))
        for lease in leases:
            assert (await engine.inspect.job(lease.job)).token == lease.token
            lock = deployment.ask("GET", keys_of(QueueName(REVIEWS)).lock(lease.id))
            assert lock == f"anna {lease.token}".encode()

    async def test_in_a_repeated_claim(self, engine: Engine) -> None:
        await engine.submit_many(REVIEWS, [new_job(b"") for _ in range(30)])
        call = Call("client-7", 1)

        async def tokens() -> list[int]:
            leases = await engine.claim(REVIEWS, worker="anna", lease=LEASE, count=30, call=call)
            return [lease.token for lease in leases]

        assert await tokens() == await tokens()

    async def test_in_an_error(self, engine: Engine) -> None:
        stale = await leased(engine)
        await engine.release(stale)
        current = await claim_one(engine)
        with pytest.raises(LeaseLost) as refusal:
            await engine.complete(stale)
        assert refusal.value.current == current.token == stale.token + 1


class TestTokensGrow:
    async def test_with_every_delivery_of_a_job(self, engine: Engine, clock: ManualClock) -> None:
        await submit_ids(engine, "a")
        tokens: list[int] = []
        for _ in range(3):
            lease = await claim_one(engine)
            tokens.append(lease.token)
            await engine.release(lease)
        await claim_one(engine)
        clock.advance(LEASE)
        tokens.append((await claim_one(engine)).token)
        assert sorted(set(tokens)) == tokens

    async def test_with_the_clock(self, engine: Engine, clock: ManualClock) -> None:
        """A token is at least the time in µs, so it grows after a fail-over too."""
        lease = await leased(engine)
        assert lease.token >= int(clock.stamp()) * 1000
        await engine.release(lease)
        clock.advance(seconds(1))
        assert (await claim_one(engine)).token >= int(clock.stamp()) * 1000

    async def test_when_the_clock_is_set_back(
        self, engine: Engine, deployment: Deployment, clock: ManualClock
    ) -> None:
        lease = await leased(engine)
        await engine.release(lease)
        async with Engine(deployment.url, clock=ManualClock(clock.now - hours(1))) as behind:
            assert (await claim_one(behind)).token > lease.token

    async def test_when_redis_lost_everything(
        self, engine: Engine, deployment: Deployment, clock: ManualClock
    ) -> None:
        old = await leased(engine)
        deployment.flush()
        clock.advance(milliseconds(1))
        new = await leased(engine)
        assert new.token > old.token
        with pytest.raises(LeaseLost):
            await engine.complete(old)
        assert await engine.inspect.state(new.job) is State.LEASED


Ahead = Literal["an hour ahead", "with the clock"]


class TestATokenAheadOfTheClock:
    """Tokens are ahead when the clock was set back, or when the rows of a ledger are ahead."""

    @pytest.fixture(params=["an hour ahead", "with the clock"])
    async def ahead(
        self, request: pytest.FixtureRequest, engine: Engine, clock: ManualClock
    ) -> Ahead:
        if request.param == "an hour ahead":
            await engine.queues.incarnation(REVIEWS, floor=(int(clock.stamp()) + 3_600_000) * 1000)
        return request.param

    async def test_does_not_change_the_times_in_a_claim(
        self, engine: Engine, clock: ManualClock, ahead: Ahead
    ) -> None:
        await submit_ids(engine, "a", "b")
        [lease, other] = await claim(engine, 2)
        hour_ahead = lease.token > (int(clock.stamp()) + 3_600_000) * 1000
        assert hour_ahead is (ahead == "an hour ahead")
        for claimed in (lease, other):
            assert (
                claimed.claimed_at
                == (await engine.inspect.job(claimed.job)).claimed_at
                == clock.now
            )
            assert claimed.expires_at - claimed.claimed_at == LEASE

    async def test_does_not_keep_a_job_from_being_plain_again_later(
        self, engine: Engine, clock: ManualClock, ahead: Ahead
    ) -> None:
        job = (await engine.submit(REVIEWS, b"x")).job
        await engine.release(await claim_one(engine))
        clock.advance(hours(2))
        assert (await claim_one(engine)).claimed_at == clock.now
        assert (await engine.inspect.job(job)).claimed_at == clock.now

    async def test_does_not_change_the_times_in_a_repeated_claim(
        self, engine: Engine, clock: ManualClock, ahead: Ahead
    ) -> None:
        await submit_ids(engine, "a", "b")
        call, at = Call("client-7", 1), clock.now
        first = await engine.claim(REVIEWS, worker="anna", lease=LEASE, count=2, call=call)
        clock.advance(seconds(1))
        again = await engine.claim(REVIEWS, worker="anna", lease=LEASE, count=2, call=call)
        assert again == first
        assert [lease.claimed_at for lease in again] == [at, at]

    async def test_does_not_change_the_measured_service_time(
        self, engine: Engine, deployment: Deployment, clock: ManualClock, ahead: Ahead
    ) -> None:
        await submit_ids(engine, "a")
        lease = await claim_one(engine)
        clock.advance(seconds(2))
        await engine.complete(lease)
        learnt = number(deployment.ask, keys_of(QueueName(REVIEWS)).meta, "service_ms")
        assert learnt == 2000

    async def test_does_not_change_the_times_in_a_later_claim(
        self, engine: Engine, clock: ManualClock, ahead: Ahead
    ) -> None:
        lease = await leased(engine)
        await engine.release(lease)
        clock.advance(hours(2))
        again = await claim_one(engine)
        assert again.token > lease.token
        assert again.claimed_at == (await engine.inspect.job(again.job)).claimed_at == clock.now
