"""A claim whose caller is cancelled releases the jobs that it had claimed."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.waiting import eventually_async
from towpath.clock import hours, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.engine.model import Call, Lease, new_job
from towpath.testing.proxy import Faults, Hole, Proxy

QUEUE = "reviews"


async def claim(engine: Engine, call: Call | None = None) -> list[Lease]:
    return await engine.claim(QUEUE, worker="w", lease=hours(1), count=2, call=call)


async def claim_waiting(engine: Engine, call: Call | None = None) -> list[Lease]:
    return await engine.claim(
        QUEUE, worker="w", lease=hours(1), count=2, wait=seconds(60), call=call
    )


async def exchange(engine: Engine, call: Call | None = None) -> list[Lease]:
    found = await engine.exchange(QUEUE, [], worker="w", lease=hours(1), count=2, call=call)
    return found.leases


ClaimCall = Callable[[Engine, Call | None], Awaitable[list[Lease]]]
WAYS = pytest.mark.parametrize("way", [claim, claim_waiting, exchange])


async def cancelled(
    server: EmbeddedServer, way: ClaimCall, call: Call | None, engine: Engine
) -> Engine:
    """Claims over a connection that loses the answer, and cancels the claim meanwhile."""
    async with Proxy(server.address, Faults()) as proxy, Engine(proxy.url) as away:
        # the engine is connected, and Redis knows the scripts
        assert await claim(away) == await exchange(away) == []
        await engine.submit_many(QUEUE, [new_job(b"") for _ in range(2)])
        proxy.faults.hole = Hole.REPLIES
        claiming = asyncio.ensure_future(way(away, call))
        await eventually_async(_leased(engine, 2))
        claiming.cancel()
        await asyncio.wait((claiming,))
        assert claiming.cancelled()
        proxy.faults.hole = Hole.NOTHING
        await proxy.drop_all()
        if call is None:
            await eventually_async(_leased(engine, 0))
    return engine


@WAYS
async def test_jobs_of_a_cancelled_claim_are_there_for_other_workers(
    server: EmbeddedServer, way: ClaimCall
) -> None:
    async with Engine(server.url) as engine:
        await cancelled(server, way, None, engine)
        assert [lease.attempt for lease in await claim(engine)] == [1, 1]


async def test_a_cancelled_claim_with_a_call_number_can_be_repeated(server: EmbeddedServer) -> None:
    async with Engine(server.url) as engine:
        call = Call("client-7", 1)
        await cancelled(server, claim, call, engine)
        assert len(await claim(engine, call)) == 2


def _leased(engine: Engine, count: int) -> Callable[[], Awaitable[bool]]:
    async def so() -> bool:
        return (await engine.inspect.counts(QUEUE)).leased == count

    return so
