"""I14, I18: every upload ends whole, and nothing is left of any.

Two servers with their workers, Redis (which keeps what it has, or is emptied) and S3 are killed
and frozen at random while files are uploaded. TOWPATH_UPLOADS_UNDER_FAULTS=50 is the long form.
"""

import asyncio
import os
import random
import sqlite3
from hashlib import sha256
from pathlib import Path
from typing import cast

import pytest

from tests.amounts import amount
from tests.faults.meanwhile import meanwhile
from tests.faults.upload_deployment import (
    UploadClient,
    UploadDeployment,
    UploadFaults,
    upload_deployment,
)
from tests.waiting import eventually_async
from towpath.apps.uploads.errors import UploadGone
from towpath.apps.uploads.model import Status
from towpath.apps.uploads.service import UploadService
from towpath.apps.uploads.serving import open_uploads
from towpath.apps.uploads.stores.errors import ObjectNotFound
from towpath.apps.uploads.stores.options import new_store
from towpath.apps.uploads.tables import TABLES
from towpath.clock import ZERO
from towpath.engine.engine import Engine
from towpath.ledger.ledger import Ledger

UPLOADS = int(os.environ.get("TOWPATH_UPLOADS_UNDER_FAULTS", amount(3, thoroughly=20)))
STRIKES = max(4, UPLOADS // 2)
AT_ONCE = 5
HANGS = 240 + UPLOADS * 10
"""Seconds: who takes longer than that hangs, however busy the machine is."""
COUNTED = """
CREATE TABLE told (id TEXT);
CREATE TRIGGER tell AFTER INSERT ON towpath_outbox BEGIN INSERT INTO told VALUES (new.id); END;
"""


@pytest.mark.timeout(3 * HANGS)
async def test_every_upload_ends_whole_and_nothing_is_left(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    sending = list[UploadClient]()
    with upload_deployment(tmp_path) as deployment:
        told = sqlite3.connect(tmp_path / "ledger.db")
        told.executescript(COUNTED)
        faults, done, turn = (
            UploadFaults(deployment, chance),
            list[int](),
            asyncio.Semaphore(AT_ONCE),
        )

        async def one(number: int) -> None:
            async with turn:
                client = UploadClient(
                    deployment, number, random.Random(f"{seed}/{number}"), hangs=HANGS
                )
                sending.append(client)
                await client.run()
                done.append(number)

        all_of_them = asyncio.gather(*map(one, range(UPLOADS)))
        for number in range(STRIKES):
            due = UPLOADS * 0.9 * number / STRIKES
            await meanwhile(lambda due=due: len(done) >= due or all_of_them.done(), within=HANGS)
            await faults.inject()
        faults.thaw()
        await all_of_them
        for client in sending:
            if not client.aborts:
                assert await client.content() == sha256(client.data).hexdigest(), client.number
        events = [row[0] for row in told.execute("SELECT id FROM told")]
        told.close()
        for server in deployment.servers:
            server.end()
        await check_deployment(deployment, sending, events)
    failures = sum(client.failures for client in sending)
    print(f"{UPLOADS} uploads, {faults.told}, {failures} failures resumed")  # noqa: T201 -- the figures


async def check_deployment(
    deployment: UploadDeployment, sending: list[UploadClient], events: list[str]
) -> None:
    """One event for each that is completed; and after the sweep nothing is left of the others."""
    async with (
        Engine(deployment.store.url) as engine,
        Ledger(deployment.database, tables=[TABLES]) as ledger,
        open_uploads(lambda: engine, lambda: ledger, deployment.options) as uploads,
    ):
        swept = await uploads.sweeping.once(older=ZERO)
        assert swept.troubles == 0
        await check_store(deployment, uploads)
        for client in sending:
            id = str(client.upload["upload_id"])
            status = (await uploads.status(id)).status
            assert status in (
                (Status.ABORTED, Status.COMPLETED) if client.aborts else ("COMPLETED",)
            )
            once = int(status is Status.COMPLETED)
            assert events.count(f"upload-{id}") == once, (id, status)
            if not once:
                with pytest.raises(UploadGone):
                    await uploads.missing(id)
            keys = cast("list[bytes]", deployment.store.ask("KEYS", f"*{id}*"))
            kinds = {key.decode().split(":")[2] for key in keys}
            assert not kinds & {"chunks", "pending", "fill", "held"}, kinds
            without_end = [key for key in keys if deployment.store.ask("PTTL", key.decode()) == -1]
            assert without_end == []

        async def room_is_back() -> bool:
            await uploads.sweeping.once(store_too=False)
            return await uploads.lifecycle.records.budget.used() == 0

        await eventually_async(room_is_back)


async def check_store(deployment: UploadDeployment, uploads: UploadService) -> None:
    store = new_store(deployment.options)
    assert store is not None
    async with store:
        assert [multipart async for multipart in store.list_multiparts()] == []
        for upload in await uploads.list(size=1000):
            if upload.status is not Status.COMPLETED:
                with pytest.raises(ObjectNotFound):
                    await store.head(upload.s3_key)
