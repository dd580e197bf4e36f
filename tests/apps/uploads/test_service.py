"""Uploads from the first chunk to the finished object, and how they can fail."""

from collections.abc import AsyncIterator
from hashlib import sha256, sha512
from pathlib import Path

import pytest

from tests.apps.uploads.uploading import UploadServices, in_pieces
from tests.waiting import eventually_async
from towpath.apps.uploads.digests import ContentDigest
from towpath.apps.uploads.errors import (
    ChunkCut,
    ChunkDiffers,
    ChunkInvalid,
    DigestMismatch,
    PartTooLarge,
    QuotaReached,
    ShareFull,
    UploadConflict,
    UploadDiffers,
    UploadEnded,
    UploadGone,
    UploadIncomplete,
    UploadNotFailed,
    UploadNotFound,
    UploadTooLarge,
)
from towpath.apps.uploads.ingest import Safety
from towpath.apps.uploads.model import NewUpload, Range, Status
from towpath.apps.uploads.options import MIB, UploadsOptions
from towpath.apps.uploads.stores.checksums import Algorithm, Checksum
from towpath.apps.uploads.stores.directory import DirectoryStore
from towpath.apps.uploads.stores.errors import ObjectNotFound
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.errors import DurabilityUnavailable
from towpath.ledger.ledger import Ledger

C = 4 * MIB


