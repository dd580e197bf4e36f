"""The state of an upload in Redis: the published hash, and which chunks and parts it has.

Each change is one script in `lua/`. A state that Redis has lost is rebuilt from the upload's row
and the object store's list of parts.
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
    """Redis has no current state of the upload; `Lifecycle.restore` rebuilds it from its row."""


class PartStale(Exception):
    """The part has a newer turn or generation: the work of this job for it has no effect."""


class KnownChunk(NamedTuple):
    """What Redis knows about a chunk before its body is read."""

    status: Status
    here: bool
    """Whether the chunk is in Redis or in the object store."""
    digest: bytes
    """The CRC-64/NVME of its bytes, even after they have expired; empty = not known."""
    generation: int
    size: int | None
    """The size of the upload; None = not known yet."""


class Progress(NamedTuple):
    """How far an upload has been received in order."""

    status: Status
    generation: int
    first_missing: int
    """The first missing chunk: all chunks before it were received."""
    size: int | None
    updated_at: int
    """When the upload was last active, in ms."""


class NewChunk(NamedTuple):
    """A chunk that was received and is to be counted."""

    number: int
    length: int
    digest: bytes
    """Its CRC-64/NVME; empty = it was not computed."""
    token: str
    """The staging token: Redis has its bytes under this name; empty = they are not staged."""


class CountedChunk(NamedTuple):
    """The outcome of counting a chunk."""

    duplicate: bool
    status: Status
    received: int
    part: int
    turn: int | None
    """The turn of the part (how often it has lost chunks), if it is whole now and not stored yet.
    """
    generation: int
    """The generation of the upload: grows with each resume and with each rebuild of its state."""
    token: str
    """The staging token of the bytes that count; empty = they are in the object store."""


class KnownSize(NamedTuple):
    """The size of an upload that was just set, and what it is ready for."""

    size: int
    generation: int
    part: int | None
    """The last part, if it is whole now and not stored yet."""
    turn: int
    last: bool
    """Whether all parts are stored, so that the upload can be completed."""


class TakenPart(NamedTuple):
    """The chunks of a part that is to be stored; or that it is stored already."""

    first: int
    chunks: int
    tokens: Sequence[str]
    """The staging token of each chunk; none = the part is stored."""
    last: bool
    """Whether all parts of the upload are stored."""


class UploadMap(NamedTuple):
    """The chunks and parts of an upload: received, pending, stored."""

    fields: Mapping[str, str]
    bitmap: bytes
    pending: Mapping[int, str]
    """Received chunks whose part is not stored yet, and their staging tokens."""
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
        """The missing chunks; without a known size, those before the highest received one."""
        plan = self.plan
        total = plan.total_chunks
        if total is None:
            total = int(self.fields.get("highest", -1)) + 1
        return gaps(self.bitmap, total, most=most)

    def missing_of_begun(self, most: int = _MOST_RANGES) -> list[Range]:
        """The missing chunks of parts that have begun; the budget keeps room for them."""
        plan = self.plan
        numbers = (number for part in sorted(self.fill) for number in plan.chunks_of(part))
        return ranges(number for number in numbers if not self._has(number))[:most]

    def whole_parts(self) -> list[tuple[int, int]]:
        """Parts whose chunks were all received and that are not stored yet, with their turns."""
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
    """The plan in the fields of a state hash."""
    size = int(fields["expected_size"]) if fields.get("sized") == "1" else None
    return UploadPlan(int(fields["chunk_size"]), int(fields["part_size"]), size)


# ── the state ────────────────────────────────────────────────────────────────────────────


class UploadState:
    """The state of one upload in Redis."""

    def __init__(self, record: SpaceRecord, upload_id: str, options: UploadsOptions) -> None:
        self._record, self._id = record, upload_id
        self._expiry = duration_ms("expiry", options.expiry)

    async def open(self, upload: Upload, parts: Mapping[int, PartEntry]) -> bool:
        """Create the state from the row and the stored *parts*.

        Returns False if Redis has a state of this generation or a later one.
        """
        answer = await self._record.run(
            "open",
            generation=upload.generation,
            fields=_flatten(state_hash(upload, parts)),
            facts=_flatten(metadata_hash(upload)),
            bits=bits_of(upload.plan, parts),
            parts=[word for part, entry in parts.items() for word in (part, _pack_entry(entry))],
            known=[word for pair in digests_of(upload.plan, parts).items() for word in pair],
            expiry=self._expiry,
        )
        return answer == b"opened"

    async def admit(self, numbers: range) -> list[KnownChunk]:
        """Returns what Redis knows about consecutive chunks. Raises UploadUnknown."""
        found = await self._record.read("admit", number=numbers.start, count=len(numbers))
        if found is None:
            raise UploadUnknown
        word, generation, size, known = found
        status, total = Status(word.decode()), int(size) if size else None
        return [
            KnownChunk(status, bool(known[i]), known[i + 1], int(generation), total)
            for i in range(0, len(known), 2)
        ]

    async def progress(self) -> Progress:
        """Returns the first missing chunk. Raises UploadUnknown."""
        found = await self._record.read("progress")
        if found is None:
            raise UploadUnknown
        status, generation, chunk, size, updated = found
        known = int(size) if size else None
        return Progress(Status(status.decode()), int(generation), int(chunk), known, int(updated))

    async def touch(self, part: int) -> None:
        """Note that the upload is active and that *part* has begun."""
        await self._record.run("touch", part=part, expiry=self._expiry)

    async def put(
        self,
        chunks: Sequence[NewChunk],
        *,
        last: bool,
        most: int,
        durability: Durability | None = None,
    ) -> tuple[list[CountedChunk], Exception | None]:
        """Count chunks whose bytes are staged; *last* = the last of them ends the file.

        Returns the chunks that count, and the error for the first one that does not: UploadUnknown,
        UploadEnded, UploadFailed, UploadGone, ChunkDiffers, ChunkInvalid, ChunkLost,
        LastChunkDiffers, UploadTooLarge.
        """
        replies: Sequence[Sequence[Any]] = await self._record.run(
            "put",
            durability=durability,
            items=[word for chunk in chunks for word in chunk],
            last=int(last),
            most=most,
            expiry=self._expiry,
        )
        puts: list[CountedChunk] = []
        for chunk, reply in zip(chunks, replies, strict=False):
            try:
                self._raise_refusal(reply, chunk.number)
            except Exception as refusal:  # noqa: BLE001 -- whatever it is, those before it count
                return puts, refusal
            puts.append(_parse_put(reply, chunk.token))
        return puts, None

    async def close(self, total: int) -> KnownSize:
        """Set the number of chunks. Raises the errors that `put` returns."""
        return self._parse_closed(await self._record.run("close", total=total), total - 1)

    async def size(self, size: int) -> KnownSize:
        """Set the size in bytes. Raises the errors that `put` returns."""
        return self._parse_closed(await self._record.run("size", size=size), 0)

    def _parse_closed(self, answer: Sequence[Any], number: int) -> KnownSize:
        self._raise_refusal(answer, number)
        if answer[0] == b"last":
            return KnownSize(int(answer[1]), answer[2], None, 0, last=True)
        _, size, generation, part, turn = answer
        return KnownSize(int(size), generation, part if turn >= 0 else None, turn, last=False)

    async def note_multipart(self, generation: int, id: str) -> None:
        """Publish the id of the multipart upload. Raises PartStale, UploadUnknown."""
        self._raise_refusal(
            await self._record.run("note_multipart", generation=generation, id=id), 0
        )

    async def take(self, generation: int, part: int, turn: int) -> TakenPart:
        """Returns the chunks of a part, to store it.

        Raises PartStale, UploadUnknown, UploadEnded, UploadGone.
        """
        answer = await self._record.read("take", generation=generation, part=part, turn=turn)
        self._raise_refusal(answer, part)
        if answer[0] == b"stored":
            _, all_of_them, first, count = answer
            return TakenPart(first, count, (), bool(all_of_them))
        _, first, tokens = answer
        return TakenPart(first, len(tokens), [token.decode() for token in tokens], last=False)

    async def note_part_stored(
        self, generation: int, part: int, turn: int, entry: PartEntry
    ) -> bool:
        """Note that a part is stored; returns whether all parts are. Raises as `take` does."""
        answer = await self._record.run(
            "note_part_stored",
            generation=generation,
            part=part,
            turn=turn,
            entry=_pack_entry(entry),
            size=entry.size,
        )
        self._raise_refusal(answer, part)
        return answer[0] == b"last"

    async def lose(self, generation: int, gone: Mapping[int, str]) -> int:
        """Note that the bytes of chunks are gone; returns how many are missing again."""
        items = [word for pair in gone.items() for word in pair]
        return int(await self._record.run("lose", generation=generation, items=items))

    async def revive(self, generation: int) -> None:
        """Continue a failed upload with its received chunks. Raises UploadUnknown."""
        if await self._record.run("revive", generation=generation) != b"revived":
            raise UploadUnknown

    async def end(
        self,
        generation: int,
        status: Status,
        fields: Mapping[str, str] | None = None,
        *,
        drop: bool = False,
    ) -> list[int]:
        """Note that the upload has ended, as its row says; *drop* = forget its chunks and parts.

        Returns the parts that had begun.
        """
        flat = _flatten(fields or {})
        answer = await self._record.run(
            "end_upload", generation=generation, status=status, fields=flat, drop=int(drop)
        )
        return [int(part) for part in answer[1]] if answer[0] == b"ok" else []

    async def look(self) -> tuple[dict[str, str], dict[str, str]]:
        """Returns the fields of the state and of the metadata. Raises UploadUnknown."""
        state, metadata = await self._record.read("fields")
        if not state:
            raise UploadUnknown
        return _decode_fields(state), _decode_fields(metadata)

    async def chart(self) -> UploadMap:
        """Returns all chunks and parts. Raises UploadUnknown."""
        state, bitmap, pending, fill, turns, etags = await self._record.read("chart")
        if not state:
            raise UploadUnknown
        return UploadMap(
            _decode_fields(state),
            bitmap,
            {int(number): token for number, token in _decode_fields(pending).items()},
            {int(part): int(count) for part, count in _decode_fields(fill).items()},
            {int(part): int(turn) for part, turn in _decode_fields(turns).items()},
            {int(part): _unpack_entry(entry) for part, entry in _pairs(etags)},
        )

    def _raise_refusal(self, answer: Sequence[Any], number: int) -> None:
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

    The process that changed the row stopped before it changed the state.
    """
    if upload.status.open and int(generation) < upload.generation:
        raise UploadUnknown


