"""Pieces of an upload that is not joined yet can't be deleted."""

import httpx
import pytest
from fastapi import FastAPI

from tests.apps.uploads.requests import pause
from tests.apps.uploads.tus_client import content, create, patch
from tests.apps.uploads.uploading import UploadServices, change
from towpath.apps.uploads.appending import Appending
from towpath.apps.uploads.errors import PieceInUse
from towpath.apps.uploads.model import NewUpload, Status, Upload
from towpath.apps.uploads.service import View
from towpath.clock import ZERO
from towpath.embedded import EmbeddedServer


async def whole_piece(tus: httpx.AsyncClient, data: bytes) -> str:
    path = await create(tus, len(data), Upload_Concat="partial")
    assert (await patch(tus, path, 0, data)).status_code == 204
    return path


async def join(tus: httpx.AsyncClient, *paths: str) -> str:
    answer = await tus.post("/files", headers={"Upload-Concat": f"final;{' '.join(paths)}"})
    assert answer.status_code == 201, answer.text
    return answer.headers["Location"]


async def resume(app: FastAPI) -> None:
    """Store parts and complete uploads again."""
    await app.state.services["uploads"].lifecycle.engines[0].queues.resume("uploads")


class TestAPieceOfAnUploadUnderWay:
    @pytest.mark.parametrize("stored", [True, False])
    async def test_a_piece_of_an_upload_under_way_can_not_be_deleted(
        self, app: FastAPI, tus: httpx.AsyncClient, *, stored: bool
    ) -> None:
        """Whether its bytes are in the object store, or still in Redis."""
        if not stored:
            await pause(app)
        pieces = [await whole_piece(tus, text) for text in (b"one", b"two")]
        if stored:
            assert [await content(tus, path) for path in pieces] == [b"one", b"two"]
            await pause(app)
        final = await join(tus, *pieces)
        for path in pieces:
            for way in ("/files", "/api/v1/uploads"):
                answer = await tus.delete(f"{way}/{path.rpartition('/')[2]}")
                code = answer.json()["type"].rpartition("/")[2]
                assert (answer.status_code, code) == (409, "piece-in-use")
        await resume(app)
        assert await content(tus, final) == b"onetwo"

    async def test_a_piece_of_an_aborted_upload_can_be_deleted(
        self, app: FastAPI, tus: httpx.AsyncClient
    ) -> None:
        piece = await whole_piece(tus, b"one")
        await pause(app)
        final = await join(tus, piece)
        assert (await tus.delete(final)).status_code == 204
        assert (await tus.delete(piece)).status_code == 204
        assert (await tus.head(piece)).status_code == 410


async def be_silent(uploads: UploadServices, view: View, server: EmbeddedServer) -> None:
    """Let the upload be silent for longer than its expiry."""
    await change(uploads, view, deadline=0)
    server.ask("HSET", f"upload:{{{view.upload.upload_id}}}:state", "updated_at", "0")


class TestAStoredPiece:
    async def pieces(self, uploads: UploadServices, *texts: bytes) -> list[View]:
        views = [await uploads.start(size=len(text), concat="partial") for text in texts]
        for view, text in zip(views, texts, strict=True):
            await uploads.send(view, text)
        await uploads.work()
        return views

    async def join(self, uploads: UploadServices, *pieces: View) -> View:
        ids = [piece.upload.upload_id for piece in pieces]
        view, _ = await Appending(uploads.service).join(NewUpload(name="a"), ids, owner="key")
        return view

    async def test_a_stored_piece_stays_for_another_upload_joined_from_it(
        self, uploads: UploadServices
    ) -> None:
        one, two, three = await self.pieces(uploads, b"1", b"2", b"3")
        finals = [
            await self.join(uploads, one, two),
            await self.join(uploads, two, three, two),
        ]
        await uploads.work()
        assert [await uploads.content(final) for final in finals] == [b"12", b"232"]
        assert {await uploads.status(piece) for piece in (one, two, three)} == {Status.ABORTED}

    async def test_a_piece_does_not_expire_before_the_upload_joined_from_it(
        self, uploads: UploadServices, server: EmbeddedServer
    ) -> None:
        pieces = await self.pieces(uploads, b"1", b"2")
        final = await self.join(uploads, *pieces)
        for piece in pieces:
            await be_silent(uploads, piece, server)
        assert (await uploads.service.sweeping.once(older=ZERO)).expired == 0
        await uploads.work()
        assert await uploads.content(final) == b"12"

    async def test_a_piece_expires_after_the_upload_joined_from_it(
        self, uploads: UploadServices, server: EmbeddedServer
    ) -> None:
        pieces = await self.pieces(uploads, b"1", b"2")
        final = await self.join(uploads, *pieces)
        for _ in range(2):
            for view in (*pieces, final):
                await be_silent(uploads, view, server)
            await uploads.service.sweeping.once()
        statuses = [await uploads.status(view) for view in (*pieces, final)]
        assert statuses == [Status.EXPIRED] * 3

    async def test_a_piece_that_is_stored_while_it_is_deleted_is_deleted(
        self, uploads: UploadServices, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its job ends between the reads and the write of the deletion."""
        piece = await uploads.start(size=1, concat="partial")
        await uploads.send(piece, b"1")
        read = uploads.lifecycle.row

        async def row_before_it_is_stored(upload_id: str) -> Upload:
            found = await read(upload_id)
            await uploads.work()
            return found

        monkeypatch.setattr(uploads.lifecycle, "row", row_before_it_is_stored)
        await Appending(uploads.service).terminate(piece.upload.upload_id)
        assert await uploads.status(piece) is Status.ABORTED

    async def test_an_operator_can_not_abort_a_piece_in_use(self, uploads: UploadServices) -> None:
        [piece] = await self.pieces(uploads, b"1")
        final = await self.join(uploads, piece)
        with pytest.raises(PieceInUse) as refused:
            await uploads.service.abort(piece.upload.upload_id)
        assert refused.value.final == final.upload.upload_id
