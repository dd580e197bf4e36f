"""Transactions in which no job can be submitted: what is refused, and with which error."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import InvalidRequestError, UnboundExecutionError
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    create_async_engine,
)
from sqlalchemy.orm import Session

from tests.ledger.own_transactions import ORDERS, Sell, named, order, rows
from tests.ledger.records import REVIEWS
from tests.postgres import PostgresServer
from towpath import CallNext, State, Towpath
from towpath.app.submission import Submission
from towpath.embedded import EmbeddedServer
from towpath.errors import InvalidOption, JobDiffers, PayloadInvalid
from towpath.ledger.errors import LedgerElsewhere
from towpath.ledger.ledger import Ledger


class TestAJobThatDiffers:
    """The caller catches the error and commits the rest of the transaction."""

    async def test_leaves_none_of_the_jobs_beside_it(
        self, app: Towpath, sell: Sell, orders: AsyncEngine, ledger: Ledger
    ) -> None:
        async with app, AsyncSession(orders) as session:
            await sell.submit(0, in_transaction=session, id="known")
            for ids in (("new", "known"), ("twice", "twice")):
                wanted = [sell.new(number, id=id) for number, id in enumerate(ids, 1)]
                with pytest.raises(JobDiffers):
                    await sell.submit_many(wanted, in_transaction=session)
            await order(session, 1)
            await session.commit()
            assert await sell.job("known").state() is not State.GONE
            assert [await sell.job(id).state() for id in ("new", "twice")] == [State.GONE] * 2
        assert await rows(ledger) == 1

    async def test_leaves_none_where_nothing_was_begun(
        self, app: Towpath, sell: Sell, blocking: Engine, ledger: Ledger
    ) -> None:
        twice = [sell.new(1, id="twice"), sell.new(2, id="twice")]

        def shop() -> None:
            with Session(blocking) as session:
                with pytest.raises(JobDiffers):
                    sell.blocking.submit_many(twice, in_transaction=session)
                session.commit()
                sell.blocking.submit_many([3, 4], in_transaction=session)
                session.rollback()
                sell.blocking.submit_many([5, 6], in_transaction=session)
                session.commit()

        await asyncio.to_thread(shop)
        assert await rows(ledger) == 2


class TestAnotherDatabase:
    async def test_without_the_tables_is_refused_and_the_transaction_goes_on(
        self, app: Towpath, sell: Sell, running_postgres: PostgresServer, tmp_path: Path
    ) -> None:
        file = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/other.db")
        other = create_async_engine(named(running_postgres.emptied()))
        async with app:
            for engine in (file, other):
                async with AsyncSession(engine) as session:
                    await session.execute(text(ORDERS))
                    with pytest.raises(LedgerElsewhere):
                        await sell.submit(1, in_transaction=session)
                    await order(session, 1)
                    await session.commit()
                await engine.dispose()

    async def test_with_its_own_tables_is_refused(
        self,
        app: Towpath,
        sell: Sell,
        ledger: Ledger,
        running_postgres: PostgresServer,
        tmp_path: Path,
    ) -> None:
        on_file = ledger.shown.startswith("sqlite")
        elsewhere = f"sqlite:///{tmp_path}/other.db" if on_file else running_postgres.emptied()
        async with Ledger(elsewhere) as other:
            await other.migrate()
        engine = create_async_engine(named(elsewhere))
        async with app, AsyncSession(engine) as session:
            with pytest.raises(LedgerElsewhere):
                await sell.submit(1, in_transaction=session)
        await engine.dispose()
        if on_file:
            plain = create_engine(elsewhere)
            with Session(plain) as session, pytest.raises(LedgerElsewhere):
                sell.blocking.submit(1, in_transaction=session)
            plain.dispose()
        assert await rows(ledger) == 0

    async def test_that_was_restarted_is_the_same(
        self, running_postgres: PostgresServer, prepared_server_url: str
    ) -> None:
        async with Ledger(prepared_server_url) as ledger:
            for restarted in (False, True):
                if restarted:
                    running_postgres.stop(signal.SIGINT)
                    running_postgres.start()
                engine = create_async_engine(named(prepared_server_url))
                async with AsyncSession(engine) as session:
                    await ledger.submit(session, REVIEWS, b"1")
                    await session.commit()
                await engine.dispose()
            assert await rows(ledger) == 2


class TestASubmitInATransaction:
    async def test_is_refused_for_a_handler_without_a_record(
        self, app: Towpath, orders: AsyncEngine
    ) -> None:
        plain = app.handler("plain")(lambda: None)
        async with app, AsyncSession(orders) as session:
            with pytest.raises(InvalidOption, match="record=True"):
                await plain.submit(in_transaction=session)
            with pytest.raises(InvalidOption, match="record=True"):
                await plain.submit_many([None], in_transaction=session)
        with Session() as session, pytest.raises(InvalidOption, match="record=True"):
            plain.blocking.submit(in_transaction=session)

    async def test_is_refused_for_a_value_that_is_no_transaction(
        self, app: Towpath, sell: Sell, blocking: Engine, orders: AsyncEngine
    ) -> None:
        anything: list[Any] = ["session", orders, blocking]
        not_async: list[Any] = [*anything, Session(blocking)]
        not_blocking: list[Any] = [*anything, AsyncSession(orders)]
        async with app:
            for wrong in not_async:
                with pytest.raises(InvalidOption, match=r"`handler\.blocking\.submit`") as refusal:
                    await sell.submit(1, in_transaction=wrong)
                require_no_transaction(refusal.value, type(wrong).__name__)
            for wrong in not_blocking:
                with pytest.raises(InvalidOption, match=r"`await handler\.submit`") as refusal:
                    sell.blocking.submit(1, in_transaction=wrong)
                require_no_transaction(refusal.value, type(wrong).__name__)

    async def test_is_refused_in_autocommit_mode(
        self, app: Towpath, sell: Sell, orders: AsyncEngine, ledger: Ledger
    ) -> None:
        at_once = orders.execution_options(isolation_level="AUTOCOMMIT")
        async with app, AsyncSession(at_once) as session:
            with pytest.raises(InvalidOption, match="AUTOCOMMIT"):
                await sell.submit(1, in_transaction=session)
        assert await rows(ledger) == 0

    async def test_is_refused_if_the_transaction_has_ended(
        self, app: Towpath, sell: Sell, blocking: Engine, orders: AsyncEngine, ledger: Ledger
    ) -> None:
        """Nothing of the refused submit is left."""
        async with app:
            connection = await orders.connect()
            await connection.close()
            with pytest.raises(InvalidOption) as refusal:
                await sell.submit(1, in_transaction=connection)
            require_ended(refusal.value)
            for end in ("commit", "rollback"):
                async with AsyncSession(orders) as session, session.begin() as begun:
                    await getattr(begun, end)()
                    with pytest.raises(InvalidOption) as refusal:
                        await sell.submit(1, in_transaction=session)
                    require_ended(refusal.value)
            plain = blocking.connect()
            plain.close()
            with pytest.raises(InvalidOption) as refusal:
                sell.blocking.submit(1, in_transaction=plain)
            require_ended(refusal.value)
            with Session(blocking) as session, session.begin() as begun:
                begun.rollback()
                with pytest.raises(InvalidOption) as refusal:
                    sell.blocking.submit(1, in_transaction=session)
                require_ended(refusal.value)
        assert await rows(ledger) == 0

    async def test_passes_through_submit_middleware(
        self, url: str, server: EmbeddedServer, blocking: Engine, orders: AsyncEngine
    ) -> None:
        seen: list[tuple[int, bool]] = []

        async def noted(submission: Submission, call_next: CallNext) -> None:
            for job in submission.jobs:
                job.options["priority"] = 7
            jobs = await call_next()
            seen.append((len(jobs), submission.transaction is not None))

        app = Towpath(server.url, ledger=url, submit_middleware=[noted])

        @app.handler("shop", record=True)
        async def sell_too(n: int) -> int:
            return n

        async with app:
            async with AsyncSession(orders) as session, session.begin():
                await sell_too.submit_many([1, 2], in_transaction=session)

            def script() -> str:
                with Session(blocking) as session, session.begin():
                    return sell_too.blocking.submit(3, in_transaction=session).id

            last = await asyncio.to_thread(script)
            assert (await sell_too.job(last).info()).priority == 7
        assert seen == [(2, True), (1, True)]

    async def test_is_refused_for_a_session_of_several_databases(
        self, app: Towpath, sell: Sell
    ) -> None:
        async with app, AsyncSession() as session:
            with pytest.raises(InvalidOption) as refusal:
                await sell.submit(1, in_transaction=session)
        assert refusal.value.option == "in_transaction"
        assert isinstance(refusal.value.__cause__, UnboundExecutionError)

    async def test_is_refused_with_a_durability_or_a_wrong_payload(
        self, app: Towpath, sell: Sell, orders: AsyncEngine
    ) -> None:
        wrong: Callable[..., Any] = sell.submit
        async with app, AsyncSession(orders) as session:
            with pytest.raises(InvalidOption) as refusal:
                await wrong(1, in_transaction=session, durability="disk")
            assert (refusal.value.option, refusal.value.value) == ("durability", "disk")
            with pytest.raises(PayloadInvalid, match="sell"):
                await wrong("seven", in_transaction=session)


def require_no_transaction(refusal: InvalidOption, given: str) -> None:
    assert (refusal.option, refusal.value) == ("in_transaction", given)


def require_ended(refusal: InvalidOption) -> None:
    assert refusal.option == "in_transaction"
    assert isinstance(refusal.__cause__, InvalidRequestError)
    assert not isinstance(refusal.__cause__, UnboundExecutionError)
