"""Several small chunks in one request: each counts, or not, as if it were sent alone."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi import FastAPI

from tests.apps.uploads.requests import ROOT, finished, start
from tests.apps.uploads.uploading import UploadServices
from tests.server.in_process import listening
from tests.waiting import eventually_async
from towpath.apps.uploads.digests import ContentDigest
from towpath.apps.uploads.errors import (
    BudgetFull,
    ChunkCut,
    ChunkDiffers,
    ChunkInvalid,
    ChunkLost,
    LastChunkDiffers,
    UploadFailed,
    UploadGone,
)
from towpath.apps.uploads.model import Range, Status
from towpath.apps.uploads.options import MIB
from towpath.apps.uploads.service import View
from towpath.embedded import EmbeddedServer
from towpath.errors import InvalidOption

K = 256 * 1024
SIZE = 11 * MIB + 5
"""Two parts; the last chunk has five bytes."""


def ranged(data: bytes, first: int, count: int, size: int = K) -> bytes:
    return data[first * size : min((first + count) * size, SIZE)]


async def send(
    uploads: UploadServices, view: View, data: bytes, first: int, count: int, **more: Any
) -> Any:
    return await uploads.put(view, first, ranged(data, first, count), count=count, **more)


@pytest.fixture
async def view(uploads: UploadServices) -> View:
    return await uploads.start(size=SIZE, chunk_size=K)


class TestARunOfChunks:
    @pytest.mark.parametrize("size", [64 * 1024, 100_000, K, MIB])
    async def test_chunks_sent_together_make_the_same_file(
        self, uploads: UploadServices, data: bytes, size: int
    ) -> None:
        view = await uploads.start(size=SIZE, chunk_size=size)
        total, per_part = -(-SIZE // size), view.upload.part_size // size
        step = min(per_part, 128)
        starts = [
            n
            for part in range(0, total, per_part)
            for n in range(part, min(part + per_part, total), step)
        ]
        for first in reversed(starts):
            count = min(step, total - first, per_part - first % per_part)
            receipt = await uploads.put(view, first, ranged(data, first, count, size), count=count)
            assert not receipt.duplicate
        await uploads.work()
        assert await uploads.status(view) is Status.COMPLETED
        assert await uploads.content(view) == data[:SIZE]

    async def test_chunks_may_be_sent_together_and_one_by_one(
        self, uploads: UploadServices, view: View, data: bytes
    ) -> None:
        await uploads.put(view, 3, ranged(data, 3, 1))
        assert not (await send(uploads, view, data, 2, 3)).duplicate
        assert (await send(uploads, view, data, 2, 3)).duplicate
        assert await uploads.service.missing(view.upload.upload_id) == [Range(0, 1), Range(5, 44)]

    async def test_chunks_of_a_stored_part_are_duplicates(
        self, uploads: UploadServices, view: View, data: bytes
    ) -> None:
        await send(uploads, view, data, 0, 32)
        await uploads.work()
        again = await send(uploads, view, data, 0, 32)
        assert again.duplicate
        assert again.safety == "stored"

    async def test_chunks_sent_together_need_fewer_calls(
        self, uploads: UploadServices, data: bytes, server: EmbeddedServer
    ) -> None:
        async def calls(sending: Callable[[View], Any]) -> int:
            view = await uploads.start(size=SIZE, chunk_size=K)
            before = calls_of(server)
            await sending(view)
            return calls_of(server) - before

        async def alone(view: View) -> None:
            for number in range(32):
                await uploads.put(view, number, ranged(data, number, 1))

        async def together(view: View) -> None:
            await send(uploads, view, data, 0, 32)

        single, several = await calls(alone), await calls(together)
        # Two per MiB, two before the body, and a few after it; else three per chunk.
        assert several * 3 < single


def calls_of(server: EmbeddedServer) -> int:
    """The number of scripts that Redis has run."""
    told = str(server.ask("INFO", "commandstats"))
    return sum(map(int, re.findall(r"cmdstat_(?:evalsha|fcall)(?:_ro)?:calls=(\d+)", told)))


class TestTheBodyOfARun:
    async def test_the_whole_chunks_of_a_short_body_count(
        self, uploads: UploadServices, view: View, data: bytes
    ) -> None:
        with pytest.raises(ChunkCut, match=rf"\b6\b.*\b{6 * K + 7}\b.*\b{8 * K}\b"):
            await uploads.put(view, 0, data[: 6 * K + 7], count=8, length=8 * K)
        assert (await uploads.service.missing(view.upload.upload_id))[0] == Range(6, 44)

    async def test_the_chunks_of_each_mib_before_a_broken_connection_count(
        self, uploads: UploadServices, view: View, data: bytes
    ) -> None:
        async def broken() -> AsyncIterator[bytes]:
            yield data[: 5 * K]
            raise ConnectionResetError

        with pytest.raises(ConnectionResetError):
            await uploads.service.put_chunk(
                view.upload.upload_id, 0, broken(), holder="key", count=8, length=8 * K
            )
        assert (await uploads.service.missing(view.upload.upload_id))[0] == Range(4, 44)

    async def test_a_body_that_is_too_long_is_refused_after_its_chunks(
        self, uploads: UploadServices, view: View, data: bytes
    ) -> None:
        """The chunks before may count already; the chunk after them is refused."""
        with pytest.raises(ChunkInvalid, match=r"\b4: "):
            await uploads.put(view, 0, data[: 4 * K + 1], count=4, length=None)
        assert (await uploads.service.missing(view.upload.upload_id))[0] == Range(4, 44)

    async def test_the_chunks_before_one_with_other_bytes_count(
        self, uploads: UploadServices, view: View, data: bytes
    ) -> None:
        await uploads.put(view, 2, ranged(data, 9, 1))
        with pytest.raises(ChunkDiffers):
            await send(uploads, view, data, 0, 4)
        assert (await uploads.service.missing(view.upload.upload_id))[0] == Range(3, 44)


class TestARefusalOfARun:
    @pytest.mark.parametrize(
        ("first", "count", "named"),
        [
            (0, 0, "count"),
            (0, 129, "count"),
            (-1, 2, "-1: "),
            (31, 2, "part_size"),
            (43, 3, r"\b45: .*\b44\b"),
        ],
    )
    async def test_chunks_with_impossible_numbers_are_refused(
        self, uploads: UploadServices, view: View, first: int, count: int, named: str
    ) -> None:
        with pytest.raises((ChunkInvalid, InvalidOption), match=named):
            await uploads.put(view, first, bytes(count * K), count=count)
        assert (await uploads.service.missing(view.upload.upload_id)) == [Range(0, 44)]

    @pytest.mark.parametrize(
        ("more", "named"),
        [
            ({"length": K}, rf"\b{K}\b.*\b{2 * K}\b"),
            ({"is_last": True}, "44"),
            ({"digest": ContentDigest("sha-256", b"x" * 32)}, "Content-Digest"),
        ],
    )
    async def test_chunks_with_a_wrong_length_end_or_digest_are_refused(
        self, uploads: UploadServices, view: View, more: dict[str, Any], named: str
    ) -> None:
        with pytest.raises((ChunkInvalid, LastChunkDiffers), match=named):
            await uploads.put(view, 0, bytes(2 * K), count=2, **more)
        assert (await uploads.service.missing(view.upload.upload_id)) == [Range(0, 44)]

    async def test_large_chunks_and_those_of_unknown_sizes_are_sent_one_by_one(
        self, uploads: UploadServices, data: bytes
    ) -> None:
        large = await uploads.start(size=SIZE, chunk_size=2 * MIB)
        with pytest.raises(ChunkInvalid, match="1 MiB"):
            await uploads.put(large, 0, data[: 4 * MIB], count=2)
        endless = await uploads.start(chunk_size=K)
        with pytest.raises(ChunkInvalid, match=r"\b0\b.*\b1: "):
            await uploads.put(endless, 0, data[: 2 * K], count=2)

    async def test_chunks_of_an_ended_upload_are_refused(
        self, uploads: UploadServices, view: View, data: bytes
    ) -> None:
        await uploads.service.abort(view.upload.upload_id)
        with pytest.raises(UploadGone):
            await send(uploads, view, data, 0, 2)

    async def test_a_body_without_room_is_not_read(
        self, uploads: UploadServices, data: bytes
    ) -> None:
        for _ in range(4):
            other = await uploads.start(size=SIZE, chunk_size=K)
            await send(uploads, other, data, 0, 32)
        view, read = await uploads.start(size=SIZE, chunk_size=K), False

        async def body() -> AsyncIterator[bytes]:
            nonlocal read
            read = True
            yield data[: 2 * K]

        with pytest.raises(BudgetFull):
            await uploads.service.put_chunk(
                view.upload.upload_id, 0, body(), holder="key", count=2, length=2 * K
            )
        assert not read


class TestARunWhoseUploadEnds:
    def ended(
        self, uploads: UploadServices, view: View, data: bytes, end: Awaitable[object]
    ) -> Awaitable[object]:
        """Send 16 chunks after the first eight of a part; half of them count before *end*."""

        async def body() -> AsyncIterator[bytes]:
            yield ranged(data, 8, 8)
            await eventually_async(lambda: self.has(uploads, view, 16))
            await end
            yield ranged(data, 16, 8)

        return uploads.service.put_chunk(
            view.upload.upload_id, 8, body(), holder="key", count=16, length=16 * K
        )

    async def has(self, uploads: UploadServices, view: View, chunks: int) -> bool:
        now = await uploads.service.status(view.upload.upload_id)
        return int(now.fields["received_chunks"]) == chunks

    async def test_chunks_of_an_upload_that_is_aborted_meanwhile_leave_no_bytes(
        self, uploads: UploadServices, view: View, data: bytes, server: EmbeddedServer
    ) -> None:
        await send(uploads, view, data, 0, 8)
        with pytest.raises(UploadGone):
            await self.ended(uploads, view, data, uploads.service.abort(view.upload.upload_id))
        for kind in ("staging", "chunks"):
            assert server.ask("KEYS", f"upload:*:{kind}:*") == []
        assert await uploads.lifecycle.records.budget.used() == 0

    async def test_chunks_before_a_failure_count_after_a_resume(
        self, uploads: UploadServices, view: View, data: bytes
    ) -> None:
        await send(uploads, view, data, 0, 8)
        id = view.upload.upload_id
        with pytest.raises(UploadFailed):
            await self.ended(uploads, view, data, uploads.lifecycle.fail(id, 1, "no answer"))
        await uploads.service.resume(id)
        assert await uploads.service.missing(id) == [Range(16, 44)]
        for first, count in ((16, 16), (32, 13)):
            await send(uploads, view, data, first, count)
        await uploads.work()
        assert await uploads.content(view) == data[:SIZE]


class TestALossOfRedis:
    async def test_chunks_after_a_loss_of_redis_rebuild_the_state(
        self, uploads: UploadServices, view: View, data: bytes, server: EmbeddedServer
    ) -> None:
        await send(uploads, view, data, 0, 32)
        await uploads.work()
        server.ask("FLUSHALL")
        await send(uploads, view, data, 32, 13)
        await uploads.work()
        assert await uploads.content(view) == data[:SIZE]

    async def test_a_loss_of_redis_between_chunks_raises_chunk_lost(
        self, uploads: UploadServices, view: View, data: bytes, server: EmbeddedServer
    ) -> None:
        async def body() -> AsyncIterator[bytes]:
            yield data[: 5 * MIB]
            server.ask("FLUSHALL")
            yield data[5 * MIB : 8 * MIB]

        with pytest.raises(ChunkLost):
            await uploads.service.put_chunk(
                view.upload.upload_id, 0, body(), holder="key", count=32, length=8 * MIB
            )
        assert await uploads.service.missing(view.upload.upload_id) == [Range(0, 44)]
        for first, count in ((0, 32), (32, 13)):
            await send(uploads, view, data, first, count)
        await uploads.work()
        assert await uploads.content(view) == data[:SIZE]

    @pytest.mark.parametrize("count", [1, 2])
    async def test_a_loss_of_redis_while_chunks_are_repeated_raises_chunk_lost(
        self, uploads: UploadServices, view: View, data: bytes, server: EmbeddedServer, count: int
    ) -> None:
        """They had been received before the request, so their bytes were only compared."""
        await send(uploads, view, data, 0, 2)
        id = view.upload.upload_id

        async def body() -> AsyncIterator[bytes]:
            yield data[:K]
            server.ask("FLUSHALL")
            assert await uploads.service.missing(id) == [Range(0, 44)]  # the state is rebuilt
            yield data[K : count * K]

        with pytest.raises(ChunkLost):
            await uploads.service.put_chunk(
                id, 0, body(), holder="key", count=count, length=count * K
            )
        assert await uploads.service.missing(id) == [Range(0, 44)]


class TestARunOverHttp:
    async def test_one_request_sends_several_chunks(
        self, client: httpx.AsyncClient, data: bytes
    ) -> None:
        upload = await start(client, size=SIZE, chunk_size=K)
        path = f"{ROOT}/{upload['upload_id']}/chunks"
        for first, count in ((0, 32), (32, 13)):
            params = {"count": count}
            answer = await client.put(
                f"{path}/{first}", content=ranged(data, first, count), params=params
            )
            assert answer.status_code == 200, answer.text
            assert answer.json()["chunk_number"] == first
        assert answer.json()["received_chunks"] == 45
        assert (await finished(client, upload))["status"] == "COMPLETED"

    async def test_whole_chunks_of_a_truncated_request_count(
        self, app: FastAPI, client: httpx.AsyncClient, data: bytes
    ) -> None:
        upload = await start(client, size=SIZE, chunk_size=K)
        path = f"{ROOT}/{upload['upload_id']}"
        async with listening(app) as url:
            place = urlsplit(url)
            _, writer = await asyncio.open_connection(place.hostname, place.port)
            head = (
                f"PUT {path}/chunks/0?count=8 HTTP/1.1\r\nHost: x\r\n"
                f"X-API-Key: {client.headers['X-API-Key']}\r\nContent-Length: {8 * K}\r\n\r\n"
            )
            writer.write(head.encode() + data[: 6 * K + 7])
            await writer.drain()
            writer.close()

            async def counted() -> bool:
                missing = (await client.get(f"{path}/missing")).json()["missing"]
                return missing == [[6, 44]]

            await eventually_async(counted)

    @pytest.mark.parametrize("count", ["0", "129", "-1", "x", "1.5", ""])
    async def test_an_impossible_count_is_refused(
        self, client: httpx.AsyncClient, count: str
    ) -> None:
        upload = await start(client, size=SIZE, chunk_size=K)
        path = f"{ROOT}/{upload['upload_id']}/chunks/0"
        answer = await client.put(path, content=b"x", params={"count": count})
        assert answer.status_code == 422
        assert "count" in answer.text
