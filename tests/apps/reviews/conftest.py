"""The queue of review tasks; reviews as records; and a linter among clones."""

from pathlib import Path

import pytest

from tests.apps.reviews.linting import LinterRuns
from tests.apps.reviews.repositories import Repository
from towpath.apps.reviews.queue import ReviewQueue
from towpath.apps.reviews.service import Reviews
from towpath.engine.engine import Engine
from towpath.ledger.ledger import Ledger


@pytest.fixture
def queue(engine: Engine) -> ReviewQueue:
    return ReviewQueue(engine)


@pytest.fixture
def other(engine: Engine) -> ReviewQueue:
    """Another service on the same queue."""
    return ReviewQueue(engine)


@pytest.fixture
def reviews(ledger: Ledger) -> Reviews:
    return Reviews(ledger.jobs)


@pytest.fixture
def linting(tmp_path: Path) -> LinterRuns:
    return LinterRuns(tmp_path)


@pytest.fixture
def repository(linting: LinterRuns) -> Repository:
    return Repository(linting.clones / "octo" / "repo")
