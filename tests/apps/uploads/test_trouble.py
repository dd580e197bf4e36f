"""Uploads when the store is in trouble, Redis is lost, or two do the same at once."""

import asyncio

import msgspec
import pytest

from tests.apps.uploads.uploading import UploadServices
from towpath.apps.uploads.errors import (
    UploadFailed,
)
from towpath.apps.uploads.lifecycle import Work, part_of
from towpath.apps.uploads.model import ATTEMPTS, UPLOADS, Range, Status
from towpath.apps.uploads.options import MIB
from towpath.apps.uploads.stores.errors import ObjectNotFound, StoreRefused, StoreUnreachable
from towpath.embedded import EmbeddedServer

C = 4 * MIB


class TestAStoreInTrouble:
    async def test_is_tried_again_then_the_upload_fails_and_can_be_resumed(
        self, uploads: UploadServices, data: bytes
    ) -> None:
        view = await uploads.start(size=len(data))
        await uploads.send(view, data[: 4 * C])
        uploads.faults.before["put_part"] = StoreUnreachable("no answer")
        await uploads.work()
        assert await uploads.status(view) is Status.UPLOADING
        await uploads.lifecycle.fail(view.upload.upload_id, 1, "the store gave no answer")
        uploads.faults.before.clear()
        with pytest.raises(UploadFailed):
            await uploads.put(view, 4, data[4 * C :])
        await uploads.service.resume(view.upload.upload_id)
        await uploads.put(view, 4, data[4 * C :])
        await uploads.work()
        assert await uploads.content(view) == data

    @pytest.mark.parametrize("call", ["begin_multipart", "put_part", "complete"])
    async def test_that_refuses_for_good_fails_the_upload_at_once(
        self, uploads: UploadServices, data: bytes, call: str
    ) -> None:
        view = await uploads.start(size=len(data))
        uploads.faults.before[call] = StoreRefused("wrong credentials")
        await uploads.send(view, data)
        await uploads.work()
        now = await uploads.service.status(view.upload.upload_id)
        assert now.status is Status.FAILED
        assert "wrong credentials" in now.fields["error_message"]
        uploads.faults.before.clear()
        await uploads.service.resume(view.upload.upload_id)
        await uploads.work()
        assert await uploads.content(view) == data

    @pytest.mark.parametrize(
        ("call", "size"), [("put", C), ("put_part", 4 * C), ("complete", 4 * C)]
    )
    async def test_at_the_last_attempt_fails_the_upload(
        self, uploads: UploadServices, data: bytes, call: str, size: int
    ) -> None:
        view = await uploads.start(size=size)
        uploads.faults.before[call] = StoreUnreachable("no answer")
        await uploads.send(view, data[:size])
        await uploads.work(attempt=ATTEMPTS)
        assert await uploads.status(view) is Status.FAILED

    @pytest.mark.parametrize(
        ("call", "size"), [("put", C), ("put_part", 4 * C), ("complete", 4 * C)]
    )
    async def test_whose_answer_is_lost_after_success_does_the_same_again(
        self, uploads: UploadServices, data: bytes, call: str, size: int
    ) -> None:
        view = await uploads.start(size=size)
        await uploads.send(view, data[:size])
        uploads.faults.after[call] = StoreUnreachable("no answer in time")
        await uploads.work()
        assert await uploads.status(view) in (Status.UPLOADING, Status.COMPLETING)
        uploads.faults.after.clear()
        await uploads.service.complete(view.upload.upload_id)
        await uploads.work_again()
        assert await uploads.content(view) == data[:size]
        assert len(await uploads.events()) == 1


class TestALossOfRedis:
    async def test_goes_on_from_the_row_and_the_store_s_list_of_parts(
        self, uploads: UploadServices, data: bytes, server: EmbeddedServer
    ) -> None:
        view = await uploads.start(size=len(data))
        await uploads.send(view, data[: 3 * C])
        await uploads.work()
        server.ask("FLUSHALL")
        assert await uploads.service.missing(view.upload.upload_id) == [Range(2, 4)]
        for number in (2, 3, 4):
            await uploads.put(view, number, data[number * C : number * C + C])
        await uploads.work()
        assert await uploads.content(view) == data
        assert len(await uploads.events()) == 1

    async def test_is_noticed_by_the_next_chunk(
        self, uploads: UploadServices, data: bytes, server: EmbeddedServer
    ) -> None:
        view = await uploads.start(size=2 * C)
        await uploads.put(view, 0, data[:C])
        server.ask("FLUSHALL")
        receipt = await uploads.put(view, 1, data[C : 2 * C])
        assert receipt.received_chunks == 1
        await uploads.put(view, 0, data[:C])
        await uploads.work()
        assert await uploads.content(view) == data[: 2 * C]

    async def test_between_completion_and_row_is_found_at_the_store(
        self, uploads: UploadServices, data: bytes, server: EmbeddedServer
    ) -> None:
        """The store has completed, its answer is lost, Redis is empty: the object is not lost."""
        view = await uploads.start(size=len(data))
        await uploads.send(view, data)
        uploads.faults.after["complete"] = StoreUnreachable("no answer in time")
        await uploads.work()
        uploads.faults.after.clear()
        server.ask("FLUSHALL")
        assert await uploads.service.missing(view.upload.upload_id) == []
        await uploads.work()
        assert await uploads.content(view) == data
        assert len(await uploads.events()) == 1


class TestCompletion:
    async def test_by_two_at_once_happens_once(self, uploads: UploadServices, data: bytes) -> None:
        view = await uploads.start(size=len(data))
        await uploads.send(view, data)
        await uploads.work(parts_only=True)
        upload = await uploads.lifecycle.row(view.upload.upload_id)
        await asyncio.gather(*(uploads.storing.complete(upload) for _ in range(3)))
        assert await uploads.content(view) == data
        assert len(await uploads.events()) == 1

    async def test_that_redis_never_heard_of_is_told_by_the_next_delivery(
        self, uploads: UploadServices, data: bytes, server: EmbeddedServer
    ) -> None:
        view = await uploads.start(size=C)
        await uploads.send(view, data[:C])
        await uploads.work()
        key = f"upload:{{{view.upload.upload_id}}}:state"
        server.ask("HSET", key, "status", "COMPLETING")
        work = Work(view.upload.upload_id, 1)
        await uploads.engine.submit(UPLOADS, msgspec.json.encode(work), id="again")
        await uploads.work()
        assert server.ask("HGET", key, "status") == b"COMPLETED"

    async def test_of_an_upload_that_was_aborted_meanwhile_leaves_no_object(
        self, uploads: UploadServices, data: bytes
    ) -> None:
        view = await uploads.start(size=len(data))
        await uploads.send(view, data)
        await uploads.work(parts_only=True)
        upload = await uploads.lifecycle.row(view.upload.upload_id)
        chart = await uploads.lifecycle.records.state(upload.upload_id).chart()
        parts = [part_of(number, entry) for number, entry in sorted(chart.parts.items())]
        multipart = uploads.lifecycle.multipart(upload)
        assert multipart is not None
        await uploads.store.complete(multipart, parts)
        await uploads.service.abort(upload.upload_id)
        await uploads.work()
        with pytest.raises(ObjectNotFound):
            await uploads.store.head(upload.s3_key)
        assert await uploads.events() == []
