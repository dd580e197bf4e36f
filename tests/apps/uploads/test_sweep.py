"""The sweep repairs what a process leaves behind that dies after any step."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

import pytest

from tests.apps.uploads.uploading import UploadServices, change
from towpath.apps.uploads.lifecycle import Work
from towpath.apps.uploads.model import UPLOADS, Range, Status
from towpath.apps.uploads.options import MIB, UploadsOptions
from towpath.apps.uploads.records import BodyLease
from towpath.apps.uploads.stores.errors import ObjectNotFound, StoreUnreachable
from towpath.apps.uploads.stores.port import ObjectStore
from towpath.apps.uploads.sweeping import Sweep
from towpath.clock import ZERO, days, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.model import JobRef, job_ref
from towpath.errors import ServerUnreachable

C = 4 * MIB
Occupation = Callable[[UploadServices, JobRef, Callable[[], Awaitable[object]]], Awaitable[object]]


async def occupy_before(
    uploads: UploadServices, job: JobRef, send: Callable[[], Awaitable[object]], **more: Any
) -> None:
    await uploads.engine.submit(UPLOADS, b"not yours", id=job.id, **more)
    await send()


async def end_before(
    uploads: UploadServices, job: JobRef, send: Callable[[], Awaitable[object]]
) -> None:
    await uploads.engine.submit(UPLOADS, b"not yours", id=job.id)
    [lease] = await uploads.engine.claim(UPLOADS, worker="mallory", lease=seconds(60))
    await uploads.engine.complete(lease)
    await send()


async def bury_before(
    uploads: UploadServices, job: JobRef, send: Callable[[], Awaitable[object]]
) -> None:
    await uploads.engine.submit(UPLOADS, b"not yours", id=job.id)
    [lease] = await uploads.engine.claim(UPLOADS, worker="mallory", lease=seconds(60))
    await uploads.engine.bury(lease, "mallory")
    await send()


async def cancel_after(
    uploads: UploadServices, job: JobRef, send: Callable[[], Awaitable[object]]
) -> None:
    await send()
    await uploads.engine.cancel(job)


async def move_after(
    uploads: UploadServices, job: JobRef, send: Callable[[], Awaitable[object]]
) -> None:
    await send()
    await uploads.engine.move(job, delay=days(1000))


async def complete_after(
    uploads: UploadServices, job: JobRef, send: Callable[[], Awaitable[object]]
) -> None:
    await send()
    [lease] = await uploads.engine.claim(UPLOADS, worker="mallory", lease=seconds(60))
    await uploads.engine.complete(lease)


OCCUPIED: dict[str, Occupation] = {
    "by a job that waits": occupy_before,
    "by a job for later": partial(occupy_before, delay=days(1000)),
    "by a job that has ended": end_before,
    "by a dead job": bury_before,
    "and its job was cancelled": cancel_after,
    "and its job was moved": move_after,
    "and its job was completed by another": complete_after,
}


async def orphan_goes_with_its_upload(uploads: UploadServices, data: bytes, *, known: bool) -> None:
    """The object store began two multipart uploads whose replies were lost; with *known*, also a
    third, which is in the row. Another one is begun after the upload was aborted.
    """
    view, other = await uploads.start(size=len(data)), await uploads.start(size=len(data))
    await uploads.send(other, data[: 2 * C])
    await uploads.work()
    await uploads.send(view, data[: 2 * C])
    uploads.faults.after["begin_multipart"] = StoreUnreachable("no answer")
    await uploads.work()
    await uploads.work_again()
    uploads.faults.after.clear()
    if known:
        await uploads.work_again()
    assert (await multiparts(uploads)).count(view.upload.s3_key) == 2 + known
    await uploads.service.abort(view.upload.upload_id)
    assert await multiparts(uploads) == [other.upload.s3_key]

    await uploads.store.begin_multipart(view.upload.s3_key, upload=view.upload.upload_id)
    swept = await uploads.service.sweeping.once(older=ZERO, store_too=False)
    assert (swept.deleted, swept.troubles) == (1, 0)
    assert await multiparts(uploads) == [other.upload.s3_key]


async def multiparts(uploads: UploadServices) -> list[str]:
    return [multipart.key async for multipart in uploads.store.list_multiparts()]


class TestAStalledUpload:
    async def test_an_upload_without_its_job_is_continued(
        self, uploads: UploadServices, data: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        view = await uploads.start(size=2 * C)

        async def dies(_: Work) -> None:
            raise ServerUnreachable("gone")

        with monkeypatch.context() as patch:
            patch.setattr(uploads.lifecycle, "submit", dies)
            await uploads.put(view, 0, data[:C])
            with pytest.raises(ServerUnreachable):
                await uploads.put(view, 1, data[C : 2 * C])
        await uploads.work()
        assert await uploads.status(view) is Status.UPLOADING
        swept = await uploads.service.sweeping.once(older=ZERO)
        assert (swept.looked_at, swept.chunks_queued) == (1, 2)
        await uploads.work()
        assert await uploads.content(view) == data[: 2 * C]

    async def test_an_upload_that_redis_lost_is_rebuilt_and_completed(
        self, uploads: UploadServices, data: bytes, server: EmbeddedServer
    ) -> None:
        view = await uploads.start(size=4 * C)
        await uploads.send(view, data[: 4 * C])
        await uploads.work(parts_only=True)
        server.ask("FLUSHALL")
        await uploads.service.sweeping.once()
        await uploads.work()
        assert await uploads.content(view) == data[: 4 * C]
        assert len(await uploads.events()) == 1

    async def test_an_upload_whose_job_is_dead_fails_and_can_be_resumed(
        self, uploads: UploadServices, data: bytes
    ) -> None:
        view = await uploads.start(size=2 * C)
        await uploads.send(view, data[: 2 * C])
        [lease] = await uploads.engine.claim(UPLOADS, worker="w", lease=seconds(60))
        await uploads.engine.bury(lease, "its worker died")
        await uploads.service.sweeping.once(older=ZERO)
        now = await uploads.service.status(view.upload.upload_id)
        assert now.status is Status.FAILED
        assert "its worker died" in now.fields["error_message"]
        assert (await uploads.engine.inspect.counts(UPLOADS)).dead == 0
        await uploads.service.resume(view.upload.upload_id)
        await uploads.work()
        assert await uploads.content(view) == data[: 2 * C]

    @pytest.mark.parametrize("occupied", OCCUPIED.values(), ids=OCCUPIED)
    async def test_an_upload_is_completed_though_a_foreign_job_has_its_job_id(
        self, uploads: UploadServices, data: bytes, occupied: Occupation
    ) -> None:
        """A client that can guess the ids of internal jobs has submitted, ended or moved one."""
        view = await uploads.start(size=2 * C)
        upload = view.upload
        job = job_ref(UPLOADS, Work(upload.upload_id, upload.generation, 0, 0).id)
        await occupied(uploads, job, partial(uploads.send, view, data[: 2 * C]))
        assert await uploads.status(view) is Status.UPLOADING
        await uploads.service.sweeping.once(older=ZERO)
        await uploads.work()
        assert await uploads.content(view) == data[: 2 * C]

    async def test_an_upload_is_completed_after_a_foreign_lease_of_its_job_id(
        self, uploads: UploadServices, data: bytes
    ) -> None:
        view = await uploads.start(size=2 * C)
        id = Work(view.upload.upload_id, view.upload.generation, 0, 0).id
        await uploads.engine.submit(UPLOADS, b"not yours", id=id)
        [lease] = await uploads.engine.claim(UPLOADS, worker="mallory", lease=seconds(60))
        await uploads.send(view, data[: 2 * C])
        await uploads.service.sweeping.once(older=ZERO)
        assert (await uploads.engine.renew(lease, seconds(60))).cancel_requested
        await uploads.engine.release(lease)
        await uploads.service.sweeping.once(older=ZERO)
        await uploads.work()
        assert await uploads.content(view) == data[: 2 * C]

    async def test_chunks_without_bytes_are_missing_again(
        self, uploads: UploadServices, data: bytes, server: EmbeddedServer
    ) -> None:
        view = await uploads.start(size=len(data))
        await uploads.put(view, 0, data[:C])
        server.ask("DEL", f"upload:{{{view.upload.upload_id}}}:chunks:0")
        await uploads.service.sweeping.once(older=ZERO)
        fields, _ = await uploads.lifecycle.records.state(view.upload.upload_id).look()
        assert fields["received_chunks"] == "0"

    async def test_an_upload_with_recent_activity_is_not_changed(
        self, uploads: UploadServices, data: bytes
    ) -> None:
        view = await uploads.start(size=2 * C)
        await uploads.put(view, 0, data[:C])
        await change(uploads, view, deadline=0)
        swept = await uploads.service.sweeping.once()
        assert (swept.expired, swept.looked_at) == (0, 1)
        row = await uploads.lifecycle.row(view.upload.upload_id)
        assert row.deadline > view.upload.created_at


class TestAnAbandonedUpload:
    async def test_an_abandoned_upload_expires_and_leaves_no_bytes(
        self, uploads: UploadServices, data: bytes, server: EmbeddedServer
    ) -> None:
        view = await uploads.start(size=len(data))
        await uploads.send(view, data[: 3 * C])
        await uploads.work()
        assert await multiparts(uploads)
        await change(uploads, view, deadline=0)
        server.ask("HSET", f"upload:{{{view.upload.upload_id}}}:state", "updated_at", "0")
        swept = await uploads.service.sweeping.once(older=ZERO)
        assert (swept.expired, swept.deleted) == (1, 1)
        assert await uploads.status(view) is Status.EXPIRED
        assert await multiparts(uploads) == []
        assert server.ask("KEYS", "upload:*:chunks:*") == []
        assert await uploads.lifecycle.records.budget.used() == 0
        assert (await uploads.service.sweeping.once(older=ZERO)).deleted == 0

    async def test_a_failed_upload_expires_too(
        self, uploads: UploadServices, data: bytes, server: EmbeddedServer
    ) -> None:
        view = await uploads.start(size=len(data))
        await uploads.send(view, data[: 3 * C])
        await uploads.work()
        await uploads.lifecycle.fail(view.upload.upload_id, 1, "no luck")
        await change(uploads, view, deadline=0)
        server.ask("FLUSHALL")
        assert (await uploads.service.sweeping.once()).expired == 1
        assert await multiparts(uploads) == []

    async def test_bytes_of_an_expired_upload_are_deleted_once_the_store_is_back(
        self, uploads: UploadServices, data: bytes
    ) -> None:
        view = await uploads.start(size=len(data))
        await uploads.send(view, data[: 3 * C])
        await uploads.work()
        uploads.faults.before["abort"] = StoreUnreachable("no answer")
        await uploads.service.abort(view.upload.upload_id)
        assert await uploads.status(view) is Status.ABORTED
        swept = await uploads.service.sweeping.once(older=ZERO, store_too=False)
        assert (swept.deleted, swept.troubles) == (0, 1)
        uploads.faults.before.clear()
        assert (await uploads.service.sweeping.once(older=ZERO)).deleted == 1
        assert await multiparts(uploads) == []

    async def test_an_object_completed_after_the_abort_is_deleted(
        self, uploads: UploadServices, data: bytes
    ) -> None:
        """A worker dies between the object and the row while the upload is aborted."""
        view = await uploads.start(size=C)
        await uploads.send(view, data[:C])
        await uploads.service.abort(view.upload.upload_id)
        await uploads.store.put(view.upload.s3_key, [data[:C]])
        assert (await uploads.service.sweeping.once(older=ZERO)).deleted == 1
        with pytest.raises(ObjectNotFound):
            await uploads.store.head(view.upload.s3_key)


class TestAnOrphanedMultipartUpload:
    @pytest.mark.parametrize("known", [False, True])
    async def test_a_multipart_upload_of_a_lost_reply_is_aborted_with_its_upload(
        self, uploads: UploadServices, data: bytes, *, known: bool
    ) -> None:
        await orphan_goes_with_its_upload(uploads, data, known=known)

    async def test_only_multipart_uploads_without_an_upload_are_aborted(
        self, uploads: UploadServices, data: bytes
    ) -> None:
        view = await uploads.start(size=len(data))
        await uploads.send(view, data[: 3 * C])
        await uploads.work()
        twice, nobody = view.upload.s3_key, "connectors/c/" + "0" * 8 + "-0000" * 3 + "-" + "0" * 12
        for key in (twice, nobody, "somebody/else"):
            await uploads.store.begin_multipart(key, upload="x")
        assert (await uploads.service.sweeping.once()).orphans == 0  # they may be recorded soon
        assert (await uploads.service.sweeping.once(older=ZERO)).orphans == 2
        assert sorted(await multiparts(uploads)) == sorted([twice, "somebody/else"])
        await uploads.send(view, data)
        await uploads.work()
        assert await uploads.content(view) == data

    async def test_orphans_wait_while_the_store_is_away(self, uploads: UploadServices) -> None:
        class AwayStore:
            async def list_multiparts(self) -> Any:
                raise StoreUnreachable("no answer")
                yield

        sweep = Sweep(uploads.lifecycle)
        sweep._stores = lambda: [cast("ObjectStore", AwayStore())]  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
        assert (await sweep.once()).troubles == 1

    async def test_room_of_a_stored_part_is_released(
        self, uploads: UploadServices, data: bytes
    ) -> None:
        """A worker dies between storing a part and releasing its room."""
        view = await uploads.start(size=len(data))
        budget, id = uploads.lifecycle.records.budget, view.upload.upload_id
        lease = BodyLease("body", id, 2, "key", extent=C, own=C, stays=True)
        assert await budget.reserve(lease) is None
        await uploads.put(view, 0, data[:C])
        assert (await uploads.service.sweeping.once()).released == 0
        await budget.finish(lease, C)
        assert await budget.used() == 2 * C
        assert (await uploads.service.sweeping.once()).released == 1
        assert await budget.used() == C

    async def test_bytes_without_a_reservation_are_counted(
        self, uploads: UploadServices, data: bytes
    ) -> None:
        """A server dies between placing a chunk and ending its lease."""
        view = await uploads.start(size=len(data))
        await uploads.put(view, 0, data[:C])
        budget = uploads.lifecycle.records.budget
        await budget.release(view.upload.upload_id, [0])
        assert await budget.used() == 0
        await uploads.service.sweeping.once()
        assert await budget.used() == C


class TestSeveralServers:
    async def test_servers_take_turns_and_share_the_count_of_waiting_chunks(
        self, uploads: UploadServices
    ) -> None:
        turns = uploads.lifecycle.records.sweep_turns
        assert await turns.take("a", lasts=seconds(60)) == (True, 0)
        await turns.save_queued(7)
        assert await turns.take("b", lasts=seconds(60)) == (False, 7)
        assert await turns.take("a", lasts=seconds(60)) == (True, 7)


async def test_after_all_uploads_have_ended_only_fixed_keys_remain(
    uploads: UploadServices, data: bytes, server: EmbeddedServer, options: UploadsOptions
) -> None:
    """All uploads have ended, and all expiries have passed."""
    done, aborted = await uploads.start(size=len(data)), await uploads.start(size=len(data))
    await uploads.send(done, data)
    await uploads.work()
    await uploads.send(aborted, data[: 3 * C])
    await uploads.work()
    await uploads.service.abort(aborted.upload.upload_id)
    await uploads.service.sweeping.once(older=ZERO)
    for view in (done, aborted):
        found = cast("list[bytes]", server.ask("KEYS", f"*{view.upload.upload_id}*"))
        names = {key.decode().split(":")[2] for key in found}
        assert not names & {"chunks", "staging", "held", "pending", "fill", "turns"}, names
        assert all(cast("int", server.ask("PTTL", key.decode())) > 0 for key in found)
    assert await uploads.lifecycle.records.budget.used() == 0
    assert await uploads.service.missing(done.upload.upload_id) == [] != [Range(0, 0)]
