"""A database as SQL, schema included: for SQLite and for PostgreSQL."""

import sqlite3
import time
from contextlib import closing
from pathlib import Path

from tests.postgres import PostgresServer

_TIMES = {
    "towpath_api_keys": ("created_at", "expires_at", "revoked_at", "last_used_at"),
    "towpath_jobs": ("created_at", "due_at", "started_at", "finished_at", "relay_at"),
    "towpath_outbox": ("at", "created_at", "refused_at"),
    "towpath_couriers": ("expires_at",),
}


def dump_file(database: Path, file: Path) -> None:
    with closing(sqlite3.connect(database)) as connection:
        file.write_text("\n".join(connection.iterdump()) + "\n")


def load_file(file: Path, database: Path, *, written_ms: int) -> str:
    """The URL of a new SQLite file with the contents of *file*, as if it had been written
    just now.
    """
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript(file.read_text())
        connection.executescript(";".join(_shifted(written_ms)))
    return f"sqlite:///{database}"


def load_server(file: Path, server: PostgresServer, *, written_ms: int) -> str:
    """The same for the database of *server*, which is emptied first."""
    url = server.emptied()
    server.tell("postgres", file.read_text())
    server.tell("postgres", *_shifted(written_ms))
    return url


def _shifted(written_ms: int) -> list[str]:
    """Ended records and keys expire, so all times are moved as if no time had passed since."""
    by = time.time_ns() // 1_000_000 - written_ms
    changes = {
        table: ", ".join(f"{column} = {column} + {by}" for column in columns)
        for table, columns in _TIMES.items()
    }
    return [f"UPDATE {table} SET {change}" for table, change in changes.items()]  # noqa: S608 -- our own words
