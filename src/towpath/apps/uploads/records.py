"""The records of uploads in Redis: states, the bytes of chunks, and the budget for these.

They may be in different slots and on different servers, so no script joins them. Steps come in the
order reservation, bytes, state, job; each can be repeated, and what a crash leaves behind expires
or is found by whoever looks next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from importlib.resources import files
from typing import Any, NamedTuple

from towpath.apps.uploads.errors import ChunkLost
from towpath.apps.uploads.model import Status, UploadPlan
from towpath.apps.uploads.options import MIB, UploadsOptions
from towpath.apps.uploads.states import UploadMap, UploadState, UploadUnknown
from towpath.clock import Duration, duration_ms, minutes, steady
from towpath.engine.durability import Durability
from towpath.engine.engine import Engine
from towpath.engine.space import SpaceRecord

SCRIPTS = files("towpath.apps.uploads") / "lua"
PIECE = MIB
"""Bytes that go to Redis at once, and come from there."""
_COUNTED = minutes(10)
"""How long the count of a sweep is told."""
_LONGER = minutes(1)
"""By how much a reservation outlives the bytes that it is for."""
_SILENT = 4
"""Leases: a part of which nothing came for so long gives way to others of its owner."""
_KEPT_FOR, _KEPT_MOST = 30.0, 10_000


def _stay(chunk_expiry: Duration) -> int:
    """How long bytes stay, ms. It is renewed once a sixtieth of it is over (`place.lua`): none goes
    before its upload was silent for all of its time.
    """
    return duration_ms("chunk_expiry", chunk_expiry) * 60 // 59


# ── the bytes ────────────────────────────────────────────────────────────────────────────


class Chunks:
    """The bytes of one upload's chunks that are in no part yet."""

    def __init__(self, record: SpaceRecord, upload_id: str, options: UploadsOptions) -> None:
        self._record, self._id = record, upload_id
        self._expiry = _stay(options.chunk_expiry)
        self._staged = duration_ms("staged", options.staged_for)

    async def stage(self, token: str, offset: int, piece: bytes | memoryview) -> None:
        """Stage a piece of a chunk behind those that came before it under a *token* of its own.

        Raises ChunkLost if those are gone, or if a lost reply made it come twice.
        """
        key, expiry = f"staging:{token}", self._staged
        if not offset:
            await self._record.keep(key, piece, expiry=expiry)
        elif await self._record.extend(key, piece, expiry=expiry) != offset + len(piece):
            raise ChunkLost(self._id, "a chunk")

    async def append(
        self, token: str, offset: int, piece: bytes | memoryview, *, stays: Duration | None = None
    ) -> None:
        """The same under a token that others append to as well; it *stays* for so long, if given.

        Raises ChunkLost if it does not begin where they ended: then nothing was appended.
        """
        expiry = self._staged if stays is None else duration_ms("stays", stays)
        answer = await self._record.run(
            "append", token=token, offset=offset, expiry=expiry, piece=piece
        )
        if not isinstance(answer, int):
            raise ChunkLost(self._id, "a chunk")

    async def stay(self, tokens: Iterable[str]) -> None:
        """What is staged under these *tokens* stays for longer: it still comes."""
        await self._record.run("stay", tokens=list(tokens), expiry=self._staged)

    async def staged(self, token: str) -> int:
        """How much has come of a chunk that is not whole."""
        return int(await self._record.read("staged", token=token))

    async def fork(self, token: str, offset: int, copy: str) -> None:
        """Go on in a copy of what has come of a chunk. Raises ChunkLost if that is not so."""
        answer = await self._record.run(
            "fork", source=token, offset=offset, token=copy, expiry=self._staged
        )
        if not isinstance(answer, int):
            raise ChunkLost(self._id, "a chunk")

    async def adopt(self, token: str, offset: int, copy: str) -> None:
        """What was gone on with in a copy counts. Raises ChunkLost if another came first."""
        answer = await self._record.run(
            "adopt", token=token, offset=offset, source=copy, expiry=self._expiry
        )
        if not isinstance(answer, int):
            raise ChunkLost(self._id, "a chunk")

    async def place(
        self, tokens: Mapping[int, str], generation: int, *, durability: Durability | None = None
    ) -> tuple[list[int], list[int]]:
        """Staged bytes become the chunks'; what came of these in part goes. Again does no harm.

        The chunks whose bytes are gone, because their part was stored or they were lost; and those
        whose time was renewed by this, if any.
        """
        items = [word for pair in tokens.items() for word in pair]
        gone, renewed = await self._record.run(
            "place",
            durability=durability,
            items=items,
            generation=generation,
            expiry=self._expiry,
        )
        return [int(number) for number in gone], [int(number) for number in renewed]

    async def fetch(self, tokens: Mapping[int, str], size: int) -> dict[int, list[bytes]]:
        """The bytes of chunks of at most *size*, in pieces; none = they are gone.

        Most are in their place, which is asked once. After that it has no other chunk's bytes as
        long as the tokens count.
        """
        items = [word for pair in tokens.items() for word in pair]
        placed = [int(number) for number in await self._record.read("placed", items=items)]
        found: dict[int, list[bytes]] = {}
        if size <= PIECE:
            at_once = PIECE // size
            for start in range(0, len(placed), at_once):
                numbers = placed[start : start + at_once]
                values = await self._record.values([f"chunks:{number}" for number in numbers])
                found |= {n: [value] for n, value in zip(numbers, values, strict=True) if value}
        else:
            for number in placed:
                found[number] = await self._placed_pieces(number)
        for number in tokens.keys() - set(placed):
            found[number] = await self._pieces(number, tokens[number])
        return found

    async def _placed_pieces(self, number: int) -> list[bytes]:
        pieces: list[bytes] = []
        while not pieces or len(pieces[-1]) == PIECE:
            pieces.append(await self._record.part(f"chunks:{number}", len(pieces) * PIECE, PIECE))
        return [piece for piece in pieces if piece]

    async def _pieces(self, number: int, token: str) -> list[bytes]:
        """The same of one that is in its place or beside it: it may be on its way there."""
        pieces: list[bytes] = []
        start = 0
        while True:
            piece = await self._record.read(
                "fetch", number=number, token=token, start=start, size=PIECE
            )
            if piece:
                pieces.append(piece)
                start += len(piece)
            if len(piece) < PIECE:
                return pieces

    async def gone(self, tokens: Mapping[int, str]) -> dict[int, str]:
        """Those of these chunks whose bytes are gone."""
        items = [word for pair in tokens.items() for word in pair]
        found: Sequence[bytes] = await self._record.read("present", items=items) if items else ()
        return {int(found[i]): found[i + 1].decode() for i in range(0, len(found), 2)}

    async def delete(self, numbers: Iterable[int], tokens: Iterable[str] = ()) -> None:
        """Delete chunks, and what is only staged."""
        await self._record.run("delete_chunks", numbers=list(numbers), tokens=list(tokens))

    async def delete_all(self, tokens: Iterable[str] = ()) -> None:
        """Delete all chunks, and what is staged under these *tokens*."""
        await self._record.run("delete_all", tokens=list(tokens))


