"""The primary dies and a replica takes over: engines go on by themselves, tokens keep growing."""

import asyncio
import itertools

import pytest

from tests.faults.counted_load import CountedLoad, under_load
from tests.faults.moving_slot import MovingSlot, slot_of
from tests.faults.queue_contents import contents_of
from tests.faults.redis_facts import blocked_clients, count_error_replies, count_replicas_up_to_date
from tests.waiting import HANGS, eventually, eventually_async, eventually_in_loop
from towpath.clock import hours, minutes, seconds
from towpath.embedded import EmbeddedCluster, EmbeddedSentinel, EmbeddedServer
from towpath.embedded.groups import SLOTS
from towpath.engine.channel import Limits
from towpath.engine.durability import Durability
from towpath.engine.engine import Engine
from towpath.engine.model import Submitted, new_job
from towpath.engine.options import QueueOptions
from towpath.engine.states import State
from towpath.errors import (
    DurabilityNotReached,
    DurabilityUnavailable,
    ServerError,
    ServerUnreachable,
)
from towpath.ids import JobId

QUEUE = "failover"
OPTIONS = QueueOptions(keep=hours(1), keep_most=1_000_000)
LIMITS = Limits(answer=seconds(2), give_up=hours(1))
MEMORY, DISK, ONE_REPLICA = map(Durability.parse, ("memory", "disk", "replica:1"))


class TestSentinel:
    async def test_an_engine_goes_on_with_the_new_primary(self, group: EmbeddedSentinel) -> None:
        """This happens under load; the new primary knows no script, so the engine loads them."""
        old, new = group.servers
        async with Engine(group.url, limits=LIMITS) as engine:
            await engine.queues.configure(QUEUE, OPTIONS)
            load = CountedLoad(engine, QUEUE)
            async with under_load(load):
                await load.more(200)
                old.kill()
                await load.more(200)
            assert group.primary is new
            assert load.shrunk == []
            assert len(set(load.tokens)) == len(load.tokens)
            assert count_error_replies(new, "NOSCRIPT") > 0
            await contents_of(engine, QUEUE)

    async def test_tokens_grow_although_the_replica_had_lost_writes(
        self, group: EmbeddedSentinel
    ) -> None:
        old, new = group.servers
        async with Engine(group.url, limits=LIMITS) as engine:
            await engine.submit_many(QUEUE, [new_job(b"known") for _ in range(5)])
            await eventually_in_loop(lambda: count_replicas_up_to_date(old) == 1)
            cut_off(old, new)
            lost = await engine.submit_many(QUEUE, [new_job(b"lost") for _ in range(50)])
            leases = await engine.claim(QUEUE, worker="w", lease=minutes(5), count=55)
            fail_over(group)
            again = await engine.claim(QUEUE, worker="w", lease=minutes(5), count=55)
            states = {
                await engine.inspect.state(answer.job)
                for answer in lost
                if isinstance(answer, Submitted)
            }
        assert states == {State.GONE}, "nothing was lost, so nothing was tried"
        assert len(leases) == 55
        assert sorted(lease.payload for lease in again) == [b"known"] * 5
        assert min(lease.token for lease in again) > max(lease.token for lease in leases)

    async def test_submits_that_a_replica_confirmed_survive(self, group: EmbeddedSentinel) -> None:
        async with Engine(group.url, limits=LIMITS) as engine:
            await engine.queues.configure(QUEUE, OPTIONS)
            load = CountedLoad(engine, QUEUE, ONE_REPLICA)
            async with under_load(load):
                await load.more(300)
                group.primary.kill()
                acknowledged = frozenset(load.submitted)
            assert await missing(engine, acknowledged) == set()

    async def test_a_confirmation_that_the_dead_primary_owes_is_not_waited_for(
        self, group: EmbeddedSentinel
    ) -> None:
        """The new primary answers long before the call is given up, so the caller gets its error
        soon. Waiting for the dead one would last until the call is given up, which is longer than
        HANGS.
        """
        old, new = group.servers
        async with Engine(group.url, limits=LIMITS) as engine:
            await engine.queues.configure(QUEUE, OPTIONS)
            new.pause()
            submit = asyncio.create_task(engine.submit(QUEUE, b"x", durability=ONE_REPLICA))
            await eventually_in_loop(lambda: blocked_clients(old) == 1)
            fail_over(group)
            with pytest.raises((DurabilityNotReached, ServerUnreachable)):
                await asyncio.wait_for(submit, HANGS)

    async def test_another_primary_cannot_confirm_a_job_that_it_never_saw(self) -> None:
        """The primary that accepted the job dies alone with it. Either the submit fails, or the job
        exists: that the new primary's own replica is up to date does not confirm it.
        """
        with EmbeddedSentinel(replicas=2) as group:
            async with Engine(group.url, limits=LIMITS) as engine:
                await engine.queues.configure(QUEUE, OPTIONS)
                old = group.primary
                await eventually_in_loop(lambda: count_replicas_up_to_date(old) == 2)
                cut_off(old, *group.servers[1:])
                submit = asyncio.create_task(engine.submit(QUEUE, b"x", durability=ONE_REPLICA))
                await eventually_in_loop(lambda: blocked_clients(old) == 1)
                fail_over(group)
                [answer] = await asyncio.gather(submit, return_exceptions=True)
                if isinstance(answer, BaseException):
                    assert isinstance(answer, ServerError)
                else:
                    assert await engine.inspect.state(answer.job) is State.READY

    async def test_a_submit_gets_the_class_of_the_primary_that_acknowledges_it(
        self, group: EmbeddedSentinel
    ) -> None:
        """The old primary wrote everything to disk, the new one does not: a submit for that class
        is refused, and a submit without a class is accepted.
        """
        old, _ = group.servers
        writes_everything_down(old)
        async with Engine(group.url, limits=LIMITS) as engine:
            await engine.submit(QUEUE, b"x", durability=DISK)
            fail_over(group)
            with pytest.raises(DurabilityUnavailable):
                await engine.submit(QUEUE, b"lost with the server", durability=DISK)
            await engine.submit(QUEUE, b"x", durability=MEMORY)
            writes_everything_down(group.primary)
            await engine.submit(QUEUE, b"x", durability=DISK)

    async def test_submits_that_no_replica_confirmed_may_be_lost(
        self, group: EmbeddedSentinel
    ) -> None:
        """Shows that the check can fail: without the class, writes that a lagging replica never saw
        are lost.
        """
        old, new = group.servers
        async with Engine(group.url, limits=LIMITS) as engine:
            await engine.queues.configure(QUEUE, OPTIONS)
            cut_off(old, new)
            lost = [await engine.submit(QUEUE, b"x") for _ in range(5)]
            fail_over(group)
            assert await missing(engine, frozenset(job.id for job in lost)) == {
                job.id for job in lost
            }


