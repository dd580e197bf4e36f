"""Transactions that commit late, a database that goes away, a courier that comes too late."""

import asyncio
import logging
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import asyncpg  # pyright: ignore[reportMissingTypeStubs] -- it has none; what is used is cast
import pytest
from sqlalchemy import delete
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from tests.ledger.facts import all_gone, lines, said
from tests.ledger.parcels import QUICK, expected, first_arrivals, parcel, put
from tests.ledger.shelves import Gate, Shelf
from tests.postgres import PostgresServer
from towpath.ledger.database.schema import outbox
from towpath.ledger.ledger import Ledger
from towpath.ledger.outbox.courier import Courier


@asynccontextmanager
async def somebodys_connection(url: str) -> AsyncGenerator[AsyncConnection]:
    """A connection of the user's own, in a transaction that is not committed yet."""

    async def connect() -> Any:
        return await cast("Any", asyncpg).connect(url)

    engine = create_async_engine("postgresql+asyncpg://", async_creator=connect)
    async with engine.connect() as connection:
        yield connection
    await engine.dispose()


class TestATransactionThatCommitsLate:
    async def test_is_not_passed_over(self, server_url: str) -> None:
        """Its rows come before others that were sent already: nothing goes by the last number."""
        shelf = Shelf()
        async with (
            Ledger(server_url, sinks=["events"]) as ledger,
            somebodys_connection(server_url) as late,
        ):
            await ledger.migrate()
            await late.run_sync(lambda it: ledger.outbox.put(it, [parcel("early", 1)]))
            async with Courier(ledger, [shelf], options=QUICK):
                await put(ledger, parcel("other", 1))
                await all_gone(ledger)
                assert shelf.ids == ["other/1"]
                await late.commit()
                await all_gone(ledger)
        assert shelf.ids == ["other/1", "early/1"]

    async def test_sends_nothing_where_it_is_undone(self, server_url: str) -> None:
        shelf = Shelf()
        async with (
            Ledger(server_url, sinks=["events"]) as ledger,
            somebodys_connection(server_url) as late,
        ):
            await ledger.migrate()
            async with Courier(ledger, [shelf], options=QUICK):
                await late.run_sync(lambda it: ledger.outbox.put(it, [parcel("a", 1)]))
                await late.rollback()
                await put(ledger, parcel("a", 2))
                await all_gone(ledger)
        assert shelf.ids == ["a/2"]


class TestACourierThatComesTooLate:
    async def test_deletes_no_row_but_its_own(self, url: str) -> None:
        """While it was at it another one sent the same event, and a new one was put."""
        gate = Gate()
        async with Ledger(url, sinks=["events"]) as ledger:
            await ledger.migrate()
            await put(ledger, parcel("a", 1))
            async with Courier(ledger, [gate], options=QUICK):
                await gate.reached.wait()
                await ledger.write(lambda connection: connection.execute(delete(outbox)))
                await put(ledger, parcel("a", 2))
                gate.reached.clear()
                gate.open.set()
                await gate.reached.wait()
                await all_gone(ledger)
        assert gate.ids == ["a/1", "a/2"]


class TestADatabaseThatGoesAway:
    async def test_is_waited_for(
        self, own_postgres: PostgresServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Said once. What was under way may be sent again, in order."""
        shelf = Shelf()
        url = own_postgres.new_database("jobs")
        with caplog.at_level(logging.INFO, "towpath"):
            async with Ledger(url, sinks=["events"]) as ledger:
                await ledger.migrate()
                async with Courier(ledger, [shelf], options=QUICK):
                    for number in range(1, 31):
                        await put(ledger, *(parcel(f"k{key}", number) for key in range(3)))
                        if number in (10, 20):
                            own_postgres.stop(signal.SIGQUIT)
                            already = len(lines(caplog, "outbox.unreadable"))
                            await said(caplog, "outbox.unreadable", times=already + 1)
                            await asyncio.to_thread(own_postgres.start)
                    await all_gone(ledger)
        assert first_arrivals(shelf.bodies) == expected(3, 30)
        assert len(lines(caplog, "outbox.unreadable")) == 2
