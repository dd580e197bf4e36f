"""Which database, how it is opened, and what its errors mean."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoConnectionFree
from sqlalchemy.ext.asyncio import AsyncEngine

from towpath.clock import Duration
from towpath.errors import InvalidOption
from towpath.ledger.errors import (
    LedgerError,
    LedgerNotInstalled,
    LedgerRefused,
    LedgerUnreachable,
)

_RULE = "must be sqlite:///path/to/file.db or postgresql://user@host:5432/name"


@dataclass(frozen=True)
class Database:
    """An opened database. Its text is the address without credentials."""

    shown: str
    reads: AsyncEngine
    writes: AsyncEngine
    patient: Callable[[], AsyncEngine]
    """An engine of its own without a time limit, for migrations; to be disposed of."""
    joins_writes: bool
    """Whether only one transaction can write at a time, so that writes had better share it."""
    migration_lock: str = ""
    """The statement that keeps other migrations out until the transaction ends."""

    def __str__(self) -> str:
        return self.shown

    __repr__ = __str__

    async def close(self) -> None:
        await self.reads.dispose()
        await self.writes.dispose()


def open_database(url: str, *, limit: Duration) -> Database:
    """Open what *url* names; nothing is sent yet. Raises InvalidOption, LedgerNotInstalled.

    `sqlite:///relative.db`, `sqlite:////absolute.db`, `postgresql://…`, also `postgres://` and
    SQLAlchemy's spellings with a driver. No message repeats any part of a wrong URL: its password
    may be anywhere.
    """
    scheme, _, rest = url.partition("://")
    kind, _, driver = scheme.lower().partition("+")
    try:
        if kind == "sqlite" and driver in {"", "aiosqlite"}:
            from towpath.ledger.sqlite import open_sqlite  # noqa: PLC0415 -- needs its driver

            return open_sqlite(_file(rest), limit=limit)
        if kind in {"postgresql", "postgres"} and driver in {"", "asyncpg"}:
            from towpath.ledger.postgres import open_postgres  # noqa: PLC0415 -- needs its driver

            return open_postgres(_server(rest), limit=limit)
    except ModuleNotFoundError as error:
        raise LedgerNotInstalled(error.name or "a library") from error
    raise wrong_url("has no scheme that the ledger knows")


def wrong_url(what: str) -> InvalidOption:
    return InvalidOption("database", "…", rule=f"{what}; {_RULE}")


def _file(rest: str) -> str:
    """The file of an SQLite URL, as it stands after `sqlite://`."""
    path, question, _ = rest.partition("?")
    if question:
        raise wrong_url("has options, which the ledger chooses itself")
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
        raise wrong_url("can not be read") from None
    if not named:
        raise wrong_url("names no host or no database")
    if parts.fragment:
        raise wrong_url("has a '#' that must be written as %23")
    return url


# ── errors ───────────────────────────────────────────────────────────────────────────────


@contextmanager
def translated() -> Generator[None]:
    """What a database library raises inside, as a LedgerError. Other errors pass."""
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error, OSError) as error:
        raise meaning(error) from error


def meaning(error: Exception) -> LedgerError:
    """LedgerUnreachable for what may pass, LedgerRefused for the rest."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    passes = isinstance(cause, OSError | NoConnectionFree)
    gone = isinstance(error, DBAPIError) and error.connection_invalidated
    kind = LedgerUnreachable if passes or gone or _passes(cause) else LedgerRefused
    text = str(cause) or type(cause).__name__
    return kind(text.partition("\n")[0][:500])


_SQLITE_LATER = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_CANTOPEN}
_POSTGRES_LATER = ("08", "53", "57P", "40")
"""Connection lost · out of resources · shutting down or starting · serialisation, deadlock."""


def _passes(cause: BaseException | None) -> bool:
    if isinstance(cause, sqlite3.Error):
        code: int = getattr(cause, "sqlite_errorcode", 0)
        return code & 0xFF in _SQLITE_LATER
    return str(getattr(cause, "sqlstate", None) or "").startswith(_POSTGRES_LATER)
