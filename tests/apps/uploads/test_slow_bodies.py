"""Bodies that take longer than the room reserved for them lasts: no byte comes without room."""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.apps.uploads.uploading import UploadServices
from towpath.apps.uploads.appending import Appending, ExpectedDigest
from towpath.apps.uploads.errors import BudgetFull
from towpath.apps.uploads.options import MIB
from towpath.apps.uploads.service import View

SIZE = 6 * MIB
"""One part, in six chunks."""
Sending = Callable[[UploadServices, View, AsyncIterator[bytes]], Awaitable[object]]


async def alone(uploads: UploadServices, view: View, body: AsyncIterator[bytes]) -> object:
    return await uploads.service.put_chunk(view.upload.upload_id, 0, body, holder="key")


async def together(uploads: UploadServices, view: View, body: AsyncIterator[bytes]) -> object:
    return await uploads.service.put_chunk(view.upload.upload_id, 0, body, holder="key", count=6)


async def appended(uploads: UploadServices, view: View, body: AsyncIterator[bytes]) -> object:
    return await Appending(uploads.service).append(view.upload.upload_id, 0, body, holder="key")


async def checked(uploads: UploadServices, view: View, body: AsyncIterator[bytes]) -> object:
    wanted = ExpectedDigest("sha1", hashlib.sha1(bytes(SIZE)).digest(), hashlib.sha1)  # noqa: S324 -- tus has it
    return await Appending(uploads.service).append(
        view.upload.upload_id, 0, body, holder="key", length=SIZE, wanted=wanted
    )


SENDINGS: dict[Sending, int] = {alone: 6 * MIB, together: MIB, appended: MIB, checked: MIB}
"""Ways to send the file, and the size of chunks for each."""


@pytest.fixture(params=list(SENDINGS), ids=["alone", "together", "appended", "checked"])
def sending(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Sending:
    """One of them, in a time in which each piece is a slow one."""
    monkeypatch.setattr("towpath.apps.uploads.pieces.ASK_EVERY", 0.0)
    monkeypatch.setattr("towpath.apps.uploads.writing._ROOM_WITHIN", 0.0)
    return request.param


async def halting(middle: Awaitable[None]) -> AsyncIterator[bytes]:
    """A body that pauses in the middle."""
    yield bytes(SIZE // 2)
    await middle
    yield bytes(SIZE // 2)


class TestABodyWhoseRoomHasExpired:
    async def test_has_room_again_before_more_of_it_counts(
        self, uploads: UploadServices, sending: Sending
    ) -> None:
        view = await uploads.start(size=SIZE, chunk_size=SENDINGS[sending])
        budget = uploads.lifecycle.records.budget

        await sending(uploads, view, halting(budget.release(view.upload.upload_id, [0])))

        assert await budget.used() == SIZE
        await uploads.work()
        assert await budget.used() == 0
        assert await uploads.content(view) == bytes(SIZE)

    async def test_is_refused_where_others_took_the_room(
        self, uploads: UploadServices, sending: Sending
    ) -> None:
        view = await uploads.start(size=SIZE, chunk_size=SENDINGS[sending])
        budget = uploads.lifecycle.records.budget

        async def others_come() -> None:
            await budget.release(view.upload.upload_id, [0])
            for holder in ("a", "b"):
                assert await budget.reserve(holder, 0, holder=holder, size=32 * MIB) is None

        with pytest.raises(BudgetFull):
            await sending(uploads, view, halting(others_come()))
