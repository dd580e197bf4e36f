"""Several bodies of one chunk at the same time: the room of its part is for one of them."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import cast

import pytest

from tests.apps.uploads.uploading import UploadServices
from tests.waiting import eventually_async
from towpath.apps.uploads.appending import Appending, ExpectedDigest
from towpath.apps.uploads.errors import BudgetFull, OffsetDiffers
from towpath.apps.uploads.options import MIB
from towpath.apps.uploads.records import BodyLease
from towpath.apps.uploads.service import View
from towpath.embedded import EmbeddedServer

SIZE = 8 * MIB
"""One chunk and one part: the share of an owner has room for four of them."""
Sending = Callable[[UploadServices, View, AsyncIterator[bytes]], Awaitable[object]]


async def put(uploads: UploadServices, view: View, body: AsyncIterator[bytes]) -> object:
    return await uploads.service.put_chunk(view.upload.upload_id, 0, body, holder="key")


async def checked(uploads: UploadServices, view: View, body: AsyncIterator[bytes]) -> object:
    wanted = ExpectedDigest("sha256", hashlib.sha256(bytes(SIZE)).digest(), hashlib.sha256)
    return await Appending(uploads.service).append(
        view.upload.upload_id, 0, body, holder="key", length=SIZE, wanted=wanted
    )


@pytest.mark.parametrize("sending", [put, checked])
class TestBodiesOfOneChunk:
    async def test_concurrent_bodies_of_one_chunk_stay_within_the_budget(
        self,
        uploads: UploadServices,
        server: EmbeddedServer,
        sending: Sending,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("towpath.apps.uploads.appending._ROOM_WITHIN", 0.0)
        view = await uploads.start(size=SIZE, chunk_size=SIZE)
        budget, go_on, waiting = uploads.lifecycle.records.budget, asyncio.Event(), list[int]()

        async def body() -> AsyncIterator[bytes]:
            yield bytes(SIZE - 1)
            waiting.append(1)
            await go_on.wait()
            yield bytes(1)

        tasks = [asyncio.create_task(self.sent(uploads, view, sending, body())) for _ in range(6)]

        async def all_wait() -> bool:
            return len(waiting) + sum(task.done() for task in tasks) == 6

        await eventually_async(all_wait)
        assert len(waiting) == 4
        assert await budget.used() == 4 * SIZE
        assert self.staged(server) <= 4 * SIZE
        go_on.set()
        ends = await asyncio.gather(*tasks)
        assert ends.count("full") == 2
        assert "taken" in ends
        assert await budget.used() == SIZE
        await uploads.work()
        assert await uploads.content(view) == bytes(SIZE)
        assert self.staged(server) == await budget.used() == 0

    async def sent(
        self, uploads: UploadServices, view: View, sending: Sending, body: AsyncIterator[bytes]
    ) -> str:
        try:
            await sending(uploads, view, body)
        except BudgetFull:
            return "full"
        except OffsetDiffers:
            return "late"
        return "taken"

    def staged(self, server: EmbeddedServer) -> int:
        keys = cast("list[str]", server.ask("KEYS", "upload:*:staging:*"))
        return sum(cast("int", server.ask("STRLEN", key)) for key in keys)


async def test_that_are_refused_leave_another_its_room(
    uploads: UploadServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first body has one part. The second would need that, its own room, and another part."""
    monkeypatch.setattr("towpath.apps.uploads.appending._ROOM_WITHIN", 0.0)
    view = await uploads.start(size=2 * SIZE, chunk_size=SIZE)
    budget, data = uploads.lifecycle.records.budget, bytes(2 * SIZE)
    other = BodyLease("body", "other", 0, "key", extent=12 * MIB, own=12 * MIB, stays=False)
    assert await budget.reserve(other) is None

    async def append(size: int, body: AsyncIterator[bytes]) -> int:
        wanted = ExpectedDigest("sha256", hashlib.sha256(data[:size]).digest(), hashlib.sha256)
        return await Appending(uploads.service).append(
            view.upload.upload_id, 0, body, holder="key", length=size, wanted=wanted
        )

    async def whole() -> AsyncIterator[bytes]:
        yield data

    async def body() -> AsyncIterator[bytes]:
        yield data[: SIZE - 1]
        with pytest.raises(BudgetFull):
            await append(2 * SIZE, whole())
        assert await budget.used() == SIZE + 12 * MIB
        yield data[SIZE - 1 : SIZE]

    assert await append(SIZE, body()) == SIZE
