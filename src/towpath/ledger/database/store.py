"""Which database a URL names, what the ledger wants of it, and what its errors mean."""

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
from towpath.ledger.database.writing import Decide, Overtaken
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
    """A URL that is wrong may have its password anywhere: no part of it is repeated."""
    return InvalidOption("database", "…", rule=f"{what}; {_RULE}")


@contextmanager
def translated() -> Generator[None]:
    """What a database library raises inside, as a LedgerError. Other errors pass."""
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error, OSError) as error:
        raise meaning(error) from error
    except Overtaken as error:
        raise LedgerBusy("other transactions kept changing the same rows") from error


def meaning(error: Exception) -> LedgerError:
    """LedgerUnreachable for what may pass, LedgerRefused for the rest.

    What is refused is the fault of what was asked: it would be refused again, or by every copy of
    the database. All else is trouble of the database or of the way to it, which somebody ends; what
    has finished meanwhile is told then.
    """
    if was_not_sent(error):
        return LedgerUnreachable("the server ended the connection")
    cause = error.orig if isinstance(error, DBAPIError) else error
    text = str(cause) or type(cause).__name__
    return _kind(error, cause)(text.partition("\n")[0][:500])


def was_not_sent(error: Exception) -> bool:
    """Whether asyncpg did not send a statement because the server had ended the connection.

    A process that stood still reads the answer to a statement together with the message by which
    the server ended the connection. asyncpg then gives the answer, and fails at the next statement
    by its own state, before it sends anything. So the transaction is undone, whatever the statement
    was.
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
    sqlite3.SQLITE_PROTOCOL: LedgerBusy,  # too many who lock at once
    sqlite3.SQLITE_FULL: LedgerUnwritable,
    sqlite3.SQLITE_IOERR: LedgerUnwritable,
    sqlite3.SQLITE_READONLY: LedgerUnwritable,
    sqlite3.SQLITE_PERM: LedgerUnwritable,
    sqlite3.SQLITE_CANTOPEN: LedgerUnreachable,
    sqlite3.SQLITE_NOMEM: LedgerUnreachable,
    sqlite3.SQLITE_INTERRUPT: LedgerUnreachable,
}
"""By primary code. Not CORRUPT and NOTADB: no waiting mends a file."""
_POSTGRES: dict[str, type[LedgerError]] = {
    "53100": LedgerUnwritable,  # disk full
    "58": LedgerUnwritable,  # the system under the server: reading or writing a file
    "25006": LedgerUnwritable,  # read-only: a standby, or a primary that is being replaced
    "55P03": LedgerBusy,  # a lock that was not to be had in time
    "40": LedgerBusy,  # in another transaction's way
    "08": LedgerUnreachable,  # the connection
    "53": LedgerUnreachable,  # too many connections, out of memory
    "57P": LedgerUnreachable,  # shutting down, starting, or an administrator ended it
    "57014": LedgerUnreachable,  # a statement took longer than the server allows
    "25P03": LedgerUnreachable,  # a transaction stood still for longer than it may
    "25P04": LedgerUnreachable,  # the same for one that took too long
    "55000": LedgerUnreachable,  # not in a state for it: recovery is under way
}
"""By the beginning of the state, the longer first."""


T = TypeVar("T")


# ── databases ────────────────────────────────────────────────────────────────────────────


class Database(Protocol):
    """A database. Queries and changes are plain functions of a connection in a transaction.

    They wait for nothing but the database, and neither commit nor roll back.
    """

    shown: str
    """The address without credentials."""

    def start(self) -> None: ...

    async def close(self) -> None: ...

    async def read(self, query: Callable[[Connection], T]) -> T: ...

    def write(self, decide: Decide[T]) -> Awaitable[T]: ...

    async def alone(self, change: Callable[[Connection], T]) -> T:
        """For migrations: no other process is here at the same time."""
        ...


def open_store(url: str, *, limit: Duration) -> Database:
    """What *url* names; nothing is sent yet. Raises InvalidOption, LedgerNotInstalled.

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
    """The file of an SQLite URL, as it stands after `sqlite://`."""
    path, question, _ = rest.partition("?")
    if question:
        raise wrong_url("must not have options: the ledger sets them itself")
    if not path.startswith("/") or path in {"/", "/:memory:"} or path.endswith("/"):
        raise wrong_url("names no file")
    return path[1:]


def _server(rest: str) -> str:
    """A PostgreSQL URL as its own library reads it, looked at once."""
    url = f"postgresql://{rest}"
    try:
        parts = urlsplit(url)
        named = parts.path.strip("/") and (parts.hostname or "host=" in parts.query)
        _ = parts.port
    except ValueError:
        # `from None`: the error quotes what may be a part of the password.
        raise wrong_url("can't be read") from None
    if not named:
        raise wrong_url("names no host or no database")
    if parts.fragment:
        raise wrong_url("has a '#' that must be written as %23")
    return url
