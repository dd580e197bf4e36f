"""Handlers that block the event loop for longer than a lease cost no other job its lease."""

import asyncio

import pytest

from tests.fixtures import SLOW_ANSWERS
from tests.waiting import eventually, eventually_async
from tests.worker.in_process_worker import LogLines, ended, working
from towpath.app.app import Towpath
from towpath.app.job import Job
from towpath.clock import ManualClock, milliseconds, steady
from towpath.embedded import EmbeddedServer
from towpath.engine.model import State, new_job
from towpath.worker.context import Context
from towpath.worker.middleware import Middleware

LEASE = milliseconds(1000)
BLOCKED_FOR = 3 * LEASE.total_seconds()


def block() -> None:
    """Blocks the loop for some leases."""
    over = steady() + BLOCKED_FOR
    eventually(lambda: steady() > over)


async def assert_done_at_once(jobs: list[Job[None]], lines: LogLines) -> None:
    """Asserts that the first attempt of each job completed it, and that no lease was lost."""
    seen = [await ended(job) for job in jobs]
    assert [(job.state, job.attempts) for job in seen] == [(State.DONE, 1)] * len(jobs)
    assert len(lines.of("job.started")) == len(jobs)
    assert "job.lost" not in lines.events()


class TestAHandlerThatBlocksTheLoop:
    @pytest.mark.parametrize("concurrency", [1, 2, 4, 16])
    async def test_costs_no_other_job_of_its_queue_a_lease(
        self, app: Towpath, lines: LogLines, concurrency: int
    ) -> None:
        """Neither jobs of the same claim nor those of the exchange that is under way lose their
        leases.
        """

        @app.handler("shop", keep="1h")
        async def sell(number: int) -> None:
            if number == 0:
                block()

        jobs = await sell.submit_many(range(12))
        async with working(app, concurrency=concurrency, lease=LEASE):
            await assert_done_at_once(jobs, lines)

    async def test_costs_no_job_of_another_queue_a_lease(
        self, app: Towpath, lines: LogLines
    ) -> None:
        """Both queues are claimed from at the same time; the worker reads one answer only after the
        block.
        """

        @app.handler("shop", keep="1h")
        async def sell() -> None:
            block_once()

        @app.handler("till", keep="1h")
        async def count() -> None:
            block_once()

        def block_once() -> None:
            if not blocked:
                blocked.append(True)
                block()

        blocked: list[bool] = []
        jobs = [await handler.submit() for handler in (sell, count) for _ in range(3)]
        async with working(app, concurrency=8, lease=LEASE):
            await assert_done_at_once(jobs, lines)

    async def test_costs_no_job_in_a_thread_its_lease(self, app: Towpath, lines: LogLines) -> None:
        @app.handler("shop", keep="1h")
        async def sell() -> None:
            block()

        @app.handler("shop", name="count-in-a-thread", keep="1h")
        def count() -> None: ...

        jobs = [await sell.submit(), *[await count.submit() for _ in range(6)]]
        async with working(app, concurrency=4, lease=LEASE):
            await assert_done_at_once(jobs, lines)

    async def test_leaves_no_ready_job_of_another_queue_behind(
        self, server: EmbeddedServer
    ) -> None:
        """The heartbeat reads an exchange that waits for a connection while the loop is blocked. It
        has claimed nothing yet. The clock stands still, so no later poll would find the job.
        """
        queues = [f"shop-{number}" for number in range(14)]
        sold: dict[str, int] = {}

        def handler_of(queue: str, *, blocks: bool) -> None:
            @app.handler(queue, name="sell")
            async def sell(round: int) -> None:
                if blocks and round:
                    block()
                sold[queue] = round

        async def all_sold(round: int) -> None:
            jobs = [new_job(str(round).encode(), headers={"handler": "sell"})]
            await asyncio.gather(*(app.engine.submit_many(queue, jobs) for queue in queues))
            await eventually_async(lambda: _is(sold == dict.fromkeys(queues, round)))

        async with Towpath(server.url, clock=ManualClock(), limits=SLOW_ANSWERS) as app:
            for number, queue in enumerate(queues):
                handler_of(queue, blocks=number < 4)
            async with working(app, concurrency=200):
                for round in range(3):
                    await all_sold(round)


async def _is(fact: bool) -> bool:  # noqa: FBT001 -- what eventually_async awaits
    return fact


class TestMiddlewareThatBlocksTheLoop:
    async def test_costs_no_other_job_its_lease(self, app: Towpath, lines: LogLines) -> None:
        class BlockingOnce(Middleware):
            has_blocked = False

            async def before(self, ctx: Context) -> None:
                if not self.has_blocked:
                    self.has_blocked = True
                    block()

        @app.handler("shop", keep="1h")
        async def sell() -> None: ...

        jobs = [await sell.submit() for _ in range(6)]
        async with working(app, concurrency=4, lease=LEASE, middleware=[BlockingOnce()]):
            await assert_done_at_once(jobs, lines)