def not_open(upload_id: str, status: Status) -> UploadEnded | UploadGone:
    """The error for a request to an upload that has ended."""
    if status in (Status.ABORTED, Status.EXPIRED):
        return UploadGone(upload_id, status)
    return (UploadFailed if status is Status.FAILED else UploadEnded)(upload_id, status)


def _parse_put(reply: Sequence[Any], token: str) -> CountedChunk:
    word, status, received, part, turn, generation, *before = reply
    return CountedChunk(
        duplicate=word == b"duplicate",
        status=Status(status.decode()),
        received=int(received),
        part=part,
        turn=turn if turn >= 0 else None,
        generation=generation,
        token=before[0].decode() if before else token,
    )


# ── encoding ─────────────────────────────────────────────────────────────────────────────


def _pack_entry(entry: PartEntry) -> str:
    return msgspec.json.encode(entry).decode()


def _unpack_entry(packed: bytes) -> PartEntry:
    return msgspec.json.decode(packed, type=PartEntry)


def _flatten(fields: Mapping[str, str | int]) -> list[str]:
    return [str(word) for pair in fields.items() for word in pair]


def _pairs(flat: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    return [(flat[i], flat[i + 1]) for i in range(0, len(flat), 2)]


def _decode_fields(flat: Sequence[bytes]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in _pairs(flat)}
