"""SQLite: one file, for one host.

It uses WAL, so that readers and the writer do not wait for each other, and `synchronous=FULL`, so
that a commit survives a power cut once it has returned.

It runs Python's own driver in threads, with one switch of threads per read and one per
transaction. aiosqlite has one per statement, and was four times slower for joined writes
(`docs/decisions`).
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
from towpath.ledger.database.writing import (
    TO_BEGIN,
    WITH_LOCK,
    Call,
    Coalescer,
    Decide,
    SharedChange,
    commit,
    grouped,
    one_change,
)
from towpath.ledger.errors import LedgerAbsent, LedgerClosed, LedgerRefused

A = TypeVar("A")
T = TypeVar("T")

_READERS = 4
_READ, _WRITE = "BEGIN", WITH_LOCK
_LOOK_EVERY = 0.001
"""Seconds between two tries to get a lock that another process holds."""
_ORPHANS = "PRAGMA foreign_key_check"
_PATIENCE = minutes(5)
"""How long a migration waits for another one."""


class SqliteStore:
    """The file at *path*, which a migration creates. *limit* is how long a write waits for locks.

    If the file is moved or deleted while it is open, transactions fail.
    """

    def __init__(self, path: str, *, limit: Duration) -> None:
        self.shown = f"sqlite:///{path}"
        self._path = path
        self._reads = _engine(path, _READ, limit, poolclass=QueuePool, pool_size=_READERS)
        self._writes = _engine(path, _WRITE, limit, poolclass=QueuePool, pool_size=1)
        self._threads: list[ThreadPoolExecutor] = []
        self._writer: Coalescer[Call, Any] | None = None
        """Collects the changes of the next transaction; None while the store is closed."""

    def start(self) -> None:
        if self._writer is None:
            # Writes have a thread of their own, so that they never wait for reads.
            self._threads = [
                ThreadPoolExecutor(_READERS, "towpath-ledger-reads"),
                ThreadPoolExecutor(1, "towpath-ledger-writes"),
            ]
            self._writer = Coalescer(self._commit)

    async def _commit(self, calls: list[Call]) -> list[Any]:
        """Make the changes of *calls* in one transaction, which is one call in the thread."""
        groups = grouped(calls)
        changes = [group.decide for group in groups]
        loop, writes = asyncio.get_running_loop(), self._threads[1]
        outcomes = await _in_thread(loop, writes, commit, self._writes, changes)
        answers: list[Any] = [None] * len(calls)
        for group, outcome in zip(groups, outcomes, strict=True):
            for place, answer in zip(group.places, group.answers(outcome), strict=True):
                answers[place] = answer
        return answers

    async def close(self) -> None:
        if self._writer is None:
            return
        writer, self._writer = self._writer, None  # from here on, `write` raises LedgerClosed
        await writer.rest()
        for threads in self._threads:
            with suppress(RuntimeError):  # at interpreter exit the threads have already ended
                await asyncio.to_thread(threads.shutdown)
        self._reads.dispose()
        self._writes.dispose()

    async def read(self, query: Callable[[Connection], T]) -> T:
        """Return the result of *query*, which reads one snapshot of the database."""

        def run() -> T:
            with self._reads.connect() as connection:
                return query(connection)

        return await _in_thread(asyncio.get_running_loop(), self._threads[0], run)

    def write(self, decide: Decide[T]) -> Awaitable[T]:
        """Run *decide* and its change, in one transaction with other changes. Returns the change's
        result once it is on disk.
        """
        return self._add(one_change(decide), None)

    def write_shared(self, change: SharedChange[A, T], item: A) -> Awaitable[T]:
        """Make *change* for *item*, together with the items of other calls. Returns the answer for
        *item* once it is on disk.
        """
        return self._add(change, item)

    def _add(self, change: SharedChange[A, T], item: A) -> Awaitable[T]:
        if self._writer is None:
            raise LedgerClosed
        return self._writer((change, item))

    async def alone(self, change: Callable[[Connection], T]) -> T:
        """Run *change* while no other process writes. Waits up to five minutes for the lock.

        To change a table, a migration copies it and drops the old one. `ON DELETE CASCADE` must not
        delete rows that reference it, so foreign keys are off, and are checked at the end.
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
    """Run *work* in one of *threads*. Raises LedgerClosed if the threads have ended."""
    try:
        return loop.run_in_executor(threads, work, *args)
    except RuntimeError as error:
        # At exit, the interpreter ends these threads before the ledger is closed.
        raise LedgerClosed from error


def _engine(path: str, begin: str, busy: Duration, *, mode: str = "rw", **pool: Any) -> Engine:
    file, alone = Path(path).absolute(), mode == "rwc"

    def connect() -> sqlite3.Connection:
        if alone:
            _create_file(file)
        elif not file.exists():
            raise LedgerAbsent(path)
        return sqlite3.connect(
            f"{file.as_uri()}?mode={mode}",
            uri=True,
            # Writes wait for the lock in `_execute_when_free`, and never once they have it.
            timeout=busy.total_seconds() if begin == _READ else 0,
            check_same_thread=False,  # the pool lends it to one thread at a time, to any of them
        )

    engine = create_engine("sqlite://", creator=connect, hide_parameters=True, **pool)

    def connected(connection: Any, record: ConnectionPoolEntry) -> None:
        record.info[_FILE] = _identity(file)
        # Keeps the driver from beginning transactions itself: `_begin` sends BEGIN.
        connection.isolation_level = None
        for setting in ("journal_mode=WAL", "synchronous=FULL", f"foreign_keys={not alone}"):
            _execute_when_free(connection.execute, f"PRAGMA {setting}", busy)
        if begin == _READ:
            connection.execute("PRAGMA query_only=ON")

    def begun(connection: Connection) -> None:
        # SQLite would go on writing into the moved or deleted file.
        if connection.info[_FILE] != _identity(file):
            connection.invalidate()
            raise FileNotFoundError(f"{path} was moved or deleted while it was open")
        connection.info[TO_BEGIN] = begin if alone else _READ

    event.listen(engine, "connect", connected)
    event.listen(engine, "begin", begun)
    event.listen(engine, "before_cursor_execute", partial(_begin, busy))
    return engine


def _begin(busy: Duration, connection: Connection, *_: Any) -> None:
    """Begin the transaction just before its first statement, so that a write holds the lock only
    from then on. First ends the read transaction in which the change was decided.
    """
    info = connection.info
    if words := info.pop(TO_BEGIN, None):
        raw = cast("sqlite3.Connection", connection.connection.dbapi_connection)
        if raw.in_transaction:
            if raw.total_changes != info[_CHANGES]:
                raise LedgerRefused("a function that may only read has written to the database")
            raw.execute("ROLLBACK")
        _execute_when_free(raw.execute, words, busy)
        info[_CHANGES] = raw.total_changes


def _execute_when_free(execute: Callable[[str], object], words: str, limit: Duration) -> None:
    """Execute *words* as soon as no other process holds the lock; fail after *limit*.

    SQLite's own waiting tries at growing intervals, up to 100 ms: if two processes write all the
    time, the waiting one finds the lock taken again and again. And SQLite does not wait at all
    when it switches a new file to WAL.
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


def _create_file(file: Path) -> None:
    """Create *file*, readable by its owner only. SQLite gives its companion files the same mode.

    An existing file keeps its mode. Errors are ignored, because SQLite reports them on opening.
    """
    with suppress(OSError):
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE))


_FILE, _CHANGES = "towpath.file", "towpath.changes"


def _identity(file: Path) -> tuple[int, int] | None:
    """Return what identifies the file on disk, whatever its path; None if it does not exist."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
