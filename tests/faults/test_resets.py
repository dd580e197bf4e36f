"""Connections that are reset (RST) count as lost connections, whatever error the event loop raises.

asyncio reports a write on such a connection by a ConnectionResetError, since Python 3.12 also by an
AttributeError; uvloop by a RuntimeError.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from tests.faults.counted_load import CountedLoad, under_load
from tests.faults.queue_contents import contents_of
from tests.faults.redis_facts import blocked_clients
from tests.waiting import eventually_in_loop
from towpath.clock import hours, minutes, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.channel import Limits
from towpath.engine.engine import Engine
from towpath.engine.options import QueueOptions
from towpath.engine.states import State
from towpath.testing.proxy import Faults, Proxy

QUEUE = "resets"
OPTIONS = QueueOptions(keep=hours(1), keep_most=1_000_000)
LIMITS = Limits(answer=seconds(2), give_up=seconds(60))

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a test's body in one kind of event loop."""

    def run(body: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(body)

    return run


@asynccontextmanager
async def resetting(server: EmbeddedServer) -> AsyncGenerator[tuple[Proxy, Engine]]:
    async with (
        Proxy(server.address, Faults(reset=True), tcp=True) as proxy,
        Engine(proxy.url, limits=LIMITS) as engine,
    ):
        await engine.queues.configure(QUEUE, OPTIONS)
        yield proxy, engine


class TestResetConnections:
    def test_cost_a_caller_nothing(self, server: EmbeddedServer, run: Run) -> None:
        async def body() -> None:
            async with resetting(server) as (proxy, engine):
                for _ in range(10):
                    job = await engine.submit(QUEUE, b"x")
                    await proxy.drop_all()
                    assert (await engine.inspect.job(job.job)).state is State.READY
                    await proxy.drop_all()
                    [lease] = await engine.claim(QUEUE, worker="w", lease=minutes(1))
                    await proxy.drop_all()
                    await engine.complete(lease)
                    await proxy.drop_all()
                    await engine.try_write()
                assert (await engine.inspect.counts(QUEUE)).totals["completed"] == 10

        run(body())

    def test_under_load_lose_no_job(self, server: EmbeddedServer, run: Run) -> None:
        async def body() -> None:
            async with resetting(server) as (proxy, engine):
                load = CountedLoad(engine, QUEUE)
                async with under_load(load):
                    for _ in range(10):
                        await load.more(200)
                        await proxy.drop_all()
                    await load.more(200)
                assert load.losses(await contents_of(engine, QUEUE)) == {}

        run(body())

    def test_do_not_end_waiting_claims_and_waits(self, run: Run) -> None:
        """Waits for work and waits for a result each have a connection of their own."""

        # Blocked clients are counted, so nobody else may use this Redis: it is the test's own.
        async def body(server: EmbeddedServer) -> None:
            async with resetting(server) as (proxy, engine):
                job = (await engine.submit(QUEUE, b"x", delay=hours(1))).job
                ended = asyncio.create_task(engine.events.ended(job, within=hours(1)))
                claim = asyncio.create_task(
                    engine.claim(QUEUE, worker="w", lease=minutes(1), wait=hours(1))
                )
                for _ in range(5):
                    await eventually_in_loop(lambda: blocked_clients(server) == 2)
                    await proxy.drop_all()
                await engine.submit(QUEUE, b"y")
                assert [lease.payload for lease in await claim] == [b"y"]
                await engine.cancel(job)
                assert (await ended).state is State.CANCELLED

        with EmbeddedServer() as own:
            run(body(own))
