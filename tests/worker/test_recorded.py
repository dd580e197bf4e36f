"""Handlers with a record: the row decides what runs, how often, and how it ended."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from tests.waiting import HANGS, eventually_async
from tests.worker.in_process_worker import SOON, LogLines, working
from towpath.app.app import Towpath
from towpath.clock import hours, milliseconds, minutes, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.channel import Limits
from towpath.engine.retry import Fixed
from towpath.engine.states import State
from towpath.errors import (
    InvalidOption,
    JobDiffers,
    JobNotWaiting,
    JobUnfinished,
    ServerUnreachable,
    StillOpen,
    SubmitsRefused,
)
from towpath.ledger.errors import LedgerAbsent, LedgerMissing
from towpath.ledger.ledger import Ledger
from towpath.ledger.records.record import RECORD_MISSING, RecordState
from towpath.worker.context import Context, Discard, Snooze

AT_ONCE = Fixed(milliseconds(1))


@pytest.fixture
def url(prepared_file_url: str) -> str:
    return prepared_file_url


@pytest.fixture
async def app(server: EmbeddedServer, url: str) -> AsyncIterator[Towpath]:
    async with Towpath(server.url, ledger=url) as app:
        yield app


class TestAJob:
    async def test_with_a_record_can_be_moved(self, app: Towpath) -> None:
        @app.handler("shop", record=True)
        async def double(number: int) -> int:
            return number * 2

        ticket = await double.submit(20, id="a", delay=hours(1))
        async with working(app):
            await ticket.move(delay=seconds(0))
            assert await ticket.result(within=SOON) == 40
            with pytest.raises(JobNotWaiting) as refusal:
                await ticket.move(delay=seconds(0))
            assert refusal.value.state is State.DONE

    async def test_without_a_record_can_be_moved(self, app: Towpath) -> None:
        @app.handler("plain", keep=hours(1))
        async def double(number: int) -> int:
            return number * 2

        ticket = await double.submit(20, id="a", delay=hours(1))
        async with working(app):
            assert await ticket.move(delay=seconds(0)) is State.READY
            assert await ticket.result(within=SOON) == 40
            with pytest.raises(JobNotWaiting, match="done"):
                await ticket.move(delay=seconds(0))


class TestAHandlerWithARecord:
    async def test_gets_the_payload_and_its_result_is_in_the_row(self, app: Towpath) -> None:
        @app.handler("shop", record=True)
        async def double(number: int, ctx: Context) -> int:
            return number * 2 + ctx.attempt

        async with working(app):
            ticket = await double.submit(20, id="a")
            assert await ticket.result(within=SOON) == 41
        record = await app.ledger.jobs.get("shop", "a")
        assert (record.state, record.payload, record.result) == (
            RecordState.COMPLETED, b"20", b"41",
        )  # fmt: skip
        assert await ticket.state() is State.DONE

    async def test_runs_in_threads_and_many_at_once(self, app: Towpath) -> None:
        @app.handler("shop", record=True)
        def double(number: int) -> int:
            return number * 2

        async with working(app):
            tickets = await double.submit_many(range(200))
            results = [await ticket.result(within=SOON) for ticket in tickets]
        assert results == [2 * n for n in range(200)]
        assert (await app.ledger.jobs.counts("shop"))[RecordState.COMPLETED] == 200

    async def test_runs_once_for_the_same_id(self, app: Towpath) -> None:
        ran: list[int] = []

        @app.handler("shop", record=True)
        async def sell(number: int) -> None:
            ran.append(number)

        async with working(app):
            await (await sell.submit(1, id="a")).result(within=SOON)
            with pytest.raises(JobDiffers):
                await sell.submit(2, id="a")
            with pytest.raises(SubmitsRefused) as refusal:
                await sell.submit_many([2], id="a")
            assert isinstance(refusal.value.refused[0], JobDiffers)
            again = await sell.submit(2, id="a", on_conflict="keep")
            assert again.existed
            assert await again.state() is State.DONE
            await again.result(within=SOON)
        assert ran == [1]

    async def test_needs_a_ledger_that_is_up_to_date(
        self, server: EmbeddedServer, tmp_path: Path
    ) -> None:
        app = Towpath(server.url, ledger=f"sqlite:///{tmp_path}/new.db")
        with pytest.raises(LedgerAbsent, match=r"new\.db"):
            async with app:
                pass

    async def test_needs_a_ledger(self, server: EmbeddedServer) -> None:
        with pytest.raises(LedgerMissing):
            Towpath(server.url).handler("shop", record=True)(lambda: None)

    async def test_is_submitted_to_without_an_event_loop(self, app: Towpath) -> None:
        @app.handler("shop", record=True)
        async def double(number: int) -> int:
            return number * 2

        def script() -> list[int]:
            jobs = [double.blocking.submit(1), *double.blocking.submit_many([2, double.new(3)])]
            assert double.blocking.job(jobs[0].id).info().payload == b"1"
            return [job.result(within=SOON) for job in jobs]

        async with working(app):
            assert await asyncio.to_thread(script) == [2, 4, 6]

    async def test_accepts_no_durability_class(self, app: Towpath) -> None:
        @app.handler("shop", record=True)
        async def sell() -> None: ...

        with pytest.raises(InvalidOption) as refusal:
            await sell.submit(durability="disk")  # type: ignore[arg-type]
        assert (refusal.value.option, refusal.value.value) == ("durability", "disk")


class TestAnAppWhoseRedisIsAway:
    async def test_accepts_records_that_run_when_it_is_back(self, url: str) -> None:
        with EmbeddedServer() as server:
            server.kill()
            hasty = Limits(answer=seconds(0.3), give_up=seconds(1))
            app = Towpath(server.url, ledger=url, limits=hasty)

            @app.handler("shop", record=True)
            async def double(number: int) -> int:
                return number * 2

            async with app:
                ticket = await double.submit(21)
                with pytest.raises(ServerUnreachable):
                    await app.engine.inspect.counts("shop")
                server.start()
                await app.engine.check()
                async with working(app):
                    assert await ticket.result(within=SOON) == 42


class TestAttempts:
    async def test_are_counted_by_the_row_and_end_dead_with_the_reason(self, app: Towpath) -> None:
        seen: list[int] = []

        @app.handler("shop", record=True, retry=AT_ONCE, max_attempts=3)
        async def sell(ctx: Context) -> None:
            seen.append(ctx.attempt)
            raise ValueError(f"attempt {ctx.attempt}")

        async with working(app):
            ticket = await sell.submit(id="a")
            with pytest.raises(JobUnfinished, match="attempt 3"):
                await ticket.result(within=SOON)
        record = await app.ledger.jobs.get("shop", "a")
        assert (record.state, record.attempts, seen) == (RecordState.DEAD, 3, [1, 2, 3])

    async def test_are_counted_on_after_redis_forgot_them(
        self, app: Towpath, server: EmbeddedServer
    ) -> None:
        seen: list[int] = []

        @app.handler("shop", record=True, retry=AT_ONCE, max_attempts=4)
        async def sell(ctx: Context) -> None:
            seen.append(ctx.attempt)
            if ctx.attempt == 2:
                server.ask("FLUSHALL")
            raise ValueError

        async with working(app):
            ticket = await sell.submit(id="a")
            with pytest.raises(JobUnfinished):
                await ticket.result(within=SOON)
        assert seen == [1, 2, 3, 4]

    async def test_are_limited_by_the_queue_by_default(self, app: Towpath) -> None:
        @app.handler("shop", record=True, retry=AT_ONCE)
        async def sell() -> None:
            raise ValueError

        async with working(app):
            with pytest.raises(JobUnfinished):
                await (await sell.submit(id="a")).result(within=SOON)
        assert (await app.ledger.jobs.get("shop", "a")).attempts == 20

    async def test_may_end_by_a_verdict(self, app: Towpath) -> None:
        slept: list[int] = []

        @app.handler("shop", record=True)
        async def sell(word: str, ctx: Context) -> None:
            if word == "discard":
                raise Discard("no use")
            if not slept:
                slept.append(ctx.attempt)
                raise Snooze(milliseconds(1))
            slept.append(ctx.attempt)

        async with working(app):
            bad, good = await sell.submit("discard", id="bad"), await sell.submit("x", id="good")
            with pytest.raises(JobUnfinished, match="no use"):
                await bad.result(within=SOON)
            await good.result(within=SOON)
        assert slept == [1, 1]

    async def test_begin_again_when_a_dead_job_is_retried(self, app: Towpath) -> None:
        fails = [True]

        @app.handler("shop", record=True, retry=AT_ONCE, max_attempts=1)
        async def sell() -> int:
            if fails:
                fails.clear()
                raise ValueError
            return 1

        async with working(app):
            ticket = await sell.submit(id="a")
            with pytest.raises(JobUnfinished):
                await ticket.result(within=SOON)
            await app.ledger.jobs.retry("shop", "a")
            assert await ticket.result(within=SOON) == 1


class TestARecord:
    async def test_whose_row_is_missing_ends_its_job_dead_with_a_reason(self, app: Towpath) -> None:
        @app.handler("shop", record=True)
        async def sell() -> None: ...

        async with working(app):
            job = (await app.engine.submit("shop", b"null")).job
            dead = await app.engine.events.ended(job, within=SOON)
        assert dead.state is State.DEAD
        assert (dead.reason or "").startswith(f"{RECORD_MISSING}: ")

    @pytest.mark.usefixtures("quick_heartbeat")
    async def test_that_is_cancelled_stops_its_running_handler(self, app: Towpath) -> None:
        begun, stopped = asyncio.Event(), asyncio.Event()

        @app.handler("shop", record=True)
        async def sell() -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()

        async with working(app, lease=minutes(9)):
            ticket = await sell.submit(id="a")
            await asyncio.wait_for(begun.wait(), HANGS)
            await ticket.cancel()
            await asyncio.wait_for(stopped.wait(), HANGS)
            with pytest.raises(JobUnfinished, match="cancelled"):
                await ticket.result(within=SOON)

    async def test_that_is_cancelled_while_its_handler_stops_has_a_cancelled_row(
        self, app: Towpath, gate: threading.Event, lines: LogLines
    ) -> None:
        @app.handler("shop", record=True)
        def sell(ctx: Context) -> str:
            while not ctx.cancelled:
                gate.wait(0.01)
            return "sold some"

        async with working(app, lease=seconds(1)):
            job = await sell.submit(id="a")
            await lines.next("job.started")
            await job.cancel()
            with pytest.raises(JobUnfinished):
                await job.result(within=SOON)
            info = await job.info()
        assert (info.state, info.attempts) == (State.CANCELLED, 1)

    async def test_in_a_locked_database_is_delayed_but_loses_no_attempt(
        self, app: Towpath, url: str, lines: LogLines
    ) -> None:
        """Another program writes for longer than a worker waits, so the end of the attempt is
        written later.
        """
        import sqlite3  # noqa: PLC0415 -- only here

        ran: list[int] = []
        locked, go_on = asyncio.Event(), asyncio.Event()

        @app.handler("shop", record=True)
        async def sell(ctx: Context) -> str:
            ran.append(ctx.attempt)
            locked.set()
            await go_on.wait()
            return "sold"

        async with working(app):
            ticket = await sell.submit(id="a")
            await asyncio.wait_for(locked.wait(), HANGS)
            other = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            go_on.set()
            await eventually_async(lambda: _said(lines, "record.unwritten"))
            other.execute("ROLLBACK")
            other.close()
            assert await ticket.result(within=SOON) == "sold"
        assert ran == [1]

    async def test_without_a_result_in_time_is_still_open(self, app: Towpath) -> None:
        @app.handler("shop", record=True)
        async def sell() -> None: ...

        ticket = await sell.submit(delay=hours(1))
        with pytest.raises(StillOpen):
            await ticket.result(within=seconds(0.1))

    async def test_decides_the_payload_of_its_job(self, app: Towpath) -> None:
        """An operator corrected the payload in the row while the job waited."""

        @app.handler("shop", record=True)
        async def double(number: int) -> int:
            return number * 2

        ticket = await double.submit(1, id="a")
        mended = text("UPDATE towpath_jobs SET payload = CAST('21' AS BLOB)")
        await app.ledger.write(lambda connection: connection.execute(mended))
        async with working(app):
            assert await ticket.result(within=SOON) == 42


async def _said(lines: LogLines, event: str) -> bool:
    return bool(lines.of(event))


class TestALedgerGivenToAnApp:
    async def test_that_was_not_entered_is_open_as_long_as_the_app(
        self, server: EmbeddedServer, url: str
    ) -> None:
        ledger = Ledger(url, sinks=["redis"])
        app = Towpath(server.url, ledger=ledger)
        for _ in range(2):
            async with app:
                assert ledger.entered
            assert not ledger.entered

    async def test_that_was_entered_before_stays_open(
        self, server: EmbeddedServer, url: str
    ) -> None:
        async with Ledger(url) as ledger:
            async with Towpath(server.url, ledger=ledger):
                pass
            assert await ledger.jobs.counts("shop")


class TestBytesForAQueueOfNamedHandlers:
    async def test_are_refused_unless_they_name_one(self, app: Towpath, url: str) -> None:
        """Their jobs would be dead at once."""

        @app.handler("shop", name="double", record=True)
        async def double(number: int) -> int:
            return number * 2

        assert double.named == "double"
        engine = create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:"))
        async with AsyncSession(engine) as session:
            with pytest.raises(InvalidOption, match="in_transaction=session"):
                await app.ledger.submit(session, "shop", b"1")
        await engine.dispose()
        with pytest.raises(InvalidOption, match="double"):
            await app.ledger.jobs.submit("shop", b"1")
        await app.ledger.jobs.submit("shop", b"1", headers={"handler": "double"})

        @app.handler("shop", record=True)
        async def anything(number: int) -> int:
            return number

        assert anything.named is None
        await app.ledger.jobs.submit("shop", b"1")


class TestASupersededRecord:
    async def test_is_skipped_with_a_log_line(self, app: Towpath, lines: LogLines) -> None:
        ran: list[int] = []

        @app.handler("shop", record=True)
        async def sell(number: int) -> None:
            ran.append(number)

        await sell.submit(1, id="old", subject="order", version=1)
        new = await sell.submit(2, id="new", subject="order", version=2)
        async with working(app):
            await new.result(within=SOON)
            skipped = await lines.next("job.skipped")
        assert skipped["job"] == "old"
        assert [line["job"] for line in lines.of("job.completed")] == ["new"]
        assert ran == [2]
