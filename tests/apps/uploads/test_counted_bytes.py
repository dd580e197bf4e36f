"""A chunk that was confirmed keeps its bytes, whatever becomes of the request that brought them.

Request A sends a chunk that is counted, and dies or stands still before its bytes are placed, so
they would expire soon. Request B sends the same chunk at the same time, or asks what is missing.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from hashlib import sha256
from typing import Any, cast

import pytest

from tests.apps.uploads.uploading import UploadServices, in_pieces
from towpath.apps.uploads.appending import Appending, ExpectedDigest
from towpath.apps.uploads.errors import ChunkLost, OffsetDiffers
from towpath.apps.uploads.ingest import Safety
from towpath.apps.uploads.model import NewUpload, Range, Status
from towpath.apps.uploads.options import MIB, UploadsOptions
from towpath.apps.uploads.records import Chunks
from towpath.apps.uploads.service import View
from towpath.apps.uploads.stores.directory import DirectoryStore
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.ledger.ledger import Ledger

C = MIB
Send = Callable[[UploadServices, View, AsyncIterator[bytes]], Awaitable[object]]


class Died(BaseException):
    """The process is dead."""


async def alone(uploads: UploadServices, view: View, body: AsyncIterator[bytes]) -> object:
    id = view.upload.upload_id
    return await uploads.service.put_chunk(id, 0, body, holder="key", length=C)


async def together(uploads: UploadServices, view: View, body: AsyncIterator[bytes]) -> object:
    id = view.upload.upload_id
    return await uploads.service.put_chunk(id, 0, body, holder="key", count=2, length=2 * C)


async def by_tus(uploads: UploadServices, view: View, body: AsyncIterator[bytes]) -> object:
    """Another request has sent the chunk, so the client is told where to go on."""
    with pytest.raises(OffsetDiffers) as differs:
        await Appending(uploads.service).append(view.upload.upload_id, 0, body, holder="key")
    assert differs.value.offset == C
    return differs.value


async def by_tus_with_a_checksum(uploads: UploadServices, view: View, data: bytes) -> None:
    """The body is larger than a piece, so that it is staged apart from the received bytes."""
    digest = ExpectedDigest("sha256", sha256(data).digest(), sha256)
    await Appending(uploads.service).append(
        view.upload.upload_id, 0, in_pieces(data), holder="key", length=len(data), wanted=digest
    )


class TwoRequests:
    """Requests A and B, and the Redis that has the bytes of chunks."""

    def __init__(self, uploads: UploadServices, redis: EmbeddedServer) -> None:
        self.uploads, self.redis = uploads, redis

    async def die_before_place(self, send: Awaitable[object]) -> None:
        async def dead(*_: Any, **__: Any) -> None:
            raise Died

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Chunks, "place", dead)
            with pytest.raises(Died):
                await send

    async def admit(
        self, send: Send, view: View, data: bytes
    ) -> tuple[asyncio.Task[object], asyncio.Event]:
        """Start a request; its body arrives once the event is set."""
        admitted, go_on = asyncio.Event(), asyncio.Event()

        async def body() -> AsyncIterator[bytes]:
            admitted.set()
            await go_on.wait()
            yield data

        task = asyncio.ensure_future(send(self.uploads, view, body()))
        await admitted.wait()
        return task, go_on

    def expire_staged(self) -> None:
        """Delete all staged bytes, as they expire soon after the last piece."""
        for key in cast("list[bytes]", self.redis.ask("KEYS", "upload:*:staging:*")):
            self.redis.ask("DEL", key.decode())

    async def missing(self, view: View) -> list[Range]:
        return await self.uploads.service.missing(view.upload.upload_id)


@pytest.fixture(params=["one Redis", "two Redis"])
async def requests(
    request: pytest.FixtureRequest,
    server: EmbeddedServer,
    ledger: Ledger,
    options: UploadsOptions,
) -> AsyncIterator[TwoRequests]:
    other = server
    if request.param == "two Redis":
        other = request.getfixturevalue("oldest_server")
    async with (
        Engine(server.url) as engine,
        Engine(other.url) as chunks,
        DirectoryStore(options) as store,
    ):
        yield TwoRequests(UploadServices(engine, ledger, store, options, chunks=chunks), other)


@pytest.mark.parametrize(
    ("send", "left"),
    [(alone, [Range(1, 2)]), (together, [Range(2, 2)]), (by_tus, [Range(1, 2)])],
    ids=["alone", "together", "by tus"],
)
async def test_a_chunk_sent_twice_at_once_keeps_its_bytes_if_the_first_request_dies(
    requests: TwoRequests, data: bytes, send: Send, left: list[Range]
) -> None:
    uploads = requests.uploads
    view = await uploads.start(size=3 * C, chunk_size=C)
    size = 2 * C if send is together else C
    b, go_on = await requests.admit(send, view, data[:size])
    await requests.die_before_place(uploads.put(view, 0, data[:C]))
    go_on.set()
    await b
    requests.expire_staged()
    assert await requests.missing(view) == left
    for number in range(left[0].first, 3):
        await uploads.put(view, number, data[number * C : number * C + C])
    await uploads.work()
    assert await uploads.content(view) == data[: 3 * C]


async def test_the_first_request_goes_on_later(
    requests: TwoRequests, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stood still before its bytes were placed; the other request has placed them."""
    uploads, place = requests.uploads, Chunks.place
    view = await uploads.start(size=2 * C, chunk_size=C)
    counted, go_on_a = asyncio.Event(), asyncio.Event()

    async def late(self: Chunks, *args: Any, **more: Any) -> Any:
        if not counted.is_set():
            counted.set()
            await go_on_a.wait()
        return await place(self, *args, **more)

    monkeypatch.setattr(Chunks, "place", late)
    b, go_on_b = await requests.admit(alone, view, data[:C])
    a = asyncio.ensure_future(uploads.put(view, 0, data[:C]))
    await counted.wait()
    go_on_b.set()
    await b
    requests.expire_staged()
    await uploads.put(view, 1, data[C : 2 * C])
    go_on_a.set()
    assert not (await a).duplicate
    await uploads.work()
    assert await uploads.content(view) == data[: 2 * C]


