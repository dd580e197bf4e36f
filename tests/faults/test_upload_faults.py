"""I14, I18: every upload ends whole, and aborted uploads leave nothing behind.

Two servers with their workers, Redis (which keeps its data, or is emptied) and S3 are killed and
frozen at random while files are uploaded; in the wide form also PostgreSQL, Kafka and the network
before S3, with half of the files by tus. TOWPATH_UPLOADS_UNDER_FAULTS=50 uploads so many files.
"""

import asyncio
import os
import random
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from tests.amounts import amount
from tests.faults.upload_deployment import (
    TusUploadClient,
    UploadClient,
    UploadDeployment,
    UploadFaults,
    upload_deployment,
)
from tests.waiting import eventually_async, eventually_in_loop
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

CHOSEN = os.environ.get("TOWPATH_UPLOADS_UNDER_FAULTS")
AT_ONCE = 5


@pytest.mark.parametrize(
    ("wide", "count"),
    [(False, amount(3, thoroughly=20)), (True, amount(4, thoroughly=200))],
    ids=["narrow", "wide"],
)
@pytest.mark.timeout(7200)
async def test_every_upload_ends_whole_and_leaves_nothing_behind(
    tmp_path: Path, seed: int, *, wide: bool, count: int
) -> None:
    count = int(CHOSEN or count)
    chance, sending = random.Random(seed), list[UploadClient]()
    hangs = 240 + count * 10
    """Seconds: who takes longer than that hangs, however busy the machine is."""
    async with upload_deployment(tmp_path, wide=wide) as deployment:
        deployment.note_events()
        faults, done, turn = (
            UploadFaults(deployment, chance),
            list[int](),
            asyncio.Semaphore(AT_ONCE),
        )

        async def one(number: int) -> None:
            async with turn:
                kind = TusUploadClient if wide and number % 2 else UploadClient
                own = random.Random(f"{seed}/{number}")
                sending.append(client := kind(deployment, number, own, hangs=hangs))
                try:
                    await client.run()
                except AssertionError as error:  # the others go on: they may be given up, too
                    given_up.append(f"{number}, {client.upload}: {error}")
                done.append(number)

        given_up, strikes = list[str](), max(4, count // 2)
        all_of_them = asyncio.gather(*map(one, range(count)))
        for number in range(strikes):
            due = count * 0.9 * number / strikes
            await eventually_in_loop(
                lambda due=due: len(done) >= due or all_of_them.done(), within=hangs
            )
            await faults.inject()
        faults.thaw()
        await all_of_them
        assert not given_up, "\n".join(given_up)  # pytest would shorten the list
        for client in sending:
            if not client.aborts:
                assert await client.content() == client.digest, client.number
        events = deployment.events()
        if wide:
            await eventually_async(partial(has_delivered, deployment, set(events)), within=hangs)
        for server in deployment.servers:
            server.end()
        await check_deployment(deployment, sending, events)
    failures = sum(client.failures for client in sending)
    print(f"{count} uploads, {faults.told}, {failures} failures resumed")  # noqa: T201 -- the figures


async def has_delivered(deployment: UploadDeployment, events: set[str]) -> bool:
    return await deployment.delivered() == events


async def check_deployment(
    deployment: UploadDeployment, sending: list[UploadClient], events: list[str]
) -> None:
    """Checks for one event per completed upload; and after the sweep, that nothing is left of the
    others.
    """
    async with (
        Engine(deployment.store.url) as engine,
        Ledger(deployment.database, tables=[TABLES]) as ledger,
        open_uploads(engine, ledger, deployment.options) as uploads,
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
