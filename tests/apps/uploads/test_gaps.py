"""A process dies between two steps of an upload, and what it leaves behind is repaired.

The order is reservation, bytes, state, job; then part, room, completion, row. Each gap is made and
repaired; and a fault planted in the code that repairs it is found by the same check.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple, cast

import msgspec
import pytest

from tests.apps.uploads.uploading import UploadServices
from tests.faults.planting import PlantedFault, planted
from towpath.apps.uploads.ingest import Ingest
from towpath.apps.uploads.lifecycle import Lifecycle, Work
from towpath.apps.uploads.model import UPLOADS, Range, Status
from towpath.apps.uploads.options import KIB, UploadsOptions
from towpath.apps.uploads.parts import Storing
from towpath.apps.uploads.records import Budget, Chunks
from towpath.apps.uploads.service import View
from towpath.apps.uploads.states import UploadState, UploadUnknown
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


class TimedUploads(NamedTuple):
    """An upload under way, on a manual clock."""

    services: UploadServices
    server: EmbeddedServer
    clock: ManualClock

    async def start(self) -> View:
        return await self.services.start(size=SIZE, chunk_size=SIZE)

    async def put(self, view: View) -> None:
        await self.services.put(view, 0, DATA)

    async def dies(self, kind: type, step: str, do: Callable[[], Awaitable[object]]) -> None:
        """Call *do* in a process that dies before *step*."""

        async def dead(*_: Any, **__: Any) -> None:
            raise Died

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kind, step, dead)
            with pytest.raises(Died):
                await do()

    async def swept(self) -> None:
        await self.services.service.sweeping.once(older=ZERO)
        await self.services.work()

    async def is_completed(self, view: View) -> None:
        assert await self.services.status(view) is Status.COMPLETED
        assert await self.services.content(view) == DATA
        assert len(await self.services.events()) == 1
        assert await self.services.lifecycle.records.budget.used() == 0


@pytest.fixture
async def timed(
    server: EmbeddedServer, ledger: Ledger, options: UploadsOptions, clock: Clock
) -> AsyncIterator[TimedUploads]:
    async with Engine(server.url, clock=clock) as engine, DirectoryStore(options) as store:
        yield TimedUploads(
            UploadServices(engine, ledger, store, options), server, cast("ManualClock", clock)
        )


# ── the gaps ─────────────────────────────────────────────────────────────────────────────


async def before_the_bytes(timed: TimedUploads) -> None:
    """The reservation of a body without bytes is released."""
    view = await timed.start()

    async def left(*_: Any, **__: Any) -> None:
        """Stands for the cleanup that a dead process does not do."""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Budget, "finish", left)
        await timed.dies(Ingest, "_stage_body", lambda: timed.put(view))
    assert await timed.services.lifecycle.records.budget.used() > 0
    timed.clock.advance(minutes(3))
    await timed.swept()
    assert await timed.services.lifecycle.records.budget.used() == 0


async def before_the_state(timed: TimedUploads) -> None:
    """Staged bytes that do not count expire, and the chunk is missing."""
    view = await timed.start()

    async def left(*_: Any) -> None:
        """Stands for the cleanup that a dead process does not do."""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ingest, "drop", left)
        await timed.dies(UploadState, "put", lambda: timed.put(view))
    [staged] = cast("list[bytes]", timed.server.ask("KEYS", "upload:*:staging:*"))
    stays = cast("int", timed.server.ask("PTTL", staged.decode()))
    assert 0 < stays <= duration_ms("it", UploadsOptions().staged_for)
    assert await timed.services.service.missing(view.upload.upload_id) == [Range(0, 0)]
    await timed.put(view)
    await timed.services.work()
    await timed.is_completed(view)


async def before_the_place(timed: TimedUploads) -> None:
    """Bytes that count are found though they are still staged: the job of the part was submitted
    by another request, which brought another chunk.
    """
    view = await timed.start()
    await timed.dies(Chunks, "place", lambda: timed.put(view))
    await timed.services.lifecycle.submit(Work(view.upload.upload_id, 1, 0))
    await timed.services.work()
    await timed.is_completed(view)


async def before_the_place_and_the_job(timed: TimedUploads) -> None:
    """The sweep places bytes that count, and submits the job of the part."""
    view = await timed.start()
    await timed.dies(Chunks, "place", lambda: timed.put(view))
    await timed.services.service.sweeping.once(older=ZERO)
    assert timed.server.ask("KEYS", "upload:*:staging:*") == []
    await timed.services.work()
    await timed.is_completed(view)


async def before_the_room_is_kept(timed: TimedUploads) -> None:
    """The sweep counts received bytes without a reservation."""
    view = await timed.start()
    await timed.dies(Budget, "finish", lambda: timed.put(view))
    timed.clock.advance(minutes(3))
    await timed.services.service.sweeping.once(older=ZERO)
    assert await timed.services.lifecycle.records.budget.used() == SIZE


async def before_the_job(timed: TimedUploads) -> None:
    """The sweep submits the job of a whole part."""
    view = await timed.start()
    await timed.dies(Lifecycle, "submit", lambda: timed.put(view))
    await timed.swept()
    await timed.is_completed(view)


async def without_the_bytes(timed: TimedUploads) -> None:
    """A chunk that has lost its bytes is missing again."""
    view = await timed.start()
    await timed.dies(Lifecycle, "submit", lambda: timed.put(view))
    timed.server.ask("DEL", f"upload:{{{view.upload.upload_id}}}:chunks:0")
    await timed.services.service.sweeping.once(older=ZERO)
    fields, _ = await timed.services.lifecycle.records.state(view.upload.upload_id).look()
    assert fields["received_chunks"] == "0"


async def without_the_state(timed: TimedUploads) -> None:
    """A state that Redis has lost is rebuilt."""
    view = await timed.start()
    timed.server.ask("FLUSHALL")
    await timed.services.service.sweeping.once(older=ZERO)
    fields, _ = await timed.services.lifecycle.records.state(view.upload.upload_id).look()
    assert fields["generation"] == "2"


async def before_the_room_is_given_back(timed: TimedUploads) -> None:
    """A part is stored, and its room is released by the sweep, which also completes the upload."""
    view = await timed.start()
    await timed.put(view)

    async def nothing(*_: Any) -> None:
        """Stands for a call before which the process died."""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Budget, "release", nothing)
        await timed.dies(Storing, "_finish", timed.services.work)
    await timed.swept()
    await timed.is_completed(view)


async def before_the_row(timed: TimedUploads) -> None:
    """The object exists, but the row is not changed."""
    view = await timed.start()
    await timed.put(view)
    await timed.dies(Ledger, "write", timed.services.work)
    await timed.swept()
    await timed.is_completed(view)


async def before_redis_is_told(timed: TimedUploads) -> None:
    """The row is COMPLETED, and the next delivery of a job changes the state in Redis."""
    view = await timed.start()
    await timed.put(view)
    await timed.dies(Storing, "_note_completed", timed.services.work)
    work = Work(view.upload.upload_id, 1, 0)
    await timed.services.engine.submit(UPLOADS, msgspec.json.encode(work), id="delivered again")
    await timed.services.work()
    fields, _ = await timed.services.lifecycle.records.state(view.upload.upload_id).look()
    assert fields["status"] == "COMPLETED"
    await timed.is_completed(view)


Gap = Callable[[TimedUploads], Awaitable[None]]
GAPS: list[Gap] = [
    before_the_bytes, before_the_state, before_the_place, before_the_place_and_the_job,
    before_the_room_is_kept, before_the_job,
    without_the_bytes, without_the_state, before_the_room_is_given_back, before_the_row,
    before_redis_is_told,
]  # fmt: skip


@pytest.mark.parametrize("gap", GAPS, ids=lambda gap: gap.__name__)
async def test_a_gap_is_repaired(timed: TimedUploads, gap: Gap) -> None:
    await gap(timed)


# ── faults in the code that repairs them ─────────────────────────────────────────────────

LIFECYCLE, SWEEP = f"{HERE}.lifecycle", f"{HERE}.sweeping"
RECORDS, PARTS = f"{HERE}.records", f"{HERE}.parts"
FAULTS: list[tuple[Gap, PlantedFault]] = [
    (
        before_the_bytes,
        PlantedFault(
            "expired leases are not released",
            SWEEP, "Sweep._count_room", "await budget.tidy()", "pass",
        ),
    ),
    (
        before_the_state,
        PlantedFault(
            "staged bytes do not expire",
            RECORDS, "Chunks.stage", "self._staged", "10**12",
        ),
    ),
    (
        before_the_place,
        PlantedFault(
            "staged bytes that count are not found",
            RECORDS, "Chunks.fetch", "for number in tokens.keys() - set(placed):",
            "for number in ():",
        ),
    ),
    (
        before_the_place_and_the_job,
        PlantedFault(
            "chunks that count stay staged",
            RECORDS, "UploadRecords.sync", "if staged:", "if False:",
        ),
    ),
    (
        before_the_room_is_kept,
        PlantedFault(
            "bytes without a reservation are not counted",
            SWEEP, "Sweep._count_room", "counted.keys() | self._waiting.keys()", "counted.keys()",
        ),
    ),
    (
        before_the_job,
        PlantedFault(
            "the sweep submits no job of a part",
            LIFECYCLE, "Lifecycle.submit_ready", "for part, turn in chart.whole_parts():",
            "for part, turn in ():",
        ),
    ),
    (
        without_the_bytes,
        PlantedFault(
            "lost bytes are not noticed",
            RECORDS, "UploadRecords.sync", "if not gone or", "if True or",
        ),
    ),
    (
        without_the_state,
        PlantedFault(
            "a lost state is not rebuilt",
            SWEEP, "Sweep._continue_stalled", "await self._restore(upload, swept)", "pass",
        ),
    ),
    (
        before_the_room_is_given_back,
        PlantedFault(
            "the room of a stored part is not released",
            SWEEP, "Sweep._count_room", "if wrong:", "if False:",
        ),
    ),
    (
        before_the_row,
        PlantedFault(
            "the sweep submits no completion",
            LIFECYCLE, "Lifecycle.submit_ready", "len(chart.parts) == plan.total_parts", "False",
        ),
    ),
    (
        before_redis_is_told,
        PlantedFault(
            "the state of a completed upload is not corrected",
            PARTS, "Storing._repeat_end", "if upload.status is Status.COMPLETED:", "if False:",
        ),
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("gap", "fault"), [pytest.param(*pair, id=str(pair[1])) for pair in FAULTS]
)
async def test_a_planted_fault_in_a_repair_is_found(
    timed: TimedUploads, gap: Gap, fault: PlantedFault
) -> None:
    with planted(fault), pytest.raises((AssertionError, UploadUnknown)):
        await gap(timed)
