"""Leases that end while Redis is away do not count against their jobs."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.waiting import HANGS, eventually_async
from tests.worker.in_process_worker import SOON, working
from towpath.app.app import Towpath
from towpath.clock import minutes, seconds, steady
from towpath.embedded import EmbeddedServer
from towpath.engine.channel import Limits
from towpath.engine.engine import Engine
from towpath.engine.model import Lease
from towpath.engine.options import QueueOptions
from towpath.engine.states import State
from towpath.errors import ServerUnreachable
from towpath.ledger.ledger import Ledger
from towpath.worker.context import Context

QUEUE = "mails"
LEASE = seconds(1)
OUTAGE_S = 4.0
"""Longer than the lease, and than the silence that counts as an outage."""
QUICK = Limits(answer=seconds(0.3), give_up=seconds(0.6))


@pytest.fixture
async def engine(server: EmbeddedServer) -> AsyncIterator[Engine]:
    async with Engine(server.url, limits=QUICK) as engine:
        yield engine


async def claimed(engine: Engine) -> Lease:
    """The only job of the queue, as soon as it can be claimed."""
    found: list[Lease] = []

    async def is_claimed() -> bool:
        try:
            found.extend(await engine.claim(QUEUE, worker="w", lease=LEASE))
        except ServerUnreachable:
            return False
        return bool(found)

    await eventually_async(is_claimed)
    return found[0]


async def freeze_for(server: EmbeddedServer, engine: Engine) -> None:
    """Freezes Redis until the lease is over and *engine* has noticed the outage."""
    began = steady()
    server.pause()
    try:

        async def is_over() -> bool:
            with pytest.raises(ServerUnreachable):
                await engine.inspect.counts(QUEUE)
            return steady() - began > OUTAGE_S

        await eventually_async(is_over)
    finally:
        server.unpause()


async def test_a_lease_that_ended_in_an_outage_costs_no_attempt(
    server: EmbeddedServer, engine: Engine
) -> None:
    await engine.queues.configure(QUEUE, QueueOptions(max_attempts=1))
    await engine.submit(QUEUE, b"")
    first = await claimed(engine)
    await freeze_for(server, engine)
    again = await claimed(engine)
    assert again.token > first.token
    assert (again.attempt, again.deaths) == (1, 0)


async def test_a_call_that_was_under_way_when_redis_froze_costs_no_attempt(
    server: EmbeddedServer, engine: Engine
) -> None:
    """It reaches Redis before any process has noticed the outage."""
    patient = Limits(answer=minutes(1), give_up=minutes(2))
    async with Engine(server.url, limits=patient) as other:
        await other.queues.configure(QUEUE, QueueOptions(max_attempts=1))
        await other.submit(QUEUE, b"")
        await claimed(other)
        freezing = asyncio.create_task(freeze_for(server, engine))
        await asyncio.sleep(0)  # Redis is frozen now
        [again] = await asyncio.wait_for(other.claim(QUEUE, worker="w", lease=LEASE), HANGS)
        await freezing
    assert (again.attempt, again.deaths) == (1, 0)


async def claimed_after_a_death(engine: Engine) -> Lease:
    """Claims the job again after its lease has ended. If the machine stood still meanwhile, that
    looked like an outage, and this tries once more.
    """
    for _ in range(10):
        if (lease := await claimed(engine)).deaths:
            return lease
    raise AssertionError("no death was counted")


async def test_a_lease_that_ends_without_an_outage_counts_as_a_death(engine: Engine) -> None:
    await engine.submit(QUEUE, b"")
    await claimed(engine)
    again = await claimed_after_a_death(engine)
    assert (again.attempt, again.deaths) == (2, 1)


async def test_a_lease_that_ends_after_an_outage_counts_as_a_death(
    server: EmbeddedServer, engine: Engine
) -> None:
    await engine.submit(QUEUE, b"")
    await freeze_for(server, engine)
    await claimed(engine)
    again = await claimed_after_a_death(engine)
    assert (again.attempt, again.deaths) == (2, 1)


@pytest.mark.parametrize("record", [False, True])
async def test_a_worker_keeps_the_only_attempt_of_its_job(
    server: EmbeddedServer, engine: Engine, ledger: Ledger, *, record: bool
) -> None:
    """The handler runs through the outage. Its job may be delivered again, and is not dead."""
    app = Towpath(server.url, ledger=ledger, limits=QUICK)
    attempts: list[int] = []
    released = asyncio.Event()

    @app.handler(QUEUE, record=record, max_attempts=1)
    async def send(_: int, ctx: Context) -> int:
        attempts.append(ctx.attempt)
        await released.wait()
        return 7

    async with app:
        job = await send.submit(1)
        async with working(app, lease=LEASE):

            async def has_begun() -> bool:
                return bool(attempts)

            await eventually_async(has_begun)
            await freeze_for(server, engine)
            released.set()
            assert await job.result(within=SOON) == 7
        assert await job.state() is State.DONE
    assert set(attempts) == {1}
