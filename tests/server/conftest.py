"""A server on an empty Redis, with a ledger of its own; and one that runs as a process."""

from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from tests.server.description import Description
from tests.server.in_process import client_of, key_of, started
from tests.server.messaging import app_on
from tests.server.serving import PATIENT, Api, RunningServer, serve, up
from towpath.embedded import EmbeddedServer
from towpath.ledger.ledger import Ledger


@pytest.fixture
async def ledger(prepared_file_url: str) -> Ledger:
    """A ledger that the server opens."""
    return Ledger(prepared_file_url)


@pytest.fixture
async def app(server: EmbeddedServer, ledger: Ledger) -> AsyncIterator[FastAPI]:
    async with started(app_on(server.url, ledger)) as app:
        yield app


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(app, await key_of(app, "submit", "work", "read")) as client:
        yield client


# ── the server as a process ──────────────────────────────────────────────────────────────

_numbers = count(1)


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """`towpath up`, one for all tests: each has a queue of its own."""
    with up(tmp_path_factory.mktemp("up")) as served:
        served.description = Description(served.client().get("/openapi.json").json())
        yield served


@pytest.fixture(scope="session")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """`towpath serve` with short limits: heads and bodies within 1 s, 5 requests a second. It has a
    Valkey of its own, because it writes in the background and outlives the test that asked for it.
    """
    limits = {
        "TOWPATH_HTTP__BODY_WITHIN": "1s",
        "TOWPATH_HTTP__HEAD_WITHIN": "1s",
        "TOWPATH_HTTP__RATE": "5",
        "TOWPATH_HTTP__STREAMS": "3",
        "TOWPATH_HTTP__STREAMS_PER_KEY": "2",
    }
    home = tmp_path_factory.mktemp("serve")
    with EmbeddedServer() as store, serve(home, store.url, command=PATIENT, **limits) as served:
        yield served


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def store(home: Path) -> Iterator[EmbeddedServer]:
    """A Valkey of the module's own, which tests may freeze and kill."""
    with EmbeddedServer(data=home / "valkey") as server:
        yield server


@pytest.fixture
def queue() -> str:
    """The name of an unused queue."""
    return f"queue-{next(_numbers)}"


@pytest.fixture
def api(running: RunningServer, queue: str) -> Api:
    """The paths of that queue, with a key that may do everything."""
    return running.api(queue)
