"""Slots: how many jobs run at once, whose turn it is, and what that costs Redis."""

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest

from tests.faults.redis_facts import blocked_clients
from tests.waiting import HANGS, eventually_async, eventually_in_loop
from tests.worker import process_handlers
from tests.worker.in_process_worker import SOON, LogLines, slots, until_slots, working
from towpath.app.app import Towpath
from towpath.clock import ManualClock, seconds
from towpath.embedded import EmbeddedServer
from towpath.embedded.process import ask_fields
from towpath.engine.model import new_job
from towpath.engine.options import QueueOptions
from towpath.errors import HandlerInvalid, InvalidOption
from towpath.worker.handler import HandlerOptions
from towpath.worker.worker import Worker


class GatedCounter:
    """Counts how many handlers are inside at once."""

    def __init__(self) -> None:
        self.inside = self.most = self.came = 0
        self.gate = asyncio.Event()

    async def enter(self) -> None:
        self.inside += 1
        self.came += 1
        self.most = max(self.most, self.inside)
        await self.gate.wait()
        self.inside -= 1


class TestConcurrency:
    async def test_as_many_jobs_run_at_once_as_there_are_slots(self, app: Towpath) -> None:
        """No job is claimed for later either: another worker can have it at once."""
        counter = GatedCounter()

        @app.handler("shop")
        async def sell(_: int) -> None:
            await counter.enter()

        await sell.submit_many(range(30))
        async with working(app, concurrency=7) as worker:
            await eventually_in_loop(lambda: counter.inside == 7)
            assert (await app.engine.inspect.counts("shop")).leased == 7
            assert await slots(worker) == {"busy": 7, "free": 0, "lost": 0}
            counter.gate.set()
            await eventually_in_loop(lambda: counter.came == 30)
        assert counter.most == 7

    async def test_slots_are_filled_even_if_one_answer_does_not_carry_enough_jobs(
        self, app: Towpath
    ) -> None:
        """An answer may have few jobs because they are large, though there are more."""
        counter = GatedCounter()

        @app.handler("shop")
        async def sell(_: bytes) -> None:
            await counter.enter()

        await app.engine.queues.configure("shop", QueueOptions(max_payload=8 * 1024 * 1024))
        await sell.submit_many([bytes(5 * 1024 * 1024)] * 3)
        async with working(app, concurrency=6):
            await eventually_in_loop(lambda: counter.inside == 3)
            counter.gate.set()

    async def test_a_free_slot_is_filled_while_other_jobs_run(self, app: Towpath) -> None:
        """With one slow job among quick ones, the other slots never wait for it."""
        slow = asyncio.Event()

        @app.handler("shop")
        async def sell(n: int) -> int:
            if n == 0:
                await slow.wait()
            return n

        tickets = await sell.submit_many(range(500))
        async with working(app, concurrency=2):
            for ticket in tickets[1:]:
                await ticket.result(within=SOON)
            assert (await app.engine.inspect.counts("shop")).leased == 1
            slow.set()

    @pytest.mark.parametrize("other", [None, "other"])
    async def test_may_be_lower_for_a_handler(self, app: Towpath, other: str | None) -> None:
        """A handler alone in its queue is not even given more jobs; beside another one it keeps to
        its number.
        """
        counter = GatedCounter()

        @app.handler("shop", concurrency=2)
        async def sell(_: int) -> None:
            await counter.enter()

        if other:

            @app.handler("shop", name=other)
            async def more(_: int) -> None: ...

        await sell.submit_many(range(10))
        async with working(app, concurrency=20):
            await eventually_in_loop(lambda: counter.inside == 2)
            if not other:
                assert (await app.engine.inspect.counts("shop")).leased == 2
            counter.gate.set()
            await eventually_in_loop(lambda: counter.came == 10)
        assert counter.most == 2

    async def test_waiting_for_others_of_the_handler_takes_none_of_a_jobs_time(
        self, app: Towpath, lines: LogLines, gate: threading.Event
    ) -> None:
        @app.handler("shop", concurrency=1, time_limit=seconds(1))
        def sell(_: int) -> None:
            gate.wait(0.4)

        @app.handler("shop", name="other")
        async def other(_: int) -> None: ...

        async def in_time() -> bool:
            """On a busy machine one of them may really take too long, but not every time."""
            before = len(lines.of("job.timed_out"))
            for ticket in await sell.submit_many(range(5)):
                await ticket.result(within=SOON)
            return len(lines.of("job.timed_out")) == before

        async with working(app):
            await eventually_async(in_time)

    async def test_processes_are_never_more_than_asked_for(self, app: Towpath) -> None:
        own_pid = app.add("pids", process_handlers.own_pid.function, HandlerOptions(processes=2))
        tickets = await own_pid.submit_many(range(50))
        async with working(app, concurrency=20):
            pids = {await ticket.result(within=SOON) for ticket in tickets}
        assert 1 <= len(pids) <= 2

    async def test_threads_are_as_many_as_slots(self, app: Towpath, gate: threading.Event) -> None:
        @app.handler("shop")
        def sell(_: int) -> int:
            gate.wait(HANGS)
            return threading.get_ident()

        tickets = await sell.submit_many(range(12))
        async with working(app, concurrency=3) as worker:
            await until_slots(worker, busy=3)
            gate.set()
            used = {await ticket.result(within=SOON) for ticket in tickets}
        assert len(used) <= 3


