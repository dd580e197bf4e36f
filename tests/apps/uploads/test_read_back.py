"""A file is read back for its SHA-256, for a day at most."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.apps.uploads.requests import finished, put, start
from tests.apps.uploads.serving import uploads_app
from tests.server.in_process import client_of, key_of
from towpath import Towpath
from towpath.apps.uploads import parts
from towpath.apps.uploads.model import LARGEST_SIZE, UPLOADS
from towpath.apps.uploads.options import UploadsOptions
from towpath.apps.uploads.parts import add_uploads
from towpath.apps.uploads.stores.directory import DirectoryStore
from towpath.clock import days, seconds
from towpath.embedded import EmbeddedServer
from towpath.ledger.ledger import Ledger

DATA = b"read me back"
SLOWEST = 64_000_000
"""Bytes a second at which the largest object is read within its time."""


def test_the_time_limit_is_enough_to_read_back_the_largest_object(
    server: EmbeddedServer, ledger: Ledger, options: UploadsOptions
) -> None:
    app = Towpath(server.url, ledger=ledger)
    add_uploads(app, DirectoryStore(options), options)
    [limit] = [handler.options.time_limit for handler in app.handlers if handler.queue == UPLOADS]
    assert limit == days(1)
    assert limit.total_seconds() * SLOWEST >= LARGEST_SIZE


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of the objects that are read; the read of the first one hangs."""
    real, found = DirectoryStore.get, list[str]()

    @asynccontextmanager
    async def get(
        store: DirectoryStore, key: str, **more: Any
    ) -> AsyncGenerator[AsyncIterator[bytes]]:
        found.append(key)
        if len(found) == 1:
            await asyncio.Event().wait()
        async with real(store, key, **more) as pieces:
            yield pieces

    monkeypatch.setattr(DirectoryStore, "get", get)
    return found


async def test_a_stalled_read_back_times_out_and_is_repeated(
    server: EmbeddedServer,
    prepared_file_url: str,
    tmp_path: Path,
    reads: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The time limit of a day is half a second here."""
    monkeypatch.setattr(parts, "_LONGEST", seconds(0.5))
    wanted = {"algorithm": "sha256", "value": sha256(DATA).hexdigest()}
    async with (
        uploads_app(server, prepared_file_url, tmp_path) as app,
        client_of(app, await key_of(app, "read", "submit")) as client,
    ):
        upload = await start(client, size=len(DATA), checksum=wanted)
        assert (await put(client, upload, 0, DATA)).status_code == 200
        found: dict[str, Any] = await finished(client, upload)
        assert found["status"] == "COMPLETED"
        content: httpx.Response = await client.get(f"/api/v1/uploads/{found['upload_id']}/content")
        assert content.content == DATA
    assert len(reads) == 3
