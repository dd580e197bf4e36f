"""Records in the caller's own transaction: they exist if, and only if, it commits."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

from sqlalchemy import event, text
from sqlalchemy.engine import Connection, Engine, RootTransaction
from sqlalchemy.exc import DBAPIError, InvalidRequestError, UnboundExecutionError

from towpath.errors import InvalidOption
from towpath.ledger.database.store import translated
from towpath.ledger.errors import LedgerElsewhere
from towpath.ledger.records.insert import submit
from towpath.ledger.records.record import NewRecord, Recorded

if TYPE_CHECKING:
    # These imports take a quarter of a second; callers who need them have imported them anyway.
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
    from sqlalchemy.orm import Session, SessionTransaction, scoped_session

    from towpath.ledger.ledger import Ledger

    Transaction = AsyncSession | AsyncConnection | async_scoped_session[Any]
    """The transactions that a caller can pass."""
    BlockingTransaction = Session | Connection | scoped_session[Any]
    """The same in code without an event loop."""

Told = Callable[[list[Recorded]], None]
"""Called with records whose transaction has committed."""
Accept = Callable[[list[Recorded]], None]
"""Raises if the created records are not those that the caller wanted."""
_PENDING = "towpath.pending"
_OPTION = "in_transaction"
_NO_TABLE = "it has no table towpath_jobs"


def _nobody(_: list[Recorded]) -> None: ...


class Made(NamedTuple):
    """Records that exist once their transaction commits."""

    recorded: list[Recorded]
    transaction: RootTransaction
    """Active until it has been committed or rolled back."""


class Transactions:
    """Creates records in transactions of callers, which may be in any thread."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._database: Database | None = None
        self._known: WeakSet[Engine] = WeakSet()
        """Engines of SQLAlchemy that are known to be on the ledger's database."""

    async def submit(
        self,
        transaction: Transaction,
        wanted: Sequence[NewRecord],
        told: Told = _nobody,
        accept: Accept = _nobody,
    ) -> Made:
        """Create records in *transaction*; call *told* with them after it commits.

        A bare connection has no event for its commit, so *told* is then called at once. Raises
        InvalidOption, LedgerElsewhere, LedgerError and what *accept* raises; then none of the
        records is in the transaction, which can be continued.
        """
        begun = _require_async(transaction)
        with _translate_errors():
            theirs = await begun.run_sync(self._find_database)
            if theirs is not None:
                if theirs != self._database and self._ledger.entered:
                    # Read it again if they differ: a restarted server looks like another database.
                    self._database = await self._ledger.read(database_of)
                self._require_same(theirs)
            return await begun.run_sync(self._make, wanted, told, accept)

    def submit_blocking(
        self,
        transaction: BlockingTransaction,
        wanted: Sequence[NewRecord],
        told: Told,
        accept: Accept,
    ) -> Made:
        """Like `submit`, for a blocking transaction. Runs in the caller's thread; the ledger need
        not be open.
        """
        begun = _require_blocking(transaction)
        with _translate_errors():
            theirs = self._find_database(begun)
            if theirs is not None:
                self._require_same(theirs)
            return self._make(begun, wanted, told, accept)

    def _find_database(self, begun: Session | Connection) -> Database | None:
        """Return the database of a transaction; None if it is known to be that of the ledger."""
        connection = _connection(begun)
        return None if connection.engine in self._known else database_of(connection)

    def _require_same(self, theirs: Database) -> None:
        kind, *rest = theirs
        shown = self._ledger.shown
        if not shown.startswith(kind):
            raise LedgerElsewhere(f"it is on {kind}, the ledger is {shown}")
        if rest[-1:] == [None]:
            raise LedgerElsewhere(_NO_TABLE)
        ours = self._database
        if ours is None and kind == "sqlite":
            ours = kind, *_file(shown.removeprefix("sqlite:///"))
        if ours is not None and ours != theirs:
            raise LedgerElsewhere(f"the ledger is {shown}")

    def _make(
        self, begun: Session | Connection, wanted: Sequence[NewRecord], told: Told, accept: Accept
    ) -> Made:
        connection, jobs = _connection(begun), self._ledger.jobs
        if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
            rule = "is in AUTOCOMMIT mode and would commit the job at once; begin a transaction"
            raise InvalidOption(_OPTION, "…", rule=rule)
        transaction = connection.get_transaction() or connection.begin()
        has_commit_event = not isinstance(begun, Connection)
        queued = has_commit_event and jobs.relay is not None
        # A single record needs no savepoint: if it is refused, nothing was written.
        with _all_or_none(connection) if len(wanted) > 1 else nullcontext():
            recorded = submit(connection, wanted, jobs.tell, queued=queued)(connection)()
            accept(recorded)
        self._known.add(connection.engine)
        if isinstance(begun, Connection):
            told(recorded)
        else:
            _pending(begun).add(begun, recorded, told, self._nudge)
        return Made(recorded, transaction)

    def _nudge(self, recorded: list[Recorded]) -> None:
        """Queue records in Redis, in the ledger's event loop; without one, a relay does it."""
        loop = self._ledger.loop
        if loop is not None:
            with suppress(RuntimeError):  # closed meanwhile
                loop.call_soon_threadsafe(self._ledger.jobs.queue, recorded)


