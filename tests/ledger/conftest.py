"""A ledger on each kind of database, empty before each test."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from tests.ledger.hands import Hands
from tests.ledger.shop import ORDERS, Sell, named
from tests.postgres import PostgresServer
from towpath import Context, Fixed, Towpath, milliseconds
from towpath.app.submitting import AppHandler
from towpath.embedded import EmbeddedServer
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


# ── a shop with transactions of its own ──────────────────────────────────────────────────


@pytest.fixture
async def engine(url: str, ledger: Ledger) -> AsyncIterator[AsyncEngine]:
    """The user's own way to the database, with a table of his."""
    engine = create_async_engine(named(url))
    async with engine.begin() as connection:
        await connection.execute(text(ORDERS))
    yield engine
    await engine.dispose()


@pytest.fixture
def blocking(url: str, ledger: Ledger) -> Iterator[Engine]:
    """The same for code without an event loop."""
    engine = create_engine(named(url, blocking=True))
    yield engine
    engine.dispose()


@pytest.fixture
def app(server: EmbeddedServer, url: str, ledger: Ledger) -> Towpath:
    return Towpath(server.url, ledger=url)


@pytest.fixture
def sell(app: Towpath) -> Sell:
    """A named handler beside another one."""

    @app.handler("shop", name="sell", record=True, max_attempts=2, retry=Fixed(milliseconds(1)))
    async def sell(number: int, ctx: Context) -> int:
        if number < 0:
            raise ValueError(f"attempt {ctx.attempt}")
        return number * 2

    return sell


@pytest.fixture
def bill(app: Towpath) -> AppHandler[str, str, Any]:
    @app.handler("shop", name="bill", record=True)
    async def bill(customer: str) -> str:
        return f"{customer} owes"

    return bill
