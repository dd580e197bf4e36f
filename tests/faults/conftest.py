"""What the fault tests share: a seed that is printed, and databases."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres import PostgresServer

SEED = "TOWPATH_TEST_SEED"


@pytest.fixture
def seed() -> int:
    """Where a random test begins. Printed, so that a failure can be repeated."""
    chosen = int(os.environ.get(SEED) or random.randrange(1_000_000))
    print(f"to repeat: {SEED}={chosen}")  # noqa: T201  shown by pytest when the test fails
    return chosen


@pytest.fixture(scope="session")
def running_postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind: what holds for one must hold for the other."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ledger.db"
    return request.getfixturevalue("running_postgres").emptied()
