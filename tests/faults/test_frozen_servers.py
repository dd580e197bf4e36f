"""A Redis freezes (SIGSTOP): its connections stay open and nothing answers.

Killing is easier to notice: the kernel closes the connections. Nothing tells that a Redis is
frozen.
"""

import asyncio

import pytest

from tests.faults.counted_load import CountedLoad, under_load
from tests.faults.moving_slot import slot_of
from tests.faults.queue_contents import contents_of
from tests.faults.redis_facts import blocked_clients
from tests.waiting import eventually_async, eventually_in_loop
from tests.worker.in_process_worker import working
from towpath.app.app import Towpath
from towpath.clock import hours, minutes, seconds, steady
from towpath.embedded import EmbeddedCluster, EmbeddedSentinel, EmbeddedServer
from towpath.embedded.groups import SLOTS
from towpath.engine.channel import Limits
from towpath.engine.durability import Durability
from towpath.engine.engine import Engine
from towpath.engine.options import QueueOptions
from towpath.errors import ServerUnreachable

QUEUE = "frozen"
OPTIONS = QueueOptions(keep=hours(1), keep_most=1_000_000)
ONE_REPLICA = Durability.parse("replica:1")
LONG = minutes(2)
"""Longer than a test lasts: what waits for so long waits for ever."""


def master_of(cluster: EmbeddedCluster, queue: str) -> EmbeddedServer:
    slot = slot_of(cluster, f"{{{queue}}}:queue")
    return cluster.masters[slot * len(cluster.masters) // SLOTS]


async def goes_on(engine: Engine, server: EmbeddedServer) -> None:
    """Freezes *server* under load, and wakes it up when another has its place. Work goes on both
    times, and nothing that a replica had confirmed is lost.
    """
    await engine.queues.configure(QUEUE, OPTIONS)
    load = CountedLoad(engine, QUEUE, ONE_REPLICA)
    async with under_load(load):
        await load.more(1_000)
        server.pause()
        acknowledged, began = frozenset(load.submitted), steady()
        await eventually_async(lambda: is_answering(engine))
        print(f"work went on after {steady() - began:.1f} s")  # noqa: T201  a figure of the docs
        server.unpause()
        await load.more(1_000)
    assert load.shrunk == []
    assert len(set(load.tokens)) == len(load.tokens)
    assert acknowledged <= (await contents_of(engine, QUEUE)).jobs.keys()


async def is_answering(engine: Engine) -> bool:
    await engine.submit(QUEUE, b"again")
    return True


class TestASentinelPrimary:
    async def test_that_freezes_is_replaced(self, group: EmbeddedSentinel) -> None:
        old, new = group.servers
        async with Engine(group.url) as engine:
            await goes_on(engine, old)
        assert group.primary is new

    async def test_that_freezes_does_not_end_waits_for_work_and_results(
        self, group: EmbeddedSentinel
    ) -> None:
        await nobody_waits_for_ever(group.url, group.primary)


class TestAClusterMaster:
    async def test_that_freezes_is_replaced(self, replicated_cluster: EmbeddedCluster) -> None:
        async with Engine(replicated_cluster.url) as engine:
            await goes_on(engine, master_of(replicated_cluster, QUEUE))

    async def test_that_freezes_does_not_end_waits_for_work_and_results(
        self, replicated_cluster: EmbeddedCluster
    ) -> None:
        await nobody_waits_for_ever(replicated_cluster.url, master_of(replicated_cluster, QUEUE))


class TestASingleRedis:
    async def test_goes_on_where_it_was_when_it_wakes_up(self) -> None:
        """It was frozen for longer than a call waits for one answer, but not until the call was
        given up.
        """
        limits = Limits(answer=seconds(0.5), give_up=seconds(60))
        hasty = Limits(answer=seconds(0.5), give_up=seconds(1.5))
        with EmbeddedServer() as server:
            async with (
                Engine(server.url, limits=limits) as engine,
                Engine(server.url, limits=hasty) as other,
            ):
                await engine.queues.configure(QUEUE, OPTIONS)
                load = CountedLoad(engine, QUEUE)
                async with under_load(load):
                    await load.more(1_000)
                    server.pause()
                    with pytest.raises(ServerUnreachable):
                        await other.try_write()
                    server.unpause()
                    await load.more(1_000)
                assert load.losses(await contents_of(engine, QUEUE)) == {}


async def nobody_waits_for_ever(url: str, server: EmbeddedServer) -> None:
    """Runs an idle worker, its heartbeat and a caller that waits for a result, each with its own
    connection to *server*, while that freezes.
    """
    app = Towpath(url)

    @app.handler(QUEUE)
    async def sell(n: int) -> int:
        if n:
            begun.set()
            await go.wait()
        return n

    begun, go = asyncio.Event(), asyncio.Event()
    async with app, working(app, lease=seconds(4)):
        waited_for = await sell.submit(1)
        await begun.wait()
        waiting = asyncio.create_task(waited_for.result(within=LONG))
        await eventually_in_loop(
            lambda: blocked_clients(server) == 2
        )  # one waits for work, one for results
        server.pause()
        later = await sell.submit(0)
        assert await later.result(within=LONG) == 0
        go.set()
        assert await waiting == 1
