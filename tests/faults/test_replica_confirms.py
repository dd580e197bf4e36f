"""Submits that wait for a replica, and Redis nodes that are replicas for a while."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from tests.faults.redis_facts import count_error_replies, count_replicas_up_to_date
from tests.waiting import HANGS, eventually_async, eventually_in_loop
from towpath.clock import hours, minutes, seconds
from towpath.embedded import EmbeddedServer, Listen
from towpath.engine.channel import Limits
from towpath.engine.durability import Durability
from towpath.engine.engine import Engine
from towpath.engine.keys import TYPES
from towpath.errors import DurabilityNotReached

QUEUE = "confirms"
ONE_REPLICA = Durability.parse("replica:1")
QUICK = {"repl-diskless-sync-delay": "0"}


@pytest.fixture
async def primary() -> AsyncIterator[EmbeddedServer]:
    with EmbeddedServer(listen=Listen.PORT, options=QUICK) as server:
        yield server


@pytest.fixture
async def replica(primary: EmbeddedServer) -> AsyncIterator[EmbeddedServer]:
    follow = QUICK | {"replicaof": f"127.0.0.1 {primary.port}"}
    with EmbeddedServer(listen=Listen.PORT, options=follow) as server:
        await eventually_in_loop(lambda: count_replicas_up_to_date(primary) == 1)
        yield server
        if server.running:
            server.unpause()


async def test_a_confirmed_submit_leaves_no_key_of_the_queue_to_expire(
    primary: EmbeddedServer, replica: EmbeddedServer
) -> None:
    """The data of the queue itself must outlast any pause between submits."""
    async with Engine(primary.tcp_url) as engine:
        await engine.submit(QUEUE, b"x", durability=ONE_REPLICA)
        # The history is for people, and expires a month after the last job.
        names = [f"{{{QUEUE}}}:{name}" for name in TYPES if name != "history"]
        expiring = [name for name in names if primary.ask("PTTL", name) not in (-1, -2)]
    assert expiring == []


async def test_a_frozen_replica_confirms_nothing(
    primary: EmbeddedServer, replica: EmbeddedServer
) -> None:
    """The error comes in time; the job exists, and a repeated submit adds nothing."""
    limits = Limits(answer=seconds(3), give_up=hours(1))
    async with Engine(primary.tcp_url, limits=limits) as engine:
        replica.pause()
        async with asyncio.timeout(HANGS):
            with pytest.raises(DurabilityNotReached):
                await engine.submit(QUEUE, b"x", id="job", durability=ONE_REPLICA)
        replica.unpause()

        async def confirmed() -> bool:
            with suppress(DurabilityNotReached):
                again = await engine.submit(QUEUE, b"x", id="job", durability=ONE_REPLICA)
                return again.existed
            return False

        await eventually_async(confirmed)
        assert (await engine.inspect.counts(QUEUE)).ready == 1


async def test_a_node_that_is_a_replica_for_a_while_is_waited_for(
    primary: EmbeddedServer, replica: EmbeddedServer
) -> None:
    """This is how a fail-over behind a fixed name looks: a replica, which is promoted soon."""
    async with Engine(primary.tcp_url) as engine:
        await engine.submit(QUEUE, b"x")
        await eventually_in_loop(lambda: count_replicas_up_to_date(primary) == 1)
    async with Engine(replica.tcp_url) as engine:
        claim = asyncio.create_task(engine.claim(QUEUE, worker="w", lease=minutes(1)))
        await eventually_in_loop(
            lambda: count_error_replies(replica, "READONLY") > 0 or claim.done()
        )
        assert not claim.done(), claim.exception()
        replica.ask("REPLICAOF", "NO", "ONE")
        assert len(await claim) == 1
