"""Uploads into a real S3 server, and how they continue after its errors."""

import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from hashlib import sha256
from typing import Any

import pytest

from tests.apps.uploads.stores.s3_proxy import proxied
from tests.apps.uploads.test_sweep import orphan_goes_with_its_upload
from tests.apps.uploads.uploading import UploadServices
from towpath.apps.uploads.appending import Appending
from towpath.apps.uploads.errors import UploadFailed
from towpath.apps.uploads.lifecycle import Lifecycle
from towpath.apps.uploads.model import Range, Status, Upload
from towpath.apps.uploads.options import MIB, UploadsOptions
from towpath.apps.uploads.stores.checksums import Algorithm, Checksum
from towpath.apps.uploads.stores.errors import ObjectNotFound, StoreUnreachable
from towpath.apps.uploads.stores.options import new_store
from towpath.clock import ZERO
from towpath.embedded import EmbeddedServer
from towpath.embedded.objects import EmbeddedObjects
from towpath.engine.engine import Engine
from towpath.errors import RetryAdvice
from towpath.ledger.ledger import Ledger

C = 4 * MIB
BUCKET = "tests"
DeskOn = Callable[..., AbstractAsyncContextManager[UploadServices]]


@pytest.fixture
def uploads_on(server: EmbeddedServer, ledger: Ledger, running_objects: EmbeddedObjects) -> DeskOn:
    """Uploads with keys of their own in the server's bucket; *more* are further options."""
    given: dict[str, Any] = {
        "bucket": BUCKET,
        "make_bucket": True,
        "prefix": f"{secrets.token_hex(6)}/",
        "endpoint": running_objects.url,
        "access_key": running_objects.access_key,
        "secret_key": running_objects.secret_key,
    }

    @asynccontextmanager
    async def uploads_on(**other: Any) -> AsyncGenerator[UploadServices]:
        options = UploadsOptions(**(given | other))
        store = new_store(options)
        assert store is not None
        async with Engine(server.url) as engine, store:
            yield UploadServices(engine, ledger, store, options)

    return uploads_on


async def test_an_upload_that_failed_for_wrong_credentials_is_resumed_with_right_ones(
    uploads_on: DeskOn, data: bytes
) -> None:
    async with uploads_on(secret_key="wrong") as uploads:  # noqa: S106 -- it is wrong
        view = await uploads.start(size=4 * C)
        await uploads.send(view, data[: 4 * C])
        await uploads.work()
        now = await uploads.service.status(view.upload.upload_id)
        assert now.status is Status.FAILED
        assert "SignatureDoesNotMatch" in now.fields["error_message"]
    async with uploads_on() as uploads:
        await uploads.store.check()
        await uploads.service.resume(view.upload.upload_id)
        await uploads.work()
        assert await uploads.content(view) == data[: 4 * C]


async def test_an_upload_that_failed_for_a_missing_bucket_is_resumed_once_it_exists(
    uploads_on: DeskOn, data: bytes, running_objects: EmbeddedObjects
) -> None:
    """SeaweedFS creates a missing bucket; the proxy answers as other servers do."""
    async with (
        proxied(running_objects.url) as s3_proxy,
        uploads_on(endpoint=s3_proxy.url) as uploads,
    ):
        await uploads.store.check()
        for call in ("PUT ", "POST ", "HEAD ", "GET "):
            s3_proxy.refuse(call, 404, "NoSuchBucket")
        views = [
            await uploads.start(size=size) for size in (4 * C, C)
        ]  # in parts, and as one object
        for view in views:
            await uploads.send(view, data[: view.upload.size])
        await uploads.work()
        for view in views:
            now = await uploads.service.status(view.upload.upload_id)
            assert now.status is Status.FAILED
            assert BUCKET in now.fields["error_message"]
        s3_proxy.rules.clear()
        for view in views:
            await uploads.service.resume(view.upload.upload_id)
        await uploads.work()
        for view in views:
            assert await uploads.content(view) == data[: view.upload.size]


async def test_no_tus_client_gives_up_while_the_object_store_refuses(
    uploads_on: DeskOn,
    data: bytes,
    running_objects: EmbeddedObjects,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The upload fails again before HEAD has read it."""
    async with (
        proxied(running_objects.url) as s3_proxy,
        uploads_on(endpoint=s3_proxy.url) as uploads,
    ):
        await uploads.store.check()
        s3_proxy.refuse("PUT ", 403, "AccessDenied")
        view = await uploads.start(size=C)
        await uploads.send(view, data[:C])
        await uploads.work()
        assert await uploads.status(view) is Status.FAILED
        real = Lifecycle.revive

        async def revive(own: Lifecycle, upload: Upload) -> Upload | None:
            resumed = await real(own, upload)
            await uploads.work()
            return resumed

        monkeypatch.setattr(Lifecycle, "revive", revive)
        appending = Appending(uploads.service)
        with pytest.raises(UploadFailed) as refused:
            await appending.look(view.upload.upload_id)
        assert (refused.value.code, refused.value.retry) == ("upload_resumable", RetryAdvice.LATER)
        s3_proxy.rules.clear()
        position = await appending.look(view.upload.upload_id)
        assert (position.status, position.offset) == (Status.COMPLETED, C)
        assert await uploads.content(view) == data[:C]


async def test_after_a_loss_of_redis_an_upload_continues_from_the_list_of_parts(
    uploads_on: DeskOn, data: bytes, server: EmbeddedServer
) -> None:
    async with uploads_on() as uploads:
        await uploads.store.check()
        wanted = Checksum(Algorithm.SHA256, Checksum.of(Algorithm.SHA256, [data]).value)
        view = await uploads.start(size=len(data), checksum=wanted)
        await uploads.send(view, data[: 3 * C])
        await uploads.work()
        server.ask("FLUSHALL")
        assert await uploads.service.missing(view.upload.upload_id) == [Range(2, 4)]
        await uploads.send(view, data)
        uploads.faults.after["complete"] = StoreUnreachable("no answer in time")
        await uploads.work()
        uploads.faults.after.clear()
        server.ask("FLUSHALL")
        await uploads.service.sweeping.once()
        await uploads.work()
        assert sha256(await uploads.content(view)).digest() == sha256(data).digest()
        assert len(await uploads.events()) == 1


async def test_an_upload_with_a_wrong_checksum_leaves_no_object(
    uploads_on: DeskOn, data: bytes
) -> None:
    async with uploads_on() as uploads:
        await uploads.store.check()
        for algorithm in (Algorithm.SHA256, Algorithm.CRC64NVME):
            wanted = Checksum.of(algorithm, [b"other bytes"])
            view = await uploads.start(size=4 * C, checksum=wanted)
            await uploads.send(view, data[: 4 * C])
            await uploads.work()
            assert await uploads.status(view) is Status.FAILED
            with pytest.raises(ObjectNotFound):
                await uploads.store.head(view.upload.s3_key)
        await uploads.store.begin_multipart(view.upload.s3_key, upload="a crash behind this")
        assert (await uploads.service.sweeping.once(older=ZERO)).orphans == 1
        assert [multipart async for multipart in uploads.store.list_multiparts()] == []
        assert await uploads.events() == []


@pytest.mark.parametrize("known", [False, True])
async def test_a_multipart_upload_of_a_lost_reply_is_aborted_with_its_upload(
    uploads_on: DeskOn, data: bytes, *, known: bool
) -> None:
    async with uploads_on() as uploads:
        await orphan_goes_with_its_upload(uploads, data, known=known)
