"""Opens the database that a URL names; the interface of databases, and what their errors mean."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoConnectionFree

from towpath.clock import Duration
from towpath.errors import InvalidOption
from towpath.ledger.database.writing import Decide, Overtaken, SharedChange
from towpath.ledger.errors import (
    LedgerBusy,
    LedgerError,
    LedgerNotInstalled,
    LedgerRefused,
    LedgerUnreachable,
    LedgerUnwritable,
)

_RULE = "must be sqlite:///path/to/file.db or postgresql://user@host:5432/name"


def wrong_url(what: str) -> InvalidOption:
    """Return the error for an invalid URL. It shows nothing of it: it may have a password."""
    return InvalidOption("database", "…", rule=f"{what}; {_RULE}")


@contextmanager
def translated() -> Generator[None]:
    """Raise errors of the database libraries as LedgerError. Other errors pass unchanged."""
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error, OSError) as error:
        raise meaning(error) from error
    except Overtaken as error:
        raise LedgerBusy("other transactions kept changing the same rows") from error


def meaning(error: Exception) -> LedgerError:
    """Return LedgerUnreachable for an error that may pass, LedgerRefused for any other.

    LedgerRefused means that the request itself is at fault and would fail again. All other errors
    are troubles of the database or of the connection: once they are over, callers try again.
    """
    if was_not_sent(error):
        return LedgerUnreachable("the server ended the connection")
    cause = error.orig if isinstance(error, DBAPIError) else error
    text = str(cause) or type(cause).__name__
    return _kind(error, cause)(text.partition("\n")[0][:500])


def was_not_sent(error: Exception) -> bool:
    """Whether asyncpg did not send a statement because PostgreSQL had ended the connection.

    After a pause, a process may read the answer to a statement together with the message that ends
    the connection. asyncpg then returns the answer, and fails at the next statement because of its
    own state, before it sends anything. So the transaction is rolled back, whatever the statement.
    """
    cause = error.orig if isinstance(error, DBAPIError) else error
    return str(cause).startswith(_NOT_SENT)


def _kind(error: Exception, cause: BaseException | None) -> type[LedgerError]:
    if isinstance(cause, sqlite3.Error):
        return _SQLITE.get(getattr(cause, "sqlite_errorcode", 0) & 0xFF, LedgerRefused)
    if isinstance(cause, OSError):
        return LedgerUnwritable if cause.errno in _DISK else LedgerUnreachable
    state = str(getattr(cause, "sqlstate", None) or "")
    for begin, kind in _POSTGRES.items():
        if state.startswith(begin):
            return kind
    gone = isinstance(error, DBAPIError) and error.connection_invalidated
    return LedgerUnreachable if gone or isinstance(cause, NoConnectionFree) else LedgerRefused


_NOT_SENT = "cannot switch to state"
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}
_SQLITE: dict[int, type[LedgerError]] = {
    sqlite3.SQLITE_BUSY: LedgerBusy,
    sqlite3.SQLITE_LOCKED: LedgerBusy,
    sqlite3.SQLITE_PROTOCOL: LedgerBusy,  # too many processes compete for the lock
    sqlite3.SQLITE_FULL: LedgerUnwritable,
    sqlite3.SQLITE_IOERR: LedgerUnwritable,
    sqlite3.SQLITE_READONLY: LedgerUnwritable,
    sqlite3.SQLITE_PERM: LedgerUnwritable,
    sqlite3.SQLITE_CANTOPEN: LedgerUnreachable,
    sqlite3.SQLITE_NOMEM: LedgerUnreachable,
    sqlite3.SQLITE_INTERRUPT: LedgerUnreachable,
}
"""Errors by primary code. CORRUPT and NOTADB are missing: waiting does not repair a file."""
_POSTGRES: dict[str, type[LedgerError]] = {
    "53100": LedgerUnwritable,  # disk full
    "58": LedgerUnwritable,  # system error: reading or writing a file failed
    "25006": LedgerUnwritable,  # read-only: a standby, or a primary that is being replaced
    "55P03": LedgerBusy,  # lock timeout
    "40": LedgerBusy,  # serialization failure or deadlock
    "08": LedgerUnreachable,  # connection error
    "53": LedgerUnreachable,  # too many connections, out of memory
    "57P": LedgerUnreachable,  # shutting down, starting, or ended by an administrator
    "57014": LedgerUnreachable,  # statement timeout
    "25P03": LedgerUnreachable,  # idle-in-transaction timeout
    "25P04": LedgerUnreachable,  # transaction timeout
    "55000": LedgerUnreachable,  # wrong state of an object, as during recovery
}
"""Errors by the beginning of the SQL state, longer prefixes first."""


A = TypeVar("A")
T = TypeVar("T")


# ── databases ────────────────────────────────────────────────────────────────────────────


class Database(Protocol):
    """A database. Queries and changes are plain functions of a connection in a transaction.

    They wait for nothing except the database, and neither commit nor roll back.
    """

    shown: str
    """The URL without credentials."""

    def start(self) -> None: ...

    async def close(self) -> None: ...

    async def read(self, query: Callable[[Connection], T]) -> T: ...

    def write(self, decide: Decide[T]) -> Awaitable[T]: ...

    def write_shared(self, change: SharedChange[A, T], item: A) -> Awaitable[T]:
        """Make *change* for *item*, together with the items of concurrent calls."""
        ...

    async def alone(self, change: Callable[[Connection], T]) -> T:
        """Run a migration: only one process at a time runs *change*."""
        ...


def open_store(url: str, *, limit: Duration) -> Database:
    """Return the database that *url* names, without connecting. Raises InvalidOption,
    LedgerNotInstalled.

    `sqlite:///relative.db`, `sqlite:////absolute.db`, `postgresql://…`, also `postgres://` and
    SQLAlchemy's spellings with a driver.
    """
    scheme, _, rest = url.partition("://")
    kind, _, driver = scheme.lower().partition("+")
    if kind == "sqlite" and driver in {"", "aiosqlite", "pysqlite"}:
        from towpath.ledger.database.sqlite import SqliteStore  # noqa: PLC0415 -- one of two is needed

        return SqliteStore(_file(rest), limit=limit)
    if kind in {"postgresql", "postgres"} and driver in {"", "asyncpg"}:
        try:
            from towpath.ledger.database.postgres import PostgresStore  # noqa: PLC0415 -- needs its driver
        except ModuleNotFoundError as error:
            raise LedgerNotInstalled(error.name or "asyncpg") from error
        return PostgresStore(_server(rest), limit=limit)
    raise wrong_url("has an unknown scheme")


def _file(rest: str) -> str:
    """Return the path in the part of an SQLite URL after `sqlite://`."""
    path, question, _ = rest.partition("?")
    if question:
        raise wrong_url("must not have options: the ledger sets them itself")
    if not path.startswith("/") or path in {"/", "/:memory:"} or path.endswith("/"):
        raise wrong_url("names no file")
    return path[1:]


def _server(rest: str) -> str:
    """Check a PostgreSQL URL, and return it in the form that asyncpg reads."""
    url = f"postgresql://{rest}"
    try:
        parts = urlsplit(url)
        named = parts.path.strip("/") and (parts.hostname or "host=" in parts.query)
        _ = parts.port
    except ValueError:
        # `from None`: the error may quote a part of the password.
        raise wrong_url("can't be read") from None
    if not named:
        raise wrong_url("names no host or no database")
    if parts.fragment:
        raise wrong_url("has a '#' that must be written as %23")
    return url
