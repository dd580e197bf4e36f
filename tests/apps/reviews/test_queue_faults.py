"""Review tasks beside corrupt entries, with many workers at once, and after a crash."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import cast

import pytest

from tests.apps.reviews.dequeuing import LEASES, QUEUE, RETRY, drained, job
from tests.programs import Program
from tests.waiting import eventually_async
from towpath.apps.reviews.queue import CORRUPT, ReviewQueue
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.engine.model import HIGH, NORMAL
from towpath.engine.states import State


class TestACorruptEntry:
    """A6: it is set aside with its reason, and the queue goes on."""

    @pytest.mark.parametrize("key", [QUEUE, RETRY, LEASES])
    async def test_without_a_task_is_set_aside(
        self, queue: ReviewQueue, server: EmbeddedServer, key: str
    ) -> None:
        await queue.enqueue("good")
        server.ask("ZADD", key, 1, "not-a-task")
        assert await drained(queue) == ["good"]
        dead = await job(queue, "not-a-task")
        assert dead.reason is not None
        assert dead.reason.startswith("NO_RECORD")
        assert key in dead.reason

    @pytest.mark.parametrize("entry", [b"\xff\xfe\x00", b"two\nlines", b"", b"x" * 600])
    async def test_with_an_invalid_name_is_set_aside(
        self, queue: ReviewQueue, engine: Engine, server: EmbeddedServer, entry: bytes
    ) -> None:
        await queue.enqueue("good")
        server.ask("ZADD", QUEUE, 1, entry)
        assert await drained(queue) == ["good"]
        [dead] = (await engine.inspect.list("task", State.DEAD)).jobs
        assert dead.reason is not None
        assert dead.reason.startswith("NO_RECORD")

    @pytest.mark.parametrize("record", [b"garbage", b"", b"\x63" * 60])
    async def test_with_a_corrupt_record_is_set_aside(
        self, queue: ReviewQueue, server: EmbeddedServer, record: bytes
    ) -> None:
        for task in ("broken", "good"):
            await queue.enqueue(task)
        server.ask("SET", "{task}:job:broken", record)
        assert await drained(queue) == ["good"]
        dead = await job(queue, "broken")
        assert dead.state is State.DEAD
        assert dead.reason is not None
        assert dead.reason.startswith("NO_RECORD")

    async def test_without_its_payload_is_set_aside(
        self, queue: ReviewQueue, engine: Engine, server: EmbeddedServer
    ) -> None:
        for task in ("broken-1", "broken-2", "broken-3"):
            # The payload is large enough for a key of its own.
            await engine.submit("task", b"x" * 1000, id=task, priority=HIGH)
            assert server.ask("UNLINK", f"{{task}}:load:{task}") == 1
        await queue.enqueue("good")
        assert await queue.dequeue() == "good"
        assert str((await job(queue, "broken-3")).reason).startswith("NO_PAYLOAD")

    async def test_with_another_payload_is_set_aside(
        self, queue: ReviewQueue, server: EmbeddedServer
    ) -> None:
        for task in ("broken", "good"):
            await queue.enqueue(task)
        record = cast("bytes", server.ask("GET", "{task}:job:broken"))
        assert record.endswith(b"broken")
        server.ask("SET", "{task}:job:broken", record.removesuffix(b"broken") + b"\x00\xff garbage")
        assert await drained(queue) == ["good"]
        assert (await job(queue, "broken")).reason == CORRUPT

    async def test_submitted_by_another_program_is_set_aside(
        self, queue: ReviewQueue, engine: Engine
    ) -> None:
        await queue.enqueue("good")
        await engine.submit("task", b'{"to": "ann"}', id="a-mail", priority=HIGH)
        assert await drained(queue) == ["good"]
        assert (await job(queue, "a-mail")).reason == CORRUPT

    async def test_in_large_numbers_does_not_stop_the_queue(
        self, queue: ReviewQueue, engine: Engine, server: EmbeddedServer
    ) -> None:
        """There are more than one call passes over, and the task behind them is still found."""
        for n in range(350):
            server.ask("ZADD", QUEUE, n, f"stray-{n}")
        await queue.enqueue("good")
        assert await queue.dequeue() == "good"
        assert (await engine.inspect.counts("task")).dead == 350


# ── AC8: many at once, on a real Redis by its own clock ──────────────────────────────────


async def filled(url: str, tasks: int) -> None:
    async with Engine(url) as engine:
        queue = ReviewQueue(engine)
        for n in range(tasks):
            await queue.enqueue(str(n), HIGH if n % 2 else NORMAL)


@contextmanager
def dequeuer(url: str, how: str = "") -> Generator[Program[str]]:
    command = [sys.executable, "-m", "tests.apps.reviews.dequeuer", url, how]
    with Program[str](command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


class TestManyWorkersAtOnce:
    async def test_get_each_task_once_in_threads(self, server: EmbeddedServer) -> None:
        await filled(server.url, 200)
        handed: list[str] = []
        start = threading.Barrier(8)

        async def take() -> None:
            async with Engine(server.url) as engine:
                queue = ReviewQueue(engine)
                start.wait()
                handed.extend(await drained(queue))

        threads = [threading.Thread(target=lambda: asyncio.run(take())) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        assert sorted(handed, key=int) == [str(n) for n in range(200)]

    async def test_get_each_task_once_in_processes(self, server: EmbeddedServer) -> None:
        await filled(server.url, 300)
        with (
            dequeuer(server.url) as one,
            dequeuer(server.url) as two,
            dequeuer(server.url) as three,
        ):
            said = await asyncio.gather(
                *(asyncio.to_thread(process.communicate) for process in (one, two, three))
            )
            assert [process.returncode for process in (one, two, three)] == [0, 0, 0]
        handed = [task for out, _ in said for task in out.split()]
        assert sorted(handed, key=int) == [str(n) for n in range(300)]
        async with Engine(server.url) as engine:
            assert await ReviewQueue(engine).queue_size() == 0

    async def test_get_the_task_of_a_killed_process(self, server: EmbeddedServer) -> None:
        """Its lock is ended now; that it lasts 300 s is tested with a manual clock."""
        await filled(server.url, 3)
        with dequeuer(server.url, "silent") as killed:
            assert killed.stdout is not None
            task = (await asyncio.to_thread(killed.stdout.readline)).strip()
            killed.kill()
            killed.wait()
        async with Engine(server.url) as engine:
            queue = ReviewQueue(engine)
            assert task not in await drained(queue)
            assert await queue.is_locked(task)
            server.ask("ZADD", LEASES, "XX", 1, task)

            async def is_free() -> bool:
                return not await queue.is_locked(task)

            await eventually_async(is_free)
            assert await queue.dequeue() == task
            assert (await job(queue, task)).attempts == 2

    async def test_find_tasks_that_an_earlier_service_enqueued(
        self, server: EmbeddedServer
    ) -> None:
        """AC8: enqueued tasks and locks are there for the next service that connects."""
        async with Engine(server.url) as engine:
            first = ReviewQueue(engine)
            for task in ("a", "b"):
                await first.enqueue(task)
            await first.dequeue()
        async with Engine(server.url) as engine:
            second = ReviewQueue(engine)
            assert (await second.queue_size(), await second.is_locked("a")) == (1, True)
            assert await second.dequeue() == "b"
