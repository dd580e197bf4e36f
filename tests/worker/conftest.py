"""What the worker's tests share: an app on an empty server, and the lines that workers write."""

import logging
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.fixtures import SLOW_ANSWERS
from tests.worker.running import LogLines
from towpath.app.app import Towpath
from towpath.embedded import EmbeddedServer


@pytest.fixture
async def app(server: EmbeddedServer) -> AsyncIterator[Towpath]:
    """An app without handlers, connected."""
    async with Towpath(server.url, limits=SLOW_ANSWERS) as app:
        yield app


@pytest.fixture(autouse=True)
def lines() -> Iterator[LogLines]:
    """Every line is really written: one with other fields than the catalogue's is an error."""
    handler, logger = LogLines(), logging.getLogger("towpath")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What handlers in threads wait for; open at the end, so that no thread is left behind."""
    gate = threading.Event()
    yield gate
    gate.set()


@pytest.fixture
def frozen() -> Iterator[EmbeddedServer]:
    """A server of the test's own, to be frozen; it is ended whether or not it still is."""
    with EmbeddedServer() as server:
        yield server
