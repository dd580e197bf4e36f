"""Uploads during errors of the object store, losses of Redis, and concurrent requests."""

import asyncio
from typing import Any, cast

import msgspec
import pytest

from tests.apps.uploads.uploading import UploadServices, in_pieces
from towpath.apps.uploads.appending import Appending
from towpath.apps.uploads.errors import OffsetDiffers, UploadFailed
from towpath.apps.uploads.lifecycle import Work, part_of
from towpath.apps.uploads.model import ATTEMPTS, UPLOADS, Range, Status
from towpath.apps.uploads.options import MIB
from towpath.apps.uploads.service import View
from towpath.apps.uploads.stores.errors import ObjectNotFound, StoreRefused, StoreUnreachable
from towpath.embedded import EmbeddedServer
from towpath.engine.space import SpaceRecord
from towpath.errors import ServerUnreachable

C = 4 * MIB


async def test_a_slow_publish_refuses_no_chunk(
    uploads: UploadServices, server: EmbeddedServer
) -> None:
    """The chunk counts already: an error would say that it may not."""
    view = await uploads.start(size=C)
    server.pause()
    try:
        await uploads.lifecycle.publish_chunk(view.upload.upload_id, 0, last=True)
    finally:
        server.unpause()


class TestAStoreInTrouble:
    async def test_temporary_errors_of_the_store_are_retried_before_the_upload_fails(
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
    async def test_a_permanent_error_of_the_store_fails_the_upload_at_once(
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
    async def test_an_error_at_the_last_attempt_fails_the_upload(
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
    async def test_a_call_of_the_store_with_a_lost_answer_is_repeated(
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


class TestBytesInOrder:
    """The upload has failed in the middle of a chunk."""

    @pytest.fixture
    async def view(self, uploads: UploadServices, data: bytes) -> View:
        view = await uploads.start(size=len(data))
        assert await append(uploads, view, C + 5, data[: C + 5], at=0) == C + 5
        await uploads.lifecycle.fail(view.upload.upload_id, 1, "the store gave no answer")
        return view

    async def test_bytes_for_a_failed_upload_are_refused_until_it_is_resumed(
        self, uploads: UploadServices, data: bytes, view: View
    ) -> None:
        with pytest.raises(UploadFailed):
            await append(uploads, view, 5, data, at=C + 5)
        await uploads.service.resume(view.upload.upload_id)
        await append(uploads, view, len(data), data, at=C + 5)
        await uploads.work()
        assert await uploads.content(view) == data

    async def test_acknowledged_bytes_are_there_after_a_resume(
        self, uploads: UploadServices, data: bytes, view: View, server: EmbeddedServer
    ) -> None:
        position = await Appending(uploads.service).look(view.upload.upload_id)
        assert position.offset == C + 5
        assert len(cast("list[str]", server.ask("KEYS", "upload:*:staging:*"))) == 1

    async def test_a_client_that_continues_after_a_loss_gets_the_offset(
        self, uploads: UploadServices, data: bytes, view: View, server: EmbeddedServer
    ) -> None:
        """The refusal has the offset from which to continue."""
        for key in cast("list[str]", server.ask("KEYS", "upload:*:staging:*")):
            server.ask("DEL", key)
        await uploads.service.resume(view.upload.upload_id)
        with pytest.raises(OffsetDiffers) as refusal:
            await append(uploads, view, 5, data, at=C + 5)
        assert refusal.value.offset == C


async def append(uploads: UploadServices, view: View, size: int, data: bytes, *, at: int) -> int:
    body = in_pieces(data[at : at + size])
    return await Appending(uploads.service).append(view.upload.upload_id, at, body, holder="key")


class TestALossOfRedis:
    async def test_an_upload_is_rebuilt_from_its_row_and_the_list_of_parts(
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

    async def test_the_next_chunk_notices_a_loss_of_redis(
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

    async def test_an_object_completed_before_a_loss_of_redis_is_found(
        self, uploads: UploadServices, data: bytes, server: EmbeddedServer
    ) -> None:
        """The object was completed, the answer was lost, and Redis is empty."""
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
    async def test_concurrent_completions_happen_once(
        self, uploads: UploadServices, data: bytes
    ) -> None:
        view = await uploads.start(size=len(data))
        await uploads.send(view, data)
        await uploads.work(parts_only=True)
        upload = await uploads.lifecycle.row(view.upload.upload_id)
        await asyncio.gather(*(uploads.storing.complete(upload) for _ in range(3)))
        assert await uploads.content(view) == data
        assert len(await uploads.events()) == 1

    async def test_the_next_delivery_writes_a_missing_completion_to_redis(
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

    async def test_a_completion_after_an_abort_leaves_no_object(
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


class TestAnUploadWhoseResumptionWasCut:
    """The row is resumed and Redis is not changed yet: the next request finishes the resume."""

    @pytest.fixture(params=["revive", "open"])
    async def cut(
        self,
        request: pytest.FixtureRequest,
        uploads: UploadServices,
        data: bytes,
        monkeypatch: pytest.MonkeyPatch,
    ) -> View:
        """An upload of three parts: one is stored, and a chunk of the second is in Redis."""
        view = await uploads.start(size=len(data))
        await uploads.send(view, data[: 3 * C])
        await uploads.work()
        upload_id = view.upload.upload_id
        await uploads.lifecycle.fail(upload_id, 1, "no luck")
        real = SpaceRecord.run

        async def dies(own: SpaceRecord, name: str, **given: Any) -> Any:
            if name == request.param:
                raise ServerUnreachable("gone")
            return await real(own, name, **given)

        failed = await uploads.lifecycle.row(upload_id)
        resumed = uploads.service.resume(upload_id)
        if request.param == "open":
            resumed.close()
            resumed = uploads.lifecycle.reopen(failed)
        with monkeypatch.context() as patch:
            patch.setattr(SpaceRecord, "run", dies)
            with pytest.raises(ServerUnreachable):
                await resumed
        row = await uploads.lifecycle.row(upload_id)
        assert (row.status, row.generation) == (Status.UPLOADING, 2)
        return view

    async def test_an_interrupted_resume_is_finished_for_a_tus_client(
        self, uploads: UploadServices, cut: View, data: bytes
    ) -> None:
        appending = Appending(uploads.service)
        upload_id = cut.upload.upload_id
        position = await appending.look(upload_id)
        assert position.status.open
        assert position.offset is not None
        rest = in_pieces(data[position.offset :])
        await appending.append(upload_id, position.offset, rest, holder="key")
        await uploads.work()
        assert await uploads.content(cut) == data

    async def test_an_interrupted_resume_is_finished_for_a_client_that_sends_chunks(
        self, uploads: UploadServices, cut: View, data: bytes
    ) -> None:
        assert await uploads.status(cut) in (Status.PENDING, Status.UPLOADING)
        for gap in await uploads.service.missing(cut.upload.upload_id):
            for number in range(gap.first, gap.last + 1):
                await uploads.put(cut, number, data[number * C : number * C + C])
        await uploads.work()
        assert await uploads.content(cut) == data

    async def test_the_sweep_finishes_an_interrupted_resume(
        self, uploads: UploadServices, cut: View, data: bytes
    ) -> None:
        await uploads.service.sweeping.once()
        fields, _ = await uploads.lifecycle.records.state(cut.upload.upload_id).look()
        row = await uploads.lifecycle.row(cut.upload.upload_id)
        assert Status(fields["status"]).open
        assert int(fields["generation"]) == row.generation
