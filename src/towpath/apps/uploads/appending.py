"""Append bytes in order, in requests of any size, as clients of tus send them.

The bytes of the incomplete chunk are staged in Redis under a token that every server can compute
(`tail_token`), and each piece is appended at its offset. So no server needs a lock: of two requests
that append at the same offset, one is refused. Whole chunks count like all others.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import NamedTuple, Protocol

import msgspec

from towpath.apps.uploads import tables
from towpath.apps.uploads.errors import (
    BodyDiffers,
    ChunkCut,
    ChunkLost,
    OffsetDiffers,
    UploadConflict,
    UploadEnded,
    UploadGone,
    UploadIncomplete,
    UploadNotFailed,
    UploadResumable,
    UploadTooLarge,
)
from towpath.apps.uploads.ingest import PendingWrite, in_pieces
from towpath.apps.uploads.model import FINAL, NewUpload, Status, Upload, UploadPlan
from towpath.apps.uploads.records import PIECE, NoRoom, tail_token
from towpath.apps.uploads.room import BodyRoom, refused
from towpath.apps.uploads.service import UploadService, View
from towpath.apps.uploads.states import CountedChunk, NewChunk, Progress, UploadUnknown, not_open
from towpath.apps.uploads.stores.port import Piece
from towpath.clock import steady, wall_ms
from towpath.errors import ServerError

_APPENDED_AT_ONCE = PIECE
"""Bytes in one call to Redis. Each such piece is kept, even if the body is cut after it."""
_LOOKS = 5
"""How often an upload is read again if it changes during a read."""
_ROOM_WITHIN = 20.0
"""Seconds that a request waits for room for its next part; its body is not read meanwhile."""
_LOOK_EVERY = 0.1
_TOUCH_EVERY = 60.0
"""Seconds after which a body in the middle of a chunk marks its upload as active."""


class Hash(Protocol):
    """An object that computes a checksum, such as those of hashlib."""

    def update(self, data: Piece, /) -> object: ...

    def digest(self) -> bytes: ...


class ExpectedDigest(msgspec.Struct, frozen=True):
    """The digest that a client announced for a body."""

    algorithm: str
    value: bytes
    new: Callable[[], Hash]


class UploadPosition(NamedTuple):
    """How many bytes of an upload were received in order."""

    upload: Upload
    status: Status
    offset: int | None
    """Bytes; None = the upload is being joined from other uploads."""
    size: int | None
    heard_of: int
    """When the upload was last active, in ms."""


class Appending:
    """Uploads whose bytes arrive in order."""

    def __init__(self, uploads: UploadService) -> None:
        self._uploads, self._lifecycle = uploads, uploads.lifecycle
        self.records, self._ingest = self._lifecycle.records, uploads.ingest
        self.options = uploads.options

    # ── looking ──────────────────────────────────────────────────────────────────────────

    async def look(self, upload_id: str) -> UploadPosition:
        """Returns the position. A failed upload is resumed: its client asks in order to continue.

        Raises UploadNotFound, UploadGone, StoreAway, and UploadResumable for an upload that fails
        again after each resume.
        """
        for _ in range(_LOOKS):
            # The upload failed or ended, or Redis lost it, since its row was read: read it again.
            with suppress(UploadEnded, UploadUnknown):
                return await self._read_position(upload_id)
        raise UploadResumable(upload_id, Status.FAILED)

    async def _read_position(self, upload_id: str) -> UploadPosition:
        upload = await self._lifecycle.row(upload_id)
        if upload.status is Status.FAILED:
            with suppress(UploadNotFailed):  # another request has resumed it meanwhile
                await self._uploads.resume(upload_id)
            upload = await self._lifecycle.row(upload_id)
        if upload.status is Status.COMPLETED:
            size = upload.final_size or 0
            return UploadPosition(upload, upload.status, size, size, wall_ms())
        if not upload.status.open:
            raise not_open(upload_id, upload.status)
        if upload.sources:
            return UploadPosition(upload, upload.status, None, upload.size, wall_ms())
        await self._uploads.missing(upload_id)  # notes chunks that lost their bytes
        progress, offset = await self._read_progress(upload.upload_id, upload.plan)
        return UploadPosition(upload, progress.status, offset, progress.size, progress.updated_at)

    async def _read_progress(
        self, upload_id: str, plan: UploadPlan, progress: Progress | None = None
    ) -> tuple[Progress, int]:
        """Returns the first missing chunk and the offset. Counts a chunk that is staged whole."""
        while True:
            progress = progress or await self.records.state(upload_id).progress()
            plan = sized(plan, progress)
            if plan.size is not None and progress.first_missing >= plan.most_chunks:
                return progress, plan.size
            length = chunk_length(plan, progress.first_missing)
            token = tail_token(progress.generation, progress.first_missing)
            staged = await self.records.chunks(upload_id).staged(token)
            if not progress.status.open or staged < length:
                return progress, progress.first_missing * plan.chunk_size + staged
            await self.count_chunk(upload_id, plan, progress.first_missing, token)
            progress = None

    async def count_chunk(
        self,
        upload_id: str,
        plan: UploadPlan,
        number: int,
        token: str,
        room: BodyRoom | None = None,
    ) -> CountedChunk:
        """Count a chunk whose bytes are staged under *token*. Raises as `Ingest.commit`."""
        total = plan.total_chunks
        [put] = await self._ingest.commit(
            upload_id,
            plan,
            [NewChunk(number, chunk_length(plan, number), b"", token)],
            room,
            last=None if total is None else total - 1,
            is_tail=True,
        )
        return put

    # ── sending ──────────────────────────────────────────────────────────────────────────

    async def append(
        self,
        upload_id: str,
        offset: int,
        body: AsyncIterator[bytes],
        *,
        holder: str,
        length: int | None = None,
        wanted: ExpectedDigest | None = None,
    ) -> int:
        """Append *body*; returns the new offset.

        If the body is cut, what arrived counts; with a checksum, all of the body counts or nothing.
        Raises UploadNotFound, UploadGone, UploadFailed, UploadJoined, OffsetDiffers,
        UploadTooLarge, BodyDiffers, ChunkCut, BudgetFull, ServerError.
        """
        room = BodyRoom(self.records, upload_id, holder)
        try:
            writing = await self._begin_writing(upload_id, offset, room, length)
        except UploadUnknown:
            await self._lifecycle.restore(upload_id)
            writing = await self._begin_writing(upload_id, offset, room, length)
        try:
            async with room.opened():
                if wanted is None:
                    if length != 0:
                        await writing.reserve_first()
                    await writing.write_all(body)
                else:
                    await self._append_verified(writing, body, wanted, length)
                await writing.rest()
        except (ChunkLost, UploadUnknown) as error:  # another request has appended
            now = (await self.look(upload_id)).offset or 0
            raise OffsetDiffers(upload_id, now, given=writing.offset) from error
        if writing.inside:
            self.records.body_ends.put(upload_id, (writing.progress.generation, writing.offset))
        return writing.offset

    async def _begin_writing(
        self, upload_id: str, offset: int, room: BodyRoom, length: int | None
    ) -> Writing:
        _, plan = await self._uploads.plan_of(upload_id)
        progress = await self.records.state(upload_id).progress()
        if not progress.status.open and progress.status is not Status.COMPLETED:
            raise not_open(upload_id, progress.status)
        known = self.records.body_ends.get(upload_id) == (progress.generation, offset)
        if not known or progress.first_missing != offset // plan.chunk_size:
            progress, here = await self._read_progress(upload_id, plan, progress)
            if offset != here:
                raise OffsetDiffers(upload_id, here, given=offset)
        plan = sized(plan, progress)
        if plan.size is not None and offset + (length or 0) > plan.size:
            raise UploadTooLarge(f"{offset + (length or 0)} bytes of {plan.size}", upload_id)
        return Writing(self, room, progress, upload_id, plan, offset=offset, length=length)

    async def _append_verified(
        self,
        writing: Writing,
        body: AsyncIterator[bytes],
        wanted: ExpectedDigest,
        length: int | None,
    ) -> None:
        """Append a body as a whole, and only if its checksum matches."""
        most = min(64 * PIECE, self.options.largest_part)
        if length is None or length > most:
            reason = f"a body with Upload-Checksum needs a Content-Length of at most {most} bytes"
            raise UploadTooLarge(reason, writing.upload_id)
        last = (writing.offset + length - 1) // writing.plan.chunk_size
        numbers = range(writing.number, last + 1) if length > PIECE else range(0)
        fork = await Fork.of(writing, numbers, writing.offset + length) if numbers else None
        if fork is None and length:
            await writing.reserve_first()
        await self._write_verified(writing, fork, body, wanted, length=length)

    async def _write_verified(
        self,
        writing: Writing,
        fork: Fork | None,
        body: AsyncIterator[bytes],
        wanted: ExpectedDigest,
        *,
        length: int,
    ) -> None:
        found, size, received = wanted.new(), 0, bytearray()
        try:
            async for piece in in_pieces(writing.room.watch(body), _APPENDED_AT_ONCE):
                size += len(piece)
                if size > length:
                    break
                await asyncio.to_thread(found.update, piece)
                if fork is None:
                    received += piece
                else:
                    await fork.write(piece)
            _require(writing.upload_id, wanted, found, size=size, length=length)
        except BaseException:
            if fork is not None:
                await asyncio.shield(fork.drop())
            raise
        if fork is None:
            await writing.write(bytes(received))
        else:
            await fork.count()

    # ── steps ────────────────────────────────────────────────────────────────────────────

    async def set_size(self, upload_id: str, size: int) -> None:
        """Set the size in bytes. Repeating the same size changes nothing.

        Raises UploadConflict, UploadTooLarge.
        """
        upload = await self._lifecycle.row(upload_id)
        plan = UploadPlan.of(size, upload.chunk_size, largest_part=self.options.largest_part)
        if plan.part_size > upload.part_size:
            raise UploadTooLarge(f"{size} bytes: give the length when it is created", upload_id)
        if upload.size not in (None, size):
            raise UploadConflict(upload_id, f"has {upload.size} bytes, not {size}")
        try:
            _, offset = await self._read_progress(upload_id, upload.plan)
        except UploadUnknown:
            await self._lifecycle.restore(upload_id)
            _, offset = await self._read_progress(upload_id, upload.plan)
        if offset > size:
            raise UploadConflict(upload_id, f"already has {offset} bytes, more than {size}")
        await self._lifecycle.ledger.write(tables.save_size(upload, size))
        closed = await self.records.state(upload_id).size(size)
        await self._lifecycle.submit_after_size(upload_id, closed)
        await self._read_progress(upload_id, plan)  # the last chunk may be whole now

    # ── joining ──────────────────────────────────────────────────────────────────────────

    async def join(
        self,
        new: NewUpload,
        pieces: Sequence[str],
        *,
        owner: str,
        idempotency_key: str | None = None,
    ) -> tuple[View, bool]:
        """Start an upload that is joined from partial uploads, whose bytes were all received.

        A repeat with the same *pieces* returns the same upload, even if they have ended since.
        Raises UploadNotFound, UploadConflict, UploadIncomplete, and as `start` does.
        """
        named = idempotency_key or f"join-{sha256(' '.join(pieces).encode()).hexdigest()}"
        before = await self._lifecycle.ledger.read(tables.read_by_key(owner, named))
        size = 0
        for id in pieces:
            piece = await self._lifecycle.row(id)
            if not piece.partial:
                raise UploadConflict(id, "is not a partial upload")
            if before is None:
                await self._require_whole(piece, self.options.bucket_of(new.drive))
            size += piece.size or 0
        new = msgspec.structs.replace(new, size=size, concat=f"{FINAL};{' '.join(pieces)}")
        return await self._uploads.start(new, owner=owner, idempotency_key=named)

    async def _require_whole(self, piece: Upload, bucket: str) -> None:
        if piece.bucket != bucket:
            raise UploadConflict(piece.upload_id, "is on another drive")
        if piece.status in (Status.ABORTED, Status.EXPIRED):
            raise UploadGone(piece.upload_id, piece.status)
        if piece.status is Status.FAILED:  # `look` resumes a failed upload
            piece = (await self.look(piece.upload_id)).upload
        if piece.status.open:
            chart = await self._uploads.chart(piece.upload_id)
            if chart.plan.size is None or chart.missing():
                raise UploadIncomplete(piece.upload_id, chart.missing())

    # ── ends ─────────────────────────────────────────────────────────────────────────────

    async def terminate(self, upload_id: str) -> None:
        """Abort an upload and delete its bytes; also a completed piece.

        Raises UploadNotFound, PieceInUse, and UploadConflict for a completed file: it is a document
        now, which its owner keeps.
        """
        await self._uploads.abort(upload_id, stored_piece=True)


# ── one body ──────────────────────────────────────────────────────────────────────────────


class Writing:
    """One request body that is being received, and its position."""

    def __init__(
        self,
        appending: Appending,
        room: BodyRoom,
        progress: Progress,
        upload_id: str,
        plan: UploadPlan,
        *,
        offset: int,
        length: int | None,
    ) -> None:
        self.appending, self.room, self.progress = appending, room, progress
        self.upload_id, self.plan, self.offset = upload_id, plan, offset
        records = appending.records
        self.chunks, self._state = records.chunks(upload_id), records.state(upload_id)
        self._start, self._end = offset, None if length is None else offset + length
        self._touched = steady()

    @property
    def number(self) -> int:
        """The chunk that the next byte belongs to."""
        return self.offset // self.plan.chunk_size

    @property
    def inside(self) -> int:
        """The position of the next byte in that chunk."""
        return self.offset % self.plan.chunk_size

    def token(self, number: int) -> str:
        return tail_token(self.progress.generation, number)

    async def reserve_first(self) -> None:
        """Reserve the part of the next byte before the body is read.

        Raises BudgetFull, ShareFull without waiting.
        """
        if chunk_length(self.plan, self.number) > self.inside:
            part = self.plan.part_of(self.number)
            await self.reserve({part: self._own_of(part)})

    async def write_all(self, body: AsyncIterator[bytes]) -> None:
        """Append *body*, each piece while the next one arrives. Raises as `write`."""
        before = PendingWrite()
        try:
            async for piece in in_pieces(self.room.watch(body), _APPENDED_AT_ONCE):
                await before.wait()
                before.start(self.write(piece))
            await before.wait()
        finally:
            await before.give_up()

    async def write(self, piece: Piece) -> None:
        """Append *piece*. Raises ChunkLost if another request has appended here."""
        at = 0
        while at < len(piece):
            number, inside = self.number, self.inside
            room = chunk_length(self.plan, number) - inside
            if room <= 0:
                raise UploadTooLarge(f"more than {self.offset} bytes", self.upload_id)
            part = self.plan.part_of(number)
            if not self.room.has(part):
                await self.reserve({part: self._own_of(part)}, waits=True)
            some = memoryview(piece)[at : at + room]
            await self._append(part, number, inside, some)
            at += len(some)
            self.offset += len(some)
            if len(some) == room:
                await self.count(number, self.token(number))
            elif steady() - self._touched > _TOUCH_EVERY:
                await self.touch(part)
                self._touched = steady()

    def _own_of(self, part: int) -> int:
        """How many bytes the body may still bring of *part*."""
        end = part * self.plan.part_size + self.plan.part_length(part)
        return max(min(end, self._end or end) - self.offset, 0)

    async def _append(self, part: int, number: int, inside: int, some: memoryview) -> None:
        self.room.keep(part, len(some))
        try:
            stays = self.appending.options.chunk_expiry
            await self.chunks.append(self.token(number), inside, some, stays=stays)
        except ChunkLost:
            self.room.keep(part, -len(some))
            raise

    async def rest(self) -> None:
        """After the body, keep the incomplete chunk for as long as the upload's other chunks.

        Raises ChunkLost if another request has sent that chunk meanwhile.
        """
        if not self.inside or self.offset == self.plan.size:
            return
        # If the chunk began before this body, the first append has compared the offset.
        if self.number * self.plan.chunk_size >= self._start:
            await self._require_missing()
        part, begun = self.plan.part_of(self.number), self.appending.records.begun_parts
        known = begun.get((self.upload_id, part)) == self.progress.generation
        if self.room.has(part) and not known:
            await asyncio.gather(self.touch(part), self.room.finish(part))
            begun.put((self.upload_id, part), self.progress.generation)

    async def _require_missing(self) -> None:
        """Require that the chunk in which the body ends is still the first missing one.

        Raises ChunkLost if it is not: no request would continue the staged bytes, so they are
        deleted. Raises UploadUnknown.
        """
        progress = await self._state.progress()
        if (progress.generation, progress.first_missing) != (self.progress.generation, self.number):
            await self.chunks.delete((), [self.token(self.number)])
            raise ChunkLost(self.upload_id, f"chunk {self.number}")

    async def count(self, number: int, token: str) -> None:
        """Count a chunk. Raises ChunkLost if the bytes of another request count for it."""
        put = await self.appending.count_chunk(self.upload_id, self.plan, number, token, self.room)
        if put.token not in (token, ""):
            raise ChunkLost(self.upload_id, f"chunk {number}")

    async def touch(self, part: int) -> None:
        """Note that the upload is active and that the part has begun."""
        await self._state.touch(part)

    async def reserve(
        self, parts: Mapping[int, int], *, stays: bool = True, waits: bool = False
    ) -> None:
        """Reserve room for *parts*; the values are the bytes of each that the body brings.

        With *waits*, it tries for some seconds. Raises BudgetFull, ShareFull.
        """
        until = steady() + (_ROOM_WITHIN if waits else 0.0)
        while True:
            refusal = await self._reserve_all(parts, stays=stays)
            if refusal is None:
                return
            if steady() >= until:
                raise refused(self.upload_id, refusal)
            await asyncio.sleep(_LOOK_EVERY)

    async def _reserve_all(self, parts: Mapping[int, int], *, stays: bool) -> NoRoom | None:
        """Reserve all or none, so that a waiting body holds no room that another needs."""
        reserved: list[int] = []
        for part, own in parts.items():
            extent = self.plan.part_length(part)
            refusal = await self.room.reserve(part, extent=extent, own=own, stays=stays)
            if refusal is not None:
                for other in reserved:
                    await self.room.finish(other)
                return refusal
            reserved.append(part)
        return None


class Fork:
    """A request body that is staged apart from the received bytes until its checksum matches."""

    def __init__(self, writing: Writing) -> None:
        self._writing, self._chunks = writing, writing.chunks
        self._name = secrets.token_hex(8)
        self._first, self._offset = writing.offset, writing.offset

    @classmethod
    async def of(cls, writing: Writing, numbers: range, end: int) -> Fork:
        """Create a fork with room for all chunks of *numbers*, up to the offset *end*.

        Raises BudgetFull, ChunkLost, and UploadTooLarge if the share can't ever hold the body.
        """
        plan, start, fork = writing.plan, numbers[0] * writing.plan.chunk_size, cls(writing)
        parts: dict[int, int] = {}
        for part in range(plan.part_of(numbers[0]), plan.part_of(numbers[-1]) + 1):
            first = part * plan.part_size
            parts[part] = min(first + plan.part_size, end) - max(first, start)
        # The received bytes of the first part need room as well as the fork.
        here = {
            plan.part_of(numbers[0]): writing.offset - plan.part_of(numbers[0]) * plan.part_size
        }
        need = sum(
            max(plan.part_length(part), here.get(part, 0) + own) for part, own in parts.items()
        )
        share = writing.appending.options.share
        if need > share:
            reason = f"a body with Upload-Checksum would need {need} bytes of room here"
            reason += f" and can have {share}: send at most {PIECE} bytes at a time"
            raise UploadTooLarge(reason, writing.upload_id)
        await writing.reserve(parts, stays=False)
        writing.room.tokens |= {fork._token(number) for number in numbers}
        if writing.inside:
            await fork._chunks.fork(
                writing.token(writing.number), writing.inside, fork._token(writing.number)
            )
        return fork

    def _token(self, number: int) -> str:
        return f"{self._name}-{number}"

    async def write(self, piece: Piece) -> None:
        size, at = self._writing.plan.chunk_size, 0
        while at < len(piece):
            number, inside = divmod(self._offset, size)
            some = memoryview(piece)[at : at + size - inside]
            await self._chunks.append(self._token(number), inside, some)
            at += len(some)
            self._offset += len(some)

    def _numbers(self) -> range:
        size = self._writing.plan.chunk_size
        return range(self._first // size, -(-self._offset // size))

    async def count(self) -> None:
        """Count the fork: its checksum matches. Raises ChunkLost if another request was first."""
        writing, size = self._writing, self._writing.plan.chunk_size
        for number in self._numbers():
            end = min((number + 1) * size, self._offset)
            part, more = writing.plan.part_of(number), end - writing.offset
            writing.room.keep(part, more)
            try:
                await self._count(number, end)
            except ChunkLost:
                writing.room.keep(part, -more)
                raise
            writing.offset = end

    async def _count(self, number: int, end: int) -> None:
        writing, start = self._writing, number * self._writing.plan.chunk_size
        if end - start == chunk_length(writing.plan, number):
            await writing.count(number, self._token(number))
        else:
            before = max(self._first - start, 0)
            await self._chunks.adopt(writing.token(number), before, self._token(number))
            await writing.touch(writing.plan.part_of(number))

    async def drop(self) -> None:
        """Delete the staged bytes."""
        try:
            await self._chunks.delete((), [self._token(number) for number in self._numbers()])
        except ServerError:
            return  # staged bytes expire


def sized(plan: UploadPlan, progress: Progress) -> UploadPlan:
    return msgspec.structs.replace(plan, size=progress.size) if progress.size is not None else plan


def chunk_length(plan: UploadPlan, number: int) -> int:
    """The bytes of a chunk; without a known size, its maximum."""
    length = plan.chunk_length(number)
    return plan.chunk_size if length is None else max(length, 0)


def _require(
    upload_id: str, wanted: ExpectedDigest, found: Hash, *, size: int, length: int
) -> None:
    """Raises ChunkCut for a body of another length, BodyDiffers for one of another digest."""
    if size != length:
        raise ChunkCut(f"{size} of {length} bytes came")
    if found.digest() != wanted.value:
        raise BodyDiffers(upload_id, wanted.algorithm)