async def test_a_chunk_whose_counted_bytes_have_expired_is_not_confirmed_to_either(
    requests: TwoRequests, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second request is refused, and its client sends the chunk again; then the first one,
    which stood still, changes nothing.
    """
    uploads, place = requests.uploads, Chunks.place
    view = await uploads.start(size=2 * C, chunk_size=C)
    counted, go_on_a = asyncio.Event(), asyncio.Event()

    async def late(self: Chunks, *args: Any, **more: Any) -> Any:
        if not counted.is_set():
            counted.set()
            await go_on_a.wait()
        return await place(self, *args, **more)

    monkeypatch.setattr(Chunks, "place", late)
    b, go_on_b = await requests.admit(alone, view, data[:C])
    a = asyncio.ensure_future(uploads.put(view, 0, data[:C]))
    await counted.wait()
    requests.expire_staged()
    go_on_b.set()
    with pytest.raises(ChunkLost):
        await b
    assert await requests.missing(view) == [Range(0, 1)]
    assert not (await uploads.put(view, 0, data[:C])).duplicate
    go_on_a.set()
    await a
    await uploads.put(view, 1, data[C : 2 * C])
    await uploads.work()
    assert await uploads.content(view) == data[: 2 * C]


async def test_a_chunk_that_must_be_stored_is_stored_though_the_first_request_died(
    requests: TwoRequests, data: bytes
) -> None:
    uploads = requests.uploads
    view = await uploads.start(size=C, chunk_size=C)

    async def until_stored(
        uploads: UploadServices, view: View, body: AsyncIterator[bytes]
    ) -> object:
        id, safety = view.upload.upload_id, Safety.STORED
        receipt = await uploads.service.put_chunk(
            id, 0, body, holder="key", length=C, safety=safety
        )
        return receipt.safety

    b, go_on = await requests.admit(until_stored, view, data[:C])
    await requests.die_before_place(uploads.put(view, 0, data[:C]))
    go_on.set()
    while not b.done():
        await uploads.work()
    assert await b is Safety.STORED
    assert await uploads.status(view) is Status.COMPLETED
    assert await uploads.content(view) == data[:C]


async def test_a_chunk_that_is_not_reported_missing_keeps_its_bytes(
    requests: TwoRequests, data: bytes
) -> None:
    view = await requests.uploads.start(size=2 * C, chunk_size=C)
    await requests.die_before_place(requests.uploads.put(view, 0, data[:C]))
    assert await requests.missing(view) == [Range(1, 1)]
    requests.expire_staged()
    assert await requests.missing(view) == [Range(1, 1)]


async def test_an_offset_that_a_client_was_told_stays(requests: TwoRequests, data: bytes) -> None:
    view = await requests.uploads.start(size=4 * C, chunk_size=2 * C)
    appending = Appending(requests.uploads.service)
    await requests.die_before_place(by_tus_with_a_checksum(requests.uploads, view, data[: 2 * C]))
    assert (await appending.look(view.upload.upload_id)).offset == 2 * C
    requests.expire_staged()
    assert (await appending.look(view.upload.upload_id)).offset == 2 * C


async def test_a_piece_that_may_be_joined_keeps_its_bytes(
    requests: TwoRequests, data: bytes
) -> None:
    uploads = requests.uploads
    appending = Appending(uploads.service)
    piece = await uploads.start(size=2 * C, chunk_size=2 * C, concat="partial")
    await requests.die_before_place(by_tus_with_a_checksum(uploads, piece, data[: 2 * C]))
    new = NewUpload(name="a.bin")
    final, _ = await appending.join(new, [piece.upload.upload_id], owner="key")
    requests.expire_staged()
    await uploads.service.complete(piece.upload.upload_id)
    while await uploads.status(final) is not Status.COMPLETED:
        await uploads.work()
    assert await uploads.content(final) == data[: 2 * C]


async def test_a_chunk_without_bytes_is_not_confirmed_as_a_duplicate(
    requests: TwoRequests, data: bytes
) -> None:
    """Its bytes have expired, though Redis still knows that they were placed."""
    view = await requests.uploads.start(size=2 * C, chunk_size=C)
    await requests.uploads.put(view, 0, data[:C])
    requests.redis.ask("DEL", f"upload:{{{view.upload.upload_id}}}:chunks:0")
    with pytest.raises(ChunkLost):
        await requests.uploads.put(view, 0, data[:C])
    assert not (await requests.uploads.put(view, 0, data[:C])).duplicate
