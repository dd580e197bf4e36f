"""Networks that swallow, delay, chop and reset: calls succeed, or end within their time limit."""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from tests.waiting import HANGS, eventually_async, eventually_in_loop
from towpath.clock import hours, milliseconds, minutes, seconds
from towpath.embedded import EmbeddedServer, Listen
from towpath.engine.channel import Limits
from towpath.engine.engine import Engine
from towpath.engine.model import Complete, new_job
from towpath.engine.options import QueueOptions
from towpath.engine.states import State
from towpath.errors import ServerUnreachable
from towpath.testing.proxy import Faults, Hole, Proxy

QUEUE = "network"
PATIENT = Limits(answer=milliseconds(200), give_up=seconds(HANGS))
HOLES = [Hole.REQUESTS, Hole.REPLIES]


async def connected(engine: Engine) -> None:
    """Returns when Redis has answered, even if a busy one exceeded the engine's limits at first."""

    async def answered() -> bool:
        with suppress(ServerUnreachable):
            await engine.queues.configure(QUEUE, QueueOptions())
            return True
        return False

    await eventually_async(answered)


@pytest.fixture
async def direct(server: EmbeddedServer) -> AsyncIterator[Engine]:
    """Another engine, which does not use the proxy.

    It loads the scripts, so the first lost reply is one to a call that was executed.
    """
    async with Engine(server.url) as engine:
        await engine.queues.configure(QUEUE, QueueOptions())
        await engine.submit("before", b"x")
        [lease] = await engine.claim("before", worker="w", lease=minutes(1))
        await engine.complete(lease)
        yield engine


@asynccontextmanager
async def in_hole(proxy: Proxy, hole: Hole, tries: int) -> AsyncGenerator[None]:
    """Runs the body; its calls disappear until they have been tried so often."""
    before = proxy.swallowed
    proxy.faults.hole = hole
    try:
        yield
        await eventually_in_loop(lambda: proxy.swallowed >= before + tries)
    finally:
        proxy.faults.hole = Hole.NOTHING


class TestABlackHole:
    @pytest.mark.parametrize("hole", HOLES)
    async def test_that_ends_within_the_time_limit_costs_nothing(
        self, proxy: Proxy, direct: Engine, hole: Hole
    ) -> None:
        async with Engine(proxy.url, limits=PATIENT) as engine:
            await engine.queues.configure(QUEUE, QueueOptions())
            async with in_hole(proxy, hole, 3):
                submit = asyncio.create_task(engine.submit(QUEUE, b"x"))
            assert (await submit).existed is False
            async with in_hole(proxy, hole, 3):
                claim = asyncio.create_task(engine.claim(QUEUE, worker="w", lease=minutes(1)))
            [lease] = await claim
            async with in_hole(proxy, hole, 3):
                complete = asyncio.create_task(engine.complete(lease))
            await complete
        counts = await direct.inspect.counts(QUEUE)
        assert (counts.totals["submitted"], counts.totals["completed"]) == (1, 1)
        assert counts.ready + counts.leased == 0

    @pytest.mark.parametrize("hole", HOLES)
    @pytest.mark.parametrize("answer", [300, 2000], ids=["many tries", "few tries"])
    async def test_that_lasts_ends_the_call_at_its_time_limit(
        self, proxy: Proxy, direct: Engine, hole: Hole, answer: int
    ) -> None:
        limits = Limits(answer=milliseconds(answer), give_up=seconds(3))
        async with Engine(proxy.url, limits=limits) as engine:
            await connected(engine)
            proxy.faults.hole = hole
            with pytest.raises(ServerUnreachable):
                await engine.submit(QUEUE, b"x", id="job")
            proxy.faults.hole = Hole.NOTHING
        again = await direct.submit(QUEUE, b"x", id="job")
        assert again.existed is (hole is Hole.REPLIES)
        assert (await direct.inspect.counts(QUEUE)).ready == 1

    async def test_that_lasts_ends_every_call_within_its_limit(
        self, proxy: Proxy, direct: Engine
    ) -> None:
        """Callers share the few channels of the engine: one time limit after the other would last
        longer than HANGS.
        """
        limits = Limits(answer=seconds(1), give_up=seconds(1), channels=2)
        await direct.submit_many(QUEUE, [new_job(b"x") for _ in range(80)])
        leases = await direct.claim(QUEUE, worker="w", lease=hours(1), count=80)
        async with Engine(proxy.url, limits=limits) as engine:
            await connected(engine)
            proxy.faults.hole = Hole.REQUESTS
            calls = [engine.complete(lease) for lease in leases * 10]
            async with asyncio.timeout(HANGS):
                outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert len(calls) > 2 * HANGS
            assert {type(outcome) for outcome in outcomes} == {ServerUnreachable}

    async def test_that_lasts_ends_submits_that_wait_for_their_turn(self, proxy: Proxy) -> None:
        """One submit is sent after the other, but their time limits run at the same time."""
        limits = Limits(answer=seconds(1), give_up=seconds(1))
        async with Engine(proxy.url, limits=limits) as engine:
            await connected(engine)
            proxy.faults.hole = Hole.REQUESTS
            calls = [engine.submit_many(QUEUE, [new_job(b"x")] * 400) for _ in range(400)]
            # the last one would have waited for the limits of all the others
            async with asyncio.timeout(HANGS):
                outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert len(calls) > HANGS
            assert {type(outcome) for outcome in outcomes} == {ServerUnreachable}


