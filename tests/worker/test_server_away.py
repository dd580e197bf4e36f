"""A server that is away for a while, forgets its scripts, or does not answer: nothing is lost."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.faults.census import census, is_drained
from tests.faults.meanwhile import meanwhile
from tests.waiting import eventually_async
from tests.worker.running import SOON, Lines, working
from towpath.app import Towpath
from towpath.clock import seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.channel import Limits
from towpath.engine.states import State
from towpath.testing.proxy import Faults, Hole, Proxy
from towpath.worker.context import Context
from towpath.worker.worker import ExitCode, Worker

QUICK = Limits(answer=seconds(0.3), give_up=seconds(0.6))


@pytest.fixture
async def proxy(server: EmbeddedServer) -> AsyncIterator[Proxy]:
    async with Proxy(server.address, Faults()) as proxy:
        yield proxy


class TestRepliesThatAreCut:
    async def test_every_job_is_done_once(self, proxy: Proxy, server: EmbeddedServer) -> None:
        """Each exchange is repeated under its name: what was claimed is run, and run once."""
        ran: Counter[str] = Counter()
        app = Towpath(proxy.url)

        @app.handler("shop")
        async def sell(n: int, ctx: Context) -> int:
            ran[ctx.id] += 1
            return n

        async with app:
            await sell.submit_many(range(2000))
            proxy.faults.cut_replies = 0.1
            await asyncio.wait_for(Worker(app, concurrency=50).drain(), 30)
            proxy.faults.cut_replies = 0.0
            found = await census(app.engine, "shop")
        assert proxy.cuts > 3
        assert len(found.ids(State.DONE)) == 2000
        assert set(ran.values()) == {1}
        assert found.counts.totals["reaped"] == 0


class TestAServerThatIsAway:
    @pytest.mark.parametrize("hole", [Hole.REQUESTS, Hole.REPLIES])
    async def test_and_back_within_the_lease_costs_nothing(
        self, proxy: Proxy, lines: Lines, hole: Hole
    ) -> None:
        """Handlers run on; their ends are handed in afterwards, under the name of the first try."""
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
                await meanwhile(lambda: len(begun) == 10)
                proxy.faults.hole = hole
                go.set()
                await lines.next("server.unreachable")
                proxy.faults.hole = Hole.NOTHING
                await lines.next("server.back")
                for ticket in tickets:
                    assert not isinstance(ticket, Exception)
                    await ticket.result(within=SOON)
                reaped = (await app.engine.counts("shop")).totals["reaped"]
        assert sorted(begun) == list(range(40))
        assert reaped == 0
        assert not {"job.lost", "job.stale_refused"} & lines.events()

    async def test_for_longer_than_the_lease_changes_no_outcome(
        self, proxy: Proxy, server: EmbeddedServer, lines: Lines
    ) -> None:
        """Another worker had the jobs meanwhile: this one's ends are refused, none counts twice."""
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
                await meanwhile(lambda: len(begun) == 5)
                proxy.faults.hole = Hole.REQUESTS
                async with working(other):
                    tokens = [
                        await it.result(within=SOON)
                        for it in tickets
                        if not isinstance(it, Exception)
                    ]
                go.set()
                proxy.faults.hole = Hole.NOTHING
                await meanwhile(
                    lambda: len(lines.of("job.stale_refused")) + len(lines.of("job.lost")) >= 5
                )
            counts = await other.engine.counts("shop")
        assert not set(tokens) & set(begun)
        assert counts.totals["completed"] == 5

    async def test_at_the_end_gives_its_own_exit_code(self, proxy: Proxy, lines: Lines) -> None:
        """What it held comes back by itself when the lease is over."""
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

    async def test_is_started_again_with_what_was_written(self, tmp_path: Path) -> None:
        """SIGKILL of a server that writes everything down, and a new one in its place."""
        ran: Counter[int] = Counter()
        with EmbeddedServer(data=tmp_path) as server:
            app = Towpath(server.url)

            @app.handler("shop")
            async def sell(n: int) -> None:
                ran[n] += 1

            async with app:
                await sell.submit_many(range(3000))
                async with working(app, concurrency=20):
                    await meanwhile(lambda: len(ran) > 300)
                    server.kill()
                    await asyncio.to_thread(server.start)
                    await eventually_async(lambda: is_drained(app.engine, "shop"), within=30)
                counts = await app.engine.counts("shop")
        assert counts.totals["completed"] == 3000
        assert set(ran) == set(range(3000))


class TestScriptsThatAreForgotten:
    async def test_are_learnt_again(self, app: Towpath, server: EmbeddedServer) -> None:
        @app.handler("shop")
        async def sell(n: int) -> int:
            if n % 50 == 0:
                server.ask("SCRIPT", "FLUSH")
            return n

        await sell.submit_many(range(500))
        await asyncio.wait_for(Worker(app, concurrency=10).drain(), 20)
        assert (await app.engine.counts("shop")).totals["completed"] == 500


async def _token(_: int, ctx: Context) -> int:
    return ctx.token
