"""Fixtures of the worker's tests: an app on an empty Redis, and the log lines that workers
write.
"""

import logging
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.fixtures import SLOW_ANSWERS
from tests.worker.in_process_worker import LogLines
from towpath.app.app import Towpath
from towpath.embedded import EmbeddedServer


@pytest.fixture
async def app(server: EmbeddedServer) -> AsyncIterator[Towpath]:
    """An app without handlers, connected."""
    async with Towpath(server.url, limits=SLOW_ANSWERS) as app:
        yield app


@pytest.fixture(autouse=True)
def lines() -> Iterator[LogLines]:
    """Collects the log lines. Every line is formatted, so one with fields that the catalogue lacks
    fails the test.
    """
    handler, logger = LogLines(), logging.getLogger("towpath")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Handlers in threads wait for this event. It is set at the end, so that no thread is left
    behind.
    """
    gate = threading.Event()
    yield gate
    gate.set()


@pytest.fixture
def frozen() -> Iterator[EmbeddedServer]:
    """A Valkey of the test's own that the test may freeze; it is killed at the end, frozen or
    not.
    """
    with EmbeddedServer() as server:
        yield server
