"""What Redis knows of an upload: the published state hash, and where its chunks and parts are.

Each change is one script in `lua/`. What it is rebuilt from is the upload's row, and the store's
own list of parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from towpath.apps.uploads.errors import (
    ChunkDiffers,
    ChunkInvalid,
    ChunkLost,
    LastChunkDiffers,
    UploadEnded,
    UploadFailed,
    UploadGone,
    UploadTooLarge,
)
from towpath.apps.uploads.hashes import PartEntry, bits_of, digests_of, metadata_hash, state_hash
from towpath.apps.uploads.model import Range, Status, Upload, UploadPlan, gaps, ranges
from towpath.apps.uploads.options import UploadsOptions
from towpath.clock import duration_ms
from towpath.engine.durability import Durability
from towpath.engine.space import SpaceRecord

_MOST_RANGES = 100


class UploadUnknown(Exception):
    """Redis knows nothing of the upload: it has to be rebuilt from its row, if there is one."""


class PartStale(Exception):
    """The part was begun anew, or stored by another: what was done for it counts no more."""


class Known(NamedTuple):
    """What is known of a chunk before it is sent."""

    status: Status
    here: bool
    """It is in Redis or in the store."""
    digest: bytes
    """That of its bytes, also of bytes that have expired; empty = never seen."""
    generation: int
    size: int | None
    """The upload's."""


class Front(NamedTuple):
    """How far an upload has come without a gap."""

    status: Status
    generation: int
    chunk: int
    """The first one that is missing."""
    size: int | None
    updated_at: int
    """When it was last heard of, in ms."""


class NewChunk(NamedTuple):
    """A chunk that has come."""

    number: int
    length: int
    digest: bytes
    """Its CRC-64/NVME; empty = nobody reckoned it."""
    token: str
    """Under which its bytes are staged; empty = they are not."""


class Put(NamedTuple):
    """What became of a chunk."""

    duplicate: bool
    status: Status
    received: int
    part: int
    turn: int | None
    """Of the part, if it is whole now and not yet in the store."""
    generation: int
    token: str
    """Under which the bytes that count came; empty = they are in the store."""


class Closed(NamedTuple):
    """What became of an upload whose number of chunks is known now."""

    size: int
    generation: int
    part: int | None
    """The last one, if it is whole now and not yet in the store."""
    turn: int
    last: bool
    """All parts are in the store: the upload can be completed."""


class TakenPart(NamedTuple):
    """What a part is made of; or that it is in the store already."""

    first: int
    chunks: int
    tokens: Sequence[str]
    """Of each chunk; none = it is in the store."""
    last: bool
    """It is, with all others."""


class UploadMap(NamedTuple):
    """Which chunks and parts of an upload are where."""

    fields: Mapping[str, str]
    bitmap: bytes
    pending: Mapping[int, str]
    """Chunks whose part is not in the store, and their tokens."""
    fill: Mapping[int, int]
    turns: Mapping[int, int]
    parts: Mapping[int, PartEntry]

    @property
    def generation(self) -> int:
        return int(self.fields["generation"])

    @property
    def plan(self) -> UploadPlan:
        return plan_of(self.fields)

    def missing(self, most: int = _MOST_RANGES) -> list[Range]:
        """The chunks that are missing; without a size, those before the highest that came."""
        plan = self.plan
        total = plan.total_chunks
        if total is None:
            total = int(self.fields.get("highest", -1)) + 1
        return gaps(self.bitmap, total, most=most)

    def missing_of_begun(self, most: int = _MOST_RANGES) -> list[Range]:
        """The chunks that parts which were begun still need: there is room for them."""
        plan = self.plan
        numbers = (number for part in sorted(self.fill) for number in plan.chunks_of(part))
        return ranges(number for number in numbers if not self._has(number))[:most]

    def whole_parts(self) -> list[tuple[int, int]]:
        """Parts all of whose chunks are here and that are not in the store, with their turns."""
        plan = self.plan
        return [
            (part, self.turns.get(part, 0))
            for part, count in sorted(self.fill.items())
            if count == len(plan.chunks_of(part))
        ]

    def _has(self, number: int) -> bool:
        at = number >> 3
        return at < len(self.bitmap) and bool(self.bitmap[at] & (0x80 >> (number & 7)))


def plan_of(fields: Mapping[str, str]) -> UploadPlan:
    """The plan that a state has."""
    size = int(fields["expected_size"]) if fields.get("sized") == "1" else None
    return UploadPlan(int(fields["chunk_size"]), int(fields["part_size"]), size)


