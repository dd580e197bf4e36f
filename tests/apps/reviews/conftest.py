"""The queue of review tasks on a manual clock; and reviews as records, on each kind of database."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.postgres import PostgresServer
from towpath.apps.reviews.queue import ReviewQueue
from towpath.apps.reviews.service import Reviews
from towpath.clock import ManualClock
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.ledger.ledger import Ledger


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def engine(server: EmbeddedServer, clock: ManualClock) -> AsyncIterator[Engine]:
    async with Engine(server.url, clock=clock) as engine:
        yield engine


@pytest.fixture
def queue(engine: Engine) -> ReviewQueue:
    return ReviewQueue(engine)


@pytest.fixture
def other(engine: Engine) -> ReviewQueue:
    """Another service on the same queue."""
    return ReviewQueue(engine)


# ── records ──────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="session")
def running_postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ledger.db"
    postgres: PostgresServer = request.getfixturevalue("running_postgres")
    return postgres.emptied()


@pytest.fixture
async def ledger(database: str) -> AsyncIterator[Ledger]:
    async with Ledger(database) as ledger:
        await ledger.migrate()
        yield ledger


@pytest.fixture
def reviews(ledger: Ledger) -> Reviews:
    return Reviews(ledger.jobs)