@contextmanager
def _all_or_none(connection: Connection) -> Generator[None]:
    """Run the body in a savepoint. On SQLite, begin a transaction first: Python's driver does not
    do that for a savepoint, whose release would then commit.
    """
    driver = connection.connection.driver_connection
    if not getattr(driver, "in_transaction", True):
        # Not a plain BEGIN: in a transaction that has read, SQLite can't wait for another writer.
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    with connection.begin_nested():
        yield


def _require_async(transaction: Transaction) -> AsyncSession | AsyncConnection:
    from sqlalchemy.ext.asyncio import (  # noqa: PLC0415 -- see above
        AsyncConnection,
        AsyncSession,
        async_scoped_session,
    )

    begun = transaction() if isinstance(transaction, async_scoped_session) else transaction
    if isinstance(begun, AsyncSession | AsyncConnection):
        return begun
    rule = "must be an AsyncSession or AsyncConnection of SQLAlchemy; pass a Session or Connection"
    raise InvalidOption(_OPTION, type(begun).__name__, rule=f"{rule} to `handler.blocking.submit`")


def _require_blocking(transaction: BlockingTransaction) -> Session | Connection:
    from sqlalchemy.orm import Session, scoped_session  # noqa: PLC0415 -- see above

    begun = transaction() if isinstance(transaction, scoped_session) else transaction
    if isinstance(begun, Session | Connection):
        return begun
    rule = "must be a Session or Connection of SQLAlchemy; pass an AsyncSession or AsyncConnection"
    raise InvalidOption(_OPTION, type(begun).__name__, rule=f"{rule} to `await handler.submit`")


def _connection(begun: Session | Connection) -> Connection:
    return begun if isinstance(begun, Connection) else begun.connection()


# ── sessions ─────────────────────────────────────────────────────────────────────────────


def _pending(session: Session) -> _Pending:
    pending: _Pending | None = session.info.get(_PENDING)
    if pending is None:
        pending = session.info[_PENDING] = _Pending(session)
    return pending


class _Pending:
    """Records that a session has created in its current transaction."""

    def __init__(self, session: Session) -> None:
        self._made: list[tuple[SessionTransaction | None, list[Recorded], Told]] = []
        self._nudges: dict[Told, None] = {}
        event.listen(session, "after_commit", self._on_commit)
        event.listen(session, "after_soft_rollback", self._on_rollback)
        event.listen(session, "after_transaction_end", self._on_transaction_end)

    def add(self, session: Session, recorded: list[Recorded], told: Told, nudge: Told) -> None:
        """After the commit, call *told* with these records, and *nudge* with all of the session."""
        at = session.get_nested_transaction() or session.get_transaction()
        self._made.append((at, recorded, told))
        self._nudges[nudge] = None

    def _on_commit(self, session: Session) -> None:
        if session.in_nested_transaction():
            return  # only a savepoint was released
        made, self._made = self._made, []
        for _, recorded, told in made:
            told(recorded)
        # All together, in the order of their creation, which is their order in lanes.
        together = [entry for _, recorded, _ in made for entry in recorded]
        for nudge in self._nudges if together else ():
            nudge(together)

    def _on_rollback(self, _: Session, transaction: SessionTransaction) -> None:
        """Forget the records of *transaction*. Those from before a savepoint stay."""
        self._made = [made for made in self._made if not _is_within(made[0], transaction)]

    def _on_transaction_end(self, _: Session, transaction: SessionTransaction) -> None:
        if transaction.parent is None:
            self._made = []  # the transaction was closed without a commit


def _is_within(inner: SessionTransaction | None, outer: SessionTransaction) -> bool:
    while inner is not None and inner is not outer:
        inner = inner.parent
    return inner is outer


# ── identity of the database ─────────────────────────────────────────────────────────────

Database = tuple[Any, ...]
"""Identifies a database: equal for two connections if, and only if, they have the same tables."""

_SQLITE = text("SELECT file FROM pragma_database_list WHERE name = 'main'")
# The server's start time distinguishes it from another server with an equal database.
_POSTGRES = text(
    "SELECT current_database(), pg_postmaster_start_time(), to_regclass('towpath_jobs')::oid"
)


def database_of(connection: Connection) -> Database:
    """Return what identifies the database of *connection*."""
    kind = connection.dialect.name
    match kind:
        case "sqlite":
            return kind, *_file(connection.scalar(_SQLITE) or "")
        case "postgresql":
            return kind, *connection.execute(_POSTGRES).one()
        case _:
            return (kind,)


def _file(path: str) -> Database:
    """Return what identifies the file on disk, whatever its path; empty if it does not exist."""
    try:
        found = Path(path).stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino


@contextmanager
def _translate_errors() -> Generator[None]:
    """Raise errors of the database libraries as Towpath's own errors."""
    with translated():
        try:
            yield
        except UnboundExecutionError as error:
            rule = "has several databases: pass its connection to the ledger's instead"
            raise InvalidOption(_OPTION, "…", rule=rule) from error
        except InvalidRequestError as error:
            rule = f"can't be used any more: {error}; begin another transaction"
            raise InvalidOption(_OPTION, "…", rule=rule) from error
        except DBAPIError as error:
            message = str(error.orig)
            if "towpath_jobs" in message and (
                "no such table" in message or "does not exist" in message
            ):
                raise LedgerElsewhere(_NO_TABLE) from error
            raise
