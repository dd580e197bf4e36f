"""SQLite: one file, for one host.

WAL, so that readers and the writer do not wait for each other; `synchronous=FULL`, so that a
commit is on disk when it returns, through a power cut too.
"""

from __future__ import annotations

from typing import Any

import aiosqlite as _driver  # noqa: F401  # pyright: ignore[reportUnusedImport] -- missing, it must be missed here
from sqlalchemy import event
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool, NullPool, Pool

from towpath.clock import Duration, minutes
from towpath.ledger.database import Database

_READERS = 4
"""Connections for reading: each is a thread."""
_PATIENCE = minutes(5)
"""How long a migration waits for another one."""


def open_sqlite(path: str, *, limit: Duration) -> Database:
    """The file at *path*; it is made when first used."""
    busy = limit.total_seconds()
    options: dict[str, Any] = {"poolclass": AsyncAdaptedQueuePool, "max_overflow": 0}
    return Database(
        shown=f"sqlite:///{path}",
        reads=_engine(path, "BEGIN", busy, pool_size=_READERS, pool_timeout=busy, **options),
        # A transaction that reads first and writes then can fail where others write: the write
        # lock is taken at once, and waited for.
        writes=_engine(path, "BEGIN IMMEDIATE", busy, pool_size=1, pool_timeout=busy, **options),
        patient=lambda: _engine(
            path, "BEGIN IMMEDIATE", _PATIENCE.total_seconds(), poolclass=NullPool
        ),
        joins_writes=True,
    )


def _engine(
    path: str, begin: str, busy: float, *, poolclass: type[Pool], **pool: Any
) -> AsyncEngine:
    engine = create_async_engine(
        f"sqlite+aiosqlite:///{path}",
        poolclass=poolclass,
        connect_args={"timeout": busy},
        hide_parameters=True,
        **pool,
    )

    def connected(connection: Any, _: object) -> None:
        # Python's own idea of when a transaction begins is in the way of saying BEGIN ourselves.
        connection.isolation_level = None
        cursor = connection.cursor()
        for setting in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            cursor.execute(f"PRAGMA {setting}")
        if begin == "BEGIN":
            cursor.execute("PRAGMA query_only=ON")
        cursor.close()

    def begun(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    event.listen(engine.sync_engine, "connect", connected)
    event.listen(engine.sync_engine, "begin", begun)
    return engine
