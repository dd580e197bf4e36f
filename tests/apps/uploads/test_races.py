"""Uploads when something happens in the middle of something else."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.apps.uploads.uploading import Desk, change
from tests.waiting import WITHIN, eventually_async
from towpath.apps.uploads import lifecycle
from towpath.apps.uploads.errors import ChunkDiffers, ChunkLost
from towpath.apps.uploads.model import Range, Status, Upload
from towpath.apps.uploads.options import MIB, UploadsOptions
from towpath.apps.uploads.states import UploadState
from towpath.apps.uploads.stores.directory import DirectoryStore
from towpath.apps.uploads.stores.errors import StoreBusy
from towpath.clock import ZERO
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.errors import ServerUnreachable
from towpath.ledger.ledger import Ledger

C = 4 * MIB


class TestALossOfRedisWhileAChunkComes:
    @pytest.mark.parametrize("after", [2 * MIB, C])
    async def test_is_told_and_the_chunk_can_be_sent_again(
        self, desk: Desk, data: bytes, server: EmbeddedServer, after: int
    ) -> None:
        view = await desk.start(size=2 * C)

        async def body() -> AsyncIterator[bytes]:
            yield data[:after]
            server.ask("FLUSHALL")
            yield data[after:C]

        with pytest.raises(ChunkLost):
            await desk.service.put_chunk(view.upload.upload_id, 0, body(), holder="key", length=C)
        await desk.send(view, data[: 2 * C])
        await desk.work()
        assert await desk.content(view) == data[: 2 * C]

    async def test_behind_its_bytes_never_leaves_a_chunk_that_counts_without_them(
        self, desk: Desk, data: bytes, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another client's request has rebuilt the state when this one's chunk is to count."""
        view = await desk.start(size=2 * C)
        upload = view.upload.upload_id
        counted = desk.service._receiving._counted  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001

        async def late(*args: Any, **more: Any) -> Any:
            server.ask("FLUSHALL")
            await desk.lifecycle.restore(upload)
            return await counted(*args, **more)

        with monkeypatch.context() as patch:
            patch.setattr(desk.service._receiving, "_counted", late)  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
            with pytest.raises(ChunkLost):
                await desk.put(view, 0, data[:C])
        assert await desk.service.missing(upload) == [Range(0, 1)]

    async def test_is_repaired_once_by_those_who_come_at_the_same_time(
        self, desk: Desk, data: bytes, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lifecycle, "_OTHERS_HAVE", WITHIN)
        view = await desk.start(size=4 * C)
        await change(desk, view, updated_at=0)
        server.ask("FLUSHALL")
        await asyncio.gather(
            *(desk.put(view, number, data[number * C : number * C + C]) for number in range(4))
        )
        assert await desk.service.missing(view.upload.upload_id) == []
        assert (await desk.lifecycle.row(view.upload.upload_id)).generation == 2

    async def test_is_repaired_once_also_by_those_who_have_waited_for_another(
        self, desk: Desk, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whoever has waited in vain for one must wait for the next one all the same."""
        view = await desk.start(size=4 * C)
        upload, rows = view.upload.upload_id, 0
        row, reopen, opened = desk.lifecycle.row, desk.lifecycle.reopen, UploadState.open

        async def counted(upload_id: str) -> Upload:
            nonlocal rows
            rows += 1
            return await row(upload_id)

        async def begun(upload: Upload) -> Upload | None:
            monkeypatch.setattr(lifecycle, "_OTHERS_HAVE", WITHIN)
            return await reopen(upload)

        async def late(*args: Any) -> bool:
            before = rows

            async def looked() -> bool:
                return rows >= before + 6

            await eventually_async(looked)
            return await opened(*args)

        monkeypatch.setattr(desk.lifecycle, "row", counted)
        monkeypatch.setattr(desk.lifecycle, "reopen", begun)
        monkeypatch.setattr(UploadState, "open", late)
        server.ask("FLUSHALL")
        await asyncio.gather(*(desk.lifecycle.restore(upload) for _ in range(4)))
        assert (await row(upload)).generation == 2


class TestAChunk:
    async def test_that_is_put_in_its_place_after_its_part_was_stored_leaves_nothing(
        self, desk: Desk, data: bytes, server: EmbeddedServer
    ) -> None:
        view = await desk.start(size=C)
        chunks = desk.lifecycle.records.chunks(view.upload.upload_id)
        place = chunks.place
        await desk.send(view, data[:C])
        held = server.ask("HGET", f"upload:{{{view.upload.upload_id}}}:held", "0")
        assert isinstance(held, bytes)
        await desk.work()
        assert await place(0, held.decode()) is None
        assert server.ask("KEYS", "upload:*:chunks:*") == []

    async def test_of_a_part_whose_digests_are_lost_is_not_learned_anew(
        self, desk: Desk, data: bytes, server: EmbeddedServer
    ) -> None:
        """Of one of several chunks in a part, nobody can tell: no lie is kept of it."""
        view = await desk.start(size=4 * C)
        await desk.send(view, data[: 2 * C])
        await desk.work()
        server.ask("FLUSHALL")
        assert (await desk.put(view, 0, data[C : 2 * C])).duplicate
        assert (await desk.put(view, 0, data[:C])).duplicate
        await desk.put(view, 2, data[2 * C : 3 * C])
        with pytest.raises(ChunkDiffers):
            await desk.put(view, 2, data[:C])

    async def test_that_is_a_part_of_its_own_is_compared_with_what_the_store_tells(
        self, desk: Desk, data: bytes, server: EmbeddedServer
    ) -> None:
        size = 8 * MIB
        view = await desk.start(size=len(data), chunk_size=size)
        await desk.send(view, data[:size])
        await desk.work()
        server.ask("FLUSHALL")
        with pytest.raises(ChunkDiffers):
            await desk.put(view, 0, data[size : 2 * size])
        assert (await desk.put(view, 0, data[:size])).duplicate


class TestChunksOnAnotherRedis:
    async def test_are_sent_again_when_that_is_lost_and_states_when_the_first_is(
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
            desk = Desk(engine, ledger, store, options, chunks=chunks)
            view = await desk.start(size=len(data))
            upload = view.upload.upload_id
            await desk.send(view, data[: 3 * C])
            oldest_server.ask("FLUSHALL")
            assert await desk.service.missing(upload) == [Range(0, 4)]
            await desk.send(view, data[: 3 * C])
            await desk.work()
            server.ask("FLUSHALL")
            assert await desk.service.missing(upload) == [Range(2, 4)]
            assert oldest_server.ask("KEYS", "upload:*:chunks:*") == []
            await desk.send(view, data)
            await desk.work()
            assert await desk.content(view) == data
            assert (await desk.put(view, 0, data[:C])).duplicate


class TestAStore:
    async def test_that_has_other_parts_is_believed_and_they_are_sent_again(
        self, desk: Desk, data: bytes
    ) -> None:
        view = await desk.start(size=4 * C)
        await desk.send(view, data[: 4 * C])
        await desk.work(parts_only=True)
        upload = await desk.lifecycle.row(view.upload.upload_id)
        multipart = desk.lifecycle.multipart(upload)
        assert multipart is not None
        await desk.store.put_part(multipart, 2, [b"other bytes"])
        await desk.work_again()
        assert await desk.status(view) is Status.UPLOADING
        assert await desk.service.missing(view.upload.upload_id) == [Range(2, 3)]
        await desk.send(view, data[: 4 * C])
        await desk.work()
        assert await desk.content(view) == data[: 4 * C]

    async def test_that_lost_the_object_before_the_end_gets_it_again(
        self, desk: Desk, data: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A worker dies between the object and the row, and the object goes."""
        view = await desk.start(size=C)
        await desk.send(view, data[:C])

        async def dies(*_: Any) -> None:
            raise ServerUnreachable("gone")

        with monkeypatch.context() as patch:
            patch.setattr(desk.storing, "_finish", dies)
            with pytest.raises(ServerUnreachable):
                await desk.work()
        await desk.store.delete(view.upload.s3_key)
        await desk.service.sweeping.once(older=ZERO)
        await desk.work()
        assert await desk.service.missing(view.upload.upload_id) == [Range(0, 0)]
        await desk.send(view, data[:C])
        await desk.work()
        assert await desk.content(view) == data[:C]

    async def test_that_asks_to_slow_down_is_tried_again(self, desk: Desk, data: bytes) -> None:
        view = await desk.start(size=4 * C)
        await desk.send(view, data[: 4 * C])
        desk.faults.before["put_part"] = StoreBusy("SlowDown")
        await desk.work()
        assert len(desk.later) == 2
        assert await desk.status(view) is Status.UPLOADING
        desk.faults.before.clear()
        await desk.work_again()
        assert await desk.content(view) == data[: 4 * C]
