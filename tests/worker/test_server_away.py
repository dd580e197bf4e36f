"""A Redis that is away for a while, forgets its scripts, or does not answer: nothing is lost."""

import asyncio
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.faults.queue_contents import contents_of, is_drained
from tests.waiting import HANGS, eventually, eventually_async, eventually_in_loop
from tests.worker.in_process_worker import SOON, LogLines, job_once, working
from towpath.app.app import Towpath
from towpath.app.job import Job
from towpath.clock import seconds, steady
from towpath.embedded import EmbeddedServer
from towpath.engine.channel import Limits
from towpath.engine.states import State
from towpath.errors import ServerUnreachable
from towpath.testing.proxy import Hole, Proxy
from towpath.worker.context import Context
from towpath.worker.worker import ExitCode, Worker

QUICK = Limits(answer=seconds(0.3), give_up=seconds(0.6))


class TestRepliesThatAreCut:
    async def test_leave_every_job_done_once(self, proxy: Proxy, server: EmbeddedServer) -> None:
        """Each exchange is repeated with its call number: claimed jobs run, and run once."""
        ran: Counter[str] = Counter()
        app = Towpath(proxy.url)

        @app.handler("shop")
        async def sell(n: int, ctx: Context) -> int:
            ran[ctx.id] += 1
            return n

        async with app:
            await sell.submit_many(range(2000))
            proxy.faults.cut_replies = 0.3
            await asyncio.wait_for(Worker(app, concurrency=50).drain(), HANGS)
            proxy.faults.cut_replies = 0.0
            found = await contents_of(app.engine, "shop")
        assert proxy.cuts > 3
        assert len(found.ids(State.DONE)) == 2000
        assert set(ran.values()) == {1}
        assert found.counts.totals["reaped"] == 0


class TestARedisThatIsAway:
    @pytest.mark.parametrize("hole", [Hole.REQUESTS, Hole.REPLIES])
    async def test_and_comes_back_within_the_lease_costs_no_attempt(
        self, proxy: Proxy, lines: LogLines, hole: Hole
    ) -> None:
        """Handlers run on; their ends are sent afterwards, with the call number of the first
        try.
        """
        app = Towpath(proxy.url, limits=QUICK)

        @app.handler("shop")
        async def sell(n: int, ctx: Context) -> int:
            begun.append(n)
            await go.wait()
            return n

        begun: list[int] = []
        go = asyncio.Event()
        async with app:
            tickets = await sell.submit_many(range(40))
            async with working(app, concurrency=10):
                await eventually_in_loop(lambda: len(begun) == 10)
                proxy.faults.hole = hole
                go.set()
                await lines.next("queue.failing")
                proxy.faults.hole = Hole.NOTHING
                await lines.next("queue.recovered")
                for ticket in tickets:
                    await ticket.result(within=SOON)
                reaped = (await app.engine.inspect.counts("shop")).totals["reaped"]
        assert sorted(begun) == list(range(40))
        assert reaped == 0
        assert not {"job.lost", "job.stale_refused"} & lines.events()

    async def test_for_longer_than_the_lease_changes_no_outcome(
        self, proxy: Proxy, server: EmbeddedServer, lines: LogLines
    ) -> None:
        """Another worker had the jobs meanwhile: this worker's ends are refused, and none counts
        twice.
        """
        app, other = Towpath(proxy.url, limits=QUICK), Towpath(server.url)

        @app.handler("shop")
        async def sell(_: int, ctx: Context) -> int:
            begun.append(ctx.token)
            await go.wait()
            return ctx.token

        begun: list[int] = []
        go = asyncio.Event()
        elsewhere = other.add("shop", _token, sell.options)
        async with app, other:
            tickets = await elsewhere.submit_many(range(5))
            async with working(app, concurrency=5, lease=seconds(1)):
                await eventually_in_loop(lambda: len(begun) == 5)
                proxy.faults.hole = Hole.REQUESTS
                async with working(other):
                    tokens = [
                        await ticket.result(within=SOON)
                        for ticket in tickets
                        if not isinstance(ticket, Exception)
                    ]
                go.set()
                proxy.faults.hole = Hole.NOTHING
                await eventually_in_loop(
                    lambda: len(lines.of("job.stale_refused")) + len(lines.of("job.lost")) >= 5
                )
            counts = await other.engine.inspect.counts("shop")
        assert not set(tokens) & set(begun)
        assert counts.totals["completed"] == 5

    async def test_at_the_end_of_a_worker_makes_it_exit_with_its_own_code(
        self, proxy: Proxy, lines: LogLines
    ) -> None:
        """The worker's jobs become ready by themselves when their leases are over."""
        app = Towpath(proxy.url, limits=QUICK)

        @app.handler("shop")
        async def sell() -> None:
            await asyncio.Event().wait()

        async with app:
            await sell.submit()
            worker = Worker(app, lease=seconds(1))
            running = asyncio.create_task(worker.run())
            await lines.next("job.started")
            proxy.faults.hole = Hole.REQUESTS
            worker.stop()
            worker.stop()
            assert await running == ExitCode.UNSETTLED == 75
            proxy.faults.hole = Hole.NOTHING

    async def test_and_is_restarted_has_everything_that_it_wrote(self, tmp_path: Path) -> None:
        """SIGKILL of a Redis that writes everything to disk, and a new one in its place."""
        ran: Counter[int] = Counter()
        with EmbeddedServer(data=tmp_path) as server:
            app = Towpath(server.url)

            @app.handler("shop")
            async def sell(n: int) -> None:
                ran[n] += 1

            async with app:
                await sell.submit_many(range(3000))
                async with working(app, concurrency=20):
                    await eventually_in_loop(lambda: len(ran) > 300)
                    server.kill()
                    await asyncio.to_thread(server.start)
                    await eventually_async(lambda: is_drained(app.engine, "shop"))
                counts = await app.engine.inspect.counts("shop")
        assert counts.totals["completed"] == 3000
        assert set(ran) == set(range(3000))


