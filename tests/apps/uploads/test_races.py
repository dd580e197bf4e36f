"""Uploads when two things happen at the same time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from tests.apps.uploads.uploading import UploadServices, change, in_pieces
from tests.waiting import HANGS, eventually_async
from towpath.apps.uploads import lifecycle
from towpath.apps.uploads.appending import Appending
from towpath.apps.uploads.errors import ChunkDiffers, ChunkLost, OffsetDiffers
from towpath.apps.uploads.model import Range, Status, Upload
from towpath.apps.uploads.options import MIB, UploadsOptions
from towpath.apps.uploads.service import View
from towpath.apps.uploads.states import UploadState
from towpath.apps.uploads.stores.directory import DirectoryStore
from towpath.apps.uploads.stores.errors import StoreBusy
from towpath.clock import ZERO
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.errors import ServerUnreachable
from towpath.ledger.ledger import Ledger

C = 4 * MIB
Send = Callable[[UploadServices, View, bytes], Awaitable[object]]


async def send_alone(uploads: UploadServices, view: View, data: bytes) -> object:
    return await uploads.put(view, 0, data[:MIB])


async def send_together(uploads: UploadServices, view: View, data: bytes) -> object:
    return await uploads.put(view, 0, data[: 2 * MIB], count=2)


async def send_by_tus(uploads: UploadServices, view: View, data: bytes) -> object:
    body = in_pieces(data[:MIB])
    return await Appending(uploads.service).append(view.upload.upload_id, 0, body, holder="key")


class TestALossOfRedisDuringAChunk:
    @pytest.mark.parametrize("after", [2 * MIB, C])
    async def test_a_loss_of_redis_during_a_chunk_is_reported_and_the_chunk_can_be_resent(
        self, uploads: UploadServices, data: bytes, server: EmbeddedServer, after: int
    ) -> None:
        view = await uploads.start(size=2 * C)

        async def body() -> AsyncIterator[bytes]:
            yield data[:after]
            server.ask("FLUSHALL")
            yield data[after:C]

        with pytest.raises(ChunkLost):
            await uploads.service.put_chunk(
                view.upload.upload_id, 0, body(), holder="key", length=C
            )
        await uploads.send(view, data[: 2 * C])
        await uploads.work()
        assert await uploads.content(view) == data[: 2 * C]

    @pytest.mark.parametrize("send", [send_alone, send_together, send_by_tus])
    async def test_no_chunk_counts_without_bytes_after_a_loss_before_its_commit(
        self,
        uploads: UploadServices,
        data: bytes,
        server: EmbeddedServer,
        send: Send,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Another request rebuilds the state just before this chunk is counted."""
        view = await uploads.start(size=2 * MIB, chunk_size=MIB)
        upload, put, told = view.upload.upload_id, UploadState.put, list[int]()

        async def late(self: UploadState, *args: Any, **more: Any) -> Any:
            server.ask("FLUSHALL")
            await uploads.lifecycle.restore(upload)
            return await put(self, *args, **more)

        async def tell(_: str, number: int, **more: Any) -> None:
            told.append(number)

        with monkeypatch.context() as patch:
            patch.setattr(UploadState, "put", late)
            patch.setattr(uploads.lifecycle, "publish_chunk", tell)
            with pytest.raises((ChunkLost, OffsetDiffers)):
                await send(uploads, view, data)
        assert await uploads.service.missing(upload) == [Range(0, 1)]
        assert told == []

    async def test_concurrent_chunks_rebuild_a_lost_state_once(
        self,
        uploads: UploadServices,
        data: bytes,
        server: EmbeddedServer,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(lifecycle, "_OTHERS_HAVE", HANGS)
        view = await uploads.start(size=4 * C)
        await change(uploads, view, updated_at=0)
        server.ask("FLUSHALL")
        await asyncio.gather(
            *(uploads.put(view, number, data[number * C : number * C + C]) for number in range(4))
        )
        assert await uploads.service.missing(view.upload.upload_id) == []
        assert (await uploads.lifecycle.row(view.upload.upload_id)).generation == 2

    async def test_requests_that_waited_for_another_rebuild_the_state_once(
        self, uploads: UploadServices, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A request that waited for one rebuild in vain also waits for the next one."""
        view = await uploads.start(size=4 * C)
        upload, rows = view.upload.upload_id, 0
        row, reopen, opened = uploads.lifecycle.row, uploads.lifecycle.reopen, UploadState.open

        async def counted(upload_id: str) -> Upload:
            nonlocal rows
            rows += 1
            return await row(upload_id)

        async def begun(upload: Upload) -> Upload | None:
            monkeypatch.setattr(lifecycle, "_OTHERS_HAVE", HANGS)
            return await reopen(upload)

        async def late(*args: Any) -> bool:
            before = rows

            async def looked() -> bool:
                return rows >= before + 6

            await eventually_async(looked)
            return await opened(*args)

        monkeypatch.setattr(uploads.lifecycle, "row", counted)
        monkeypatch.setattr(uploads.lifecycle, "reopen", begun)
        monkeypatch.setattr(UploadState, "open", late)
        server.ask("FLUSHALL")
        await asyncio.gather(*(uploads.lifecycle.restore(upload) for _ in range(4)))
        assert (await row(upload)).generation == 2


class TestAChunk:
    async def test_a_chunk_placed_after_its_part_was_stored_leaves_no_bytes(
        self, uploads: UploadServices, data: bytes, server: EmbeddedServer
    ) -> None:
        view = await uploads.start(size=C)
        chunks = uploads.lifecycle.records.chunks(view.upload.upload_id)
        await uploads.send(view, data[:C])
        held = server.ask("HGET", f"upload:{{{view.upload.upload_id}}}:held", "0")
        assert isinstance(held, bytes)
        await uploads.work()
        assert await chunks.place({0: held.decode()}, 1) == ([0], [])
        assert server.ask("KEYS", "upload:*:chunks:*") == []

    async def test_lost_digests_of_a_stored_part_are_not_taken_from_repeated_chunks(
        self, uploads: UploadServices, data: bytes, server: EmbeddedServer
    ) -> None:
        """The bytes of a chunk that shares its part are unknown, so no digest is stored for it."""
        view = await uploads.start(size=4 * C)
        await uploads.send(view, data[: 2 * C])
        await uploads.work()
        server.ask("FLUSHALL")
        assert (await uploads.put(view, 0, data[C : 2 * C])).duplicate
        assert (await uploads.put(view, 0, data[:C])).duplicate
        await uploads.put(view, 2, data[2 * C : 3 * C])
        with pytest.raises(ChunkDiffers):
            await uploads.put(view, 2, data[:C])

    async def test_a_chunk_that_is_a_whole_part_is_compared_with_the_checksum_of_the_store(
        self, uploads: UploadServices, data: bytes, server: EmbeddedServer
    ) -> None:
        size = 8 * MIB
        view = await uploads.start(size=len(data), chunk_size=size)
        await uploads.send(view, data[:size])
        await uploads.work()
        server.ask("FLUSHALL")
        with pytest.raises(ChunkDiffers):
            await uploads.put(view, 0, data[size : 2 * size])
        assert (await uploads.put(view, 0, data[:size])).duplicate


class TestChunksOnAnotherRedis:
    async def test_losses_of_either_redis_are_repaired(
        self,
        server: EmbeddedServer,
        oldest_server: EmbeddedServer,
        ledger: Ledger,
        options: UploadsOptions,
        data: bytes,
    ) -> None:
        async with (
            Engine(server.url) as engine,
            Engine(oldest_server.url) as chunks,
            DirectoryStore(options) as store,
        ):
            uploads = UploadServices(engine, ledger, store, options, chunks=chunks)
            view = await uploads.start(size=len(data))
            upload = view.upload.upload_id
            await uploads.send(view, data[: 3 * C])
            oldest_server.ask("FLUSHALL")
            assert await uploads.service.missing(upload) == [Range(0, 4)]
            await uploads.send(view, data[: 3 * C])
            await uploads.work()
            server.ask("FLUSHALL")
            assert await uploads.service.missing(upload) == [Range(2, 4)]
            assert oldest_server.ask("KEYS", "upload:*:chunks:*") == []
            await uploads.send(view, data)
            await uploads.work()
            assert await uploads.content(view) == data
            assert (await uploads.put(view, 0, data[:C])).duplicate


class TestAStore:
    async def test_parts_that_differ_in_the_object_store_are_sent_again(
        self, uploads: UploadServices, data: bytes
    ) -> None:
        view = await uploads.start(size=4 * C)
        await uploads.send(view, data[: 4 * C])
        await uploads.work(parts_only=True)
        upload = await uploads.lifecycle.row(view.upload.upload_id)
        multipart = uploads.lifecycle.multipart(upload)
        assert multipart is not None
        await uploads.store.put_part(multipart, 2, [b"other bytes"])
        await uploads.work_again()
        assert await uploads.status(view) is Status.UPLOADING
        assert await uploads.service.missing(view.upload.upload_id) == [Range(2, 3)]
        await uploads.send(view, data[: 4 * C])
        await uploads.work()
        assert await uploads.content(view) == data[: 4 * C]

    async def test_an_object_lost_before_completion_is_sent_again(
        self, uploads: UploadServices, data: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A worker dies between the object and the row, and the object is deleted."""
        view = await uploads.start(size=C)
        await uploads.send(view, data[:C])

        async def dies(*_: Any) -> None:
            raise ServerUnreachable("gone")

        with monkeypatch.context() as patch:
            patch.setattr(uploads.storing, "_finish", dies)
            with pytest.raises(ServerUnreachable):
                await uploads.work()
        await uploads.store.delete(view.upload.s3_key)
        await uploads.service.sweeping.once(older=ZERO)
        await uploads.work()
        assert await uploads.service.missing(view.upload.upload_id) == [Range(0, 0)]
        await uploads.send(view, data[:C])
        await uploads.work()
        assert await uploads.content(view) == data[:C]

    async def test_an_object_store_that_asks_to_slow_down_is_called_again(
        self, uploads: UploadServices, data: bytes
    ) -> None:
        view = await uploads.start(size=4 * C)
        await uploads.send(view, data[: 4 * C])
        uploads.faults.before["put_part"] = StoreBusy("SlowDown")
        await uploads.work()
        assert len(uploads.later) == 2
        assert await uploads.status(view) is Status.UPLOADING
        uploads.faults.before.clear()
        await uploads.work_again()
        assert await uploads.content(view) == data[: 4 * C]


async def test_a_read_of_an_upload_that_ends_meanwhile_returns_its_end(
    uploads: UploadServices, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row ends and Redis loses the state after the row was read."""
    view = await uploads.start(size=C)
    upload_id, row = view.upload.upload_id, uploads.lifecycle.row

    async def before_its_end(upload_id: str) -> Upload:
        found = await row(upload_id)
        monkeypatch.undo()
        await uploads.service.abort(upload_id)
        server.ask("FLUSHALL")
        return found

    monkeypatch.setattr(uploads.lifecycle, "row", before_its_end)
    assert (await uploads.service.status(upload_id)).upload.status is Status.ABORTED