# ── the budget ───────────────────────────────────────────────────────────────────────────


class NoRoom(NamedTuple):
    """Why there is no room for a body."""

    share: bool
    """The owner has its share; else all have all."""
    after: int = 1
    """Seconds until there may be room."""
    lack: int = 0
    """Bytes that are lacking."""


class SpareRoom(NamedTuple):
    """Room that may be taken back: parts by upload, and the bytes that are counted of each."""

    unsure: Mapping[str, Mapping[int, int]]
    """A server died while they came: what is there of them has to be counted."""
    silent: Sequence[tuple[str, int, int]]
    """Upload, part and bytes of one owner's parts of which nothing came for long; the longest
    silent first."""


class BodyLease(NamedTuple):
    """The room that one body has in one part, while it comes."""

    name: str
    upload_id: str
    part: int
    holder: str
    extent: int
    """Bytes of the part, as far as the body needs it: what is begun can be finished."""
    own: int
    """Bytes that the body may bring."""
    stays: bool
    """Whether what came of it stays if this server dies."""


class HoldAnswer(Enum):
    """What becomes of the room of a body that still comes."""

    HELD = b"ok"
    GONE = b"LEASE_GONE"
    GIVE_WAY = b"GIVE_WAY"


class Budget:
    """The bytes that may be in Redis: those of parts that are there, and those that come.

    While a body comes, its whole part is counted, so that it can be finished. When it has ended, or
    its server was not heard of for `uploads.body_lease`, only the bytes that are there are counted.
    """

    def __init__(self, record: SpaceRecord, options: UploadsOptions) -> None:
        self._record, self._options = record, options
        self._stays = _stay(options.chunk_expiry) + duration_ms("longer", _LONGER)
        self._lease = duration_ms("lease", options.body_lease)

    async def reserve(self, lease: BodyLease, *, lacked: int = 0) -> NoRoom | None:
        """Room for a body before it comes, or again for longer; None = it has it.

        *lacked* = so much was lacking when it was refused just before.
        """
        options = self._options
        word, *after = await self._record.run(
            "reserve",
            member=_member(lease.upload_id, lease.part),
            lease=lease.name,
            holder=lease.holder,
            extent=lease.extent,
            own=lease.own,
            stays=self._stays if lease.stays else 0,
            most=options.budget,
            begun=options.kept_for_begun,
            share=options.share,
            expiry=self._lease,
            lacked=lacked,
        )
        if word == b"ok":
            return None
        wait, lack = map(int, after)
        return NoRoom(share=word == b"SHARE_FULL", after=-(-wait // 1000), lack=lack)

    async def hold(self, lease: BodyLease, *, slow: bool) -> HoldAnswer:
        """The body still comes. One that is *slow* gives way if others were refused."""
        answer = await self._record.run(
            "prolong", lease=lease.name, slow=int(slow), expiry=self._lease
        )
        return HoldAnswer(answer)

    async def finish(self, lease: BodyLease, came: int, *, slow: bool = False) -> None:
        """The body has ended, and *came* bytes of it are there.

        If it was *slow* and others were refused, its owner gets no new part before them.
        """
        # What stays was counted for all of it when the lease ended.
        late: int = 0 if lease.stays else came
        await self._record.run(
            "finish",
            lease=lease.name,
            member=_member(lease.upload_id, lease.part),
            holder=lease.holder,
            came=came,
            slow=int(slow),
            late=late,
            stays=self._stays,
        )

    async def renew(self, upload_id: str, parts: Iterable[int]) -> None:
        """Parts of which bytes are here keep their room for longer than the bytes stay."""
        members = [_member(upload_id, part) for part in parts]
        await self._record.run("renew", members=members, expiry=self._stays)

    async def release(self, upload_id: str, parts: Iterable[int]) -> None:
        """The bytes of these parts are gone."""
        members = [_member(upload_id, part) for part in parts]
        if members:
            await self._record.run("release", members=members)

    async def correct(
        self, upload_id: str, holder: str, parts: Mapping[int, tuple[int, int]]
    ) -> int:
        """Count what is there: of each part the bytes that were counted, and those that are there.

        Those that have changed since stay as they are. How many were corrected.
        """
        items = [
            word
            for part, (before, there) in parts.items()
            for word in (_member(upload_id, part), holder, before, there)
        ]
        return int(await self._record.run("correct", items=items, stays=self._stays))

    async def tidy(self) -> None:
        """Take back what expired, some at once; `reserve` does so, too."""
        await self._record.run("release", members=[])

    async def used(self) -> int:
        """Bytes that are counted."""
        total, _ = await self._record.read("usage")
        return int(total)

    async def coming(self) -> dict[str, int]:
        """Bodies that come, and until when (ms) their servers must be heard of."""
        found: Sequence[bytes] = await self._record.read("coming", most=10_000)
        return {found[i].decode(): int(found[i + 1]) for i in range(0, len(found), 2)}

    async def settled(self) -> dict[str, dict[int, int]]:
        """Parts by upload of which no body comes, and the bytes that are counted of each."""
        return _by_upload(_parts(await self._record.read("reservations", most=10_000)))

    async def spare(self, refused: BodyLease) -> SpareRoom:
        """Room that may be taken back for a body that was refused."""
        unsure, silent = await self._record.read(
            "spare",
            member=_member(refused.upload_id, refused.part),
            holder=refused.holder,
            due=self._stays - _SILENT * self._lease,
            most=1000,
        )
        return SpareRoom(_by_upload(_parts(unsure)), list(_parts(silent)))


class Turns:
    """Whose turn it is to sweep, and what the last sweep counted."""

    def __init__(self, record: SpaceRecord) -> None:
        self._record = record

    async def take(self, holder: str, *, lasts: Duration) -> tuple[bool, int]:
        """Whether it is the *holder*'s turn; and how many chunks waited when it was last swept."""
        expiry = duration_ms("lasts", lasts)
        mine, queued = await self._record.run("turn", holder=holder, expiry=expiry)
        return bool(mine), int(queued)

    async def note(self, chunks: int) -> None:
        """Tell the others how many chunks wait."""
        await self._record.run("swept", chunks=chunks, expiry=duration_ms("expiry", _COUNTED))


def _member(upload_id: str, part: int) -> str:
    return f"{upload_id}/{part}"


def _parts(found: Sequence[Any]) -> Iterable[tuple[str, int, int]]:
    """Upload, part and bytes of each."""
    for i in range(0, len(found), 2):
        upload_id, _, part = found[i].decode().rpartition("/")
        if part.isdigit():  # an earlier release also had names for bodies
            yield upload_id, int(part), int(found[i + 1])


def _by_upload(parts: Iterable[tuple[str, int, int]]) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for upload_id, part, size in parts:
        found.setdefault(upload_id, {})[part] = size
    return found


class Kept:
    """Which parts this process said to be begun: for a moment, it need not say so again."""

    def __init__(self) -> None:
        self._parts: dict[tuple[str, int], tuple[int, float]] = {}

    def note(self, upload_id: str, generation: int, part: int) -> None:
        """The state says that it is begun."""
        if len(self._parts) >= _KEPT_MOST:
            self._parts.clear()
        self._parts[upload_id, part] = generation, steady()

    def knows(self, upload_id: str, generation: int, part: int) -> bool:
        """Whether it was noted a moment ago."""
        of, at = self._parts.get((upload_id, part), (-1, 0.0))
        return of == generation and steady() - at < _KEPT_FOR


class Ends:
    """Where bodies ended in the midst of a chunk: a PATCH that goes on there soon need not ask how
    much of it has come.

    The append script compares its offset with what is there then, as always.
    """

    def __init__(self) -> None:
        self._ends: dict[str, tuple[int, int, float]] = {}

    def note(self, upload_id: str, generation: int, offset: int) -> None:
        """One has ended at *offset*."""
        if len(self._ends) >= _KEPT_MOST:
            self._ends.clear()
        self._ends[upload_id] = generation, offset, steady()

    def knows(self, upload_id: str, generation: int, offset: int) -> bool:
        """Whether the last one ended right there, just now."""
        of, end, at = self._ends.get(upload_id, (-1, -1, 0.0))
        return (of, end) == (generation, offset) and steady() - at < _KEPT_FOR


class UploadRecords:
    """All records: *engine* has states and the budget, *chunks* the bytes."""

    def __init__(
        self, engine: Callable[[], Engine], chunks: Callable[[], Engine], options: UploadsOptions
    ) -> None:
        self._engine, self._chunks, self.options = engine, chunks, options
        self.kept, self.ends = Kept(), Ends()

    def state(self, upload_id: str) -> UploadState:
        record = self._engine().space("upload", SCRIPTS).at(upload_id)
        return UploadState(record, upload_id, self.options)

    def chunks(self, upload_id: str) -> Chunks:
        record = self._chunks().space("upload", SCRIPTS).at(upload_id)
        return Chunks(record, upload_id, self.options)

    @property
    def budget(self) -> Budget:
        record = self._engine().space("uploads", SCRIPTS).at("budget")
        return Budget(record, self.options)

    @property
    def turns(self) -> Turns:
        return Turns(self._engine().space("uploads", SCRIPTS).at("sweep"))

    async def held(self, upload_id: str) -> dict[int, int]:
        """Of each part that is not in the store, how many bytes of it are here.

        Raises UploadUnknown.
        """
        chart = await self.state(upload_id).chart()
        plan, held = chart.plan, dict[int, int]()
        last = int(chart.fields.get("short", -1))
        for number in chart.pending:
            length = plan.chunk_length(number) or plan.chunk_size
            if number == last:
                length = int(chart.fields["last_length"])
            part = plan.part_of(number)
            held[part] = held.get(part, 0) + length
        front = await self.state(upload_id).front()
        if tail := await self.chunks(upload_id).staged(tail_token(front.generation, front.chunk)):
            part = plan.part_of(front.chunk)
            held[part] = held.get(part, 0) + tail
        return held

    async def make_room(self, lease: BodyLease, refusal: NoRoom) -> bool:
        """Take back room that nobody needs, for a body that was refused; False if there is none.

        Silent parts give way to others of their owner only.
        """
        unsure, silent = await self.budget.spare(lease)
        for upload_id, counted in unsure.items():
            await self._recount(upload_id, counted)
        if unsure or not refusal.share:
            return bool(unsure)
        left, lack = list[tuple[str, int, int]](), refusal.lack
        for upload_id, part, size in silent:
            if lack > 0 and await self._is_left(upload_id, part):
                left.append((upload_id, part, size))
                lack -= size
        if lack > 0:  # nothing is dropped in vain
            return False
        for upload_id, part, size in left:
            await self._drop(upload_id, part, size)
        return True

    async def _recount(self, upload_id: str, counted: Mapping[int, int]) -> None:
        """Count what is there of parts, unless others did meanwhile."""
        there: dict[int, int] = {}
        with suppress(UploadUnknown):
            there = await self.held(upload_id)
        parts = {part: (before, there.get(part, 0)) for part, before in counted.items()}
        await self.budget.correct(upload_id, "", parts)

    async def _is_left(self, upload_id: str, part: int) -> bool:
        """Whether nothing becomes of what came of a part, unless its client sends the rest."""
        with suppress(UploadUnknown):
            chart = await self.state(upload_id).chart()
            open = Status(chart.fields["status"]).open
            return not open or part not in dict(chart.whole_parts())
        return False  # the sweep counts what is left of it

    async def _drop(self, upload_id: str, part: int, counted: int) -> None:
        """Drop what came of a part: it is missing again."""
        with suppress(UploadUnknown):
            chart, front = await self.state(upload_id).chart(), await self.state(upload_id).front()
            tokens = {n: t for n, t in chart.pending.items() if chart.plan.part_of(n) == part}
            staged = list(tokens.values())
            if chart.plan.part_of(front.chunk) == part:
                staged.append(tail_token(front.generation, front.chunk))
            # The bytes first: whoever finds that they are gone says that they are missing.
            await self.chunks(upload_id).delete(tokens, staged)
            await self.state(upload_id).lose(chart.generation, tokens)
        await self.budget.correct(upload_id, "", {part: (counted, 0)})

    async def tails(self, upload_id: str) -> list[str]:
        """The tokens of what may have come of a chunk in part, as far as Redis knows the upload."""
        with suppress(UploadUnknown):
            front = await self.state(upload_id).front()
            return [tail_token(front.generation, front.chunk)]
        return []

    async def keep_tail(self, upload_id: str, generation: int) -> None:
        """What has come of a chunk in part goes on in this *generation*. Raises UploadUnknown."""
        front = await self.state(upload_id).front()
        before, now = (tail_token(of, front.chunk) for of in (generation - 1, generation))
        with suppress(ChunkLost):  # nothing had come
            await self.chunks(upload_id).adopt(now, 0, before)

    async def sync(self, upload_id: str) -> UploadMap:
        """Which chunks and parts are where, after those whose bytes are gone became missing again.

        Raises UploadUnknown.
        """
        state = self.state(upload_id)
        chart = await state.chart()
        gone = await self.chunks(upload_id).gone(chart.pending)
        if not gone or not await state.lose(chart.generation, gone):
            return chart
        return await state.chart()


def tail_token(generation: int, number: int) -> str:
    """Under which bytes come one behind the other, until their chunk is whole (and `place.lua`)."""
    return f"tail-{generation}-{number}"


def renewed_parts(plan: UploadPlan, numbers: Iterable[int]) -> set[int]:
    """The parts that these chunks belong to."""
    return {plan.part_of(number) for number in numbers}