class TestAFile:
    @pytest.mark.parametrize("size", [1, C - 1, C, C + 1, 2 * C, 2 * C + 1, 4 * C])
    async def test_a_file_of_any_size_comes_back_as_it_was_sent(
        self, uploads: UploadServices, data: bytes, size: int
    ) -> None:
        view = await uploads.start(size=size)
        await uploads.send(view, data[:size])
        await uploads.work()
        assert await uploads.status(view) is Status.COMPLETED
        assert await uploads.content(view) == data[:size]

    async def test_an_empty_file_is_completed_at_its_start(self, uploads: UploadServices) -> None:
        view = await uploads.start(size=0)
        await uploads.work()
        assert await uploads.status(view) is Status.COMPLETED
        assert await uploads.content(view) == b""

    async def test_equal_chunks_may_arrive_in_any_order(self, uploads: UploadServices) -> None:
        data = b"same" * (C // 4) * 5
        view = await uploads.start(size=len(data))
        for number in (4, 0, 3, 1, 2):
            await uploads.put(view, number, data[:C])
        await uploads.work()
        assert await uploads.content(view) == data

    async def test_a_file_of_unknown_size_ends_with_its_last_chunk(
        self, uploads: UploadServices, data: bytes
    ) -> None:
        view = await uploads.start(size=None)
        await uploads.put(view, 4, data[4 * C :], is_last=True)
        for number in range(4):
            await uploads.put(view, number, data[number * C : number * C + C])
        await uploads.work()
        assert await uploads.content(view) == data

    async def test_a_file_of_unknown_size_ends_with_complete(
        self, uploads: UploadServices, data: bytes
    ) -> None:
        view = await uploads.start(size=None)
        await uploads.send(view, data[: 3 * C])
        await uploads.work()
        assert await uploads.status(view) is Status.UPLOADING
        await uploads.service.complete(view.upload.upload_id)
        await uploads.work()
        assert await uploads.content(view) == data[: 3 * C]

    async def test_a_file_of_unknown_size_may_end_with_an_empty_chunk(
        self, uploads: UploadServices, data: bytes
    ) -> None:
        view = await uploads.start(size=None)
        await uploads.put(view, 0, data[:C])
        await uploads.put(view, 1, b"", is_last=True)
        await uploads.work()
        assert await uploads.content(view) == data[:C]

    async def test_the_row_the_event_and_the_state_of_a_file_agree(
        self, uploads: UploadServices, data: bytes
    ) -> None:
        view = await uploads.start(size=len(data), connector_id="c1")
        await uploads.send(view, data)
        await uploads.work()
        now = await uploads.service.status(view.upload.upload_id)
        [event] = await uploads.events()
        assert event["node_id"] == view.upload.node_id
        assert event["s3_key"] == f"connectors/c1/{view.upload.node_id}"
        assert (event["size"], event["etag"]) == (len(data), now.upload.etag)
        fields, _ = await uploads.lifecycle.records.state(view.upload.upload_id).look()
        assert (fields["status"], fields["final_etag"]) == ("COMPLETED", now.upload.etag)
        assert now.fields["final_size"] == str(len(data))
        assert await uploads.lifecycle.records.budget.used() == 0

    @pytest.mark.parametrize("algorithm", list(Algorithm))
    @pytest.mark.parametrize("size", [C + 1, 4 * C])
    async def test_a_file_is_compared_with_its_checksum(
        self, uploads: UploadServices, data: bytes, algorithm: Algorithm, size: int
    ) -> None:
        for sent, ends in ((data, Status.COMPLETED), (data[::-1], Status.FAILED)):
            wanted = Checksum.of(algorithm, [data[:size]])
            view = await uploads.start(size=size, checksum=wanted)
            await uploads.send(view, sent[:size])
            await uploads.work()
            assert await uploads.status(view) is ends
        with pytest.raises(ObjectNotFound):
            await uploads.store.head(view.upload.s3_key)
        failed = await uploads.service.status(view.upload.upload_id)
        assert wanted.value in failed.fields["error_message"]
        assert len(await uploads.events()) == 1
        # After resuming, all of it has to be sent again; the right bytes now.
        await uploads.service.resume(view.upload.upload_id)
        await uploads.send(view, data[:size])
        await uploads.work()
        assert await uploads.status(view) is Status.COMPLETED


class TestStarting:
    async def test_the_same_idempotency_key_returns_the_same_upload(
        self, uploads: UploadServices
    ) -> None:
        new = NewUpload(name="a", size=5)
        first, _ = await uploads.service.start(new, owner="k", idempotency_key="x")
        again, existed = await uploads.service.start(new, owner="k", idempotency_key="x")
        assert (again.upload.upload_id, existed) == (first.upload.upload_id, True)
        with pytest.raises(UploadDiffers):
            await uploads.service.start(NewUpload(name="b", size=5), owner="k", idempotency_key="x")
        other, existed = await uploads.service.start(new, owner="o", idempotency_key="x")
        assert not existed
        assert other.upload.upload_id != first.upload.upload_id

    async def test_parts_above_a_quarter_of_the_budget_are_refused(
        self, uploads: UploadServices
    ) -> None:
        with pytest.raises(PartTooLarge):
            await uploads.start(chunk_size=17 * MIB)

    async def test_an_upload_above_the_quota_of_its_key_is_refused(
        self, server: EmbeddedServer, ledger: Ledger, tmp_path: Path
    ) -> None:
        options = UploadsOptions(directory=tmp_path / "o", open_per_key=2, bytes_per_key=100)
        async with Engine(server.url) as engine, DirectoryStore(options) as store:
            uploads = UploadServices(engine, ledger, store, options)
            await uploads.start(size=60)
            with pytest.raises(QuotaReached):
                await uploads.start(size=60)
            await uploads.start(size=None)
            with pytest.raises(QuotaReached):
                await uploads.start(size=1)


class TestAChunk:
    async def test_a_repeated_chunk_is_a_duplicate_before_and_after_it_was_stored(
        self, uploads: UploadServices, data: bytes
    ) -> None:
        view = await uploads.start(size=len(data))
        first = await uploads.put(view, 0, data[:C])
        again = await uploads.put(view, 0, data[:C])
        assert (first.duplicate, again.duplicate) == (False, True)
        await uploads.send(view, data)
        await uploads.work()
        stored = await uploads.put(view, 0, data[:C])
        assert (stored.duplicate, stored.received_chunks) == (True, 5)
        assert (stored.safety, stored.state) == (Safety.STORED, Status.COMPLETED)
        with pytest.raises(ChunkDiffers):
            await uploads.put(view, 0, data[C : 2 * C])

    async def test_a_cut_chunk_never_counts(self, uploads: UploadServices, data: bytes) -> None:
        view = await uploads.start(size=len(data))
        with pytest.raises(ChunkCut):
            await uploads.put(view, 0, data[: C - 1], length=C)
        assert (await uploads.service.missing(view.upload.upload_id))[0] == Range(0, 4)
        await uploads.put(view, 0, data[:C])

    async def test_a_chunk_whose_client_leaves_is_deleted(
        self, uploads: UploadServices, data: bytes, server: EmbeddedServer
    ) -> None:
        view = await uploads.start(size=len(data))

        async def leaves() -> AsyncIterator[bytes]:
            yield data[: 2 * MIB]
            raise ConnectionResetError

        with pytest.raises(ConnectionResetError):
            await uploads.service.put_chunk(
                view.upload.upload_id, 0, leaves(), holder="key", length=C
            )
        assert server.ask("KEYS", "upload:*:staging:*") == []

    async def test_a_chunk_with_more_bytes_than_announced_is_refused(
        self, uploads: UploadServices, data: bytes
    ) -> None:
        view = await uploads.start(size=len(data))
        for length in (None, C):
            with pytest.raises(ChunkInvalid):
                await uploads.put(view, 0, data[: C + 1], length=length)

    async def test_a_chunk_is_compared_with_its_digest(
        self, uploads: UploadServices, data: bytes
    ) -> None:
        view = await uploads.start(size=len(data))
        wrong = ContentDigest("sha-256", sha256(b"x").digest())
        with pytest.raises(DigestMismatch):
            await uploads.put(view, 0, data[:C], digest=wrong)
        for number, hashed in ((0, sha256), (1, sha512)):
            name = "sha-256" if hashed is sha256 else "sha-512"
            chunk = data[number * C : number * C + C]
            right = ContentDigest(name, hashed(chunk).digest())
            assert not (await uploads.put(view, number, chunk, digest=right)).duplicate

    @pytest.mark.parametrize("number", [-1, 5, 10**12])
    async def test_a_chunk_number_beyond_the_file_is_refused(
        self, uploads: UploadServices, data: bytes, number: int
    ) -> None:
        view = await uploads.start(size=len(data))
        with pytest.raises(ChunkInvalid):
            await uploads.put(view, number, data[:C])

    async def test_a_chunk_beyond_ten_thousand_parts_is_refused(
        self, uploads: UploadServices, data: bytes
    ) -> None:
        view = await uploads.start(size=None)
        with pytest.raises(UploadTooLarge):
            await uploads.put(view, 20_001, data[:C])
        with pytest.raises(UploadTooLarge):
            await uploads.put(view, 20_000, data[:C])
        assert await uploads.lifecycle.records.budget.used() == 0

    async def test_a_chunk_of_an_unknown_upload_is_refused(self, uploads: UploadServices) -> None:
        with pytest.raises(UploadNotFound):
            await uploads.service.put_chunk("nobody", 0, in_pieces(b"x"), holder="key")

    async def test_a_chunk_waits_for_the_requested_safety_and_reports_it(
        self, uploads: UploadServices, data: bytes
    ) -> None:
        view = await uploads.start(size=len(data))
        assert (await uploads.put(view, 0, data[:C])).safety is Safety.MEMORY
        for wanted in (Safety.DISK, Safety.REPLICA):
            with pytest.raises(DurabilityUnavailable):
                await uploads.put(view, 1, data[C : 2 * C], safety=wanted)

    async def test_the_reported_safety_follows_the_configuration_of_redis(
        self, uploads: UploadServices, data: bytes, server: EmbeddedServer
    ) -> None:
        view = await uploads.start(size=len(data))

        async def is_as_safe_as(safety: Safety) -> bool:
            return (await uploads.put(view, 0, data[:C])).safety is safety

        server.ask("CONFIG", "SET", "appendfsync", "always")
        server.ask("CONFIG", "SET", "appendonly", "yes")
        try:
            await eventually_async(lambda: is_as_safe_as(Safety.DISK))
        finally:
            server.ask("CONFIG", "SET", "appendonly", "no")
            server.ask("CONFIG", "SET", "appendfsync", "everysec")
        await eventually_async(lambda: is_as_safe_as(Safety.MEMORY))


class TestTheBudget:
    async def test_a_new_part_without_room_is_refused_with_the_chunks_that_have_room(
        self, uploads: UploadServices, data: bytes
    ) -> None:
        """The share is 32 MiB: three parts and half of a fourth were received."""
        view = await uploads.start(size=50 * MIB)
        for number in range(7):
            await uploads.put(view, number, data[:C])
        with pytest.raises(ShareFull) as refusal:
            await uploads.put(view, 8, data[:C])
        assert refusal.value.missing == (Range(7, 7),)
        assert refusal.value.after > 0
        await uploads.put(view, 7, data[:C])
        await uploads.work()
        await uploads.put(view, 8, data[:C])


class TestAnEnd:
    async def test_an_aborted_upload_leaves_no_bytes(
        self, uploads: UploadServices, data: bytes, server: EmbeddedServer, options: UploadsOptions
    ) -> None:
        view = await uploads.start(size=len(data))
        await uploads.send(view, data[: 3 * C])
        await uploads.work()
        for _ in range(2):
            await uploads.service.abort(view.upload.upload_id)
        assert await uploads.status(view) is Status.ABORTED
        assert [multipart async for multipart in uploads.store.list_multiparts()] == []
        assert server.ask("KEYS", "upload:*:chunks:*") == []
        assert await uploads.lifecycle.records.budget.used() == 0
        with pytest.raises(UploadGone):
            await uploads.put(view, 4, data[4 * C :])
        for ask in (uploads.service.missing, uploads.service.complete, uploads.service.resume):
            with pytest.raises(UploadGone):
                await ask(view.upload.upload_id)

    async def test_a_completed_upload_can_not_be_aborted(
        self, uploads: UploadServices, data: bytes
    ) -> None:
        view = await uploads.start(size=C)
        await uploads.send(view, data[:C])
        await uploads.work()
        with pytest.raises(UploadConflict):
            await uploads.service.abort(view.upload.upload_id)
        with pytest.raises(UploadNotFailed):
            await uploads.service.resume(view.upload.upload_id)
        with pytest.raises((UploadEnded, ChunkInvalid)):
            await uploads.put(view, 1, data[:C])

    async def test_complete_with_missing_chunks_is_refused(
        self, uploads: UploadServices, data: bytes
    ) -> None:
        view = await uploads.start(size=len(data))
        await uploads.put(view, 2, data[2 * C : 3 * C])
        with pytest.raises(UploadIncomplete) as refusal:
            await uploads.service.complete(view.upload.upload_id)
        assert refusal.value.missing == (Range(0, 1), Range(3, 4))

    async def test_a_silent_upload_expires(
        self, uploads: UploadServices, data: bytes, server: EmbeddedServer
    ) -> None:
        view = await uploads.start(size=len(data))
        await uploads.put(view, 0, data[:C])
        assert not await uploads.lifecycle.expire(view.upload)
        server.ask("FLUSHALL")
        assert await uploads.lifecycle.expire(view.upload)
        assert await uploads.status(view) is Status.EXPIRED
