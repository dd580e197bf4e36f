"""A server on an empty store, with a ledger of its own."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from tests.server.messaging import app_on, client_of, key_of, started
from towpath.embedded import EmbeddedServer
from towpath.ledger.ledger import Ledger


@pytest.fixture
async def ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger(f"sqlite:///{tmp_path}/ledger.db")
    async with ledger:
        await ledger.migrate()
    return Ledger(f"sqlite:///{tmp_path}/ledger.db")


@pytest.fixture
async def app(server: EmbeddedServer, ledger: Ledger) -> AsyncIterator[FastAPI]:
    async with started(app_on(server.url, ledger)) as app:
        yield app


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(app, await key_of(app, "submit", "work", "read")) as client:
        yield client
