"""The records of uploads in Redis: states, the bytes of chunks, and the budget for these.

They may be in different slots and on different servers, so no script joins them. Steps come in the
order reservation, bytes, state, job; each can be repeated, and what a crash leaves behind expires
or is found by whoever looks next.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from importlib.resources import files
from typing import NamedTuple

from towpath.apps.uploads.errors import ChunkLost
from towpath.apps.uploads.model import UploadPlan
from towpath.apps.uploads.options import MIB, UploadsOptions
from towpath.apps.uploads.states import UploadMap, UploadState, UploadUnknown
from towpath.clock import Duration, duration_ms, minutes, steady
from towpath.engine.durability import Durability
from towpath.engine.engine import Engine
from towpath.engine.space import SpaceRecord
from towpath.errors import ServerError

SCRIPTS = files("towpath.apps.uploads") / "lua"
PIECE = MIB
"""Bytes that go to Redis at once, and come from there."""
STAGED = minutes(5)
"""How long bytes stay that came and don't count yet."""
_BEFORE_FIRST = minutes(2)
"""How long a part has its room while nothing of it has come whole."""
_COUNTED = minutes(10)
"""How long the count of a sweep is told."""
_LONGER = minutes(1)
"""By how much a reservation outlives the bytes that it is for."""
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

    async def stage(self, token: str, offset: int, piece: bytes | memoryview) -> None:
        """Stage a piece of a chunk behind those that came before it under a *token* of its own.

        Raises ChunkLost if those are gone, or if a lost reply made it come twice.
        """
        key, expiry = f"staging:{token}", duration_ms("stays", STAGED)
        if not offset:
            await self._record.keep(key, piece, expiry=expiry)
        elif await self._record.extend(key, piece, expiry=expiry) != offset + len(piece):
            raise ChunkLost(self._id, "a chunk")

    async def append(
        self, token: str, offset: int, piece: bytes | memoryview, *, stays: Duration = STAGED
    ) -> None:
        """The same under a token that others append to as well; it *stays* for so long.

        Raises ChunkLost if it does not begin where they ended: then nothing was appended.
        """
        expiry = duration_ms("stays", stays)
        answer = await self._record.run(
            "append", token=token, offset=offset, expiry=expiry, piece=piece
        )
        if not isinstance(answer, int):
            raise ChunkLost(self._id, "a chunk")

    async def staged(self, token: str) -> int:
        """How much has come of a chunk that is not whole."""
        return int(await self._record.read("staged", token=token))

    async def fork(self, token: str, offset: int, copy: str) -> None:
        """Go on in a copy of what has come of a chunk. Raises ChunkLost if that is not so."""
        expiry = duration_ms("stays", STAGED)
        answer = await self._record.run(
            "fork", source=token, offset=offset, token=copy, expiry=expiry
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
    """Why there is no room for a part."""

    share: bool
    """The holder has its share; else all have all."""


class Budget:
    """The bytes that may be in Redis: reserved a whole part at a time."""

    def __init__(self, record: SpaceRecord, *, most: int, chunk_expiry: Duration) -> None:
        self._record, self._most = record, most
        self._expiry = _stay(chunk_expiry) + duration_ms("longer", _LONGER)

    async def reserve(
        self, upload_id: str, part: int | str, *, holder: str, size: int
    ) -> NoRoom | None:
        """Room for a part, before its first byte comes; None = it has it, for some minutes.

        Or for a body beside another one (`UploadRecords.body`).
        """
        answer = await self._record.run(
            "reserve",
            member=_member(upload_id, part),
            holder=holder,
            size=size,
            most=self._most,
            share=self._most // 2,
            expiry=duration_ms("expiry", _BEFORE_FIRST),
        )
        return None if answer == b"ok" else NoRoom(share=answer == b"SHARE_FULL")

    async def renew(self, upload_id: str, parts: Iterable[int]) -> None:
        """Parts of which bytes are here keep their room for longer than the bytes stay."""
        members = [_member(upload_id, part) for part in parts]
        await self._record.run("renew", members=members, expiry=self._expiry)

    async def release(self, upload_id: str, parts: Iterable[int | str]) -> None:
        """These parts need no room any more."""
        members = [_member(upload_id, part) for part in parts]
        if members:
            await self._record.run("release", members=members)

    async def tidy(self) -> None:
        """Take back what nobody has renewed in time, some at once; `reserve` does so, too."""
        await self._record.run("release", members=[])

    async def used(self) -> int:
        """Bytes that are reserved."""
        total, _ = await self._record.read("usage")
        return int(total)

    async def settled(self) -> dict[str, set[int]]:
        """Parts by upload that have room for their bytes, not only for those that may come."""
        beyond = duration_ms("beyond", _BEFORE_FIRST)
        found: Sequence[bytes] = await self._record.read("reservations", beyond=beyond, most=10_000)
        parts: dict[str, set[int]] = {}
        for member in found:
            upload_id, _, part = member.decode().rpartition("/")
            parts.setdefault(upload_id, set()).add(int(part))
        return parts


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


def _member(upload_id: str, part: int | str) -> str:
    return f"{upload_id}/{part}"


class Kept:
    """Which parts this process knows to have their room: for a moment, nobody has to ask again."""

    def __init__(self) -> None:
        self._parts: dict[tuple[str, int], tuple[int, float]] = {}

    def note(self, upload_id: str, generation: int, part: int) -> None:
        """It has its room for as long as bytes stay, from now on."""
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
        self._engine, self._chunks, self._options = engine, chunks, options
        self.kept, self.ends = Kept(), Ends()
        self._coming: set[tuple[str, int]] = set()

    def state(self, upload_id: str) -> UploadState:
        record = self._engine().space("upload", SCRIPTS).at(upload_id)
        return UploadState(record, upload_id, self._options)

    def chunks(self, upload_id: str) -> Chunks:
        record = self._chunks().space("upload", SCRIPTS).at(upload_id)
        return Chunks(record, upload_id, self._options)

    @property
    def budget(self) -> Budget:
        record = self._engine().space("uploads", SCRIPTS).at("budget")
        options = self._options
        return Budget(record, most=options.budget, chunk_expiry=options.chunk_expiry)

    @asynccontextmanager
    async def body(self, upload_id: str, numbers: Iterable[int]) -> AsyncGenerator[str]:
        """A body with these chunks is staged while the block runs.

        The room of a part is for one body of each chunk. Whoever sends a chunk again while it comes
        needs room of his own, which is given back here: its name; empty = none.
        """
        chunks = {(upload_id, number) for number in numbers}
        if not chunks & self._coming:
            self._coming |= chunks
            try:
                yield ""
            finally:
                self._coming -= chunks
            return
        beside = f"beside-{secrets.token_hex(8)}"
        try:
            yield beside
        finally:
            with suppress(ServerError):  # it expires
                await asyncio.shield(self.budget.release(upload_id, [beside]))

    @property
    def turns(self) -> Turns:
        return Turns(self._engine().space("uploads", SCRIPTS).at("sweep"))

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