def writes_everything_down(server: EmbeddedServer) -> None:
    server.ask("CONFIG", "SET", "appendfsync", "always")
    server.ask("CONFIG", "SET", "appendonly", "yes")


def cut_off(primary: EmbeddedServer, *replicas: EmbeddedServer) -> None:
    """Cuts replicas off: the primary drops what is on its way to them."""
    for replica in replicas:
        replica.pause()
    primary.ask("CLIENT", "KILL", "TYPE", "replica")


def fail_over(group: EmbeddedSentinel) -> None:
    """Kills the primary, wakes the replicas, and waits until one of them is the primary."""
    old, *others = group.servers
    old.kill()
    for other in others:
        other.unpause()
    eventually(lambda: group.primary in others)


async def is_answering(engine: Engine) -> bool:
    await engine.submit(QUEUE, b"again")
    return True


async def missing(engine: Engine, ids: frozenset[JobId]) -> set[JobId]:
    return set(ids - (await contents_of(engine, QUEUE)).jobs.keys())


class TestACluster:
    async def test_lets_an_engine_go_on_when_a_master_is_killed(
        self, replicated_cluster: EmbeddedCluster
    ) -> None:
        """This happens under load, with submits that a replica confirms; none of those is lost."""
        at = (
            slot_of(replicated_cluster, f"{{{QUEUE}}}:queue")
            * len(replicated_cluster.masters)
            // SLOTS
        )
        async with Engine(replicated_cluster.url, limits=LIMITS) as engine:
            await engine.queues.configure(QUEUE, OPTIONS)
            load = CountedLoad(engine, QUEUE, ONE_REPLICA)
            async with under_load(load):
                await load.more(200)
                replicated_cluster.masters[at].kill()
                acknowledged = frozenset(load.submitted)
                await eventually_async(lambda: is_answering(engine))
            assert await missing(engine, acknowledged) == set()
            await engine.submit(QUEUE, b"for the last claim")
            [last] = await engine.claim(QUEUE, worker="w", lease=minutes(5))
            assert load.shrunk == []
            assert last.token > max(load.tokens)

    async def test_loses_nothing_when_a_slot_moves_under_load(
        self, replicated_cluster: EmbeddedCluster
    ) -> None:
        """Calls between their write and its confirmation go on, and calls about other queues on the
        same nodes get no answer that was meant for another call.
        """
        async with Engine(replicated_cluster.url, limits=LIMITS) as engine:
            await engine.queues.configure(QUEUE, OPTIONS)
            load = CountedLoad(engine, QUEUE, ONE_REPLICA)
            neighbours = asyncio.create_task(keep_submitting(engine))
            async with under_load(load):
                for _ in range(4):
                    await load.more(50)
                    slot = MovingSlot(replicated_cluster, f"{{{QUEUE}}}:queue")
                    slot.begin()
                    slot.finish()
                await load.more(50)
            neighbours.cancel()
            await asyncio.gather(neighbours, return_exceptions=True)
            assert neighbours.cancelled()
            assert load.losses(await contents_of(engine, QUEUE)) == {}


async def keep_submitting(engine: Engine) -> None:
    """Submits to many queues, so that every master has some; any error ends it."""
    for number in itertools.count():
        await engine.submit(f"neighbour-{number % 30}", b"x")
