"""The Redis entries of uploads: states, the bytes of chunks, and the budget for these bytes.

The entries may be in different slots and on different Redis servers, so no script covers two of
them. The steps are always reservation, bytes, state, job. Each can be repeated; what a crash leaves
behind expires, or is found by the next request or sweep.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from importlib.resources import files
from typing import Any, NamedTuple

from towpath.apps.uploads.errors import ChunkLost
from towpath.apps.uploads.model import Status, UploadPlan
from towpath.apps.uploads.options import MIB, UploadsOptions
from towpath.apps.uploads.states import UploadMap, UploadState, UploadUnknown
from towpath.clock import Duration, duration_ms, minutes
from towpath.engine.durability import Durability
from towpath.engine.engine import Engine
from towpath.engine.space import SpaceRecord
from towpath.recent import RecentCache

SCRIPTS = files("towpath.apps.uploads") / "lua"
PIECE = MIB
"""Bytes that are written to Redis or read from it at once."""
_COUNTED = minutes(10)
"""How long Redis keeps the number of waiting chunks that a sweep found."""
_LONGER = minutes(1)
"""How much longer a reservation lasts than its bytes."""
_REMEMBERED = 10_000, 30.0
"""How many uploads or parts a process remembers, and for how many seconds."""
_SILENT = 4
"""In body leases: a part without new bytes for so long gives way to others of its owner."""


def _chunk_expiry(chunk_expiry: Duration) -> int:
    """The expiry of chunks in Redis, in ms: 60/59 of `chunk_expiry`.

    `place.lua` renews it at most once per sixtieth of it. So no chunk expires before its upload was
    silent for `chunk_expiry`.
    """
    return duration_ms("chunk_expiry", chunk_expiry) * 60 // 59


# ── the bytes ────────────────────────────────────────────────────────────────────────────


class Chunks:
    """The bytes of an upload's chunks whose part is not stored yet."""

    def __init__(self, record: SpaceRecord, upload_id: str, options: UploadsOptions) -> None:
        self._record, self._id = record, upload_id
        self._expiry = _chunk_expiry(options.chunk_expiry)
        self._staged = duration_ms("staged", options.staged_for)

    async def stage(self, token: str, offset: int, piece: bytes | memoryview) -> None:
        """Append a piece to the bytes staged under *token*, which only this request uses.

        Raises ChunkLost if earlier pieces are gone, or if a repeat after a lost reply has appended
        the piece twice.
        """
        key, expiry = f"staging:{token}", self._staged
        if not offset:
            await self._record.keep(key, piece, expiry=expiry)
        elif await self._record.extend(key, piece, expiry=expiry) != offset + len(piece):
            raise ChunkLost(self._id, "a chunk")

    async def append(
        self, token: str, offset: int, piece: bytes | memoryview, *, stays: Duration | None = None
    ) -> None:
        """Append a piece under a token that several requests share; *stays* = its expiry, if given.

        Raises ChunkLost, and appends nothing, if the staged bytes do not end at *offset*.
        """
        expiry = self._staged if stays is None else duration_ms("stays", stays)
        answer = await self._record.run(
            "append", token=token, offset=offset, expiry=expiry, piece=piece
        )
        if not isinstance(answer, int):
            raise ChunkLost(self._id, "a chunk")

    async def stay(self, tokens: Iterable[str]) -> None:
        """Renew the expiry of what is staged under *tokens*, while its body still arrives."""
        await self._record.run("renew_staged", tokens=list(tokens), expiry=self._staged)

    async def staged(self, token: str) -> int:
        """Returns how many bytes are staged under *token*."""
        return int(await self._record.read("staged_size", token=token))

    async def fork(self, token: str, offset: int, copy: str) -> None:
        """Copy what is staged under *token*. Raises ChunkLost if it does not end at *offset*."""
        answer = await self._record.run(
            "fork", source=token, offset=offset, token=copy, expiry=self._staged
        )
        if not isinstance(answer, int):
            raise ChunkLost(self._id, "a chunk")

    async def adopt(self, token: str, offset: int, copy: str) -> None:
        """Replace what is staged under *token* by *copy*.

        Raises ChunkLost if it does not end at *offset* any more, or if the copy is gone.
        """
        answer = await self._record.run(
            "adopt", token=token, offset=offset, source=copy, expiry=self._expiry
        )
        if not isinstance(answer, int):
            raise ChunkLost(self._id, "a chunk")

    async def place(
        self, tokens: Mapping[int, str], generation: int, *, durability: Durability | None = None
    ) -> tuple[list[int], list[int]]:
        """Move staged bytes to their chunks, and delete incomplete copies of these chunks.

        It can be repeated. Returns the chunks whose bytes are gone, because their part was stored
        or they were lost, and the chunks whose expiry was renewed.
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
        """Read chunks of at most *size* bytes, each in pieces; without pieces, its bytes are gone.

        One call finds the chunks that are placed, as most are. As long as the tokens count, their
        keys keep the same bytes, so these are read without checking the token again.
        """
        items = [word for pair in tokens.items() for word in pair]
        placed = [int(number) for number in await self._record.read("find_placed", items=items)]
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
        """Read a chunk that is staged or placed: it may be placed between two reads."""
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

    async def find_gone(self, tokens: Mapping[int, str]) -> tuple[list[int], list[int]]:
        """Returns the chunks whose bytes are gone, and those that are staged and not placed."""
        if not tokens:
            return [], []
        items = [word for pair in tokens.items() for word in pair]
        gone, staged = await self._record.read("find_gone", items=items)
        return [int(number) for number in gone], [int(number) for number in staged]

    async def delete(self, numbers: Iterable[int], tokens: Iterable[str] = ()) -> None:
        """Delete chunks, and what is staged under *tokens*."""
        await self._record.run("delete_chunks", numbers=list(numbers), tokens=list(tokens))

    async def delete_all(self, tokens: Iterable[str] = ()) -> None:
        """Delete all chunks of the upload, and what is staged under *tokens*."""
        await self._record.run("delete_all", tokens=list(tokens))


# ── the budget ───────────────────────────────────────────────────────────────────────────


class NoRoom(NamedTuple):
    """Why there is no room for a body."""

    share: bool
    """Whether the owner's share is used up; otherwise the budget is."""
    after: int = 1
    """Seconds until there may be room."""
    lack: int = 0
    """How many bytes are lacking."""


