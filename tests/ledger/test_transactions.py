"""Jobs submitted in the caller's own transaction exist if and when it commits."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from tests.faults.planting import SAVEPOINT_FORGETS, planted
from tests.ledger.own_transactions import Sell, order, rows
from tests.ledger.records import REVIEWS
from tests.waiting import eventually_async
from tests.worker.in_process_worker import SOON, working
from towpath import Fixed, Towpath, milliseconds, minutes
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine as RedisEngine
from towpath.engine.model import job_ref
from towpath.engine.states import State
from towpath.errors import JobUnfinished, StillOpen
from towpath.ledger.errors import RecordNotFound, RecordUncommitted
from towpath.ledger.ledger import Ledger
from towpath.ledger.records.record import RecordState
from towpath.ledger.records.relay import Relay
from towpath.telemetry.logs import Log


def _submitted(app: Towpath) -> float | None:
    about = {"queue": "shop", "handler": "sell"}
    return app.metrics.registry.get_sample_value("towpath_jobs_submitted_total", about)


class TestAJobInATransaction:
    async def test_runs_once_it_commits_with_its_handler_and_policy(
        self, app: Towpath, sell: Sell, bill: Any, orders: AsyncEngine, ledger: Ledger
    ) -> None:
        async with app, working(app):
            async with AsyncSession(orders) as session:
                await order(session, 7)
                good = await sell.submit(7, in_transaction=session, id="s-7")
                bad = await sell.submit(-1, in_transaction=session)
                other = await bill.submit("anna", in_transaction=session)
                await session.commit()
            assert await good.result(within=SOON) == 14
            assert await other.result(within=SOON) == "anna owes"
            with pytest.raises(JobUnfinished, match="attempt 2"):
                await bad.result(within=SOON)
        assert await rows(ledger, "orders") == 1

    async def test_has_all_options_that_a_job_may_have(
        self, app: Towpath, sell: Sell, orders: AsyncEngine
    ) -> None:
        async with app, AsyncSession(orders) as session:
            old = await sell.submit(1, in_transaction=session, subject="order", version=1)
            new = await sell.submit(
                2, in_transaction=session, id="new", priority=90, lane="anna", delay=minutes(5),
                max_attempts=7, retry=Fixed(minutes(2)), headers={"tenant": "t"},
                subject="order", version=2,
            )  # fmt: skip
            await session.commit()
            record = await app.ledger.jobs.get("shop", "new")
            assert await old.state() is State.CANCELLED
            assert await new.state() is State.DELAYED
        assert (record.priority, record.lane, record.max_attempts) == (90, "anna", 7)
        assert dict(record.headers) == {"tenant": "t", "handler": "sell"}
        assert (record.subject, record.version) == ("order", 2)
        assert record.due_at is not None
        assert record.options is not None
        assert "PT120S" in record.options

    async def test_is_pending_before_the_commit(
        self, app: Towpath, sell: Sell, orders: AsyncEngine
    ) -> None:
        async with app, AsyncSession(orders) as session:
            ticket = await sell.submit(7, in_transaction=session)
            assert await ticket.state() is State.PENDING
            assert (await ticket.record()).state is RecordState.PENDING  # type: ignore[attr-defined]
            with pytest.raises(StillOpen):
                await ticket.result(within=milliseconds(1))
            with pytest.raises(RecordUncommitted):
                await ticket.cancel()
            await session.commit()
            assert await ticket.state() is State.READY
            assert await ticket.cancel() is State.CANCELLED

    async def test_can_be_waited_for_while_another_task_commits(
        self, app: Towpath, sell: Sell, orders: AsyncEngine
    ) -> None:
        async with app, working(app), AsyncSession(orders) as session:
            ticket = await sell.submit(7, in_transaction=session)
            waiting = asyncio.create_task(ticket.result(within=SOON))
            await asyncio.sleep(0)
            await session.commit()
            assert await waiting == 14

    async def test_does_not_exist_after_a_rollback(
        self, app: Towpath, sell: Sell, orders: AsyncEngine, ledger: Ledger
    ) -> None:
        async with app:
            async with AsyncSession(orders) as session:
                undone = await sell.submit(1, in_transaction=session)
                await session.rollback()
            async with AsyncSession(orders) as session:
                closed = await sell.submit(2, in_transaction=session)
            async with orders.connect() as connection:
                left = await sell.submit(3, in_transaction=connection)
            for ticket in (undone, closed, left):
                assert await ticket.state() is State.GONE
                with pytest.raises(RecordNotFound):
                    await ticket.result(within=SOON)
        assert await rows(ledger) == 0

    async def test_after_a_savepoint_is_rolled_back_alone(
        self, app: Towpath, sell: Sell, orders: AsyncEngine, ledger: Ledger
    ) -> None:
        async with app, AsyncSession(orders) as session:
            await order(session, 7)
            before = await sell.submit(1, in_transaction=session)
            savepoint = await session.begin_nested()
            undone = await sell.submit(2, in_transaction=session)
            await savepoint.rollback()
            async with session.begin_nested():
                released = await sell.submit(3, in_transaction=session)
            await session.commit()
            assert await undone.state() is State.GONE
            assert await before.state() is await released.state() is State.READY
        assert await rows(ledger) == 2
        assert _submitted(app) == 2

    async def test_in_a_bare_connection_or_a_scoped_session_runs_too(
        self, app: Towpath, sell: Sell, orders: AsyncEngine
    ) -> None:
        sessions = async_scoped_session(async_sessionmaker(orders), asyncio.current_task)
        async with app, working(app):
            async with orders.begin() as connection:
                first = await sell.submit(1, in_transaction=connection)
                assert await first.state() is State.PENDING
            second = await sell.submit(2, in_transaction=sessions)
            await sessions.commit()
            await sessions.remove()
            assert await first.result(within=SOON) == 2
            assert await second.result(within=SOON) == 4

    async def test_is_committed_with_all_others_or_none(
        self, app: Towpath, sell: Sell, orders: AsyncEngine, ledger: Ledger
    ) -> None:
        async with app, working(app), AsyncSession(orders) as session:
            await sell.submit_many([1, 2, 3], in_transaction=session)
            await session.rollback()
            assert await rows(ledger) == 0
            tickets = await sell.submit_many([1, 2, 3], in_transaction=session)
            await session.commit()
            results = [await ticket.result(within=SOON) for ticket in tickets]
        assert results == [2, 4, 6]

    async def test_needs_no_redis(self, url: str, orders: AsyncEngine) -> None:
        with EmbeddedServer() as server:
            server.kill()
            app = Towpath(server.url, ledger=url)

            @app.handler("shop", name="sell", record=True)
            async def sell(number: int) -> int:
                return number * 2

            async with app:
                async with AsyncSession(orders) as session:
                    ticket = await sell.submit(7, in_transaction=session)
                    await session.commit()
                server.start()
                await app.engine.check()
                async with working(app):
                    assert await ticket.result(within=SOON) == 14

    async def test_keeps_the_order_of_the_commits_in_its_lane(
        self, app: Towpath, orders: AsyncEngine
    ) -> None:
        ran: list[int] = []

        @app.handler("lanes", name="note", record=True)
        async def note(number: int) -> None:
            ran.append(number)

        async with app, working(app):
            for number in range(0, 60, 3):
                async with AsyncSession(orders) as session:
                    await order(session, number)
                    await note.submit(number, in_transaction=session, lane="anna")
                    savepoint = await session.begin_nested()
                    await note.submit(-1, in_transaction=session, lane="anna")
                    await savepoint.rollback()
                    await note.submit(number + 1, in_transaction=session, lane="anna")
                    async with session.begin_nested():
                        await note.submit(number + 2, in_transaction=session, lane="anna")
                    await session.commit()

            async def all_ran() -> bool:
                return len(ran) == 60

            await eventually_async(all_ran)
        assert ran == list(range(60))


class TestASavepoint:
    """A savepoint that is rolled back does not delay the enqueuing of the rest."""

    async def test_that_is_rolled_back_keeps_jobs_that_were_submitted_before_it(
        self, server: EmbeddedServer, orders: AsyncEngine, ledger: Ledger
    ) -> None:
        assert await self._queued(server, orders, ledger) == 2

    async def test_that_loses_earlier_jobs_is_found(
        self, server: EmbeddedServer, orders: AsyncEngine, ledger: Ledger
    ) -> None:
        with planted(SAVEPOINT_FORGETS):
            assert await self._queued(server, orders, ledger) == 1

    @staticmethod
    async def _queued(server: EmbeddedServer, engine: AsyncEngine, ledger: Ledger) -> int:
        """How many are queued by the commit alone: this relay does nothing else."""
        async with RedisEngine(server.url) as redis, AsyncSession(engine) as session:
            ledger.jobs.relay = Relay(ledger, redis, log=Log())
            await order(session, 7)
            await ledger.submit(session, REVIEWS, b"1")
            await (await session.begin_nested()).rollback()
            async with session.begin_nested():
                await ledger.submit(session, REVIEWS, b"2", id="last")
            await session.commit()

            async def queued() -> bool:
                return await redis.inspect.state(job_ref(REVIEWS, "last")) is State.READY

            await eventually_async(queued)
            return (await redis.inspect.counts(REVIEWS)).ready


class TestABlockingTransaction:
    async def test_submits_a_job(
        self, app: Towpath, sell: Sell, bill: Any, blocking: Engine, ledger: Ledger
    ) -> None:
        def shop() -> None:
            """The app is not entered: a relay of another process finds what is committed."""
            with Session(blocking) as session, session.begin():
                sell.blocking.submit(1, in_transaction=session, id="s-1", priority=90)
                bill.blocking.submit("anna", in_transaction=session, id="b-1")
            with blocking.begin() as connection:
                sell.blocking.submit_many([2, 3], in_transaction=connection)
            scoped = scoped_session(sessionmaker(blocking))
            sell.blocking.submit(4, in_transaction=scoped)
            scoped.commit()
            sell.blocking.submit(5, in_transaction=scoped)
            scoped.remove()

        await asyncio.to_thread(shop)
        assert (await ledger.jobs.counts("shop"))[RecordState.PENDING] == 5
        assert (await ledger.jobs.get("shop", "s-1")).priority == 90
        async with app, working(app):

            async def done() -> bool:
                return (await ledger.jobs.counts("shop"))[RecordState.COMPLETED] == 5

            await eventually_async(done)

    async def test_has_its_job_queued_at_once_by_a_connected_app(
        self, blocking: Engine, server: EmbeddedServer, ledger: Ledger
    ) -> None:
        async with RedisEngine(server.url) as redis:
            ledger.jobs.relay = Relay(ledger, redis, log=Log())
            app = Towpath(server.url, ledger=ledger)

            @app.handler("shop", name="sell", record=True)
            def sell(number: int) -> None: ...

            def shop() -> None:
                with Session(blocking) as session, session.begin():
                    sell.blocking.submit(1, in_transaction=session)

            await asyncio.to_thread(shop)

            async def queued() -> bool:
                return (await redis.inspect.counts("shop")).ready == 1

            await eventually_async(queued)


class TestBytesInATransaction:
    """Without a handler: the name of a queue and bytes."""

    async def test_are_a_record_after_a_commit(self, orders: AsyncEngine, ledger: Ledger) -> None:
        async with AsyncSession(orders) as session:
            recorded = await ledger.submit(session, REVIEWS, b"1", id="a")
            assert recorded.record.state is RecordState.PENDING
            with pytest.raises(RecordNotFound):
                await ledger.jobs.get(REVIEWS, "a")
            await session.commit()
        assert (await ledger.jobs.get(REVIEWS, "a")).payload == b"1"

    async def test_are_no_record_after_a_rollback(
        self, orders: AsyncEngine, ledger: Ledger
    ) -> None:
        async with AsyncSession(orders) as session:
            await ledger.submit(session, REVIEWS, b"1", id="a")
            await session.rollback()
        async with orders.begin() as connection:
            await ledger.submit(connection, REVIEWS, b"1", id="b")
            await connection.rollback()
        assert await rows(ledger) == 0