class TestWakeUps:
    async def test_that_a_full_worker_receives_reach_an_idle_one(
        self, server: EmbeddedServer
    ) -> None:
        """The clock stands still, so no worker polls by itself."""
        clock, ran = ManualClock(), list[str]()
        full, idle = Towpath(server.url, clock=clock), Towpath(server.url, clock=clock)

        async def stay() -> None:
            ran.append("stay")
            await asyncio.Event().wait()

        async def quick() -> None:
            ran.append("quick")

        options = HandlerOptions()
        long = full.add("long", stay, options)
        full.add("short", quick, options)
        short = idle.add("short", quick, options)
        async with full, idle, working(full, concurrency=1):
            # The worker waits for both queues, and only then does something fill it.
            await eventually_in_loop(lambda: blocked_clients(server) == 2)
            await long.submit()
            await eventually_in_loop(lambda: ran == ["stay"])
            async with working(idle, concurrency=1):
                await eventually_in_loop(lambda: blocked_clients(server) >= 2)
                await short.submit()
                await eventually_in_loop(lambda: "quick" in ran)


class TestWeights:
    @pytest.mark.parametrize("concurrency", [1, 4])
    async def test_share_slots_between_queues(self, app: Towpath, concurrency: int) -> None:
        order: list[str] = []
        for queue, weight in (("heavy", 3), ("light", 1)):
            app.add(queue, _noting(order, queue), HandlerOptions(weight=weight))
            await app.engine.submit_many(queue, [new_job(b"1") for _ in range(120)])
        await Worker(app, concurrency=concurrency).drain()
        share = Counter(order[:100])
        assert share["heavy"] == pytest.approx(75, abs=6)

    async def test_of_the_worker_replace_those_of_handlers(self, app: Towpath) -> None:
        order: list[str] = []
        for queue in ("heavy", "light", "none"):
            app.add(queue, _noting(order, queue), HandlerOptions())
            await app.engine.submit_many(queue, [new_job(b"1") for _ in range(120)])
        await Worker(app, concurrency=1, queues={"light": 1, "heavy": 9}).drain()
        assert Counter(order[:100])["heavy"] == pytest.approx(90, abs=4)
        assert (await app.engine.inspect.counts("none")).ready == 120

    async def test_keep_a_busy_queue_from_starving_others(self, app: Towpath) -> None:
        """Jobs that never end fill all slots except those that another queue is owed."""
        counter = GatedCounter()

        @app.handler("busy", weight=10)
        async def busy(_: int) -> None:
            await counter.enter()

        @app.handler("calm")
        async def calm(_: int) -> str:
            return "here"

        await busy.submit_many(range(100))
        async with working(app, concurrency=4):
            await eventually_in_loop(lambda: counter.inside == 4)
            job = await calm.submit(1)
            counter.gate.set()
            assert await job.result(within=SOON) == "here"
            done = (await app.engine.inspect.counts("busy")).totals["completed"]
        assert done < 100 or counter.came <= 100

    async def test_save_up_nothing_for_an_empty_queue(self, app: Towpath) -> None:
        order: list[str] = []
        for queue in ("one", "two"):
            app.add(queue, _noting(order, queue), HandlerOptions())
        worker = Worker(app, concurrency=1)
        await app.engine.submit_many("one", [new_job(b"1") for _ in range(200)])
        await worker.drain()
        order.clear()
        for queue in ("one", "two"):
            await app.engine.submit_many(queue, [new_job(b"1") for _ in range(50)])
        await worker.drain()
        assert Counter(order[:40])["one"] == pytest.approx(20, abs=3)


class TestTheCostOfJobs:
    async def test_is_few_round_trips_for_a_thousand(
        self, app: Towpath, server: EmbeddedServer
    ) -> None:
        """Ends and claims share an exchange; while it is under way, the next ends collect."""

        @app.handler("shop")
        async def sell(_: int) -> None: ...

        await sell.submit_many(range(1000))
        worker = Worker(app, concurrency=100)
        await worker.drain()
        server.ask("CONFIG", "RESETSTAT")
        await sell.submit_many(range(1000))
        await worker.drain()
        assert _scripts_run(server) < 1000 / 25

    async def test_is_few_calls_for_one_job_of_an_idle_worker(
        self, app: Towpath, server: EmbeddedServer, lines: LogLines
    ) -> None:
        @app.handler("shop")
        async def sell(_: int) -> None: ...

        async with working(app):
            await (await sell.submit(1)).result(within=SOON)
            server.ask("CONFIG", "RESETSTAT")
            await (await sell.submit(2)).result(within=SOON)
            # Submit, claim, settle, and reading the result twice.
            assert _scripts_run(server) <= 8


class TestAWorkerIsRefused:
    async def test_without_handlers(self, app: Towpath) -> None:
        with pytest.raises(HandlerInvalid, match="handlers_later=True"):
            Worker(app)

    async def test_for_a_queue_without_a_handler(self, app: Towpath) -> None:
        @app.handler("shop")
        async def sell() -> None: ...

        with pytest.raises(HandlerInvalid, match=r"mail.*shop"):
            Worker(app, queues=["mail"])

    @pytest.mark.parametrize(
        "options",
        [
            {"concurrency": 0},
            {"concurrency": 2.5},
            {"lease": seconds(0.5)},
            {"grace": seconds(-1)},
            {"queues": {"shop": 0}},
        ],
    )
    async def test_with_options_out_of_range(self, app: Towpath, options: Any) -> None:
        @app.handler("shop")
        async def sell() -> None: ...

        with pytest.raises(InvalidOption):
            Worker(app, **options)


def _noting(order: list[str], queue: str) -> Any:
    async def note(_: int) -> None:
        order.append(queue)

    return note


def _scripts_run(server: EmbeddedServer) -> int:
    stats = ask_fields(server.address, "INFO", "commandstats")
    return sum(
        int(value.partition("calls=")[2].partition(",")[0])
        for name, value in stats.items()
        if name in ("cmdstat_evalsha", "cmdstat_eval")
    )
