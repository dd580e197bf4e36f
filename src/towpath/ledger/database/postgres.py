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
from towpath.ledger.database.writing import Decide, Overtaken
from towpath.ledger.errors import LedgerUnreachable

T = TypeVar("T")

_CONNECTIONS, _MORE_AT_PEAKS = 5, 10
_TRIES = 3
_UNDONE = {"40001", "40P01"}
"""A transaction that was in another one's way, or in a circle of those who wait."""
_PLANS = "SET plan_cache_mode = force_custom_plan"
"""A plan that was made when the table was empty, and kept, may read all rows of a queue: for as
long as the server has not looked at the table again. Making plans anew costs less than that."""
_SETTINGS = {
    "application_name": "towpath",
    # A process that stands still in a transaction would keep its rows from all others.
    "idle_in_transaction_session_timeout": "10000",
}
_PATIENCE = "SET LOCAL idle_in_transaction_session_timeout = '10min'"
"""A migration loads modules between its statements, which takes seconds on a busy machine."""
_FRESH = 0.1
"""Seconds in which a connection that was used is not looked at again."""
_RETURNED = "towpath.returned"
_ALONE = int.from_bytes(b"towpath", "big")
"""The number of the advisory lock: any, as long as nobody else takes it."""


class PostgresStore:
    """The database at *url*, which may say what libpq understands (`sslmode` and the like).

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
        _look_before_use(self._engine)

    def start(self) -> None:
        """Nothing to start: a connection is made when it is needed."""

    async def close(self) -> None:
        await self._engine.dispose()

    async def read(self, query: Callable[[Connection], T]) -> T:
        """Return the answer of *query*."""

        async def run() -> T:
            async with self._engine.connect() as connection:
                return await connection.run_sync(query)

        # A read can always be repeated, also where its connection was lost.
        return await _repeat(run, lambda e: _is_undone(e) or e.connection_invalidated)

    async def write(self, decide: Decide[T]) -> T:
        """Return the answer of the write once it is committed. The server joins commits by itself.

        A transaction that the server undid is repeated. So is one that was overtaken, because it
        did not lock what it read.
        """
        return await _repeat(lambda: self._write(decide), _is_undone)

    async def _write(self, decide: Decide[T]) -> T:
        async with self._engine.begin() as connection:
            return await connection.run_sync(lambda sync: decide(sync)(sync))

    async def alone(self, change: Callable[[Connection], T]) -> T:
        """Do *change* while nobody else does anything alone, however long that takes to come."""
        engine = _engine(self._url, {"timeout": self._limit}, poolclass=NullPool)
        async with engine.begin() as connection:
            await connection.execute(text(f"SELECT pg_advisory_xact_lock({_ALONE})"))
            await connection.execute(text(_PATIENCE))
            return await connection.run_sync(change)


async def _repeat(
    transaction: Callable[[], Awaitable[T]], may_repeat: Callable[[DBAPIError], bool]
) -> T:
    """Run *transaction*, again for errors after which it *may_repeat*, up to three times in all."""
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
    """Whether nothing of the transaction is stored: also not where its commit failed."""
    return getattr(error.orig, "sqlstate", None) in _UNDONE or was_not_sent(error)


def _engine(url: str, limits: dict[str, float], **pool: Any) -> AsyncEngine:
    async def prepare() -> Any:
        """A new connection with our settings. Nothing was sent over it that could not be repeated
        if the server ends it meanwhile.
        """
        connection = await cast("Any", asyncpg).connect(url, server_settings=_SETTINGS, **limits)
        try:
            await connection.execute(_PLANS)
        except BaseException:  # whoever waited may be gone: then nobody else closes it
            connection.terminate()
            raise
        return connection

    async def connect() -> Any:
        # asyncpg reads the URL itself. SQLAlchemy, which would pass `sslmode` on as it is, never
        # sees it: nor can it show the password.
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
            # None of several hosts is what the URL asks for, as in the middle of a fail-over.
            raise LedgerUnreachable(str(error)) from error
        except (ValueError, asyncpg.InterfaceError):
            # `from None`: the error quotes the URL.
            raise wrong_url("can't be read") from None

    return create_async_engine(
        "postgresql+asyncpg://", async_creator=connect, hide_parameters=True, **pool
    )


def _look_before_use(engine: AsyncEngine) -> None:
    """Find a connection that a restart has cut before it is used.

    SQLAlchemy's own way (`pool_pre_ping`) does so each time, which is three trips beside the two to
    five of a transaction. Here one that was used a moment ago is trusted.
    """
    dialect, pool = engine.dialect, engine.sync_engine.pool

    def returned(_: Any, record: ConnectionPoolEntry) -> None:
        record.info[_RETURNED] = steady()

    def taken(connection: DBAPIConnection, record: ConnectionPoolEntry, _: Any) -> None:
        if cast("Any", record.driver_connection).is_closed():
            raise InvalidatePoolError  # it has heard that the server left; those beside it may not
        since: float | None = record.info.get(_RETURNED)
        if since is None or steady() - since < _FRESH:  # None: it was made just now
            return
        try:
            dialect.do_ping(connection)
        except dialect.loaded_dbapi.Error as error:
            if dialect.is_disconnect(error, connection, None):
                raise InvalidatePoolError from error
            raise

    event.listen(pool, "checkin", returned)
    event.listen(pool, "checkout", taken)
