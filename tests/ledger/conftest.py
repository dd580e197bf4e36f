"""A ledger on each kind of database, empty before each test."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.ledger.hands import Hands
from tests.postgres import PostgresServer
from towpath.ledger.ledger import Ledger


@pytest.fixture(scope="session")
def running_postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    """An SQLite file that is not there yet."""
    return f"sqlite:///{tmp_path}/ledger.db"


@pytest.fixture
def server_url(running_postgres: PostgresServer) -> str:
    """An empty database on a PostgreSQL server."""
    return running_postgres.emptied()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    """An empty database of each kind: what holds for one must hold for the other."""
    return request.getfixturevalue("file_url" if request.param == "sqlite" else "server_url")


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture
async def ledger(url: str, hands: Hands) -> AsyncIterator[Ledger]:
    """A ledger that is up to date, on a clock that the test moves."""
    async with Ledger(url, wall=hands.wall, ticks=hands.ticks) as ledger:
        await ledger.migrate()
        yield ledger
