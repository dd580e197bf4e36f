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

import sqlite3
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import OperationalError

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


def commit(engine: Engine, changes: list[Decide[Any]]) -> list[Any]:
    """Do *changes* in one transaction: what each answered or raised. Raises what hinders all."""
    try:
        with engine.begin() as connection:
            outcomes = [_outcome(decide, connection) for decide in changes]
            if any(map(_is_busy, outcomes)):
                raise Overtaken  # noqa: TRY301 -- by a process that mends or closes the file
            connection.info[TO_BEGIN] = WITH_LOCK
            for place, write in enumerate(outcomes):
                if not isinstance(write, Exception):
                    outcomes[place] = write(connection)
            return outcomes
    except Exception as error:
        if len(changes) > 1 and not _is_busy(error):
            return _one_by_one(engine, changes)
        if not isinstance(error, Overtaken):
            raise
    with engine.begin() as connection:
        connection.info[TO_BEGIN] = WITH_LOCK
        return [decide(connection)(connection) for decide in changes]


def _one_by_one(engine: Engine, changes: list[Decide[Any]]) -> list[Any]:
    outcomes: list[Any] = []
    for decide in changes:
        busy = outcomes and _is_busy(outcomes[-1])  # and so it will be for the next
        done = outcomes[-1] if busy else _outcome(partial(commit, engine), [decide])
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
