"""What a process leaves behind that dies between two steps of an upload, and who repairs it.

The order is reservation, bytes, state, job; then part, room, completion, row. Each gap is made, and
repaired; and a fault planted in what repairs it is found by the same check.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple, cast

import msgspec
import pytest

from tests.apps.uploads.uploading import Desk
from tests.faults.planting import Planted, planted
from towpath.apps.uploads.lifecycle import Lifecycle, Work
from towpath.apps.uploads.model import UPLOADS, Range, Status
from towpath.apps.uploads.options import KIB, UploadsOptions
from towpath.apps.uploads.parts import Storing
from towpath.apps.uploads.receiving import Receiving
from towpath.apps.uploads.records import STAGED, Budget, Chunks
from towpath.apps.uploads.service import View
from towpath.apps.uploads.states import UploadUnknown
from towpath.apps.uploads.stores.directory import DirectoryStore
from towpath.clock import ZERO, Clock, ManualClock, duration_ms, minutes
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.ledger.ledger import Ledger

SIZE = 64 * KIB
DATA = bytes(range(256)) * (SIZE // 256)
HERE = "towpath.apps.uploads"


class Died(BaseException):
    """The process is dead."""


class Place(NamedTuple):
    """Where an upload is under way, and its times can be moved."""

    desk: Desk
    server: EmbeddedServer
    clock: ManualClock

    async def start(self) -> View:
        return await self.desk.start(size=SIZE, chunk_size=SIZE)

    async def put(self, view: View) -> None:
        await self.desk.put(view, 0, DATA)

    async def dies(self, kind: type, step: str, do: Callable[[], Awaitable[object]]) -> None:
        """Do it in a process that dies before that step."""

        async def dead(*_: Any, **__: Any) -> None:
            raise Died

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kind, step, dead)
            with pytest.raises(Died):
                await do()

    async def swept(self) -> None:
        await self.desk.service.sweeping.once(older=ZERO)
        await self.desk.work()

    async def is_completed(self, view: View) -> None:
        assert await self.desk.status(view) is Status.COMPLETED
        assert await self.desk.content(view) == DATA
        assert len(await self.desk.events()) == 1
        assert await self.desk.lifecycle.records.budget.used() == 0


@pytest.fixture
async def place(
    server: EmbeddedServer, ledger: Ledger, options: UploadsOptions, clock: Clock
) -> AsyncIterator[Place]:
    async with Engine(server.url, clock=clock) as engine, DirectoryStore(options) as store:
        yield Place(Desk(engine, ledger, store, options), server, cast("ManualClock", clock))


# ── the gaps ─────────────────────────────────────────────────────────────────────────────


async def before_the_bytes(it: Place) -> None:
    """Its room is taken back when nothing came."""
    view = await it.start()
    await it.dies(Receiving, "_staged", lambda: it.put(view))
    assert await it.desk.lifecycle.records.budget.used() > 0
    it.clock.advance(minutes(3))
    await it.swept()
    assert await it.desk.lifecycle.records.budget.used() == 0


async def before_the_state(it: Place) -> None:
    """Bytes that don't count go by themselves, and the chunk is missing."""
    view = await it.start()

    async def left(*_: Any) -> None:
        """What the process would have done for its end."""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Receiving, "_dropped", left)
        await it.dies(Receiving, "_counted", lambda: it.put(view))
    [staged] = cast("list[bytes]", it.server.ask("KEYS", "upload:*:staging:*"))
    assert 0 < cast("int", it.server.ask("PTTL", staged.decode())) <= duration_ms("it", STAGED)
    assert await it.desk.service.missing(view.upload.upload_id) == [Range(0, 0)]
    await it.put(view)
    await it.desk.work()
    await it.is_completed(view)


async def before_the_place(it: Place) -> None:
    """Bytes that count are found beside their place."""
    view = await it.start()
    await it.dies(Chunks, "place", lambda: it.put(view))
    await it.swept()
    await it.is_completed(view)


async def before_the_room_is_kept(it: Place) -> None:
    """A chunk that is sent again has its room for as long as its bytes."""
    view = await it.start()
    await it.dies(Budget, "renew", lambda: it.put(view))
    await it.put(view)
    it.clock.advance(minutes(30))
    await it.desk.lifecycle.records.budget.tidy()
    assert await it.desk.lifecycle.records.budget.used() > 0


async def before_the_job(it: Place) -> None:
    """The sweep submits it."""
    view = await it.start()
    await it.dies(Lifecycle, "submit", lambda: it.put(view))
    await it.swept()
    await it.is_completed(view)


async def without_the_bytes(it: Place) -> None:
    """What counts and has no bytes any more is missing again."""
    view = await it.start()
    await it.dies(Lifecycle, "submit", lambda: it.put(view))
    it.server.ask("DEL", f"upload:{{{view.upload.upload_id}}}:chunks:0")
    await it.desk.service.sweeping.once(older=ZERO)
    fields, _ = await it.desk.lifecycle.records.state(view.upload.upload_id).look()
    assert fields["received_chunks"] == "0"


