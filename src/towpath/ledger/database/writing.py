"""Many changes in one transaction.

A commit on SQLite waits for the disk, and only one transaction can write at a time. So one task
per process writes all that came while the last commit was under way in one transaction, each
change behind a savepoint: one that fails takes nobody with it.

A process that stands still while it has the write lock stops all others. So the lock is taken by
the first statement that writes: what is read and decided before keeps nobody waiting. If somebody
else has written meanwhile, that was decided on an old state: SQLite refuses the write, and the
whole transaction is done again, this time with the lock from the beginning.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import OperationalError

from towpath.ledger.database.joining import Joined
from towpath.ledger.errors import LedgerClosed

T = TypeVar("T")
Change = Callable[[Connection], T]
AT_ONCE = "towpath_at_once"
"""An option of a connection: its transactions have the write lock from the beginning."""


class _Overtaken(Exception):
    """Somebody else has written since the transaction began, or is about to."""


class JoinedWrites:
    """Changes that come at the same time share a transaction. A lone one waits for nobody.

    The whole transaction is one trip to *thread*, which is the writer's own.
    """

    def __init__(self, engine: Engine, thread: Executor) -> None:
        self._engine, self._thread = engine, thread
        self._locked_engine = engine.execution_options(**{AT_ONCE: True})
        self._join: Joined[Change[Any], Any] = Joined(self._carry)
        self._closing = False

    async def write(self, change: Change[T]) -> T:
        """What *change* answered, once it is committed; what it raised, once it is undone."""
        if self._closing:
            raise LedgerClosed
        return await self._join(change)

    async def close(self) -> None:
        """Write what was asked for; refuse what comes later."""
        self._closing = True
        await self._join.rest()
        self._thread.shutdown()  # idle by now

    async def _carry(self, changes: list[Change[Any]]) -> list[Any]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._commit, changes)

    def _commit(self, changes: list[Change[Any]]) -> list[Any]:
        try:
            return self._transaction(self._engine, changes)
        except _Overtaken:
            return self._transaction(self._locked_engine, changes)

    def _transaction(self, engine: Engine, changes: list[Change[Any]]) -> list[Any]:
        with engine.connect() as connection, connection.begin() as transaction:
            if len(changes) > 1:
                return [_behind_savepoint(connection, change) for change in changes]
            outcome = _outcome(connection, changes[0])
            if isinstance(outcome, Exception):
                transaction.rollback()
            return [outcome]


def _behind_savepoint(connection: Connection, change: Change[Any]) -> Any:
    """The outcome of *change*, undone if it is an error.

    SQLite may undo the whole transaction by itself, when the disk is full for one. Then there is
    no savepoint to go back to: all changes have failed, with what made this one fail.
    """
    savepoint = connection.begin_nested()
    outcome = _outcome(connection, change)
    if not isinstance(outcome, Exception):
        savepoint.commit()
        return outcome
    try:
        savepoint.rollback()
    except OperationalError as gone:
        raise outcome from gone
    return outcome


def _outcome(connection: Connection, change: Change[Any]) -> Any:
    """What *change* answered or raised. Raises _Overtaken."""
    try:
        return change(connection)
    except Exception as error:
        if not connection.get_execution_options().get(AT_ONCE) and _is_busy(error):
            raise _Overtaken from error
        return error


def _is_busy(error: Exception) -> bool:
    cause = error.orig if isinstance(error, OperationalError) else None
    return getattr(cause, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