# ── the state ────────────────────────────────────────────────────────────────────────────


class UploadState:
    """What is known of one upload."""

    def __init__(self, record: SpaceRecord, upload_id: str, options: UploadsOptions) -> None:
        self._record, self._id = record, upload_id
        self._expiry = duration_ms("expiry", options.expiry)

    async def open(self, upload: Upload, parts: Mapping[int, PartEntry]) -> bool:
        """Make it from its row and the *parts* that the store has; False if it is there."""
        answer = await self._record.run(
            "open",
            generation=upload.generation,
            fields=_flat(state_hash(upload, parts)),
            facts=_flat(metadata_hash(upload)),
            bits=bits_of(upload.plan, parts),
            parts=[word for part, entry in parts.items() for word in (part, _packed(entry))],
            known=[word for pair in digests_of(upload.plan, parts).items() for word in pair],
            expiry=self._expiry,
        )
        return answer == b"opened"

    async def admit(self, numbers: range) -> list[Known]:
        """What is known of chunks that follow each other. Raises UploadUnknown."""
        found = await self._record.read("admit", number=numbers.start, count=len(numbers))
        if found is None:
            raise UploadUnknown
        word, generation, size, known = found
        status, total = Status(word.decode()), int(size) if size else None
        return [
            Known(status, bool(known[i]), known[i + 1], int(generation), total)
            for i in range(0, len(known), 2)
        ]

    async def front(self) -> Front:
        """How far it has come without a gap. Raises UploadUnknown."""
        found = await self._record.read("front")
        if found is None:
            raise UploadUnknown
        status, generation, chunk, size, updated = found
        known = int(size) if size else None
        return Front(Status(status.decode()), int(generation), int(chunk), known, int(updated))

    async def touch(self, part: int) -> None:
        """It was heard of, and *part* is begun."""
        await self._record.run("touch", part=part, expiry=self._expiry)

    async def put(
        self,
        chunks: Sequence[NewChunk],
        *,
        last: bool,
        most: int,
        durability: Durability | None = None,
    ) -> tuple[list[Put], Exception | None]:
        """Chunks whose bytes are staged count from now on; *last* is said of the last of them.

        Those that count, and why the next one does not: UploadUnknown, UploadEnded, UploadFailed,
        UploadGone, ChunkDiffers, ChunkInvalid, ChunkLost, LastChunkDiffers, UploadTooLarge.
        """
        replies: Sequence[Sequence[Any]] = await self._record.run(
            "put",
            durability=durability,
            items=[word for chunk in chunks for word in chunk],
            last=int(last),
            most=most,
            expiry=self._expiry,
        )
        puts: list[Put] = []
        for chunk, reply in zip(chunks, replies, strict=False):
            try:
                self._refuse(reply, chunk.number)
            except Exception as refusal:  # noqa: BLE001 -- whatever it is, those before it count
                return puts, refusal
            puts.append(_put(reply, chunk.token))
        return puts, None

    async def close(self, total: int) -> Closed:
        """It is known how many chunks there are. Raises what `put` answers."""
        return self._closed(await self._record.run("close", total=total), total - 1)

    async def size(self, size: int) -> Closed:
        """It is known how many bytes there will be. Raises what `put` answers."""
        return self._closed(await self._record.run("size", size=size), 0)

    def _closed(self, answer: Sequence[Any], number: int) -> Closed:
        self._refuse(answer, number)
        if answer[0] == b"last":
            return Closed(int(answer[1]), answer[2], None, 0, last=True)
        _, size, generation, part, turn = answer
        return Closed(int(size), generation, part if turn >= 0 else None, turn, last=False)

    async def note_multipart(self, generation: int, id: str) -> None:
        """The store has begun a multipart upload. Raises PartStale, UploadUnknown."""
        self._refuse(await self._record.run("begun", generation=generation, id=id), 0)

    async def take(self, generation: int, part: int, turn: int) -> TakenPart:
        """What a part is made of. Raises PartStale, UploadUnknown, UploadEnded, UploadGone."""
        answer = await self._record.read("take", generation=generation, part=part, turn=turn)
        self._refuse(answer, part)
        if answer[0] == b"stored":
            _, all_of_them, first, count = answer
            return TakenPart(first, count, (), bool(all_of_them))
        _, first, tokens = answer
        return TakenPart(first, len(tokens), [token.decode() for token in tokens], last=False)

    async def commit(self, generation: int, part: int, turn: int, entry: PartEntry) -> bool:
        """A part is in the store; whether all are now. Raises as `take` does."""
        answer = await self._record.run(
            "commit",
            generation=generation,
            part=part,
            turn=turn,
            entry=_packed(entry),
            size=entry.size,
        )
        self._refuse(answer, part)
        return answer[0] == b"last"

    async def lose(self, generation: int, gone: Mapping[int, str]) -> int:
        """Chunks whose bytes are gone are missing again; how many."""
        items = [word for pair in gone.items() for word in pair]
        return int(await self._record.run("lose", generation=generation, items=items))

    async def revive(self, generation: int) -> None:
        """An upload that has failed goes on with what is here. Raises UploadUnknown."""
        if await self._record.run("revive", generation=generation) != b"revived":
            raise UploadUnknown

    async def settle(
        self,
        generation: int,
        status: Status,
        fields: Mapping[str, str] | None = None,
        *,
        drop: bool = False,
    ) -> list[int]:
        """The upload has ended, as its row says; *drop* what is known of its chunks and parts.

        The parts that were begun.
        """
        flat = _flat(fields or {})
        answer = await self._record.run(
            "settle", generation=generation, status=status, fields=flat, drop=int(drop)
        )
        return [int(part) for part in answer[1]] if answer[0] == b"ok" else []

    async def look(self) -> tuple[dict[str, str], dict[str, str]]:
        """The fields of its state and of its metadata. Raises UploadUnknown."""
        state, metadata = await self._record.read("look")
        if not state:
            raise UploadUnknown
        return _texts(state), _texts(metadata)

    async def chart(self) -> UploadMap:
        """Which chunks and parts are where. Raises UploadUnknown."""
        state, bitmap, pending, fill, turns, etags = await self._record.read("chart")
        if not state:
            raise UploadUnknown
        return UploadMap(
            _texts(state),
            bitmap,
            {int(number): token for number, token in _texts(pending).items()},
            {int(part): int(count) for part, count in _texts(fill).items()},
            {int(part): int(turn) for part, turn in _texts(turns).items()},
            {int(part): _entry(entry) for part, entry in _pairs(etags)},
        )

    def _refuse(self, answer: Sequence[Any], number: int) -> None:
        word = answer[0].decode()
        match word:
            case "UPLOAD_UNKNOWN":
                raise UploadUnknown
            case "PART_STALE":
                raise PartStale
            case "UPLOAD_NOT_OPEN":
                raise not_open(self._id, Status(answer[1].decode()))
            case "CHUNK_DIFFERS":
                raise ChunkDiffers(self._id, number)
            case "CHUNK_LOST":
                raise ChunkLost(self._id, f"chunk {number}")
            case "CHUNK_LAST":
                raise LastChunkDiffers(self._id, number, int(answer[1]))
            case "CHUNK_LENGTH":
                raise ChunkInvalid(f"chunk {number}: its length is wrong")
            case "CHUNK_BEYOND":
                raise UploadTooLarge(f"chunk {number} comes after the last chunk", self._id)
            case _:
                pass


