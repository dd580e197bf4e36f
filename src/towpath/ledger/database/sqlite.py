"""SQLite: one file, for one host.

WAL, so that readers and the writer do not wait for each other; `synchronous=FULL`, so that a
commit is on disk when it returns, through a power cut too.

Python's own driver in threads: one trip per read and one per transaction. aiosqlite makes one per
statement, which cost four times as much for joined writes (`docs/decisions`).
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from sqlalchemy import create_engine, event
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.pool import ConnectionPoolEntry, NullPool, QueuePool

from towpath.clock import Duration, minutes, steady
from towpath.files import PRIVATE
from towpath.ledger.database.batching import Joined
from towpath.ledger.database.writing import TO_BEGIN, WITH_LOCK, Decide, commit
from towpath.ledger.errors import LedgerAbsent, LedgerClosed, LedgerRefused

T = TypeVar("T")

_READERS = 4
_READ, _WRITE = "BEGIN", WITH_LOCK
_LOOK_EVERY = 0.001
"""Seconds between two looks whether another process has ended its transaction."""
_ORPHANS = "PRAGMA foreign_key_check"
_PATIENCE = minutes(5)
"""How long a migration waits for another one."""


class SqliteStore:
    """The file at *path*, made by a migration. *limit* is how long a write waits for others.

    A file that is moved or deleted while it is open is not written to any more.
    """

    def __init__(self, path: str, *, limit: Duration) -> None:
        self.shown = f"sqlite:///{path}"
        self._path = path
        self._reads = _engine(path, _READ, limit, poolclass=QueuePool, pool_size=_READERS)
        self._writes = _engine(path, _WRITE, limit, poolclass=QueuePool, pool_size=1)
        self._threads: list[ThreadPoolExecutor] = []
        self._join: Joined[Decide[Any], Any] | None = None

    def start(self) -> None:
        if self._join is None:
            # A thread of its own: a flood of reads must not keep a write waiting.
            writer = ThreadPoolExecutor(1, "towpath-ledger-writes")
            self._threads = [ThreadPoolExecutor(_READERS, "towpath-ledger-reads"), writer]
            loop, engine = asyncio.get_running_loop(), self._writes
            # All of a transaction is one trip to the thread.
            self._join = Joined(lambda some: _in_thread(loop, writer, commit, engine, some))

    async def close(self) -> None:
        if self._join is None:
            return
        join, self._join = self._join, None  # what comes later is refused
        await join.rest()
        for threads in self._threads:
            with suppress(RuntimeError):  # the interpreter ends, and has ended the threads
                await asyncio.to_thread(threads.shutdown)
        self._reads.dispose()
        self._writes.dispose()

    async def read(self, query: Callable[[Connection], T]) -> T:
        """What *query* answers; all that it reads is of one moment."""

        def run() -> T:
            with self._reads.connect() as connection:
                return query(connection)

        return await _in_thread(asyncio.get_running_loop(), self._threads[0], run)

    def write(self, decide: Decide[T]) -> Awaitable[T]:
        """What the write answers, once it is on disk; it shares its transaction with others."""
        if self._join is None:
            raise LedgerClosed
        return self._join(decide)

    async def alone(self, change: Callable[[Connection], T]) -> T:
        """Do *change* while nobody else writes, however long that takes to come.

        A migration has to make a table anew to change it; rows that point to the old one must not
        go with it (`ON DELETE CASCADE`). So they are looked at in the end instead.
        """
        engine = _engine(self._path, _WRITE, _PATIENCE, mode="rwc", poolclass=NullPool)

        def run() -> T:
            with engine.begin() as connection:
                done = change(connection)
                for table, _, parent, _ in connection.exec_driver_sql(_ORPHANS):
                    if table.startswith("towpath_"):
                        raise LedgerRefused(
                            f"rows of {table} would reference missing rows of {parent}"
                        )
                return done

        return await asyncio.to_thread(run)


def _in_thread(
    loop: asyncio.AbstractEventLoop, threads: ThreadPoolExecutor, work: Callable[..., T], *args: Any
) -> Awaitable[T]:
    """What *work* returns in one of *threads*. Raises LedgerClosed once these have ended."""
    try:
        return loop.run_in_executor(threads, work, *args)
    except RuntimeError as error:
        # When the interpreter ends, it ends these threads before it calls what closes the ledger.
        raise LedgerClosed from error


def _engine(path: str, begin: str, busy: Duration, *, mode: str = "rw", **pool: Any) -> Engine:
    file, alone = Path(path).absolute(), mode == "rwc"

    def connect() -> sqlite3.Connection:
        if alone:
            _make(file)
        elif not file.exists():
            raise LedgerAbsent(path)
        return sqlite3.connect(
            f"{file.as_uri()}?mode={mode}",
            uri=True,
            # What begins to write waits by itself, see `_when_free`, and for nothing then.
            timeout=busy.total_seconds() if begin == _READ else 0,
            check_same_thread=False,  # the pool hands it to one at a time, not always the same
        )

    engine = create_engine("sqlite://", creator=connect, hide_parameters=True, **pool)

    def connected(connection: Any, record: ConnectionPoolEntry) -> None:
        record.info[_FILE] = _identity(file)
        # Python's own idea of when a transaction begins is in the way of saying BEGIN ourselves.
        connection.isolation_level = None
        for setting in ("journal_mode=WAL", "synchronous=FULL", f"foreign_keys={not alone}"):
            _when_free(connection.execute, f"PRAGMA {setting}", busy)
        if begin == _READ:
            connection.execute("PRAGMA query_only=ON")

    def begun(connection: Connection) -> None:
        # SQLite would go on writing into a file that nobody finds any more.
        if connection.info[_FILE] != _identity(file):
            connection.invalidate()
            raise FileNotFoundError(f"{path} was moved or deleted while it was open")
        connection.info[TO_BEGIN] = begin if alone else _READ

    event.listen(engine, "connect", connected)
    event.listen(engine, "begin", begun)
    event.listen(engine, "before_cursor_execute", partial(_begin, busy))
    return engine


def _begin(busy: Duration, connection: Connection, *_: Any) -> None:
    """Begin the transaction now that its first statement is ready to run: from here on, others
    wait for one that writes. One in which a change was decided has ended then.
    """
    info = connection.info
    if words := info.pop(TO_BEGIN, None):
        raw = cast("sqlite3.Connection", connection.connection.dbapi_connection)
        if raw.in_transaction:
            if raw.total_changes != info[_CHANGES]:
                raise LedgerRefused("a function that may only read has written to the database")
            raw.execute("ROLLBACK")
        _when_free(raw.execute, words, busy)
        info[_CHANGES] = raw.total_changes


def _when_free(execute: Callable[[str], object], words: str, limit: Duration) -> None:
    """Execute *words* as soon as no other process is in the way, or fail after *limit*.

    SQLite itself looks at longer and longer intervals, up to 100 ms. Where two processes write all
    the time, the one that waits then finds the other one at it again and again. And it does not
    wait at all to make a new file one with WAL.
    """
    until = steady() + limit.total_seconds()
    while True:
        try:
            execute(words)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or steady() >= until:
                raise
            time.sleep(_LOOK_EVERY)
        else:
            return


def _make(file: Path) -> None:
    """For its owner alone, also in a directory that others may look into; SQLite gives the files
    beside it the same mode. One that is there keeps what it has; of trouble SQLite tells itself.
    """
    with suppress(OSError):
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE))


_FILE, _CHANGES = "towpath.file", "towpath.changes"


def _identity(file: Path) -> tuple[int, int] | None:
    """Which file it is, whatever it is called; None = there is none."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
