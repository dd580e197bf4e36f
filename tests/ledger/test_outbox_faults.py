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

from tests.ledger.memory_sinks import HeldSink, MemorySink
from tests.ledger.numbered_events import QUICK, an_event, expected, first_arrivals, put
from tests.ledger.outbox_facts import all_gone, lines, said
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
    async def test_has_its_events_sent(self, server_url: str) -> None:
        """Its rows come before others that were sent already: the courier does not go by the last
        number.
        """
        sink = MemorySink()
        async with (
            Ledger(server_url, sinks=["events"]) as ledger,
            somebodys_connection(server_url) as late,
        ):
            await ledger.migrate()
            await late.run_sync(
                lambda connection: ledger.outbox.put(connection, [an_event("early", 1)])
            )
            async with Courier(ledger, [sink], options=QUICK):
                await put(ledger, an_event("other", 1))
                await all_gone(ledger)
                assert sink.ids == ["other/1"]
                await late.commit()
                await all_gone(ledger)
        assert sink.ids == ["other/1", "early/1"]

    async def test_sends_nothing_if_it_is_rolled_back(self, server_url: str) -> None:
        sink = MemorySink()
        async with (
            Ledger(server_url, sinks=["events"]) as ledger,
            somebodys_connection(server_url) as late,
        ):
            await ledger.migrate()
            async with Courier(ledger, [sink], options=QUICK):
                await late.run_sync(
                    lambda connection: ledger.outbox.put(connection, [an_event("a", 1)])
                )
                await late.rollback()
                await put(ledger, an_event("a", 2))
                await all_gone(ledger)
        assert sink.ids == ["a/2"]


class TestACourierThatComesTooLate:
    async def test_deletes_no_row_but_its_own(self, url: str) -> None:
        """Meanwhile another courier sent the same event, and a new one was stored."""
        gate = HeldSink()
        async with Ledger(url, sinks=["events"]) as ledger:
            await ledger.migrate()
            await put(ledger, an_event("a", 1))
            async with Courier(ledger, [gate], options=QUICK):
                await gate.reached.wait()
                await ledger.write(lambda connection: connection.execute(delete(outbox)))
                await put(ledger, an_event("a", 2))
                gate.reached.clear()
                gate.open.set()
                await gate.reached.wait()
                await all_gone(ledger)
        assert gate.ids == ["a/1", "a/2"]


class TestADatabaseThatGoesAway:
    async def test_is_waited_for(
        self, own_postgres: PostgresServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It is logged once. Events under way may be sent again, in order."""
        sink = MemorySink()
        url = own_postgres.new_database("jobs")
        with caplog.at_level(logging.INFO, "towpath"):
            async with Ledger(url, sinks=["events"]) as ledger:
                await ledger.migrate()
                async with Courier(ledger, [sink], options=QUICK):
                    for number in range(1, 31):
                        await put(ledger, *(an_event(f"k{key}", number) for key in range(3)))
                        if number in (10, 20):
                            own_postgres.stop(signal.SIGQUIT)
                            already = len(lines(caplog, "outbox.unreadable"))
                            await said(caplog, "outbox.unreadable", times=already + 1)
                            await asyncio.to_thread(own_postgres.start)
                        if number == 19:
                            # The courier has noticed that the first outage is over.
                            await all_gone(ledger)
                    await all_gone(ledger)
        assert first_arrivals(sink.bodies) == expected(3, 30)
        assert len(lines(caplog, "outbox.unreadable")) == 2
