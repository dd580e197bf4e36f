"""Uploads into a real S3 server: what goes wrong there, and how it goes on."""

import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from hashlib import sha256
from typing import Any

import pytest

from tests.apps.uploads.stores.gate import opened
from tests.apps.uploads.uploading import Desk
from towpath.apps.uploads.model import Range, Status
from towpath.apps.uploads.options import MIB, UploadsOptions
from towpath.apps.uploads.stores.checksums import Algorithm, Checksum
from towpath.apps.uploads.stores.errors import ObjectNotFound, StoreUnreachable
from towpath.apps.uploads.stores.options import new_store
from towpath.clock import ZERO
from towpath.embedded import EmbeddedServer
from towpath.embedded.objects import EmbeddedObjects
from towpath.engine.engine import Engine
from towpath.ledger.ledger import Ledger

C = 4 * MIB
DeskOn = Callable[..., AbstractAsyncContextManager[Desk]]


@pytest.fixture
def desk_on(server: EmbeddedServer, ledger: Ledger, running_objects: EmbeddedObjects) -> DeskOn:
    """A desk with its own keys in the server's bucket, and whatever else is said."""
    given: dict[str, Any] = {
        "bucket": "tests",
        "make_bucket": True,
        "prefix": f"{secrets.token_hex(6)}/",
        "endpoint": running_objects.url,
        "access_key": running_objects.access_key,
        "secret_key": running_objects.secret_key,
    }

    @asynccontextmanager
    async def desk_on(**other: Any) -> AsyncGenerator[Desk]:
        options = UploadsOptions(**(given | other))
        store = new_store(options)
        assert store is not None
        async with Engine(server.url) as engine, store:
            yield Desk(engine, ledger, store, options)

    return desk_on


async def test_wrong_credentials_fail_the_upload_until_they_are_right(
    desk_on: DeskOn, data: bytes
) -> None:
    async with desk_on(secret_key="wrong") as desk:  # noqa: S106 -- it is wrong
        view = await desk.start(size=4 * C)
        await desk.send(view, data[: 4 * C])
        await desk.work()
        now = await desk.service.status(view.upload.upload_id)
        assert now.status is Status.FAILED
        assert "SignatureDoesNotMatch" in now.fields["error_message"]
    async with desk_on() as desk:
        await desk.store.check()
        await desk.service.resume(view.upload.upload_id)
        await desk.work()
        assert await desk.content(view) == data[: 4 * C]


async def test_a_missing_bucket_fails_the_upload_until_it_is_there(
    desk_on: DeskOn, data: bytes, running_objects: EmbeddedObjects
) -> None:
    """SeaweedFS makes a bucket that is written to; others answer as the gate does."""
    async with opened(running_objects.url) as gate, desk_on(endpoint=gate.url) as desk:
        await desk.store.check()
        for call in ("PUT ", "POST ", "HEAD ", "GET "):
            gate.refuse(call, 404, "NoSuchBucket")
        views = [await desk.start(size=size) for size in (4 * C, C)]  # in parts, and as one object
        for view in views:
            await desk.send(view, data[: view.upload.size])
        await desk.work()
        for view in views:
            now = await desk.service.status(view.upload.upload_id)
            assert now.status is Status.FAILED
            assert "no bucket tests" in now.fields["error_message"]
        gate.rules.clear()
        for view in views:
            await desk.service.resume(view.upload.upload_id)
        await desk.work()
        for view in views:
            assert await desk.content(view) == data[: view.upload.size]


async def test_a_loss_of_redis_goes_on_from_the_server_s_own_list_of_parts(
    desk_on: DeskOn, data: bytes, server: EmbeddedServer
) -> None:
    async with desk_on() as desk:
        await desk.store.check()
        wanted = Checksum(Algorithm.SHA256, Checksum.of(Algorithm.SHA256, [data]).value)
        view = await desk.start(size=len(data), checksum=wanted)
        await desk.send(view, data[: 3 * C])
        await desk.work()
        server.ask("FLUSHALL")
        assert await desk.service.missing(view.upload.upload_id) == [Range(2, 4)]
        await desk.send(view, data)
        desk.faults.after["complete"] = StoreUnreachable("no answer in time")
        await desk.work()
        desk.faults.after.clear()
        server.ask("FLUSHALL")
        await desk.service.sweeping.once()
        await desk.work()
        assert sha256(await desk.content(view)).digest() == sha256(data).digest()
        assert len(await desk.events()) == 1


async def test_what_is_not_its_checksum_is_not_kept_and_nothing_is_left(
    desk_on: DeskOn, data: bytes
) -> None:
    async with desk_on() as desk:
        await desk.store.check()
        for algorithm in (Algorithm.SHA256, Algorithm.CRC64NVME):
            wanted = Checksum.of(algorithm, [b"other bytes"])
            view = await desk.start(size=4 * C, checksum=wanted)
            await desk.send(view, data[: 4 * C])
            await desk.work()
            assert await desk.status(view) is Status.FAILED
            with pytest.raises(ObjectNotFound):
                await desk.store.head(view.upload.s3_key)
        await desk.store.begin_multipart(view.upload.s3_key, upload="a crash behind this")
        assert (await desk.service.sweeping.once(older=ZERO)).orphans == 1
        assert [it async for it in desk.store.list_multiparts()] == []
        assert await desk.events() == []