async def without_the_state(it: Place) -> None:
    """What Redis has lost is rebuilt."""
    view = await it.start()
    it.server.ask("FLUSHALL")
    await it.desk.service.sweeping.once(older=ZERO)
    fields, _ = await it.desk.lifecycle.records.state(view.upload.upload_id).look()
    assert fields["generation"] == "2"


async def before_the_room_is_given_back(it: Place) -> None:
    """A part is stored, and its room is released by the sweep; the upload is completed by it."""
    view = await it.start()
    await it.put(view)

    async def nothing(*_: Any) -> None:
        """It died before."""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Budget, "release", nothing)
        await it.dies(Storing, "_finish", it.desk.work)
    await it.swept()
    await it.is_completed(view)


async def before_the_row(it: Place) -> None:
    """The object is there, and nobody was told."""
    view = await it.start()
    await it.put(view)
    await it.dies(Ledger, "write", it.desk.work)
    await it.swept()
    await it.is_completed(view)


async def before_redis_is_told(it: Place) -> None:
    """The row says COMPLETED, and Redis hears of it by the next delivery."""
    view = await it.start()
    await it.put(view)
    await it.dies(Storing, "_tell_completed", it.desk.work)
    work = Work(view.upload.upload_id, 1, 0)
    await it.desk.engine.submit(UPLOADS, msgspec.json.encode(work), id="delivered again")
    await it.desk.work()
    fields, _ = await it.desk.lifecycle.records.state(view.upload.upload_id).look()
    assert fields["status"] == "COMPLETED"
    await it.is_completed(view)


Gap = Callable[[Place], Awaitable[None]]
GAPS: list[Gap] = [
    before_the_bytes, before_the_state, before_the_place, before_the_room_is_kept, before_the_job,
    without_the_bytes, without_the_state, before_the_room_is_given_back, before_the_row,
    before_redis_is_told,
]  # fmt: skip


@pytest.mark.parametrize("gap", GAPS, ids=lambda gap: gap.__name__)
async def test_a_gap_is_repaired(place: Place, gap: Gap) -> None:
    await gap(place)


# ── faults in what repairs them ──────────────────────────────────────────────────────────

PUSH, SWEEP = f"{HERE}.lifecycle", f"{HERE}.sweeping"
RECORDS, RECEIVING, PARTS = f"{HERE}.records", f"{HERE}.receiving", f"{HERE}.parts"
FAULTS: list[tuple[Gap, Planted]] = [
    (
        before_the_bytes,
        Planted(
            "room is kept for nobody",
            SWEEP, "Sweep._release", "await self._records.budget.tidy()", "pass",
        ),
    ),
    (
        before_the_state,
        Planted(
            "what is staged stays for good",
            RECORDS, "Chunks.stage", 'duration_ms("stays", STAGED)', "10**12",
        ),
    ),
    (
        before_the_place,
        Planted(
            "bytes are looked for in their place alone",
            RECORDS, "Chunks.fetch", "for number in tokens.keys() - set(placed):",
            "for number in ():",
        ),
    ),
    (
        before_the_room_is_kept,
        Planted(
            "a duplicate keeps no room",
            RECEIVING, "Receiving._compared", "if put.token:", "if False:",
        ),
    ),
    (
        before_the_job,
        Planted(
            "nobody submits what nobody submitted",
            PUSH, "Lifecycle.push", "for part, turn in chart.whole_parts():",
            "for part, turn in ():",
        ),
    ),
    (
        without_the_bytes,
        Planted(
            "nobody looks for the bytes",
            RECORDS, "UploadRecords.sync", "if not gone or", "if True or",
        ),
    ),
    (
        without_the_state,
        Planted(
            "what is lost stays lost",
            SWEEP, "Sweep._look_after", "await self._restore(upload, swept)", "pass",
        ),
    ),
    (
        before_the_room_is_given_back,
        Planted(
            "room of what is stored is kept",
            SWEEP, "Sweep._release", "parts - begun", "parts - parts",
        ),
    ),
    (
        before_the_row,
        Planted(
            "nobody completes what is stored",
            PUSH, "Lifecycle.push", "len(chart.parts) == plan.total_parts", "False",
        ),
    ),
    (
        before_redis_is_told,
        Planted(
            "who finds it completed tells nobody",
            PARTS, "Storing._left_behind", "if upload.status is Status.COMPLETED:", "if False:",
        ),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("gap", "fault"), [pytest.param(*it, id=str(it[1])) for it in FAULTS])
async def test_a_planted_fault_is_found(place: Place, gap: Gap, fault: Planted) -> None:
    with planted(fault), pytest.raises((AssertionError, UploadUnknown)):
        await gap(place)