def require_current(generation: int | str, upload: Upload) -> None:
    """Raises UploadUnknown for a state that is older than the row of an upload under way.

    Whoever changed the row was cut off before it could tell Redis.
    """
    if upload.status.open and int(generation) < upload.generation:
        raise UploadUnknown


def not_open(upload_id: str, status: Status) -> UploadEnded | UploadGone:
    """Why an upload that has ended takes nothing more."""
    if status in (Status.ABORTED, Status.EXPIRED):
        return UploadGone(upload_id, status)
    return (UploadFailed if status is Status.FAILED else UploadEnded)(upload_id, status)


def _put(reply: Sequence[Any], token: str) -> Put:
    word, status, received, part, turn, generation, *before = reply
    return Put(
        duplicate=word == b"duplicate",
        status=Status(status.decode()),
        received=int(received),
        part=part,
        turn=turn if turn >= 0 else None,
        generation=generation,
        token=before[0].decode() if before else token,
    )


# ── words ────────────────────────────────────────────────────────────────────────────────


def _packed(entry: PartEntry) -> str:
    return msgspec.json.encode(entry).decode()


def _entry(packed: bytes) -> PartEntry:
    return msgspec.json.decode(packed, type=PartEntry)


def _flat(fields: Mapping[str, str | int]) -> list[str]:
    return [str(word) for pair in fields.items() for word in pair]


def _pairs(flat: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    return [(flat[i], flat[i + 1]) for i in range(0, len(flat), 2)]


def _texts(flat: Sequence[bytes]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in _pairs(flat)}
