"""Workers and apps that start while Redis is away or full, or has a corrupt queue."""

import asyncio

import pytest

from tests.faults.moving_slot import slot_of
from tests.waiting import HANGS
from tests.worker.in_process_worker import SOON, LogLines, working
from towpath.app.app import Towpath
from towpath.clock import hours, milliseconds, seconds
from towpath.embedded import EmbeddedCluster, EmbeddedServer
from towpath.embedded.groups import SLOTS
from towpath.embedded.process import ask_fields
from towpath.engine.channel import Limits
from towpath.engine.engine import Engine
from towpath.engine.model import JobRef
from towpath.engine.options import QueueOptions
from towpath.errors import ServerError, ServerRefused, ServerUnreachable
from towpath.worker.worker import Worker

HASTY = Limits(answer=milliseconds(300), give_up=seconds(1))


class TestARedisThatIsAwayAtTheStart:
    async def test_is_waited_for_by_an_app_and_its_worker(
        self, stopped_server: EmbeddedServer, lines: LogLines
    ) -> None:
        app = Towpath(stopped_server.url)

        @app.handler("shop")
        async def sell(n: int) -> int:
            return n

        async with app:
            await lines.next("server.unreachable")
            async with working(app):
                await lines.next("worker.started")
                submit = asyncio.create_task(sell.submit(1))
                await asyncio.to_thread(stopped_server.start)
                assert await (await submit).result(within=SOON) == 1
                await lines.next("server.back")
                assert (await app.engine.queues.options("shop")).keep == hours(1)
        assert len(lines.of("server.unreachable")) == 1

    async def test_is_an_error_for_a_worker_that_drains(
        self, stopped_server: EmbeddedServer
    ) -> None:
        app = Towpath(stopped_server.url, limits=HASTY)
        app.add("shop", _nothing, app.handler("other")(_nothing).options)
        with pytest.raises(ServerUnreachable):
            await Worker(app).drain()

    async def test_is_an_error_at_the_start_if_waiting_cannot_help(
        self, server: EmbeddedServer
    ) -> None:
        app = Towpath(server.url.replace("unix://", "unix://nobody:secret@"))
        app.handler("shop")(_nothing)
        with pytest.raises(ServerRefused):
            await Worker(app).run()


async def _nothing() -> None:
    """Enough for a handler."""


class TestAShardThatIsAwayAtTheStart:
    async def test_does_not_keep_a_worker_from_serving_the_others(self) -> None:
        with EmbeddedCluster(masters=3, options={"cluster-require-full-coverage": "no"}) as cluster:
            queues = {slot_of(cluster, f"{{q{n}}}:queue") * 3 // SLOTS: f"q{n}" for n in range(60)}
            app = Towpath(cluster.url)

            async def sell(n: int) -> int:
                return n

            handlers = {at: app.handler(queue)(sell) for at, queue in queues.items()}
            frozen = cluster.masters[0]
            frozen.pause()
            async with app, working(app):
                for at in (1, 2):
                    assert await (await handlers[at].submit(at)).result(within=SOON) == at
                frozen.unpause()
                late = await _submitted(app, queues[0])
                assert (await app.engine.events.ended(late, within=SOON)).result == b"7"
                assert (await app.engine.queues.options(queues[0])).keep == hours(1)


async def _submitted(app: Towpath, queue: str) -> JobRef:
    while True:
        try:
            return (await app.engine.submit(queue, b"7")).job
        except ServerError:
            continue


class TestACorruptQueueAtTheStart:
    async def test_does_not_keep_a_worker_from_serving_the_others(
        self, server: EmbeddedServer, lines: LogLines
    ) -> None:
        """Its key has another type: another program wrote it."""
        server.ask("SET", "{broken}:meta", "not a hash")
        app = Towpath(server.url)
        app.handler("broken")(_nothing)

        @app.handler("shop")
        async def sell(n: int) -> int:
            return n

        async with app, working(app):
            assert await (await sell.submit(1)).result(within=SOON) == 1
            server.ask("DEL", "{broken}:meta")
            broken = await app.engine.submit("broken", b"null")
            await app.engine.events.ended(broken.job, within=SOON)
        assert {line["queue"] for line in lines.of("duty.failed")} == {"broken"}

    async def test_is_an_error_if_there_is_no_other_queue(self, server: EmbeddedServer) -> None:
        server.ask("SET", "{broken}:meta", "not a hash")
        app = Towpath(server.url)
        app.handler("broken")(_nothing)
        with pytest.raises(ServerError):
            await Worker(app).run()

    async def test_with_options_of_a_newer_release_hides_no_other(
        self, server: EmbeddedServer, lines: LogLines
    ) -> None:
        """Neither the worker's list of queues nor the other queues are affected."""
        newer = '[1,{"retry": {"type": "from_the_future"}}]'
        async with Engine(server.url) as engine:
            await engine.queues.configure("shop", QueueOptions())
            server.ask("HSET", "towpath:queues", "newer", newer, b"\xff no {name}", "[1,{}]")
            server.ask("HSET", "towpath:queues", "gibberish", "\x00")
            for _ in range(2):
                assert await engine.queues.list() == {"shop": QueueOptions()}
            server.ask("HSET", "{newer}:meta", "whole", newer, "version", "1.1")
            with pytest.raises(ServerRefused, match="newer"):
                await engine.queues.options("newer")
        assert len(lines.of("queue.unreadable")) == 3


class TestARedisWhoseMemoryIsFull:
    async def test_accepts_its_first_worker(self, lines: LogLines) -> None:
        """The worker uses the stored options: otherwise the queue could not be drained."""
        with EmbeddedServer() as server:
            app = Towpath(server.url)
            ran: list[int] = []

            @app.handler("shop", keep=hours(2))
            async def sell(n: int) -> None:
                ran.append(n)

            async with app:
                await sell.submit_many(range(10))
                used = int(ask_fields(server.address, "INFO", "memory")["used_memory"])
                server.ask("CONFIG", "SET", "maxmemory", used // 2)
                await asyncio.wait_for(Worker(app).drain(), HANGS)
        assert sorted(ran) == list(range(10))
        assert [line["error"] for line in lines.of("duty.failed")] == ["MemoryFull"]
