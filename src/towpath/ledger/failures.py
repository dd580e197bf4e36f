"""What the errors of a database mean."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoConnectionFree

from towpath.errors import InvalidOption
from towpath.ledger.errors import LedgerBusy, LedgerError, LedgerRefused, LedgerUnreachable

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


def meaning(error: Exception) -> LedgerError:
    """LedgerUnreachable for what may pass, LedgerRefused for the rest."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    passes = isinstance(cause, OSError | NoConnectionFree)
    gone = isinstance(error, DBAPIError) and error.connection_invalidated
    kind = LedgerUnreachable if passes or gone or _passes(cause) else LedgerRefused
    if _sqlite_code(cause) in _SQLITE_BUSY:
        kind = LedgerBusy
    text = str(cause) or type(cause).__name__
    return kind(text.partition("\n")[0][:500])


_SQLITE_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_SQLITE_LATER = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_CANTOPEN}
_POSTGRES_LATER = ("08", "53", "57P", "40")
"""Connection lost · out of resources · shutting down or starting · serialisation, deadlock."""


def _passes(cause: BaseException | None) -> bool:
    if isinstance(cause, sqlite3.Error):
        return _sqlite_code(cause) in _SQLITE_LATER
    return str(getattr(cause, "sqlstate", None) or "").startswith(_POSTGRES_LATER)


def _sqlite_code(cause: BaseException | None) -> int:
    return getattr(cause, "sqlite_errorcode", 0) & 0xFF
