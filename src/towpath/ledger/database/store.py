"""Which database a URL names, and what the ledger wants of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

from sqlalchemy.engine import Connection

from towpath.clock import Duration
from towpath.ledger.database.failures import wrong_url
from towpath.ledger.database.writing import Decide
from towpath.ledger.errors import LedgerNotInstalled

T = TypeVar("T")


class Store(Protocol):
    """A database. Queries and changes are plain functions of a connection in a transaction.

    They wait for nothing but the database, and neither commit nor roll back.
    """

    shown: str
    """The address without credentials."""

    def start(self) -> None: ...

    async def close(self) -> None: ...

    async def read(self, query: Callable[[Connection], T]) -> T: ...

    async def write(self, decide: Decide[T]) -> T: ...

    async def alone(self, change: Callable[[Connection], T]) -> T:
        """For migrations: no other process is here at the same time."""
        ...


def open_store(url: str, *, limit: Duration) -> Store:
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
    raise wrong_url("has no scheme that the ledger knows")


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
