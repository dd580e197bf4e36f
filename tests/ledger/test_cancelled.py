"""A transaction that is cancelled, or whose connection ends, at any of its awaits: it is stored
whole or not at all, and its connection is never reused in the middle of an operation.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from tests.fixtures import LEDGER_LIMIT
from tests.ledger.awaits import AtAwait, cancel_after_the_answer, cancel_before_the_answer
from tests.ledger.own_transactions import order
from tests.postgres import PostgresServer
from tests.waiting import HANGS, eventually, eventually_async
from towpath import seconds
from towpath.ledger.errors import LedgerUnreachable
from towpath.ledger.ledger import Ledger

OURS = "FROM pg_stat_activity WHERE application_name = 'towpath'"
MISSING = "SELECT (SELECT count(*) FROM orders) - (SELECT count(*) FROM towpath_jobs)"
MOMENTS = pytest.mark.parametrize(
    "cancel", [cancel_before_the_answer, cancel_after_the_answer], ids=["before", "after"]
)
Use = Callable[[Ledger], Awaitable[Any]]


def add_two(connection: Connection) -> None:
    for number in (1, 2):
        connection.execute(text("INSERT INTO notes VALUES (:number)"), {"number": number})


def count_notes(connection: Connection) -> int:
    return connection.scalar(text("SELECT count(*) FROM notes")) or 0


def count_missing(connection: Connection) -> int | None:
    """How many orders have no job; below 0: how many jobs have no order. As of one moment."""
    return connection.scalar(text(MISSING))


def write(ledger: Ledger) -> Awaitable[None]:
    return ledger.write(add_two)


def read(ledger: Ledger) -> Awaitable[int]:
    return ledger.read(count_notes)


def migrate(ledger: Ledger) -> Awaitable[Any]:
    return ledger.migrate()


@pytest.fixture
async def notes(url: str, ledger: Ledger) -> str:
    """The URL of a database with an empty table."""
    await ledger.write(lambda connection: connection.execute(text("CREATE TABLE notes (n INT)")))
    return url


async def outcome(work: Awaitable[Any]) -> Any:
    """The outcome of *work* in a task of its own."""

    async def run() -> Any:
        return await work

    (found,) = await asyncio.gather(asyncio.create_task(run()), return_exceptions=True)
    return found


class TestACancelledTransaction:
    @MOMENTS
    @pytest.mark.parametrize("use", [read, write, migrate])
    async def test_leaves_no_connection_in_the_middle_of_an_operation(
        self, notes: str, ledger: Ledger, use: Use, cancel: Callable[[Any], None]
    ) -> None:
        number, reached, stored = 0, True, 0
        while reached:
            # A connection that has just been opened: opening it can be cancelled too.
            async with Ledger(notes, limit=LEDGER_LIMIT) as fresh:
                others = [asyncio.create_task(outcome(write(fresh))) for _ in range(3)]
                cancelled = AtAwait(use(fresh), number, cancel)
                found = await outcome(cancelled)
                reached = cancelled.reached
                assert isinstance(found, asyncio.CancelledError) is reached, (number, found)
                assert await asyncio.gather(*others, outcome(write(fresh))) == [None] * 4
            now = await ledger.read(count_notes)
            assert now - stored in ({8, 10} if use is write else {8}), number
            number, stored = number + 1, now


class TestACancelledTransactionOfTheCaller:
    """On PostgreSQL. The caller's own engine for SQLite (aiosqlite) can keep the write lock after a
    cancellation, with and without a job.
    """

    @pytest.fixture
    def url(self, prepared_server_url: str) -> str:
        return prepared_server_url

    @MOMENTS
    async def test_has_its_job_if_it_is_committed(
        self, orders: AsyncEngine, ledger: Ledger, cancel: Callable[[Any], None]
    ) -> None:
        async def shop(number: int) -> None:
            async with AsyncSession(orders) as session:
                await order(session, number)
                await ledger.submit(session, "shop", b"1", id=f"o{number}")
                await session.commit()

        number, reached = 0, True
        while reached:
            cancelled = AtAwait(shop(2 * number), number, cancel)
            others = asyncio.create_task(outcome(shop(2 * number + 1)))
            found, reached = await outcome(cancelled), cancelled.reached
            assert isinstance(found, asyncio.CancelledError) is reached, (number, found)
            assert await others is None, number
            assert await ledger.read(count_missing) == 0, number
            number += 1


_DISTURBED_MOST = 10


class TestAConnectionThatTheServerEnds:
    """Its end is read together with the answer to the last statement, as in a process that stood
    still meanwhile: the driver does not notice it until the connection is used again.
    """

    @pytest.fixture
    def url(self, prepared_server_url: str) -> str:
        return prepared_server_url

    @pytest.mark.parametrize("use", [read, write])
    async def test_is_replaced_and_the_transaction_repeated(
        self, notes: str, ledger: Ledger, running_postgres: PostgresServer, use: Use
    ) -> None:
        await ledger.close()  # so that only connections of the ledger under test are ended
        number, reached, stored, disturbed = 0, True, 0, 0
        while reached:
            async with Ledger(notes, limit=LEDGER_LIMIT) as fresh:
                ended = AtAwait(use(fresh), number, lambda _: end_connections(running_postgres))
                found = await outcome(ended)
                if isinstance(found, LedgerUnreachable) and disturbed < _DISTURBED_MOST:
                    # The server had not read the last statement yet: this await once more.
                    disturbed, stored = disturbed + 1, await fresh.read(count_notes)
                    continue
                assert found == (None if use is write else 0), number
                reached = ended.reached
                now = await fresh.read(count_notes)
                assert now - stored == (2 if use is write else 0), number
            number, stored, disturbed = number + 1, now, 0


def end_connections(server: PostgresServer) -> None:
    """Ends all connections of ledgers once the server has answered their statements. The event loop
    stands still meanwhile.
    """
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:

        def ask(words: str) -> list[Any]:
            return connection.execute(words.encode()).fetchall()

        eventually(
            lambda: {event for (event,) in ask(f"SELECT wait_event {OURS}")} <= {"ClientRead"}
        )
        ask(f"SELECT pg_terminate_backend(pid) {OURS}")
        eventually(lambda: not ask(f"SELECT 1 {OURS}"))


async def test_a_connection_whose_statement_took_too_long_is_not_used_again(
    prepared_server_url: str,
) -> None:
    slow: list[int] = []

    def own_pid(connection: Connection) -> int:
        return connection.scalar(text("SELECT pg_backend_pid()")) or 0

    def sleep(connection: Connection) -> None:
        slow.append(own_pid(connection))
        connection.execute(text(f"SELECT pg_sleep({HANGS})"))

    async with Ledger(prepared_server_url, limit=seconds(1)) as ledger:

        async def waited() -> bool:
            """A busy machine may need more than a second for a connection."""
            with pytest.raises(LedgerUnreachable):
                await ledger.write(sleep)
            return bool(slow)

        async def answered() -> bool:
            found = await outcome(ledger.read(own_pid))
            assert found not in slow
            return isinstance(found, int)

        await eventually_async(waited)
        await eventually_async(answered)
