"""Many changes in one transaction.

A commit on SQLite waits for the disk, and only one transaction can write at a time. So one task
per process writes all that came while the last commit was under way in one transaction, each
change behind a savepoint: one that fails takes nobody with it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, NamedTuple, TypeVar

from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import OperationalError

from towpath.ledger.errors import LedgerClosed

T = TypeVar("T")
Change = Callable[[Connection], T]

LARGEST_BATCH = 500
"""Changes in one transaction: it bounds how long the first waits for the last."""


class _Order(NamedTuple):
    change: Change[Any]
    answer: asyncio.Future[Any]


class JoinedWrites:
    """Changes that come at the same time share a transaction. A lone one waits for nobody.

    The whole transaction is one trip to *thread*, which is the writer's own.
    """

    def __init__(self, engine: Engine, thread: Executor) -> None:
        self._engine, self._thread = engine, thread
        self._orders: deque[_Order] = deque()
        self._called = asyncio.Event()
        self._closing = False
        self._task = asyncio.create_task(self._run())

    async def write(self, change: Change[T]) -> T:
        """What *change* answered, once it is committed; what it raised, once it is undone."""
        if self._closing:
            raise LedgerClosed
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._orders.append(_Order(change, answer))
        self._called.set()
        return await answer

    async def close(self) -> None:
        """Write what was asked for; refuse what comes later."""
        self._closing = True
        self._called.set()
        await self._task
        self._thread.shutdown()  # idle by now

    async def _run(self) -> None:
        try:
            while self._orders or not self._closing:
                await self._called.wait()
                self._called.clear()
                while self._orders:
                    await self._carry(self._next_batch())
        finally:
            self._closing = True
            for order in self._orders:
                _tell(order.answer, LedgerClosed())

    def _next_batch(self) -> list[_Order]:
        size = min(len(self._orders), LARGEST_BATCH)
        orders = [self._orders.popleft() for _ in range(size)]
        return [order for order in orders if not order.answer.done()]  # done: cancelled meanwhile

    async def _carry(self, batch: list[_Order]) -> None:
        """Write *batch* and answer: each with its own outcome, or all with what stopped it."""
        outcomes: list[Any] = [LedgerClosed()] * len(batch)
        changes = [order.change for order in batch]
        loop = asyncio.get_running_loop()
        try:
            writing = loop.run_in_executor(self._thread, self._commit, changes)
            [done] = await asyncio.gather(writing, return_exceptions=True)
            outcomes = [done] * len(batch) if isinstance(done, BaseException) else done
        finally:
            for order, outcome in zip(batch, outcomes, strict=True):
                _tell(order.answer, outcome)

    def _commit(self, changes: list[Change[Any]]) -> list[Any]:
        if not changes:
            return []
        with self._engine.connect() as connection, connection.begin() as transaction:
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
    """What *change* answered or raised."""
    try:
        return change(connection)
    except Exception as error:  # noqa: BLE001 -- raised where the change was asked for, by `_tell`
        return error


def _tell(answer: asyncio.Future[Any], outcome: Any) -> None:
    if answer.done():
        return
    if isinstance(outcome, BaseException):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)