class TestAnAnswerAfterAnOutage:
    async def test_is_not_followed_by_an_error_for_the_next_call(
        self, frozen: EmbeddedServer, lines: LogLines
    ) -> None:
        """A call that waited is answered before the probe is; the next call must not be refused for
        want of an answer.
        """
        app = Towpath(frozen.url, limits=Limits(answer=seconds(0.2), give_up=seconds(4)))
        async with app:
            frozen.pause()
            with pytest.raises(ServerUnreachable):
                await app.engine.submit("shop", b"1")
            waiting = asyncio.create_task(app.engine.submit("shop", b"2"))
            await lines.next("server.unreachable")
            frozen.unpause()
            await waiting
            await app.engine.submit("shop", b"3")


class TestARedisThatIsFrozen:
    """SIGSTOP: connections stay open and nothing answers. What is logged meanwhile has to be
    true.
    """

    async def test_is_not_reported_as_a_blocked_loop(
        self, frozen: EmbeddedServer, lines: LogLines
    ) -> None:
        """The heartbeat waits for Redis, for longer than a loop may be silent; the loop runs."""
        app = Towpath(frozen.url)

        @app.handler("shop")
        async def sell() -> None:
            await asyncio.Event().wait()

        async with app, working(app, lease=seconds(3)):
            await _renewed(await sell.submit())
            frozen.pause()
            await eventually_in_loop(lambda: len(lines.of("heartbeat.failed")) == 2)
            frozen.unpause()
        assert "loop.blocked" not in lines.events()

    async def test_is_logged_once_per_lease(self, frozen: EmbeddedServer, lines: LogLines) -> None:
        """It is not logged at every try: an outage of ten minutes must not fill the log."""
        app, lease = Towpath(frozen.url), seconds(2)

        @app.handler("shop")
        async def sell() -> None:
            await asyncio.Event().wait()

        async with app, working(app, lease=lease):
            await _renewed(await sell.submit())
            frozen.pause()
            await eventually_in_loop(lambda: len(lines.of("heartbeat.failed")) == 3)
            frozen.unpause()
        silent = [line["silent"] for line in lines.of("heartbeat.failed")]
        assert min(b - a for a, b in pairwise(silent)) >= lease.total_seconds()

    async def test_does_not_hide_a_blocked_loop(
        self, frozen: EmbeddedServer, lines: LogLines
    ) -> None:
        """The blocked loop is logged while the heartbeat still waits for Redis."""
        app, go = Towpath(frozen.url), asyncio.Event()
        failures: list[int] = []

        @app.handler("shop")
        async def block() -> None:
            await go.wait()
            failures.append(len(lines.of("heartbeat.failed")))
            eventually(lambda: lines.of("loop.blocked"))
            failures.append(len(lines.of("heartbeat.failed")))

        async with app, working(app, lease=seconds(6)):
            await _renewed(await block.submit())
            frozen.pause()
            await lines.next("heartbeat.failed")
            go.set()
            await eventually_in_loop(lambda: len(failures) == 2)
            frozen.unpause()
        assert failures[:2] == [1, 1]  # the lease may be over by now, and another attempt begun
        assert len(lines.of("loop.blocked")) == 1

    async def test_makes_a_lease_as_silent_as_it_is_old(
        self, frozen: EmbeddedServer, lines: LogLines
    ) -> None:
        """Time before the lease began, when there was nothing to renew, does not count as
        silence.
        """
        app = Towpath(frozen.url)

        @app.handler("shop")
        async def sell(n: int) -> None:
            if n:
                await asyncio.Event().wait()

        async with app, working(app, lease=seconds(1)):
            await (await sell.submit(0, delay=seconds(2))).result(within=SOON)
            submitted = steady()
            await sell.submit(1)
            await eventually_in_loop(lambda: len(lines.of("job.started")) == 2)
            frozen.pause()
            line = await lines.next("heartbeat.failed")
            age = steady() - submitted
            frozen.unpause()
        assert line["leases"] == 1
        assert 0 < line["silent"] < age

    async def test_is_logged_as_away_since_the_first_call_without_an_answer(
        self, frozen: EmbeddedServer, lines: LogLines
    ) -> None:
        """That is long before the call is given up and Redis is reported as away."""
        app = Towpath(frozen.url, limits=Limits(answer=seconds(0.5), give_up=seconds(2)))

        @app.handler("shop")
        async def sell() -> None:
            await go.wait()

        go = asyncio.Event()
        async with app, working(app):
            since = steady()  # before the first call that may be under way when Redis freezes
            await sell.submit()
            await lines.next("job.started")
            frozen.pause()
            go.set()
            await lines.next("queue.failing")
            frozen.unpause()
            line = await lines.next("queue.recovered")
            back = steady()
        assert 1 < line["away"] < back - since  # a call is given up after 1.5 s at the earliest


class TestScriptsThatRedisForgot:
    async def test_are_loaded_again(self, app: Towpath, server: EmbeddedServer) -> None:
        @app.handler("shop")
        async def sell(n: int) -> int:
            if n % 50 == 0:
                server.ask("SCRIPT", "FLUSH")
            return n

        await sell.submit_many(range(500))
        await asyncio.wait_for(Worker(app, concurrency=10).drain(), HANGS)
        assert (await app.engine.inspect.counts("shop")).totals["completed"] == 500


async def _renewed(ticket: Job[Any]) -> None:
    """Returns when the heartbeat has renewed the job's lease: before, it may not be connected."""
    claimed = await job_once(ticket, lambda job: job.expires_at)
    await job_once(ticket, lambda job: job.expires_at != claimed.expires_at)


async def _token(_: int, ctx: Context) -> int:
    return ctx.token