class SpareRoom(NamedTuple):
    """Reservations that may be taken back, with the bytes that are counted for each part."""

    unsure: Mapping[str, Mapping[int, int]]
    """By upload and part: a server died while a body arrived, so its bytes must be counted."""
    silent: Sequence[tuple[str, int, int]]
    """Upload, part and bytes of the owner's parts without new bytes for long; the longest silent
    first."""


class BodyLease(NamedTuple):
    """The reservation of one body in one part, while the body arrives."""

    name: str
    upload_id: str
    part: int
    holder: str
    extent: int
    """Bytes of the part that are reserved, so that a part that has begun can be finished."""
    own: int
    """Bytes that the body may bring."""
    stays: bool
    """Whether its received bytes stay in Redis if this server dies."""


class HoldAnswer(Enum):
    """The reply to the renewal of a body's lease."""

    HELD = b"ok"
    GONE = b"LEASE_GONE"
    GIVE_WAY = b"GIVE_WAY"


class Budget:
    """The budget for bytes in Redis: those that were received, and those reserved for bodies.

    While a body arrives, its whole part is counted, so that the part can be finished. When the body
    has ended, or its lease was not renewed for `uploads.body_lease`, only its received bytes count.
    """

    def __init__(self, record: SpaceRecord, options: UploadsOptions) -> None:
        self._record, self._options = record, options
        self._stays = _chunk_expiry(options.chunk_expiry) + duration_ms("longer", _LONGER)
        self._lease = duration_ms("lease", options.body_lease)

    async def reserve(self, lease: BodyLease, *, lacked: int = 0) -> NoRoom | None:
        """Reserve room for a body, or renew its lease; None = it has room.

        *lacked* = the bytes that were lacking when this body was refused just before.
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
        """Renew the lease of a body. A *slow* body must give way if others were refused."""
        answer = await self._record.run(
            "renew_lease", lease=lease.name, slow=int(slow), expiry=self._lease
        )
        return HoldAnswer(answer)

    async def finish(self, lease: BodyLease, came: int, *, slow: bool = False) -> None:
        """End the lease of a body of which *came* bytes are in Redis.

        If it was *slow* and others were refused, its owner gets no new part before them.
        """
        # If the lease has expired, a body that stays was counted in full at that time.
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
        """Renew the reservations of parts, for longer than their bytes stay."""
        members = [_member(upload_id, part) for part in parts]
        await self._record.run("renew", members=members, expiry=self._stays)

    async def release(self, upload_id: str, parts: Iterable[int]) -> None:
        """Release the reservations of parts whose bytes are deleted."""
        members = [_member(upload_id, part) for part in parts]
        if members:
            await self._record.run("release", members=members)

    async def correct(
        self, upload_id: str, holder: str, parts: Mapping[int, tuple[int, int]]
    ) -> int:
        """Correct the counts of *parts*: for each, the counted bytes and the bytes in Redis.

        Parts whose count has changed since are left alone. Returns how many were corrected.
        """
        items = [
            word
            for part, (before, there) in parts.items()
            for word in (_member(upload_id, part), holder, before, there)
        ]
        return int(await self._record.run("correct", items=items, stays=self._stays))

    async def tidy(self) -> None:
        """Release some expired leases and reservations, as `reserve` does, too."""
        await self._record.run("release", members=[])

    async def used(self) -> int:
        """Returns how many bytes of the budget are used."""
        total, _ = await self._record.read("usage")
        return int(total)

    async def leases(self) -> dict[str, int]:
        """Returns the leases of bodies, and when each expires (ms)."""
        found: Sequence[bytes] = await self._record.read("leases", most=10_000)
        return {found[i].decode(): int(found[i + 1]) for i in range(0, len(found), 2)}

    async def without_bodies(self) -> dict[str, dict[int, int]]:
        """Returns, by upload and part, the counted bytes of parts without an arriving body."""
        return _by_upload(_parts(await self._record.read("reservations", most=10_000)))

    async def spare(self, refused: BodyLease) -> SpareRoom:
        """Find reservations that may be taken back for a body that was refused."""
        unsure, silent = await self._record.read(
            "spare",
            member=_member(refused.upload_id, refused.part),
            holder=refused.holder,
            due=self._stays - _SILENT * self._lease,
            most=1000,
        )
        return SpareRoom(_by_upload(_parts(unsure)), list(_parts(silent)))


class SweepTurns:
    """Which server sweeps, and how many chunks waited at the last sweep."""

    def __init__(self, record: SpaceRecord) -> None:
        self._record = record

    async def take(self, holder: str, *, lasts: Duration) -> tuple[bool, int]:
        """Returns whether *holder* may sweep, and how many chunks waited at the last sweep."""
        expiry = duration_ms("lasts", lasts)
        mine, queued = await self._record.run("take_turn", holder=holder, expiry=expiry)
        return bool(mine), int(queued)

    async def save_queued(self, chunks: int) -> None:
        """Save how many chunks wait, for the other servers."""
        await self._record.run("save_queued", chunks=chunks, expiry=duration_ms("expiry", _COUNTED))


def _member(upload_id: str, part: int) -> str:
    return f"{upload_id}/{part}"


def _parts(found: Sequence[Any]) -> Iterable[tuple[str, int, int]]:
    """Upload, part and bytes of each reservation."""
    for i in range(0, len(found), 2):
        upload_id, _, part = found[i].decode().rpartition("/")
        if part.isdigit():  # an earlier release also had names for bodies
            yield upload_id, int(part), int(found[i + 1])


def _by_upload(parts: Iterable[tuple[str, int, int]]) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for upload_id, part, size in parts:
        found.setdefault(upload_id, {})[part] = size
    return found


class UploadRecords:
    """All Redis entries of uploads: *engine* has states and the budget, *chunks* the bytes."""

    def __init__(self, engine: Engine, chunks: Engine, options: UploadsOptions) -> None:
        self.options = options
        self._states = engine.space("upload", SCRIPTS)
        self._chunks = chunks.space("upload", SCRIPTS)
        shared = engine.space("uploads", SCRIPTS)
        self.budget = Budget(shared.at("budget"), options)
        self.sweep_turns = SweepTurns(shared.at("sweep"))
        self.begun_parts = RecentCache[tuple[str, int], int](*_REMEMBERED)
        """By upload and part: the generation in which this process has marked it as begun."""
        self.body_ends = RecentCache[str, tuple[int, int]](*_REMEMBERED)
        """By upload: the generation and offset at which a body ended inside a chunk. A PATCH that
        continues there needs no call to read the offset: the script that appends compares it."""

    def state(self, upload_id: str) -> UploadState:
        return UploadState(self._states.at(upload_id), upload_id, self.options)

    def chunks(self, upload_id: str) -> Chunks:
        return Chunks(self._chunks.at(upload_id), upload_id, self.options)

    async def bytes_in_redis(self, upload_id: str) -> dict[int, int]:
        """Returns, by part, how many bytes are in Redis of parts that are not stored yet.

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
        progress = await self.state(upload_id).progress()
        if tail := await self.chunks(upload_id).staged(
            tail_token(progress.generation, progress.first_missing)
        ):
            part = plan.part_of(progress.first_missing)
            held[part] = held.get(part, 0) + tail
        return held

    async def make_room(self, lease: BodyLease, refusal: NoRoom) -> bool:
        """Take back unused reservations for a body that was refused; False if there are none.

        Silent parts give way only to other parts of their owner.
        """
        unsure, silent = await self.budget.spare(lease)
        for upload_id, counted in unsure.items():
            await self._recount(upload_id, counted)
        if unsure or not refusal.share:
            return bool(unsure)
        left, lack = list[tuple[str, int, int]](), refusal.lack
        for upload_id, part, size in silent:
            if lack > 0 and await self._needs_client(upload_id, part):
                left.append((upload_id, part, size))
                lack -= size
        if lack > 0:  # giving up all silent parts would not make enough room
            return False
        for upload_id, part, size in left:
            await self._drop(upload_id, part, size)
        return True

    async def _recount(self, upload_id: str, counted: Mapping[int, int]) -> None:
        """Correct the counts of parts by the bytes in Redis, unless they have changed since."""
        there: dict[int, int] = {}
        with suppress(UploadUnknown):
            there = await self.bytes_in_redis(upload_id)
        parts = {part: (before, there.get(part, 0)) for part, before in counted.items()}
        await self.budget.correct(upload_id, "", parts)

    async def _needs_client(self, upload_id: str, part: int) -> bool:
        """Whether a part can't be stored unless its client sends the missing chunks."""
        with suppress(UploadUnknown):
            chart = await self.state(upload_id).chart()
            open = Status(chart.fields["status"]).open
            return not open or part not in dict(chart.whole_parts())
        return False  # the sweep counts what is left of it

    async def _drop(self, upload_id: str, part: int, counted: int) -> None:
        """Delete the received bytes of a part; its chunks are missing again."""
        with suppress(UploadUnknown):
            chart, progress = (
                await self.state(upload_id).chart(),
                await self.state(upload_id).progress(),
            )
            tokens = {n: t for n, t in chart.pending.items() if chart.plan.part_of(n) == part}
            staged = list(tokens.values())
            if chart.plan.part_of(progress.first_missing) == part:
                staged.append(tail_token(progress.generation, progress.first_missing))
            # Bytes first: after a crash in between, `sync` notes that the chunks are missing.
            await self.chunks(upload_id).delete(tokens, staged)
            await self.state(upload_id).lose(chart.generation, tokens)
        await self.budget.correct(upload_id, "", {part: (counted, 0)})

    async def tail_tokens(self, upload_id: str) -> list[str]:
        """The staging token of the incomplete chunk; none if Redis does not know the upload."""
        with suppress(UploadUnknown):
            progress = await self.state(upload_id).progress()
            return [tail_token(progress.generation, progress.first_missing)]
        return []

    async def keep_tail(self, upload_id: str, generation: int) -> None:
        """Keep the bytes of the incomplete chunk for this *generation*. Raises UploadUnknown."""
        progress = await self.state(upload_id).progress()
        before, now = (
            tail_token(of, progress.first_missing) for of in (generation - 1, generation)
        )
        with suppress(ChunkLost):  # nothing is staged
            await self.chunks(upload_id).adopt(now, 0, before)

    async def sync(self, upload_id: str) -> UploadMap:
        """Returns all chunks and parts, after noting which chunks have lost their bytes.

        Places chunks that are counted and still staged: clients do not send again what is not
        missing, and the request that counted a chunk may have died. Raises UploadUnknown.
        """
        state, chunks = self.state(upload_id), self.chunks(upload_id)
        chart = await state.chart()
        gone, staged = await chunks.find_gone(chart.pending)
        if staged:
            tokens = {number: chart.pending[number] for number in staged}
            lost, renewed = await chunks.place(tokens, chart.generation)
            gone += lost
            await self.budget.renew(upload_id, renewed_parts(chart.plan, [*staged, *renewed]))
        tokens = {number: chart.pending[number] for number in gone}
        if not gone or not await state.lose(chart.generation, tokens):
            return chart
        return await state.chart()


def tail_token(generation: int, number: int) -> str:
    """The staging token of a chunk whose bytes arrive in order; `place.lua` builds it, too."""
    return f"tail-{generation}-{number}"


def renewed_parts(plan: UploadPlan, numbers: Iterable[int]) -> set[int]:
    """The parts that these chunks belong to."""
    return {plan.part_of(number) for number in numbers}
