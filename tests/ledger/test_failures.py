"""The errors of a database: temporary ones are retried later, permanent ones are refused."""

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager

import asyncpg  # pyright: ignore[reportMissingTypeStubs] -- it has none
import pytest
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import create_async_engine

from tests.postgres import PostgresServer
from tests.waiting import HANGS, eventually_async
from tests.worker.in_process_worker import working
from towpath import Towpath, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.retry import Never
from towpath.errors import RetryAdvice
from towpath.ledger.database.store import meaning
from towpath.ledger.errors import LedgerBusy, LedgerError, LedgerUnreachable, LedgerUnwritable
from towpath.ledger.ledger import Ledger
from towpath.ledger.records.record import RecordState

LARGE = 200_000


@asynccontextmanager
async def full(ledger: Ledger) -> AsyncGenerator[None]:
    """The file may not grow: SQLite reports the same as on a full disk."""

    def allow(connection: Connection, pages: int) -> None:
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")

    await ledger.write(lambda connection: allow(connection, 1))  # as many as there are
    try:
        yield
    finally:
        # It may share a transaction with a write that finds no room, and then fails with it.
        await eventually_async(
            lambda: _done(ledger.write(lambda connection: allow(connection, 1_000_000)))
        )


async def _done(write: Awaitable[object]) -> bool:
    try:
        await write
    except LedgerUnwritable:
        return False
    return True


class TestAFullDisk:
    @pytest.fixture
    def url(self, prepared_file_url: str) -> str:
        return prepared_file_url

    async def test_is_an_error_until_there_is_space(self, ledger: Ledger) -> None:
        async with full(ledger):
            with pytest.raises(LedgerUnwritable, match="full") as refusal:
                await ledger.jobs.submit("mails", b"x" * LARGE, id="a")
            assert refusal.value.retry is RetryAdvice.LATER
        assert not (await ledger.jobs.submit("mails", b"x" * LARGE, id="a")).existed

    async def test_delays_the_end_of_an_attempt_without_another_attempt(
        self, ledger: Ledger, server: EmbeddedServer
    ) -> None:
        """There would be no second attempt: a lost result would make the job dead."""
        app = Towpath(server.url, ledger=ledger)
        ran: list[int] = []

        @app.handler("mails", record=True, retry=Never())
        async def send(number: int) -> str:
            ran.append(number)
            return "x" * LARGE

        async with app, working(app, lease=seconds(HANGS)):
            async with full(ledger):
                tickets = [await send.submit(number, id=f"r{number}") for number in range(5)]

                async def all_ran() -> bool:
                    return len(ran) == 5

                await eventually_async(all_ran)
            for ticket in tickets:
                await ticket.result(within=seconds(HANGS))
        assert sorted(ran) == [0, 1, 2, 3, 4]
        counts = await ledger.jobs.counts("mails")
        assert counts[RecordState.COMPLETED] == 5


SQLITE = {
    sqlite3.SQLITE_BUSY_SNAPSHOT: LedgerBusy,
    sqlite3.SQLITE_LOCKED: LedgerBusy,
    sqlite3.SQLITE_FULL: LedgerUnwritable,
    sqlite3.SQLITE_IOERR_WRITE: LedgerUnwritable,
    sqlite3.SQLITE_IOERR_FSYNC: LedgerUnwritable,
    sqlite3.SQLITE_READONLY_DBMOVED: LedgerUnwritable,
    sqlite3.SQLITE_CANTOPEN: LedgerUnreachable,
    sqlite3.SQLITE_NOMEM: LedgerUnreachable,
}
SQLITE_NEVER = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CONSTRAINT_UNIQUE)


@pytest.mark.parametrize("code", [*SQLITE, *SQLITE_NEVER])
def test_sqlite_error_codes_are_temporary_or_permanent(code: int) -> None:
    error = sqlite3.OperationalError("said")
    error.sqlite_errorcode = code
    told = meaning(error)
    assert isinstance(told, SQLITE.get(code, LedgerError))
    assert (told.retry is RetryAdvice.LATER) == (code in SQLITE)


