"""Many changes in one transaction.

A commit on SQLite waits for the disk, and only one transaction can write at a time. So one task
per process writes all that came while the last commit was under way in one transaction.

A process that stands still while it has the write lock stops all others. So a change has two
steps. The first reads and decides, and makes ready what is to be written: it keeps nobody waiting.
The second, with the lock, writes that, and is *overtaken* where what was read is not true any more:
then both are done again with the lock. Where one of several fails, each is done again in a
transaction of its own: one that fails takes nobody with it.
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

A = TypeVar("A")
T = TypeVar("T")
Write = Callable[[Connection], T]
"""Writes what was decided. Raises Overtaken."""
Decide = Callable[[Connection], Write[T]]
"""Reads and decides. It writes nothing: what it writes is undone."""
TO_BEGIN, WITH_LOCK = "towpath.to_begin", "BEGIN IMMEDIATE"
"""On a connection: how to begin before its next statement. What was begun before is ended."""


class Overtaken(Exception):
    """What was read to decide on a change has changed meanwhile."""


class JoinedWrites:
    """Changes that come at the same time share a transaction. A lone one waits for nobody.

    All of it is one trip to *thread*, which is the writer's own.
    """

    def __init__(self, engine: Engine, thread: Executor) -> None:
        self._engine, self._thread = engine, thread
        self._join: Joined[Decide[Any], Any] = Joined(self._carry)
        self._closing = False

    async def write(self, decide: Decide[T]) -> T:
        """What the write answered, once it is committed; what it raised, once it is undone."""
        if self._closing:
            raise LedgerClosed
        return await self._join(decide)

    async def close(self) -> None:
        """Write what was asked for; refuse what comes later."""
        self._closing = True
        await self._join.rest()
        self._thread.shutdown()  # idle by now

    async def _carry(self, changes: list[Decide[Any]]) -> list[Any]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._commit, changes)

    def _commit(self, changes: list[Decide[Any]]) -> list[Any]:
        try:
            with self._engine.begin() as connection:
                decided = [_outcome(decide, connection) for decide in changes]
                if any(map(_is_busy, decided)):
                    raise Overtaken  # noqa: TRY301 -- by a process that mends or closes the file
                connection.info[TO_BEGIN] = WITH_LOCK
                return [it if isinstance(it, Exception) else it(connection) for it in decided]
        except Exception as error:
            if len(changes) > 1 and not _is_busy(error):
                return self._one_by_one(changes)
            if not isinstance(error, Overtaken):
                raise
        with self._engine.begin() as connection:
            connection.info[TO_BEGIN] = WITH_LOCK
            return [decide(connection)(connection) for decide in changes]

    def _one_by_one(self, changes: list[Decide[Any]]) -> list[Any]:
        outcomes: list[Any] = []
        for decide in changes:
            busy = outcomes and _is_busy(outcomes[-1])  # and so it will be for the next
            done = outcomes[-1] if busy else _outcome(self._commit, [decide])
            outcomes += done if isinstance(done, list) else [done]
        return outcomes


def _outcome(step: Callable[[A], Any], what: A) -> Any:
    """What *step* answered or raised."""
    try:
        return step(what)
    except Exception as error:  # noqa: BLE001 -- raised where the change was asked for
        return error


def _is_busy(error: object) -> bool:
    """Another process has the lock, for longer than anybody waits."""
    cause = error.orig if isinstance(error, OperationalError) else error
    return getattr(cause, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