class TestACallWhoseReplyIsLost:
    async def test_to_submit_is_repeated_without_effect_after_the_job_is_gone(
        self, proxy: Proxy, direct: Engine
    ) -> None:
        """The job was claimed, completed and deleted while its submitter repeated the call."""
        async with Engine(proxy.url, limits=PATIENT) as engine:
            await engine.queues.configure(QUEUE, QueueOptions())
            async with in_hole(proxy, Hole.REPLIES, 1):
                submit = asyncio.create_task(engine.submit(QUEUE, b"x"))
                [lease] = await direct.claim(
                    QUEUE, worker="w", lease=minutes(1), wait=seconds(HANGS)
                )
                await direct.complete(lease)
            answer = await submit
        assert (answer.id, answer.state, answer.existed) == (lease.id, State.READY, False)
        counts = await direct.inspect.counts(QUEUE)
        assert (counts.totals["submitted"], counts.ready, counts.leased) == (1, 0, 0)

    async def test_to_complete_is_repeated_without_effect(
        self, proxy: Proxy, direct: Engine
    ) -> None:
        """The same id was submitted anew meanwhile: the repeat must not touch that job."""
        await direct.submit(QUEUE, b"x")
        async with Engine(proxy.url, limits=PATIENT) as engine:
            [lease] = await engine.claim(QUEUE, worker="w", lease=minutes(1))
            async with in_hole(proxy, Hole.REPLIES, 1):
                complete = asyncio.create_task(engine.complete(lease))
                await eventually_async(_is_gone(direct))
                await direct.submit(QUEUE, b"again", id=lease.id)
            await complete
        assert await direct.inspect.state(lease.job) is State.READY
        assert (await direct.inspect.counts(QUEUE)).totals["completed"] == 1


def _is_gone(engine: Engine) -> Callable[[], Awaitable[bool]]:
    async def gone() -> bool:
        return (await engine.inspect.counts(QUEUE)).totals["completed"] == 1

    return gone


async def drained(engine: Engine, count: int) -> None:
    """Submits, claims and completes *count* jobs, in every way there is."""
    await asyncio.gather(*(engine.submit(QUEUE, b"x" * 1000) for _ in range(count)))
    leases = await engine.claim(QUEUE, worker="w", lease=minutes(1), count=count)
    answer = await engine.exchange(
        QUEUE, [Complete(lease) for lease in leases], worker="w", lease=minutes(1), count=1
    )
    assert answer.outcomes == [State.DONE] * count
    assert answer.leases == []
    assert (await engine.inspect.counts(QUEUE)).totals["completed"] == count


class TestASlowNetwork:
    async def test_that_delivers_byte_by_byte_loses_nothing(self, proxy: Proxy) -> None:
        proxy.faults.piece = 1
        async with Engine(proxy.url) as engine:
            await drained(engine, 20)

    async def test_that_answers_after_200_ms_loses_nothing(self, proxy: Proxy) -> None:
        proxy.faults.delay = 0.2
        async with Engine(proxy.url) as engine:
            await drained(engine, 20)
        assert proxy.connections < 6, "connections were given up"


class TestADroppedConnection:
    async def test_does_not_end_a_waiting_claim(self, proxy: Proxy, direct: Engine) -> None:
        async with Engine(proxy.url) as engine:
            claim = asyncio.create_task(
                engine.claim(QUEUE, worker="w", lease=minutes(1), wait=hours(1))
            )
            for _ in range(3):
                before = proxy.connections
                await eventually_in_loop(lambda known=before: proxy.connections > known)
                await proxy.drop_all()
            await direct.submit(QUEUE, b"x")
            async with asyncio.timeout(HANGS):
                assert len(await claim) == 1

    async def test_by_reset_in_the_middle_of_replies_costs_nothing(self, seed: int) -> None:
        faults = Faults(chance=random.Random(seed), reset=True)
        with EmbeddedServer(listen=Listen.PORT) as server:
            async with (
                Proxy(server.address, faults, tcp=True) as proxy,
                Engine(proxy.url) as engine,
            ):
                await engine.queues.configure(QUEUE, QueueOptions())
                faults.cut_replies = 0.3
                for _ in range(20):
                    await engine.submit(QUEUE, b"x")
                leases = await engine.claim(QUEUE, worker="w", lease=minutes(1), count=30)
                assert len(leases) == 20
                for lease in leases:
                    await engine.complete(lease)
                counts = await engine.inspect.counts(QUEUE)
                assert (counts.totals["submitted"], counts.totals["completed"]) == (20, 20)
                assert proxy.cuts > 3
