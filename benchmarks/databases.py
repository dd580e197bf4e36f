"""The databases for records, and their rates of commits without other users."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from enum import StrEnum
from importlib import import_module
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple

from benchmarks.figure import Figure, not_measured
from benchmarks.peers.side.process_tree import process_tree
from benchmarks.postgres import PostgresMissing, postgres
from benchmarks.web.process import cpu_of

BATCH = 50
_PAYLOAD = b"x" * 600
"""About as large as a review's task."""
_TABLE = "CREATE TABLE IF NOT EXISTS raw (id BIGINT PRIMARY KEY, payload {kind} NOT NULL)"


class DatabaseKind(StrEnum):
    SQLITE = "sqlite"
    POSTGRES = "postgres"

    @property
    def said(self) -> str:
        return "SQLite" if self is DatabaseKind.SQLITE else "PostgreSQL"


class CommitRates(NamedTuple):
    """Commits per second, one after the other on one connection."""

    single: float
    """Of one row each."""
    joined: float
    """Of 50 rows each."""

    def __str__(self) -> str:
        return f"{self.single:,.0f} raw commits/s of one row, {self.joined:,.0f} of {BATCH} rows"


class Database(NamedTuple):
    """A database without other users, on disk and durable."""

    kind: DatabaseKind
    url: str
    folder: Path
    pid: int | None = None
    """Of its server; SQLite has none."""

    def cpu(self) -> float:
        """The CPU seconds of the database's own processes."""
        return 0.0 if self.pid is None else cpu_of(process_tree(self.pid))

    async def commits(self, wanted: int) -> CommitRates:
        """The rates of *wanted* commits of each kind, by the driver alone."""
        if self.kind is DatabaseKind.SQLITE:
            return _sqlite(self.folder, wanted)
        return await _postgres(self.url, wanted)


@asynccontextmanager
async def database(kind: DatabaseKind) -> AsyncGenerator[Database]:
    """A new database. Raises PostgresMissing."""
    if kind is DatabaseKind.SQLITE:
        with TemporaryDirectory(prefix="towpath-bench-") as folder:
            yield Database(kind, f"sqlite:///{folder}/ledger.db", Path(folder))
    else:
        with postgres() as server:
            yield Database(kind, server.url, server.directory, server.pid)


async def on_each(
    measure: Callable[[DatabaseKind], Awaitable[list[Figure]]], *, name: str, what: str, unit: str
) -> list[Figure]:
    """The figures of every kind of database; for one that is not installed, a figure with that
    reason.
    """
    figures: list[Figure] = []
    for kind in DatabaseKind:
        try:
            figures += await measure(kind)
        except PostgresMissing as missing:
            said = f"{what}, {kind.said}"
            figures.append(not_measured(f"{name}.{kind}", said, unit, why=str(missing)))
    return figures


_ids = count(1)


def _rows(size: int) -> Iterator[tuple[int, bytes]]:
    return ((next(_ids), _PAYLOAD) for _ in range(size))


def _sqlite(folder: Path, wanted: int) -> CommitRates:
    """Opens the file as the ledger does."""
    connection = sqlite3.connect(folder / "raw.db", isolation_level=None)
    for setting in ("journal_mode=WAL", "synchronous=FULL"):
        connection.execute(f"PRAGMA {setting}")
    connection.execute(_TABLE.format(kind="BLOB"))

    def rate(size: int) -> float:
        began = perf_counter()
        for _ in range(wanted):
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("INSERT INTO raw VALUES (?, ?)", _rows(size))
            connection.execute("COMMIT")
        return wanted / (perf_counter() - began)

    try:
        return CommitRates(rate(1), rate(BATCH))
    finally:
        connection.close()


async def _postgres(url: str, wanted: int) -> CommitRates:
    asyncpg: Any = import_module("asyncpg")
    connection = await asyncpg.connect(url)
    await connection.execute(_TABLE.format(kind="BYTEA"))

    async def rate(size: int) -> float:
        began = perf_counter()
        for _ in range(wanted):
            async with connection.transaction():
                await connection.executemany("INSERT INTO raw VALUES ($1, $2)", _rows(size))
        return wanted / (perf_counter() - began)

    try:
        return CommitRates(await rate(1), await rate(BATCH))
    finally:
        await connection.close()
