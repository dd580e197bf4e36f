"""Uploads when the store is in trouble, Redis is lost, or two do the same at once."""

import asyncio

import msgspec
import pytest

from tests.apps.uploads.uploading import Desk
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
        self, desk: Desk, data: bytes
    ) -> None:
        view = await desk.start(size=len(data))
        await desk.send(view, data[: 4 * C])
        desk.faults.before["put_part"] = StoreUnreachable("no answer")
        await desk.work()
        assert await desk.status(view) is Status.UPLOADING
        await desk.lifecycle.fail(view.upload.upload_id, 1, "the store gave no answer")
        desk.faults.before.clear()
        with pytest.raises(UploadFailed):
            await desk.put(view, 4, data[4 * C :])
        await desk.service.resume(view.upload.upload_id)
        await desk.put(view, 4, data[4 * C :])
        await desk.work()
        assert await desk.content(view) == data

    @pytest.mark.parametrize("call", ["begin_multipart", "put_part", "complete"])
    async def test_that_refuses_for_good_fails_the_upload_at_once(
        self, desk: Desk, data: bytes, call: str
    ) -> None:
        view = await desk.start(size=len(data))
        desk.faults.before[call] = StoreRefused("wrong credentials")
        await desk.send(view, data)
        await desk.work()
        now = await desk.service.status(view.upload.upload_id)
        assert now.status is Status.FAILED
        assert "wrong credentials" in now.fields["error_message"]
        desk.faults.before.clear()
        await desk.service.resume(view.upload.upload_id)
        await desk.work()
        assert await desk.content(view) == data

    @pytest.mark.parametrize(
        ("call", "size"), [("put", C), ("put_part", 4 * C), ("complete", 4 * C)]
    )
    async def test_at_the_last_attempt_fails_the_upload(
        self, desk: Desk, data: bytes, call: str, size: int
    ) -> None:
        view = await desk.start(size=size)
        desk.faults.before[call] = StoreUnreachable("no answer")
        await desk.send(view, data[:size])
        await desk.work(attempt=ATTEMPTS)
        assert await desk.status(view) is Status.FAILED

    @pytest.mark.parametrize(
        ("call", "size"), [("put", C), ("put_part", 4 * C), ("complete", 4 * C)]
    )
    async def test_whose_answer_is_lost_after_success_does_the_same_again(
        self, desk: Desk, data: bytes, call: str, size: int
    ) -> None:
        view = await desk.start(size=size)
        await desk.send(view, data[:size])
        desk.faults.after[call] = StoreUnreachable("no answer in time")
        await desk.work()
        assert await desk.status(view) in (Status.UPLOADING, Status.COMPLETING)
        desk.faults.after.clear()
        await desk.service.complete(view.upload.upload_id)
        await desk.work_again()
        assert await desk.content(view) == data[:size]
        assert len(await desk.events()) == 1


class TestALossOfRedis:
    async def test_goes_on_from_the_row_and_the_store_s_list_of_parts(
        self, desk: Desk, data: bytes, server: EmbeddedServer
    ) -> None:
        view = await desk.start(size=len(data))
        await desk.send(view, data[: 3 * C])
        await desk.work()
        server.ask("FLUSHALL")
        assert await desk.service.missing(view.upload.upload_id) == [Range(2, 4)]
        for number in (2, 3, 4):
            await desk.put(view, number, data[number * C : number * C + C])
        await desk.work()
        assert await desk.content(view) == data
        assert len(await desk.events()) == 1

    async def test_is_noticed_by_the_next_chunk(
        self, desk: Desk, data: bytes, server: EmbeddedServer
    ) -> None:
        view = await desk.start(size=2 * C)
        await desk.put(view, 0, data[:C])
        server.ask("FLUSHALL")
        receipt = await desk.put(view, 1, data[C : 2 * C])
        assert receipt.received_chunks == 1
        await desk.put(view, 0, data[:C])
        await desk.work()
        assert await desk.content(view) == data[: 2 * C]

    async def test_between_completion_and_row_is_found_at_the_store(
        self, desk: Desk, data: bytes, server: EmbeddedServer
    ) -> None:
        """The store has completed, its answer is lost, Redis is empty: the object is not lost."""
        view = await desk.start(size=len(data))
        await desk.send(view, data)
        desk.faults.after["complete"] = StoreUnreachable("no answer in time")
        await desk.work()
        desk.faults.after.clear()
        server.ask("FLUSHALL")
        assert await desk.service.missing(view.upload.upload_id) == []
        await desk.work()
        assert await desk.content(view) == data
        assert len(await desk.events()) == 1


class TestCompletion:
    async def test_by_two_at_once_happens_once(self, desk: Desk, data: bytes) -> None:
        view = await desk.start(size=len(data))
        await desk.send(view, data)
        await desk.work(parts_only=True)
        upload = await desk.lifecycle.row(view.upload.upload_id)
        await asyncio.gather(*(desk.storing.complete(upload) for _ in range(3)))
        assert await desk.content(view) == data
        assert len(await desk.events()) == 1

    async def test_that_redis_never_heard_of_is_told_by_the_next_delivery(
        self, desk: Desk, data: bytes, server: EmbeddedServer
    ) -> None:
        view = await desk.start(size=C)
        await desk.send(view, data[:C])
        await desk.work()
        key = f"upload:{{{view.upload.upload_id}}}:state"
        server.ask("HSET", key, "status", "COMPLETING")
        work = Work(view.upload.upload_id, 1)
        await desk.engine.submit(UPLOADS, msgspec.json.encode(work), id="again")
        await desk.work()
        assert server.ask("HGET", key, "status") == b"COMPLETED"

    async def test_of_an_upload_that_was_aborted_meanwhile_leaves_no_object(
        self, desk: Desk, data: bytes
    ) -> None:
        view = await desk.start(size=len(data))
        await desk.send(view, data)
        await desk.work(parts_only=True)
        upload = await desk.lifecycle.row(view.upload.upload_id)
        chart = await desk.lifecycle.records.state(upload.upload_id).chart()
        parts = [part_of(number, entry) for number, entry in sorted(chart.parts.items())]
        multipart = desk.lifecycle.multipart(upload)
        assert multipart is not None
        await desk.store.complete(multipart, parts)
        await desk.service.abort(upload.upload_id)
        await desk.work()
        with pytest.raises(ObjectNotFound):
            await desk.store.head(upload.s3_key)
        assert await desk.events() == []
