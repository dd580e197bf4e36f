"""Abandoned bytes do not keep their owner from sending, whatever its share."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.apps.uploads.uploading import UploadServices, in_pieces
from towpath.apps.uploads.appending import Appending
from towpath.apps.uploads.errors import ShareFull
from towpath.apps.uploads.model import Range, Status
from towpath.apps.uploads.options import KIB, MIB, UploadsOptions
from towpath.apps.uploads.records import BodyLease, HoldAnswer
from towpath.apps.uploads.service import View
from towpath.apps.uploads.stores.directory import DirectoryStore
from towpath.clock import ManualClock, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.ledger.ledger import Ledger

P = 8 * MIB
FEW = bytes(64 * KIB)
Abandon = Callable[[UploadServices], Awaitable[View]]


@pytest.fixture
def options(tmp_path: Path) -> UploadsOptions:
    """A share of one part."""
    return UploadsOptions(directory=tmp_path / "objects", budget=32 * MIB)


@pytest.fixture
async def uploads(
    server: EmbeddedServer, ledger: Ledger, options: UploadsOptions, clock: ManualClock
) -> AsyncIterator[UploadServices]:
    async with Engine(server.url, clock=clock) as engine, DirectoryStore(options) as store:
        yield UploadServices(engine, ledger, store, options)


async def abandon_chunk(uploads: UploadServices) -> View:
    view = await uploads.start(size=P, chunk_size=64 * KIB)
    await uploads.put(view, 3, FEW)
    return view


async def abandon_tail(uploads: UploadServices) -> View:
    view = await uploads.start(size=P, chunk_size=P)
    await Appending(uploads.service).append(
        view.upload.upload_id, 0, in_pieces(FEW), holder="key", length=len(FEW)
    )
    return view


@pytest.mark.parametrize("abandon", [abandon_chunk, abandon_tail])
class TestAnAbandonedByte:
    async def test_an_abandoned_part_gives_way_to_another_of_its_owner(
        self, uploads: UploadServices, clock: ManualClock, abandon: Abandon
    ) -> None:
        left = await abandon(uploads)
        view = await uploads.start(size=P, chunk_size=P)
        with pytest.raises(ShareFull) as refused:
            await uploads.put(view, 0, bytes(P))
        assert refused.value.missing == ()
        clock.advance(uploads.service.options.body_lease * 4)
        await uploads.put(view, 0, bytes(P))
        assert await uploads.lifecycle.records.budget.used() == P
        await uploads.work()
        assert await uploads.status(view) is Status.COMPLETED
        assert (await uploads.service.missing(left.upload.upload_id))[0].first == 0
        assert (await Appending(uploads.service).look(left.upload.upload_id)).offset == 0
        await uploads.send(left, bytes(P))
        await uploads.work()
        assert await uploads.content(left) == bytes(P)

    async def test_an_abandoned_part_stays_while_nobody_needs_its_room(
        self, uploads: UploadServices, clock: ManualClock, abandon: Abandon
    ) -> None:
        await abandon(uploads)
        clock.advance(uploads.service.options.body_lease * 5)
        small = await uploads.start(size=MIB, chunk_size=MIB)
        await uploads.put(small, 0, bytes(MIB))
        assert await uploads.lifecycle.records.budget.used() == MIB + len(FEW)

    async def test_an_abandoned_part_does_not_give_way_to_other_owners(
        self, uploads: UploadServices, clock: ManualClock, abandon: Abandon
    ) -> None:
        await abandon(uploads)
        clock.advance(uploads.service.options.body_lease * 5)
        view = await uploads.start(size=P, chunk_size=P)
        await uploads.service.put_chunk(
            view.upload.upload_id, 0, in_pieces(bytes(P)), holder="other", length=P
        )
        assert await uploads.lifecycle.records.budget.used() == P + len(FEW)


async def test_a_whole_part_never_gives_way_while_it_waits_for_the_object_store(
    uploads: UploadServices, clock: ManualClock
) -> None:
    whole, view = [await uploads.start(size=P, chunk_size=P) for _ in range(2)]
    await uploads.put(whole, 0, bytes(P))
    clock.advance(uploads.service.options.body_lease * 5)
    with pytest.raises(ShareFull):
        await uploads.put(view, 0, bytes(P))
    await uploads.work()
    assert await uploads.content(whole) == bytes(P)
    await uploads.put(view, 0, bytes(P))


async def test_a_whole_part_of_a_failed_upload_gives_way(
    uploads: UploadServices, clock: ManualClock
) -> None:
    failed, view = [await uploads.start(size=P, chunk_size=P) for _ in range(2)]
    await uploads.put(failed, 0, bytes(P))
    await uploads.lifecycle.fail(failed.upload.upload_id, 1, "the store refused")
    clock.advance(uploads.service.options.body_lease * 5)
    await uploads.put(view, 0, bytes(P))
    await uploads.work()
    assert await uploads.content(view) == bytes(P)
    await uploads.service.resume(failed.upload.upload_id)
    assert await uploads.service.missing(failed.upload.upload_id) == [Range(0, 0)]
    await uploads.put(failed, 0, bytes(P))
    await uploads.work()
    assert await uploads.content(failed) == bytes(P)


async def test_only_as_many_abandoned_parts_give_way_as_needed_oldest_first(
    uploads: UploadServices, clock: ManualClock
) -> None:
    left = [await uploads.start(size=2 * len(FEW), chunk_size=len(FEW)) for _ in range(20)]
    for one in left:
        await uploads.put(one, 0, FEW)
        clock.advance(seconds(1))
    clock.advance(uploads.service.options.body_lease * 5)
    view = await uploads.start(size=P - 15 * len(FEW), chunk_size=P)
    await uploads.put(view, 0, bytes(P - 15 * len(FEW)))
    charts = [await uploads.service.chart(one.upload.upload_id) for one in left]
    assert [len(chart.pending) for chart in charts] == [0] * 5 + [1] * 15
    assert await uploads.lifecycle.records.budget.used() == P


async def test_no_slow_body_gives_way_if_an_abandoned_part_did(
    uploads: UploadServices, clock: ManualClock
) -> None:
    budget, left = uploads.lifecycle.records.budget, await abandon_chunk(uploads)
    clock.advance(uploads.service.options.body_lease * 5)
    slow = BodyLease("slow", "u", 0, "key", MIB, MIB, stays=False)
    assert await budget.reserve(slow) is None
    view = await uploads.start(size=7 * MIB, chunk_size=P)
    await uploads.put(view, 0, bytes(7 * MIB))
    assert (await uploads.service.chart(left.upload.upload_id)).pending == {}
    assert await budget.hold(slow, slow=True) is HoldAnswer.HELD


async def test_no_part_gives_way_if_that_would_not_be_enough(
    uploads: UploadServices, clock: ManualClock
) -> None:
    """The room of all silent parts is not enough for the refused part."""
    few, most = await abandon_chunk(uploads), await uploads.start(size=6 * MIB, chunk_size=2 * MIB)
    await uploads.send(most, bytes(6 * MIB))
    clock.advance(uploads.service.options.body_lease * 5)
    view = await uploads.start(size=P, chunk_size=P)
    with pytest.raises(ShareFull):
        await uploads.put(view, 0, bytes(P))
    assert await uploads.service.missing(few.upload.upload_id) == [Range(0, 2), Range(4, 127)]


async def test_the_chunks_of_begun_parts_are_named_while_they_are_alive(
    uploads: UploadServices, clock: ManualClock
) -> None:
    view = await uploads.start(size=2 * P, chunk_size=4 * MIB)
    await uploads.put(view, 1, bytes(4 * MIB))
    clock.advance(seconds(1))
    with pytest.raises(ShareFull) as refused:
        await uploads.put(view, 2, bytes(4 * MIB))
    assert refused.value.missing == (Range(0, 0),)
