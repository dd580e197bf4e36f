"""Records of uploads on an engine with a manual clock; the service with a directory as its object
store.
"""

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from tests.apps.uploads.serving import uploads_app
from tests.apps.uploads.tus_client import TUS
from tests.apps.uploads.uploading import UploadServices
from tests.server.in_process import client_of, key_of
from towpath.apps.uploads.options import MIB, UploadsOptions
from towpath.apps.uploads.records import UploadRecords
from towpath.apps.uploads.stores.directory import DirectoryStore
from towpath.apps.uploads.tables import TABLES
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.ledger.ledger import Ledger


@pytest.fixture
def records(engine: Engine) -> UploadRecords:
    return UploadRecords(engine, engine, UploadsOptions())


@pytest.fixture
def url(prepared_file_url: str) -> str:
    return prepared_file_url


@pytest.fixture
def ledger_options() -> dict[str, Any]:
    return {"tables": [TABLES], "sinks": ("redis",)}


@pytest.fixture
def options(tmp_path: Path) -> UploadsOptions:
    """A budget of eight parts: two are kept for begun parts, an owner has at most four."""
    return UploadsOptions(directory=tmp_path / "objects", budget=64 * MIB, owner_share=50)


@pytest.fixture
async def uploads(
    server: EmbeddedServer, ledger: Ledger, options: UploadsOptions
) -> AsyncIterator[UploadServices]:
    async with Engine(server.url) as engine, DirectoryStore(options) as store:
        yield UploadServices(engine, ledger, store, options)


@pytest.fixture
async def app(
    server: EmbeddedServer, prepared_file_url: str, tmp_path: Path
) -> AsyncIterator[FastAPI]:
    async with uploads_app(server, prepared_file_url, tmp_path) as app:
        yield app


@pytest.fixture(scope="session")
def data() -> bytes:
    """Five chunks of 4 MiB and three parts; the last chunk has seven bytes."""
    return random.Random(7).randbytes(16 * MIB + 7)


@pytest.fixture
async def tus(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """A client of tus with a key."""
    async with client_of(app, await key_of(app, "read", "submit")) as client:
        client.headers.update(TUS)
        yield client


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(app, await key_of(app, "read", "submit")) as client:
        yield client