POSTGRES = {
    "DiskFullError": LedgerUnwritable,
    "PostgresIOError": LedgerUnwritable,
    "ReadOnlySQLTransactionError": LedgerUnwritable,
    "TooManyConnectionsError": LedgerUnreachable,
    "OutOfMemoryError": LedgerUnreachable,
    "AdminShutdownError": LedgerUnreachable,
    "CrashShutdownError": LedgerUnreachable,
    "CannotConnectNowError": LedgerUnreachable,
    "IdleInTransactionSessionTimeoutError": LedgerUnreachable,
    "QueryCanceledError": LedgerUnreachable,
    "LockNotAvailableError": LedgerBusy,
    "SerializationError": LedgerBusy,
    "DeadlockDetectedError": LedgerBusy,
}
POSTGRES_NEVER = (
    "UniqueViolationError",
    "UndefinedTableError",
    "InsufficientPrivilegeError",
    "InvalidPasswordError",
    "InvalidCatalogNameError",
    "DataCorruptedError",
    "StringDataRightTruncationError",
)


@pytest.mark.parametrize("name", [*POSTGRES, *POSTGRES_NEVER])
def test_postgresql_error_states_are_temporary_or_permanent(name: str) -> None:
    told = meaning(getattr(asyncpg.exceptions, name)("said"))
    assert isinstance(told, POSTGRES.get(name, LedgerError))
    assert (told.retry is RetryAdvice.LATER) == (name in POSTGRES)


class TestPostgresql:
    @pytest.fixture
    def url(self, prepared_server_url: str) -> str:
        return prepared_server_url

    async def test_that_is_read_only_is_waited_for(
        self, url: str, running_postgres: PostgresServer
    ) -> None:
        """In a fail-over, the old primary or one that is not yet promoted is read-only."""
        mode = "ALTER DATABASE prepared SET default_transaction_read_only"
        running_postgres.tell("postgres", f"{mode} = on")
        async with Ledger(url) as ledger:
            with pytest.raises(LedgerUnwritable, match="read-only"):
                await ledger.jobs.submit("mails", b"1")
        running_postgres.tell("postgres", f"{mode} = off")
        async with Ledger(url) as ledger:
            await ledger.jobs.submit("mails", b"1")

    @pytest.mark.parametrize(
        "words",
        [
            ["SELECT pg_terminate_backend(pg_backend_pid())"],
            ["SET LOCAL statement_timeout = 10", "SELECT pg_sleep(60)"],
        ],
        ids=["an administrator ends it", "it takes too long"],
    )
    async def test_that_ends_a_statement_is_usable_afterwards(
        self, ledger: Ledger, words: list[str]
    ) -> None:
        with pytest.raises(LedgerUnreachable):
            await ledger.write(
                lambda connection: [connection.exec_driver_sql(each) for each in words]
            )
        await ledger.probe()

    async def test_with_a_lock_that_is_held_is_busy(self, ledger: Ledger, url: str) -> None:
        take = "LOCK TABLE towpath_jobs IN EXCLUSIVE MODE NOWAIT"
        other = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://", 1))
        async with other.begin() as connection:
            await connection.exec_driver_sql(take)
            with pytest.raises(LedgerBusy):
                await ledger.write(lambda ours: ours.exec_driver_sql(take))
        await other.dispose()

    async def test_has_its_connection_closed_when_the_caller_was_cancelled(
        self, ledger: Ledger, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The caller was cancelled before the connection was ready."""
        slow = "SELECT pg_sleep(2)"  # a server notices a closed connection after a statement
        sessions = "SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(2)'"

        async def is_there() -> bool:
            return bool(
                await ledger.read(lambda connection: connection.exec_driver_sql(sessions).scalar())
            )

        async def is_gone() -> bool:
            return not await is_there()

        await ledger.probe()  # its own connection is made before
        monkeypatch.setattr("towpath.ledger.database.postgres._PLANS", slow)
        async with Ledger(url) as other:
            asking = asyncio.create_task(other.probe())
            await eventually_async(is_there)
            asking.cancel()
            await asyncio.wait([asking])
            await eventually_async(is_gone)
