"""tus while uploads fail: an upload that can continue is refused only temporarily."""

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from tests.apps.uploads.requests import pause
from tests.apps.uploads.tus_client import content, create, offset_of, patch
from tests.apps.uploads.uploading import UploadServices
from tests.waiting import eventually_async
from towpath.apps.uploads import tables
from towpath.apps.uploads.appending import Appending
from towpath.apps.uploads.errors import UploadGone
from towpath.apps.uploads.lifecycle import Lifecycle
from towpath.apps.uploads.model import NewUpload, Status, Upload
from towpath.apps.uploads.records import UploadRecords
from towpath.apps.uploads.service import View
from towpath.embedded import EmbeddedServer

Fail = Callable[[str], Awaitable[None]]


@pytest.fixture
def fail(app: FastAPI) -> Fail:
    """Let an upload fail, as a worker does if the object store refuses a part."""
    lifecycle: Lifecycle = app.state.services["uploads"].lifecycle

    async def failed(path: str) -> None:
        upload = await lifecycle.row(path.rpartition("/")[2])
        await lifecycle.fail(upload.upload_id, upload.generation, "the store refused")

    return failed


def failing_again(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Let uploads fail again right after they were resumed, so many *times*."""
    real, left = Lifecycle.revive, [None] * times

    async def revive(own: Lifecycle, upload: Upload) -> Upload | None:
        resumed = await real(own, upload)
        if left and resumed is not None:
            left.pop()
            await own.fail(resumed.upload_id, resumed.generation, "the store refused again")
        return resumed

    monkeypatch.setattr(Lifecycle, "revive", revive)


class TestAFailedUpload:
    @pytest.fixture
    async def path(self, app: FastAPI, tus: httpx.AsyncClient, fail: Fail) -> str:
        """The path of an upload that has failed after five bytes."""
        await pause(app)
        path = await create(tus, 11)
        assert (await patch(tus, path, 0, b"hello")).status_code == 204
        await fail(path)
        return path

    async def test_head_succeeds_for_an_upload_that_fails_again_after_its_resume(
        self, tus: httpx.AsyncClient, path: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        failing_again(monkeypatch, 1)
        answer = await tus.head(path)
        assert (answer.status_code, answer.headers.get("Upload-Offset")) == (200, "5")

    async def test_an_upload_that_fails_after_each_resume_is_refused_for_now(
        self, tus: httpx.AsyncClient, path: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patched:
            failing_again(patched, 1000)
            answer = await tus.head(path)
        assert (answer.status_code, answer.headers.get("Retry-After")) == (503, "1")
        assert await offset_of(tus, path) == 5

    async def test_a_failed_upload_refuses_bytes_until_head_resumes_it(
        self, tus: httpx.AsyncClient, path: str, app: FastAPI
    ) -> None:
        """Some clients give up at 409."""
        answer = await patch(tus, path, 5, b" world")
        code = answer.json()["type"].rpartition("/")[2]
        assert (answer.status_code, code) == (503, "upload-resumable")
        assert answer.headers["Retry-After"] == "1"
        assert await offset_of(tus, path) == 5
        assert (await patch(tus, path, 5, b" world")).status_code == 204
        await app.state.services["uploads"].lifecycle.engines[0].queues.resume("uploads")
        assert await content(tus, path) == b"hello world"


class TestALookAtAnUpload:
    async def test_head_finds_an_upload_that_was_completed_during_a_loss_of_redis(
        self,
        uploads: UploadServices,
        server: EmbeddedServer,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        view = await uploads.start(size=5)
        server.ask("FLUSHALL")
        real = Lifecycle.restore

        async def completed_first(own: Lifecycle, upload_id: str) -> Upload:
            fields = {"final_size": 5, "etag": "made"}
            row = await own.row(upload_id)
            await own.ledger.write(tables.change_status(row, Status.COMPLETED, fields))
            return await real(own, upload_id)

        monkeypatch.setattr(Lifecycle, "restore", completed_first)
        position = await Appending(uploads.service).look(view.upload.upload_id)
        assert (position.status, position.offset) == (Status.COMPLETED, 5)

    async def test_head_rebuilds_an_upload_that_redis_loses_meanwhile(
        self,
        uploads: UploadServices,
        server: EmbeddedServer,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        view = await uploads.start(size=5)
        real, left = UploadRecords.sync, [None]

        async def lost_then(own: UploadRecords, upload_id: str) -> Any:
            found = await real(own, upload_id)
            if left:
                left.pop()
                server.ask("FLUSHALL")
            return found

        monkeypatch.setattr(UploadRecords, "sync", lost_then)
        position = await Appending(uploads.service).look(view.upload.upload_id)
        assert (position.status.open, position.offset) == (True, 0)

    async def test_an_upload_that_redis_lost_accepts_its_deferred_length(
        self, tus: httpx.AsyncClient, server: EmbeddedServer
    ) -> None:
        path = await create(tus)
        server.ask("FLUSHALL")
        answer = await patch(tus, path, 0, b"hello", Upload_Length="5")
        assert (answer.status_code, answer.headers.get("Upload-Offset")) == (204, "5")
        assert await content(tus, path) == b"hello"


async def work_until_completed(uploads: UploadServices, final: View) -> None:
    """Run jobs until *final* is completed: a joined upload waits for its pieces."""

    async def completed() -> bool:
        await uploads.work()
        return await uploads.status(final) is Status.COMPLETED

    await eventually_async(completed)


class TestAFailedPiece:
    async def failed_piece(self, uploads: UploadServices, text: bytes) -> View:
        piece = await uploads.start(size=len(text), concat="partial")
        await uploads.send(piece, text)
        await uploads.lifecycle.fail(piece.upload.upload_id, 1, "the store refused")
        return piece

    async def join(self, uploads: UploadServices, piece: View) -> View:
        new, ids = NewUpload(name="a"), [piece.upload.upload_id]
        view, _ = await Appending(uploads.service).join(new, ids, owner="key")
        return view

    async def test_joining_resumes_a_failed_piece(self, uploads: UploadServices) -> None:
        piece = await self.failed_piece(uploads, b"one")
        final = await self.join(uploads, piece)
        await work_until_completed(uploads, final)
        assert await uploads.content(final) == b"one"

    async def test_resuming_a_joined_upload_resumes_its_failed_pieces(
        self, uploads: UploadServices
    ) -> None:
        """Otherwise the joined upload would fail again for the same reason."""
        piece = await uploads.start(size=3, concat="partial")
        await uploads.send(piece, b"one")
        final = await self.join(uploads, piece)
        await uploads.lifecycle.fail(piece.upload.upload_id, 1, "the store refused")
        await uploads.work()
        assert await uploads.status(final) is Status.FAILED
        await Appending(uploads.service).look(final.upload.upload_id)
        await work_until_completed(uploads, final)
        assert await uploads.content(final) == b"one"

    async def test_a_joined_upload_with_an_aborted_piece_is_not_resumed(
        self, uploads: UploadServices
    ) -> None:
        piece = await uploads.start(size=3, concat="partial")
        await uploads.send(piece, b"one")
        final = await self.join(uploads, piece)
        await uploads.lifecycle.end(
            await uploads.lifecycle.row(piece.upload.upload_id), Status.ABORTED
        )
        await uploads.work()
        assert await uploads.status(final) is Status.FAILED
        with pytest.raises(UploadGone):
            await uploads.service.resume(final.upload.upload_id)
