"""A Redis that forgets: its scripts, everything, or both. Engines load the scripts again."""

import asyncio
import random

from tests.faults.counted_load import CountedLoad, under_load
from tests.faults.queue_contents import contents_of
from tests.faults.redis_facts import blocked_clients
from tests.waiting import HANGS, eventually_in_loop
from towpath.clock import hours, minutes
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.engine.model import Complete, new_job
from towpath.engine.options import QueueOptions
from towpath.engine.states import State
from towpath.errors import JobNotFound

QUEUE = "flush"
OPTIONS = QueueOptions(keep=hours(1), max_attempts=17)


class TestScriptFlush:
    async def test_at_any_moment_costs_nothing(self, server: EmbeddedServer, seed: int) -> None:
        chance = random.Random(seed)
        async with Engine(server.url) as engine:
            await engine.queues.configure(QUEUE, OPTIONS)
            load = CountedLoad(engine, QUEUE)
            async with under_load(load):
                for _ in range(30):
                    await load.more(chance.randrange(1, 10))
                    server.ask("SCRIPT", "FLUSH")
            found = await contents_of(engine, QUEUE)
        assert load.losses(found) == {}
        assert found.counts.totals["submitted"] == len(load.submitted)
        assert found.counts.totals["completed"] == len(load.completed)


class TestFlushAll:
    async def test_under_a_running_engine_leaves_an_empty_queue_with_its_options(
        self, server: EmbeddedServer
    ) -> None:
        async with Engine(server.url) as engine:
            await engine.queues.configure(QUEUE, OPTIONS)
            await engine.submit_many(QUEUE, [new_job(b"lost") for _ in range(5)])
            server.ask("FLUSHALL")
            assert await engine.claim(QUEUE, worker="w", lease=minutes(1)) == []
            await engine.submit(QUEUE, b"new")
            [lease] = await engine.claim(QUEUE, worker="w", lease=minutes(1))
            assert lease.payload == b"new"
            async with Engine(server.url) as other:
                assert await other.queues.options(QUEUE) == OPTIONS
                assert list(await other.queues.list()) == [QUEUE]

    async def test_removes_leases(self, server: EmbeddedServer) -> None:
        """A worker's completion then finds no job, and the same id can be submitted anew."""
        async with Engine(server.url) as engine:
            await engine.submit(QUEUE, b"x", id="job")
            [lease] = await engine.claim(QUEUE, worker="w", lease=minutes(1))
            server.ask("FLUSHALL")
            [outcome] = await engine.settle([Complete(lease)])
            assert isinstance(outcome, JobNotFound)
            assert (await engine.submit(QUEUE, b"x", id="job")).existed is False
            [again] = await engine.claim(QUEUE, worker="w", lease=minutes(1))
            assert again.token > lease.token

    async def test_under_load_fails_no_later_call(self, server: EmbeddedServer) -> None:
        """Jobs are lost, as documented, but every call after it works."""
        async with Engine(server.url) as engine:
            await engine.queues.configure(QUEUE, OPTIONS)
            load = CountedLoad(engine, QUEUE)
            async with under_load(load):
                for _ in range(10):
                    await load.more(20)
                    server.ask("FLUSHALL")
                    server.ask("SCRIPT", "FLUSH")
                await load.more(20)
            assert len(load.tokens) == len(set(load.tokens))
            assert await engine.queues.options(QUEUE) == OPTIONS
            await contents_of(engine, QUEUE)

    async def test_does_not_end_a_waiting_claim(self, server: EmbeddedServer) -> None:
        async with Engine(server.url) as engine, Engine(server.url) as producer:
            claim = asyncio.create_task(
                engine.claim(QUEUE, worker="w", lease=minutes(1), wait=hours(1))
            )
            await eventually_in_loop(lambda: blocked_clients(server) == 1)
            server.ask("FLUSHALL")
            await producer.submit(QUEUE, b"x")
            async with asyncio.timeout(HANGS):
                assert len(await claim) == 1


class TestARestartWithEmptyMemory:
    async def test_is_survived_by_connected_engines(self) -> None:
        with EmbeddedServer() as server:
            async with Engine(server.url) as engine:
                await engine.queues.configure(QUEUE, OPTIONS)
                await engine.submit(QUEUE, b"lost")
                server.kill()
                submit = asyncio.create_task(engine.submit(QUEUE, b"new"))
                await asyncio.to_thread(server.start)
                assert (await submit).existed is False
                [lease] = await engine.claim(QUEUE, worker="w", lease=minutes(1))
                assert lease.payload == b"new"
                await engine.complete(lease)
                assert await engine.inspect.state(lease.job) is State.DONE
                assert await engine.queues.options(QUEUE) == OPTIONS
