"""Bodies that take longer than their lease: no byte is stored without room."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import cast

import pytest

from tests.apps.uploads.uploading import UploadServices, end_leases
from towpath.apps.uploads.appending import Appending, ExpectedDigest
from towpath.apps.uploads.errors import BodyGaveWay, BudgetFull
from towpath.apps.uploads.options import MIB
from towpath.apps.uploads.records import BodyLease
from towpath.apps.uploads.service import View
from towpath.embedded import EmbeddedServer

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
    """One way to send, on a server that renews the lease with each piece."""
    monkeypatch.setattr("towpath.apps.uploads.room._UNHEARD", 0.0)
    monkeypatch.setattr("towpath.apps.uploads.appending._ROOM_WITHIN", 0.0)
    return request.param


async def halting(middle: Awaitable[None]) -> AsyncIterator[bytes]:
    """A body that pauses in the middle."""
    yield bytes(SIZE // 2)
    await middle
    yield bytes(SIZE // 2)


class TestABodyWhoseRoomHasExpired:
    async def test_a_body_with_an_expired_lease_reserves_room_before_it_continues(
        self, uploads: UploadServices, sending: Sending
    ) -> None:
        view = await uploads.start(size=SIZE, chunk_size=SENDINGS[sending])
        budget = uploads.lifecycle.records.budget

        await sending(uploads, view, halting(end_leases(budget)))

        assert await budget.used() == SIZE
        await uploads.work()
        assert await budget.used() == 0
        assert await uploads.content(view) == bytes(SIZE)

    async def test_a_body_with_an_expired_lease_is_refused_if_others_took_its_room(
        self, uploads: UploadServices, sending: Sending
    ) -> None:
        view = await uploads.start(size=SIZE, chunk_size=SENDINGS[sending])
        budget = uploads.lifecycle.records.budget

        async def others_come() -> None:
            await end_leases(budget)
            for holder, size in (("a", 32 * MIB), ("b", 16 * MIB)):
                lease = BodyLease(holder, holder, 0, holder, extent=size, own=size, stays=False)
                assert await budget.reserve(lease) is None

        with pytest.raises(BudgetFull):
            await sending(uploads, view, halting(others_come()))


class TestABodyThatIsSlow:
    """A refused body gets the room of a slow one."""

    @pytest.fixture(autouse=True)
    def quickly(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("towpath.apps.uploads.room._HOLD_AFTER", 0.0003)

    async def test_a_slow_body_gives_way_and_its_bytes_are_deleted_or_counted(
        self, uploads: UploadServices, sending: Sending, server: EmbeddedServer
    ) -> None:
        view = await uploads.start(size=SIZE, chunk_size=SENDINGS[sending])
        budget, refused = uploads.lifecycle.records.budget, asyncio.Event()

        async def others_are_refused() -> None:
            for holder, size in (("a", 30 * MIB), ("b", 12 * MIB)):
                lease = BodyLease(holder, holder, 0, holder, extent=size, own=size, stays=False)
                assert await budget.reserve(lease) is None
            lease = BodyLease("c", "c", 0, "c", extent=8 * MIB, own=8 * MIB, stays=False)
            assert await budget.reserve(lease) is not None
            await refused.wait()

        with pytest.raises(BodyGaveWay) as given:
            await sending(uploads, view, halting(others_are_refused()))
        assert given.value.after >= 1
        kept = sum(
            cast("int", server.ask("STRLEN", key))
            for kind in ("staging", "chunks")
            for key in cast("list[str]", server.ask("KEYS", f"upload:*:{kind}:*"))
        )
        assert await budget.used() == 42 * MIB + kept
        assert kept == (SIZE // 2 if sending in (together, appended) else 0)
