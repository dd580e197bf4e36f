"""A ledger on each kind of database, empty before each test."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.ledger.hands import Hands
from tests.postgres import PostgresServer
from towpath.ledger.errors import LedgerOutdated
from towpath.ledger.ledger import Ledger


@pytest.fixture(scope="session")
def running_postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite file that is up to date, to be copied: a migration takes longer than most tests."""
    file = tmp_path_factory.mktemp("ledger") / "migrated.db"
    asyncio.run(_migrate(f"sqlite:///{file}"))
    return file


@pytest.fixture(scope="session")
def migrated_database(running_postgres: PostgresServer) -> str:
    """The name of a database on PostgreSQL that is up to date, to be copied."""
    asyncio.run(_migrate(running_postgres.new_database("migrated")))
    return "migrated"


async def _migrate(url: str) -> None:
    async with Ledger(url) as ledger:
        await ledger.migrate()


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    """An SQLite file that is not there yet."""
    return f"sqlite:///{tmp_path}/ledger.db"


@pytest.fixture
def server_url(running_postgres: PostgresServer) -> str:
    """An empty database on a PostgreSQL server."""
    return running_postgres.emptied()


@pytest.fixture
def prepared_file_url(file_url: str, migrated_file: Path) -> str:
    shutil.copy(migrated_file, file_url.removeprefix("sqlite:///"))
    return file_url


@pytest.fixture
def prepared_server_url(running_postgres: PostgresServer, migrated_database: str) -> str:
    """A copy of it: whatever a test does to its tables, the next one has them as they were."""
    running_postgres.tell(
        "postgres",
        "DROP DATABASE IF EXISTS prepared WITH (FORCE)",
        f"CREATE DATABASE prepared TEMPLATE {migrated_database}",
    )
    return running_postgres.url("prepared")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    """A database of each kind, what holds for one must hold for the other: up to date where the
    test has a ledger on it, else empty.
    """
    which = "file_url" if request.param == "sqlite" else "server_url"
    ready = "prepared_" if "ledger" in request.fixturenames else ""
    return request.getfixturevalue(ready + which)


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture
async def ledger(url: str, hands: Hands) -> AsyncIterator[Ledger]:
    """A ledger that is up to date, on a clock that the test moves."""
    async with Ledger(url, wall=hands.wall, ticks=hands.ticks) as ledger:
        try:
            await ledger.read(lambda _: None)
        except LedgerOutdated:  # a test with a database of its own
            await ledger.migrate()
        yield ledger
