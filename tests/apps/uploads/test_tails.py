"""Tails, the bytes of incomplete chunks, are deleted once their chunk arrives in another way."""

import hashlib
from collections.abc import AsyncIterator

import pytest

from tests.apps.uploads.uploading import UploadServices, in_pieces
from towpath.apps.uploads.appending import Appending, ExpectedDigest
from towpath.apps.uploads.errors import OffsetDiffers
from towpath.apps.uploads.options import MIB
from towpath.apps.uploads.service import View
from towpath.embedded import EmbeddedServer

C = 4 * MIB


@pytest.fixture
async def view(uploads: UploadServices, data: bytes) -> View:
    return await uploads.start(size=len(data))


async def append(
    uploads: UploadServices, view: View, at: int, body: AsyncIterator[bytes], **more: object
) -> int:
    appending, id = Appending(uploads.service), view.upload.upload_id
    return await appending.append(id, at, body, holder="key", **more)  # pyright: ignore[reportArgumentType] -- what append takes


def staged(server: EmbeddedServer) -> object:
    return server.ask("KEYS", "upload:*:staging:*")


class TestTheTailOfAChunk:
    @pytest.mark.parametrize("count", [1, 4])
    async def test_a_tail_is_deleted_when_its_chunk_is_put(
        self, uploads: UploadServices, data: bytes, server: EmbeddedServer, count: int
    ) -> None:
        size = C // count
        view = await uploads.start(size=len(data), chunk_size=size)
        await append(uploads, view, 0, in_pieces(data[: size - 1]))
        assert staged(server) != []
        await uploads.put(view, 0, data[:C], count=count)
        assert staged(server) == []

    async def test_a_tail_is_deleted_when_a_body_with_a_checksum_ends_its_chunk(
        self, uploads: UploadServices, view: View, data: bytes, server: EmbeddedServer
    ) -> None:
        await append(uploads, view, 0, in_pieces(data[:5]))
        rest = data[5:C]
        wanted = ExpectedDigest("sha256", hashlib.sha256(rest).digest(), hashlib.sha256)
        await append(uploads, view, 5, in_pieces(rest), length=len(rest), wanted=wanted)
        assert staged(server) == []
        await append(uploads, view, C, in_pieces(data[C:]))
        await uploads.work()
        assert await uploads.content(view) == data

    @pytest.mark.parametrize("end", [MIB + 5, C, C + 5])
    async def test_no_tail_is_left_of_a_chunk_that_was_put_meanwhile(
        self, uploads: UploadServices, view: View, data: bytes, server: EmbeddedServer, end: int
    ) -> None:
        async def body() -> AsyncIterator[bytes]:
            await uploads.put(view, 0, data[:C])
            yield data[:end]

        with pytest.raises(OffsetDiffers) as refusal:
            await append(uploads, view, 0, body())
        assert refusal.value.offset == C
        assert staged(server) == []
