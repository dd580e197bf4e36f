"""Many changes in one transaction.

A commit on SQLite waits for the disk, and only one transaction can write at a time. So one task
per process collects the changes that are requested during a commit, and writes them together in
the next transaction. Changes of one kind, such as the creation of records, also share statements:
see `SharedChange`.

A process that hangs while it has the write lock stops all others. So a change has two steps. The
first reads, decides and prepares the writes, without the lock. The second takes the lock and
writes; it is *overtaken* if what the first step read is no longer true, and then both steps run
again with the lock. If one of several changes fails, each is run again in its own transaction, so
that the others succeed.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import OperationalError

A = TypeVar("A")
R = TypeVar("R")
T = TypeVar("T")
Write = Callable[[Connection], T]
"""Writes what was decided. Raises Overtaken."""
Decide = Callable[[Connection], Write[T]]
"""Reads and decides. Returns the function that writes; must not write itself."""
DecideMany = Callable[[Connection, list[A]], Write[T]]
"""Decides for several items at once."""
TO_BEGIN, WITH_LOCK = "towpath.to_begin", "BEGIN IMMEDIATE"
"""Key in a connection's `info`: the BEGIN to send before its next statement, after the rollback of
an open transaction."""
LARGEST = 500
"""Maximum number of calls in a batch. It bounds how long a call waits for the rest of its batch."""


class Overtaken(Exception):
    """The rows on which a change was decided have changed meanwhile."""


class Coalescer(Generic[A, R]):
    """Calls *do* with one batch at a time; calls made meanwhile form the next batch.

    *do* returns one outcome per item, in order; an outcome that is an exception is raised to the
    caller of that item. If *do* itself raises, every caller of the batch gets the error. A single
    call runs at once.
    """

    def __init__(self, do: Callable[[list[A]], Awaitable[list[R]]]) -> None:
        self._do = do
        self._waiting: deque[tuple[A, asyncio.Future[R]]] = deque()
        self._task: asyncio.Task[None] | None = None

    def __call__(self, thing: A) -> asyncio.Future[R]:
        """Return a future of the outcome of *thing*. Cancelled before its batch begins, *thing* is
        skipped.
        """
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((thing, answer))
        if self._task is None:
            # A separate task, because the first caller may be cancelled while others still wait.
            self._task = asyncio.create_task(self._run())
        return answer

    async def rest(self) -> None:
        """Wait until all batches are done."""
        while self._task is not None:
            await asyncio.wait((self._task,))

    async def _run(self) -> None:
        batch: list[tuple[A, asyncio.Future[R]]] = []
        try:
            while batch := self._next_batch():
                outcomes: list[Any]
                try:
                    outcomes = await self._do([thing for thing, _ in batch])
                except Exception as error:  # noqa: BLE001 -- raised to each caller
                    outcomes = [error] * len(batch)
                for (_, answer), outcome in zip(batch, outcomes, strict=True):
                    if answer.done():  # cancelled meanwhile
                        continue
                    if isinstance(outcome, Exception):
                        answer.set_exception(outcome)
                    else:
                        answer.set_result(outcome)
        finally:
            self._task = None
            for _, answer in (*batch, *self._waiting):  # some are left only if this was cancelled
                answer.cancel()

    def _next_batch(self) -> list[tuple[A, asyncio.Future[R]]]:
        batch: list[tuple[A, asyncio.Future[R]]] = []
        while self._waiting and len(batch) < LARGEST:
            thing, answer = self._waiting.popleft()
            if not answer.done():  # if it is done, its caller was cancelled
                batch.append((thing, answer))
        return batch


class SharedChange(Generic[A, R]):
    """A change for one item that concurrent callers make together, with the same statements.

    *decide* gets all their items. After the commit, *finish* gets what the write returned, in the
    event loop, and returns one answer per item.
    """

    def __init__(self, decide: DecideMany[A, T], finish: Callable[[T], list[R]]) -> None:
        self.decide: DecideMany[A, Any] = decide
        self.finish: Callable[[Any], list[R]] = finish

    def answers(self, outcome: Any, count: int) -> list[Any]:
        """Return the answer or the error for each of *count* items."""
        if isinstance(outcome, Exception):
            return [outcome] * count
        try:
            return self.finish(outcome)
        except Exception as error:  # noqa: BLE001 -- raised to the callers of this change only
            return [error] * count


def one_change(decide: Decide[T]) -> SharedChange[None, T]:
    """Return *decide* as a shared change whose calls are made one by one."""
    return SharedChange(lambda connection, _: decide(connection), lambda answer: [answer])


Call = tuple[SharedChange[Any, Any], Any]
"""A caller's change and item."""


class CallGroup(NamedTuple):
    """The calls of one transaction that share a change."""

    change: SharedChange[Any, Any]
    items: list[Any]
    places: list[int]
    """Their places in the transaction's list of calls."""

    def decide(self, connection: Connection) -> Write[Any]:
        """Decide for all items."""
        return self.change.decide(connection, self.items)

    def answers(self, outcome: Any) -> list[Any]:
        """Return the answer or the error for each item."""
        return self.change.answers(outcome, len(self.items))


def grouped(calls: Sequence[Call]) -> list[CallGroup]:
    """Group the calls that share a change, in the order of their first calls."""
    groups: dict[SharedChange[Any, Any], CallGroup] = {}
    for place, (change, item) in enumerate(calls):
        group = groups.setdefault(change, CallGroup(change, [], []))
        group.items.append(item)
        group.places.append(place)
    return list(groups.values())


def commit(engine: Engine, changes: list[Decide[Any]]) -> list[Any]:
    """Make *changes* in one transaction. Returns the result or error of each. Raises an error that
    concerns the transaction as a whole.
    """
    try:
        with engine.begin() as connection:
            outcomes = [_try_step(decide, connection) for decide in changes]
            if any(map(_is_busy, outcomes)):
                raise Overtaken  # noqa: TRY301 -- a process recovers or closes the file
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
        busy = outcomes and _is_busy(outcomes[-1])  # the next change would time out as well
        done = outcomes[-1] if busy else _try_step(partial(commit, engine), [decide])
        outcomes += done if isinstance(done, list) else [done]
    return outcomes


def _try_step(step: Callable[[A], Any], what: A) -> Any:
    """Return what *step* returns, or the error that it raises."""
    try:
        return step(what)
    except Exception as error:  # noqa: BLE001 -- raised to the caller of the change
        return error


def _is_busy(error: object) -> bool:
    """Whether *error* means that another process held the lock for longer than the limit."""
    cause = error.orig if isinstance(error, OperationalError) else error
    return getattr(cause, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
