"""Append bytes in order, in requests of any size, as clients of tus send them.

The bytes of the incomplete chunk are staged in Redis under a token that every server can compute
(`tail_token`), and each piece is appended at its offset. So no server needs a lock: of two requests
that append at the same offset, one is refused. Whole chunks count like all others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
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
from towpath.apps.uploads.lifecycle import Work
from towpath.apps.uploads.model import FINAL, NewUpload, Status, Upload, UploadPlan
from towpath.apps.uploads.pieces import in_pieces
from towpath.apps.uploads.records import PIECE, tail_token
from towpath.apps.uploads.room import BodyRoom
from towpath.apps.uploads.service import UploadService, View
from towpath.apps.uploads.states import Closed, Front, UploadUnknown, not_open
from towpath.apps.uploads.stores.port import Piece
from towpath.apps.uploads.writing import (
    Fork,
    Start,
    Steps,
    Writing,
    chunk_length,
    sized,
)
from towpath.clock import wall_ms

_LOOKS = 5
"""How often an upload is read again if it changes during a read."""


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
        self._records, self._steps = self._lifecycle.records, Steps(self._lifecycle)
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
        front, offset = await self._read_front(upload.upload_id, upload.plan)
        return UploadPosition(upload, front.status, offset, front.size, front.updated_at)

    async def _read_front(
        self, upload_id: str, plan: UploadPlan, front: Front | None = None
    ) -> tuple[Front, int]:
        """Returns the first missing chunk and the offset. Counts a chunk that is staged whole."""
        while True:
            front = front or await self._records.state(upload_id).front()
            plan = sized(plan, front)
            if plan.size is not None and front.chunk >= plan.most_chunks:
                return front, plan.size
            length = chunk_length(plan, front.chunk)
            token = tail_token(front.generation, front.chunk)
            staged = await self._records.chunks(upload_id).staged(token)
            if not front.status.open or staged < length:
                return front, front.chunk * plan.chunk_size + staged
            await self._steps.count_chunk(upload_id, plan, front.chunk, token)
            front = None

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
        room = BodyRoom(self._records, upload_id, holder)
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
            self._records.ends.note(upload_id, writing.front.generation, writing.offset)
        return writing.offset

    async def _begin_writing(
        self, upload_id: str, offset: int, room: BodyRoom, length: int | None
    ) -> Writing:
        _, plan = await self._uploads.plan_of(upload_id)
        front = await self._records.state(upload_id).front()
        if not front.status.open and front.status is not Status.COMPLETED:
            raise not_open(upload_id, front.status)
        known = self._records.ends.knows(upload_id, front.generation, offset)
        if not known or front.chunk != offset // plan.chunk_size:
            front, here = await self._read_front(upload_id, plan, front)
            if offset != here:
                raise OffsetDiffers(upload_id, here, given=offset)
        plan = sized(plan, front)
        if plan.size is not None and offset + (length or 0) > plan.size:
            raise UploadTooLarge(f"{offset + (length or 0)} bytes of {plan.size}", upload_id)
        return Writing(self._steps, room, Start(upload_id, plan, front, offset, length))

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
            async for piece in in_pieces(writing.room.watch(body)):
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
            _, offset = await self._read_front(upload_id, upload.plan)
        except UploadUnknown:
            await self._lifecycle.restore(upload_id)
            _, offset = await self._read_front(upload_id, upload.plan)
        if offset > size:
            raise UploadConflict(upload_id, f"already has {offset} bytes, more than {size}")
        await self._lifecycle.ledger.write(tables.sized(upload, size))
        await self._follow_up(upload_id, await self._records.state(upload_id).size(size))
        await self._read_front(upload_id, plan)  # the last chunk may be whole now

    async def _follow_up(self, upload_id: str, closed: Closed) -> None:
        if closed.last:
            await self._lifecycle.submit(Work(upload_id, closed.generation))
        elif closed.part is not None:
            await self._lifecycle.submit(
                Work(upload_id, closed.generation, closed.part, closed.turn)
            )

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
        before = await self._lifecycle.ledger.read(tables.named(owner, named))
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
        if piece.status is Status.FAILED:  # resumes it, as it is needed
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
        upload = await self._lifecycle.row(upload_id)
        if upload.partial and upload.status is Status.COMPLETED:
            await self._uploads.require_unused(upload)
            await self._lifecycle.end(upload, Status.ABORTED)
            return
        await self._uploads.abort(upload_id)


def _require(
    upload_id: str, wanted: ExpectedDigest, found: Hash, *, size: int, length: int
) -> None:
    """Raises ChunkCut for a body of another length, BodyDiffers for one of another digest."""
    if size != length:
        raise ChunkCut(f"{size} of {length} bytes came")
    if found.digest() != wanted.value:
        raise BodyDiffers(upload_id, wanted.algorithm)
