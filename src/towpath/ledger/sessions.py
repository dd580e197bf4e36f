"""Records in the caller's own transaction: made when it commits, never when it does not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Unpack

from sqlalchemy import event
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from towpath.errors import InvalidOption
from towpath.ledger.announcing import Tell
from towpath.ledger.failures import translated
from towpath.ledger.record import NewRecord, Recorded, RecordOptions, new_record
from towpath.ledger.taking import take

if TYPE_CHECKING:
    # A quarter of a second, which only those need who have imported it themselves.
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session

    Transaction = AsyncSession | AsyncConnection
    """What a caller may have begun."""

_MADE = "towpath.made"


async def take_in(
    transaction: Transaction, new: NewRecord, tell: Tell, committed: Callable[[list[int]], None]
) -> Recorded:
    """Make a record in *transaction*. *committed* hears of it once it counts, from a session.

    A bare connection does not tell when it has committed: there the relay finds the record.
    """

    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession  # noqa: PLC0415 -- see above

    def make(connection: Connection) -> Recorded:
        return take(connection, [new], tell)[0]

    if isinstance(transaction, AsyncSession):
        recorded = await transaction.run_sync(lambda session: make(session.connection()))
        _tell_later(transaction.sync_session, recorded.record.seq, committed)
        return recorded
    if isinstance(transaction, AsyncConnection):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
        return await transaction.run_sync(make)
    rule = "must be an AsyncSession or AsyncConnection of SQLAlchemy"
    raise InvalidOption("session", type(transaction).__name__, rule=rule)


def submit_in(
    session: Session | Connection, queue: str, payload: bytes, **options: Unpack[RecordOptions]
) -> Recorded:
    """Make a record in a plain transaction, from code without an event loop.

    It is there if and when the transaction commits; a worker's relay finds it within seconds.
    Options and refusals are those of `ledger.jobs.submit`.
    """
    new = new_record(queue, payload, **options)
    connection = session if isinstance(session, Connection) else session.connection()
    with translated(), on_the_ledger():
        return take(connection, [new])[0]


@contextmanager
def on_the_ledger() -> Generator[None]:
    """Say it where the caller's transaction is on a database that has no records."""
    try:
        yield
    except DBAPIError as error:
        text = str(error.orig)
        if "towpath_jobs" in text and ("no such table" in text or "does not exist" in text):
            rule = "must be on the ledger's database, which `towpath migrate` has prepared"
            raise InvalidOption("session", "…", rule=rule) from error
        raise


def _tell_later(session: Session, seq: int, committed: Callable[[list[int]], None]) -> None:
    made: list[int] | None = session.info.get(_MADE)
    if made is not None:
        made.append(seq)
        return
    made = session.info[_MADE] = [seq]
    loop = asyncio.get_running_loop()

    # A record behind a savepoint that was undone is told too: whoever hears looks for it.
    def told(_: Session) -> None:
        if made:
            loop.call_soon_threadsafe(committed, list(made))
        made.clear()

    def forgotten(*_: Any) -> None:
        made.clear()

    event.listen(session, "after_commit", told)
    event.listen(session, "after_rollback", forgotten)
