"""tus 1.0 over HTTP: cut bodies, checksums, and joined uploads."""

import base64
import hashlib
import zlib
from itertools import pairwise
from typing import cast

import httpx
import pytest
from fastapi import FastAPI

from tests.apps.uploads.tus_client import P, content, create, cut, encoded, offset_of, patch
from tests.server.in_process import listening
from tests.waiting import eventually_async
from towpath.apps.uploads.options import MIB
from towpath.embedded import EmbeddedServer


class TestACutBody:
    async def test_the_received_bytes_of_a_cut_body_count(
        self, app: FastAPI, tus: httpx.AsyncClient, data: bytes
    ) -> None:
        path = await create(tus, len(data))
        async with listening(app) as url:
            await cut(url, tus, path, data[: P + 300_000], length=len(data))

            async def counted() -> bool:
                return await offset_of(tus, path) > P

            await eventually_async(counted)
        at = await offset_of(tus, path)
        assert P < at <= P + 300_000
        assert (await patch(tus, path, at, data[at:])).status_code == 204
        assert await content(tus, path) == data

    async def test_a_cut_body_with_a_checksum_does_not_count(
        self, app: FastAPI, tus: httpx.AsyncClient, data: bytes, server: EmbeddedServer
    ) -> None:
        path = await create(tus, len(data))
        assert (await patch(tus, path, 0, data[:5])).status_code == 204
        told = f"Upload-Checksum: sha1 {base64.b64encode(bytes(20)).decode()}\r\n"
        async with listening(app) as url:
            await cut(url, tus, path, data[: 3 * MIB], length=P, more=told, offset=5)

            async def gone() -> bool:
                return len(cast("list[str]", server.ask("KEYS", "upload:*:staging:*"))) == 1

            await eventually_async(gone)
        assert await offset_of(tus, path) == 5


async def test_the_bytes_of_a_partial_chunk_are_deleted_with_an_aborted_upload(
    tus: httpx.AsyncClient, data: bytes, server: EmbeddedServer
) -> None:
    """Whether it is aborted by tus or by the chunk API."""
    for way in ("/files", "/api/v1/uploads"):
        path = await create(tus, len(data))
        assert (await patch(tus, path, 0, data[: P + 5])).status_code == 204
        assert server.ask("KEYS", "upload:*:staging:*") != []
        answer = await tus.delete(f"{way}/{path.rpartition('/')[2]}")
        assert answer.status_code in (200, 204)
        assert server.ask("KEYS", "upload:*:staging:*") == []


class TestAChecksumOfTus:
    @pytest.mark.parametrize("size", [5, 3 * MIB, P + 5])
    async def test_bytes_with_a_matching_checksum_count(
        self, tus: httpx.AsyncClient, data: bytes, size: int
    ) -> None:
        path = await create(tus, len(data))
        assert (await patch(tus, path, 0, data[:9])).status_code == 204
        some, at = data[9 : 9 + size], 9
        for name, value in (
            ("sha1", hashlib.sha1(some).digest()),  # noqa: S324 -- what tus asks for
            ("crc32", zlib.crc32(some).to_bytes(4, "big")),
        ):
            wrong = base64.b64encode(bytes(len(value))).decode()
            answer = await patch(tus, path, at, some, Upload_Checksum=f"{name} {wrong}")
            assert answer.status_code == 460
            assert await offset_of(tus, path) == at
        right = base64.b64encode(hashlib.sha256(some).digest()).decode()
        answer = await patch(tus, path, at, some, Upload_Checksum=f"sha256 {right}")
        assert (answer.status_code, answer.headers["Upload-Offset"]) == (204, str(at + size))
        assert (await patch(tus, path, at + size, data[at + size :])).status_code == 204
        assert await content(tus, path) == data

    async def test_an_impossible_checksum_is_refused(
        self, tus: httpx.AsyncClient, data: bytes
    ) -> None:
        path = await create(tus, len(data) * 2)
        for text in ("sha1", "nonsense AAAA", "sha1 AAAA", "sha1 *"):
            answer = await patch(tus, path, 0, b"x", Upload_Checksum=text)
            assert answer.status_code == 400, text
        value = base64.b64encode(hashlib.sha256(data * 2).digest()).decode()
        answer = await patch(tus, path, 0, data * 2, Upload_Checksum=f"sha256 {value}")
        assert answer.status_code == 413


class TestJoining:
    async def test_partial_uploads_are_joined_to_one_file(
        self, app: FastAPI, tus: httpx.AsyncClient, data: bytes
    ) -> None:
        """Pieces of any size, also below the smallest part of the object store."""
        cuts = [0, 3, 6 * MIB, 6 * MIB + 4, 6 * MIB + 4, len(data)]
        paths: list[str] = []
        for start, end in pairwise(cuts):
            path = await create(tus, end - start, Upload_Concat="partial")
            if end > start:
                assert (await patch(tus, path, 0, data[start:end])).status_code == 204
            paths.append(path)
        assert (await tus.head(paths[0])).headers["Upload-Concat"] == "partial"
        headers = {
            "Upload-Concat": f"final;http://towpath{paths[0]} {' '.join(paths[1:])}",
            "Upload-Metadata": encoded(filename="all.bin"),
        }
        answer = await tus.post("/files", headers=headers)
        assert answer.status_code == 201, answer.text
        final = answer.headers["Location"]
        assert await content(tus, final) == data
        found = (await tus.head(final)).headers
        assert found["Upload-Concat"] == f"final;{' '.join(paths)}"
        assert found["Upload-Length"] == found["Upload-Offset"] == str(len(data))
        again = await tus.post("/files", headers=headers)
        assert (again.status_code, again.headers["Location"]) == (201, final)

        async def gone() -> bool:
            return {(await tus.head(path)).status_code for path in paths} == {410}

        await eventually_async(gone)
        assert (await patch(tus, final, len(data), b"x")).status_code == 403
        answer = await tus.put(f"/api/v1/uploads/{final.rpartition('/')[2]}/chunks/0", content=b"x")
        assert answer.status_code == 403

    async def test_pieces_that_are_not_whole_are_not_joined(self, tus: httpx.AsyncClient) -> None:
        piece = await create(tus, 5, Upload_Concat="partial")
        whole = await create(tus, 1)
        for path, status in ((piece, 409), (whole, 409), ("/files/nobody", 404)):
            answer = await tus.post("/files", headers={"Upload-Concat": f"final;{path}"})
            assert answer.status_code == status, path
        assert (await tus.delete(piece)).status_code == 204
        answer = await tus.post("/files", headers={"Upload-Concat": f"final;{piece}"})
        assert answer.status_code == 410

    async def test_a_completed_piece_can_be_deleted(self, tus: httpx.AsyncClient) -> None:
        piece = await create(tus, 5, Upload_Concat="partial")
        assert (await patch(tus, piece, 0, b"12345")).status_code == 204
        assert await content(tus, piece) == b"12345"
        assert (await tus.delete(piece)).status_code == 204
        assert (await tus.head(piece)).status_code == 410
