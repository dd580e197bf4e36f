"""A handler blocks the worker's event loop: the worker stays listed, and no outage of Redis is
reported.
"""

import asyncio
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from tests.waiting import eventually, eventually_async, eventually_in_loop
from tests.worker.in_process_worker import SOON, LogLines, working
from towpath.app.app import Towpath
from towpath.clock import milliseconds, steady
from towpath.embedded import EmbeddedServer
from towpath.engine.channel import Limits
from towpath.engine.engine import Engine
from towpath.engine.worker_registry import BlockedLoop, LiveWorker
from towpath.errors import ServerUnreachable
from towpath.worker import registration

IMPORTED = datetime.now(UTC)
"""A moment after the start of this process."""


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets workers report often."""
    monkeypatch.setattr(registration, "REPORT_EVERY", milliseconds(50))
    monkeypatch.setattr(registration, "BLOCKED_EVERY", milliseconds(50))


def listed(url: str, fact: Callable[[LiveWorker], object]) -> LiveWorker:
    """Returns the worker as another process lists it, once *fact* holds. Blocks the caller's
    loop.
    """
    found: list[LiveWorker] = []

    async def holds() -> bool:
        found[:] = [worker for worker in await engine.workers.list() if fact(worker)]
        return bool(found)

    async def look() -> None:
        nonlocal engine
        async with Engine(url) as engine:
            await eventually_async(holds)

    engine: Engine
    thread = threading.Thread(target=asyncio.run, args=(look(),))
    thread.start()
    thread.join()
    return found[0]


def blocked(worker: LiveWorker) -> BlockedLoop | None:
    return worker.report.blocked


class TestAWorkerWhoseLoopIsBlocked:
    async def test_stays_listed_with_the_seconds_the_handler_and_the_job(
        self, app: Towpath, server: EmbeddedServer, lines: LogLines
    ) -> None:
        found: list[LiveWorker] = []

        @app.handler("shop")
        async def patient() -> None:
            await go_on.wait()

        @app.handler("till", name="count-money")
        async def block() -> None:
            first = listed(server.url, blocked)
            found.append(first)
            # The worker reports again and again while the loop is blocked.
            found.append(listed(server.url, lambda it: later(it, first)))

        def later(one: LiveWorker, other: LiveWorker) -> bool:
            mine, theirs = blocked(one), blocked(other)
            return bool(mine and theirs and mine.seconds > theirs.seconds)

        go_on = asyncio.Event()
        async with working(app, name="anna", concurrency=5):
            beside = [await patient.submit() for _ in range(3)]
            await eventually_in_loop(lambda: len(lines.of("job.started")) == 3)
            job = await block.submit()
            await eventually_in_loop(lambda: len(found) == 2)
            await job.result(within=SOON)
            go_on.set()
            for one in beside:
                await one.result(within=SOON)
            freed = await asyncio.to_thread(listed, server.url, lambda it: not blocked(it))
        for worker in found:
            stuck = worker.report.blocked
            assert stuck is not None
            assert (worker.name, stuck.handler, stuck.job) == ("anna", "count-money", job.ref)
            assert stuck.seconds >= 1
            assert worker.report.running == 4
        assert freed.report.blocked is None
        [line] = lines.of("loop.blocked")
        assert (line["job"], line["queue"], line["handler"]) == (job.id, "till", "count-money")

    @pytest.mark.skipif(sys.version_info < (3, 12), reason="needs Task.get_context")
    async def test_is_listed_with_the_job_when_a_task_of_the_handler_blocks(
        self, app: Towpath, lines: LogLines
    ) -> None:
        @app.handler("shop")
        async def sell() -> None:
            await asyncio.gather(block())

        async def block() -> None:
            eventually(lambda: lines.of("loop.blocked"))

        async with working(app):
            job = await sell.submit()
            await job.result(within=SOON)
        assert [line["job"] for line in lines.of("loop.blocked")] == [job.id]

    async def test_is_listed_without_a_job_when_no_handler_blocks_the_loop(
        self, app: Towpath, server: EmbeddedServer, lines: LogLines
    ) -> None:
        @app.handler("shop")
        async def sell() -> None:
            await go_on.wait()

        go_on, found = asyncio.Event(), list[LiveWorker]()
        async with working(app):
            job = await sell.submit()
            await lines.next("job.started")
            found.append(listed(server.url, blocked))  # this test blocks the loop
            go_on.set()
            await job.result(within=SOON)
        [worker] = found
        assert worker.report.blocked is not None
        assert (worker.report.blocked.job, worker.report.blocked.handler) == (None, None)
        [line] = lines.of("loop.blocked")
        assert (line["job"], line["queue"], line["handler"]) == (None, None, None)

    async def test_is_listed_with_the_start_time_of_its_process(
        self, app: Towpath, server: EmbeddedServer
    ) -> None:
        @app.handler("shop")
        async def sell() -> None: ...

        async with working(app):
            worker = await asyncio.to_thread(listed, server.url, lambda _: True)
        assert worker.since < IMPORTED


class TestABlockedLoopIsNotReportedAsAnOutage:
    LIMITS = Limits(answer=milliseconds(200), give_up=milliseconds(400), channels=1)

    def pass_the_limit(self) -> None:
        """Blocks the loop for longer than a call may take."""
        over = steady() + 2 * self.LIMITS.give_up.total_seconds()
        eventually(lambda: steady() > over)

    async def test_a_call_that_was_answered_during_the_block_returns_its_answer(
        self, server: EmbeddedServer, lines: LogLines
    ) -> None:
        async with Engine(server.url, limits=self.LIMITS) as engine:
            # There are more calls than channels: one is under way, the others wait for their turn.
            calls = [asyncio.create_task(engine.try_write()) for _ in range(5)]
            await asyncio.sleep(0)
            self.pass_the_limit()
            await asyncio.gather(*calls)
        assert not {"server.unreachable", "server.back"} & lines.events()

    async def test_a_worker_logs_no_outage(self, server: EmbeddedServer, lines: LogLines) -> None:
        app = Towpath(server.url, limits=self.LIMITS)

        @app.handler("shop")
        async def block() -> None:
            self.pass_the_limit()

        @app.handler("till")
        async def sell() -> None: ...

        async with app, working(app):
            await asyncio.gather(*[sell.submit() for _ in range(3)])
            await (await block.submit()).result(within=SOON)
            await (await sell.submit()).result(within=SOON)
        outage = {"server.unreachable", "server.back", "queue.failing", "queue.recovered"}
        assert not outage & lines.events()

    async def test_a_redis_that_is_away_after_a_block_is_logged_as_an_outage(
        self, frozen: EmbeddedServer, lines: LogLines
    ) -> None:
        async with Engine(frozen.url, limits=self.LIMITS) as engine:
            frozen.pause()
            call = asyncio.create_task(engine.try_write())
            await asyncio.sleep(0)
            self.pass_the_limit()
            with pytest.raises(ServerUnreachable):
                await call
            await lines.next("server.unreachable")
            frozen.unpause()
            await lines.next("server.back")
