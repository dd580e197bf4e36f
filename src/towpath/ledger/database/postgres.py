"""PostgreSQL: for several hosts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import asyncpg  # pyright: ignore[reportMissingTypeStubs] -- it has none; what is used is cast
from sqlalchemy import event, text
from sqlalchemy.engine import Connection
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError, InvalidatePoolError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry, NullPool

from towpath.clock import Duration, steady
from towpath.ledger.database.store import meaning, was_not_sent, wrong_url
from towpath.ledger.database.writing import Coalescer, Decide, Overtaken, SharedChange
from towpath.ledger.errors import LedgerUnreachable

A = TypeVar("A")
T = TypeVar("T")

_CONNECTIONS, _MORE_AT_PEAKS = 5, 10
_TRIES = 3
_UNDONE = {"40001", "40P01"}
"""SQL states of serialization failures and deadlocks."""
_PLANS = "SET plan_cache_mode = force_custom_plan"
"""A cached plan from when the table was empty may read all rows of a queue, until PostgreSQL
analyzes the table again. Making a new plan for each statement costs less than that."""
_SETTINGS = {
    "application_name": "towpath",
    # A process that hangs in a transaction would keep its rows locked.
    "idle_in_transaction_session_timeout": "10000",
}
_PATIENCE = "SET LOCAL idle_in_transaction_session_timeout = '10min'"
"""A migration loads modules between its statements, which takes seconds on a busy machine."""
_FRESH = 0.1
"""A connection that was returned to the pool within this many seconds is not pinged."""
_RETURNED = "towpath.returned"
_ALONE = int.from_bytes(b"towpath", "big")
"""The number of the advisory lock; any number that no other program uses."""


class PostgresStore:
    """The database at *url*, which may have the options of libpq (such as `sslmode`).

    *limit* bounds each wait: for a connection, and for the answer to a statement.
    """

    def __init__(self, url: str, *, limit: Duration) -> None:
        parts, seconds = urlsplit(url), limit.total_seconds()
        self.shown = f"postgresql://{parts.netloc.rpartition('@')[2]}{parts.path}"
        self._url, self._limit = url, seconds
        self._engine = _engine(
            url,
            {"timeout": seconds, "command_timeout": seconds},
            pool_size=_CONNECTIONS,
            max_overflow=_MORE_AT_PEAKS,
            pool_timeout=seconds,
        )
        _ping_before_use(self._engine)
        self._shared: dict[SharedChange[Any, Any], Coalescer[Any, Any]] = {}
        """Collects the items of each shared change while its last transaction runs."""

    def start(self) -> None:
        """Do nothing: connections are opened when they are needed."""

    async def close(self) -> None:
        await self._engine.dispose()

    async def read(self, query: Callable[[Connection], T]) -> T:
        """Return the result of *query*."""

        async def run() -> T:
            async with self._engine.connect() as connection:
                return await connection.run_sync(query)

        # A read can always be repeated, even after its connection was lost.
        return await _repeat(run, lambda e: _is_undone(e) or e.connection_invalidated)

    async def write(self, decide: Decide[T]) -> T:
        """Run *decide* and its change, and return the change's result once it is committed.

        A transaction that PostgreSQL rolled back is repeated, and one that was overtaken, because
        it had not locked what it read. Unlike on SQLite, each change has a transaction of its own:
        PostgreSQL groups commits.
        """
        return await _repeat(lambda: self._write(decide), _is_undone)

    def write_shared(self, change: SharedChange[A, T], item: A) -> Awaitable[T]:
        """Make *change* for *item*, together with the items of other calls. Returns the answer for
        *item* once it is committed.
        """
        if change not in self._shared:

            async def write_many(items: list[A]) -> list[T]:
                outcome = await self.write(lambda connection: change.decide(connection, items))
                return change.answers(outcome, len(items))

            self._shared[change] = Coalescer(write_many)
        return self._shared[change](item)

    async def _write(self, decide: Decide[T]) -> T:
        async with self._engine.begin() as connection:
            return await connection.run_sync(lambda sync: decide(sync)(sync))

    async def alone(self, change: Callable[[Connection], T]) -> T:
        """Run *change* when no other process is in `alone`. Waits for that without a limit."""
        engine = _engine(self._url, {"timeout": self._limit}, poolclass=NullPool)
        async with engine.begin() as connection:
            await connection.execute(text(f"SELECT pg_advisory_xact_lock({_ALONE})"))
            await connection.execute(text(_PATIENCE))
            return await connection.run_sync(change)


async def _repeat(
    transaction: Callable[[], Awaitable[T]], may_repeat: Callable[[DBAPIError], bool]
) -> T:
    """Run *transaction*, up to three times while it is overtaken or *may_repeat* its error."""
    for _ in range(_TRIES - 1):
        try:
            return await transaction()
        except Overtaken:
            continue
        except DBAPIError as error:
            if not may_repeat(error):
                raise
    return await transaction()


def _is_undone(error: DBAPIError) -> bool:
    """Whether the transaction was surely rolled back, even if the error came from its commit."""
    return getattr(error.orig, "sqlstate", None) in _UNDONE or was_not_sent(error)


def _engine(url: str, limits: dict[str, float], **pool: Any) -> AsyncEngine:
    async def prepare() -> Any:
        """Open a connection with our settings. Safe to repeat if PostgreSQL ends it meanwhile."""
        connection = await cast("Any", asyncpg).connect(url, server_settings=_SETTINGS, **limits)
        try:
            await connection.execute(_PLANS)
        except BaseException:  # also if the caller was cancelled: nothing else would close it
            connection.terminate()
            raise
        return connection

    async def connect() -> Any:
        # asyncpg parses the URL itself. SQLAlchemy never gets it: it would mishandle `sslmode`, and
        # might show the password.
        try:
            for _ in range(_TRIES - 1):
                with suppress(asyncpg.ConnectionDoesNotExistError, asyncpg.AdminShutdownError):
                    return await prepare()
            return await prepare()
        except (asyncpg.PostgresError, OSError) as error:
            raise meaning(error) from error
        except asyncpg.InternalClientError as error:
            if was_not_sent(error):
                raise  # SQLAlchemy wraps it, as it does for every other statement
            # None of several hosts has the role that the URL asks for, as during a failover.
            raise LedgerUnreachable(str(error)) from error
        except (ValueError, asyncpg.InterfaceError):
            # `from None`: the error quotes the URL.
            raise wrong_url("can't be read") from None

    return create_async_engine(
        "postgresql+asyncpg://", async_creator=connect, hide_parameters=True, **pool
    )


def _ping_before_use(engine: AsyncEngine) -> None:
    """Make the pool check connections before use, to replace those that a restart has cut.

    SQLAlchemy's `pool_pre_ping` checks every time, which adds three round trips to the two to five
    of a transaction. Here, a connection that was used a moment ago is not checked.
    """
    dialect, pool = engine.dialect, engine.sync_engine.pool

    def returned(_: Any, record: ConnectionPoolEntry) -> None:
        record.info[_RETURNED] = steady()

    def taken(connection: DBAPIConnection, record: ConnectionPoolEntry, _: Any) -> None:
        if cast("Any", record.driver_connection).is_closed():
            # Drops all connections of the pool: others may not have noticed the cut yet.
            raise InvalidatePoolError
        since: float | None = record.info.get(_RETURNED)
        if since is None or steady() - since < _FRESH:  # None = the connection is new
            return
        try:
            dialect.do_ping(connection)
        except dialect.loaded_dbapi.Error as error:
            if dialect.is_disconnect(error, connection, None):
                raise InvalidatePoolError from error
            raise

    event.listen(pool, "checkin", returned)
    event.listen(pool, "checkout", taken)
