"""How changes are written: each in a transaction of its own, or many joined in one.

A commit on SQLite waits for the disk, and only one transaction can write at a time. So one task
per process writes all that came while the last commit was under way in one transaction, each
change behind a savepoint: one that fails takes nobody with it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from towpath.ledger.errors import LedgerClosed

T = TypeVar("T")
Change = Callable[[AsyncConnection], Awaitable[T]]
"""Something to write, given a connection in a transaction. It neither commits nor waits for
anything but the database."""

LARGEST_BATCH = 500
"""Changes in one transaction: it bounds how long the first waits for the last."""


class Writes(Protocol):
    """Where changes are written."""

    async def write(self, change: Change[T]) -> T:
        """What *change* answered, once it is committed; what it raised, once it is undone."""
        ...

    def start(self) -> None: ...

    async def close(self) -> None:
        """Write what was asked for; refuse what comes later."""
        ...


class OwnWrites:
    """Each change in a transaction of its own: where a server joins commits by itself."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def write(self, change: Change[T]) -> T:
        async with self._engine.begin() as connection:
            return await change(connection)

    def start(self) -> None:
        """Nothing to start."""

    async def close(self) -> None:
        """Nothing to wait for: every change is awaited by its caller."""


class _Order(NamedTuple):
    change: Change[Any]
    answer: asyncio.Future[Any]


class JoinedWrites:
    """Changes that come at the same time share a transaction. A lone one waits for nobody."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._orders: deque[_Order] = deque()
        self._called = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closing = False

    async def write(self, change: Change[T]) -> T:
        if self._task is None or self._closing:
            raise LedgerClosed
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._orders.append(_Order(change, answer))
        self._called.set()
        return await answer

    def start(self) -> None:
        if self._task is None:
            self._closing = False
            self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._closing = True
            self._called.set()
            await self._task
            self._task = None

    async def _run(self) -> None:
        try:
            while self._orders or not self._closing:
                await self._called.wait()
                self._called.clear()
                while self._orders:
                    await self._carry(self._next_batch())
        finally:
            for order in self._orders:
                _tell(order.answer, LedgerClosed())

    def _next_batch(self) -> list[_Order]:
        size = min(len(self._orders), LARGEST_BATCH)
        orders = (self._orders.popleft() for _ in range(size))
        return [order for order in orders if not order.answer.done()]  # done: cancelled meanwhile

    async def _carry(self, batch: list[_Order]) -> None:
        """Write *batch* and answer: each with its own outcome, or all with what stopped it."""
        outcomes: list[Any] = [LedgerClosed()] * len(batch)
        try:
            changes = [order.change for order in batch]
            [done] = await asyncio.gather(self._commit(changes), return_exceptions=True)
            outcomes = [done] * len(batch) if isinstance(done, BaseException) else done
        finally:
            for order, outcome in zip(batch, outcomes, strict=True):
                _tell(order.answer, outcome)

    async def _commit(self, changes: list[Change[Any]]) -> list[Any]:
        if not changes:
            return []
        async with self._engine.connect() as connection, connection.begin() as transaction:
            if len(changes) > 1:
                return [await _behind_savepoint(connection, change) for change in changes]
            outcome = await _outcome(connection, changes[0])
            if isinstance(outcome, BaseException):
                await transaction.rollback()
            return [outcome]


async def _behind_savepoint(connection: AsyncConnection, change: Change[Any]) -> Any:
    """The outcome of *change*, undone if it is an error.

    SQLite undoes the whole transaction by itself when the disk is full or fails. Then there is
    no savepoint to go back to, which raises here: all changes of the transaction have failed.
    """
    savepoint = await connection.begin_nested()
    outcome = await _outcome(connection, change)
    if isinstance(outcome, BaseException):
        await savepoint.rollback()
    else:
        await savepoint.commit()
    return outcome


async def _outcome(connection: AsyncConnection, change: Change[Any]) -> Any:
    """What *change* answered or raised. It runs as a task: also a cancellation stays inside."""
    [outcome] = await asyncio.gather(_run(connection, change), return_exceptions=True)
    return outcome


async def _run(connection: AsyncConnection, change: Change[T]) -> T:
    return await change(connection)


def _tell(answer: asyncio.Future[Any], outcome: Any) -> None:
    if answer.done():
        return
    if isinstance(outcome, BaseException):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)
