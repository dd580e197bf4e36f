"""Write a request body: append it to the received bytes, or stage it until its checksum matches."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple

import msgspec

from towpath.apps.uploads.errors import ChunkLost, UploadTooLarge
from towpath.apps.uploads.lifecycle import Lifecycle, Work
from towpath.apps.uploads.model import UploadPlan
from towpath.apps.uploads.pieces import Before, in_pieces
from towpath.apps.uploads.records import PIECE, Chunks, NoRoom, renewed_parts, tail_token
from towpath.apps.uploads.room import BodyRoom, refused
from towpath.apps.uploads.states import Front, NewChunk
from towpath.apps.uploads.stores.port import Piece
from towpath.clock import steady
from towpath.errors import ServerError

_ROOM_WITHIN = 20.0
"""Seconds that a request waits for room for its next part; its body is not read meanwhile."""
_LOOK_EVERY = 0.1
_TOUCH_EVERY = 60.0
"""Seconds after which a body in the middle of a chunk marks its upload as active."""


class Steps:
    """The operations in Redis for bytes that arrive in order."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle, self._records = lifecycle, lifecycle.records
        self.kept = lifecycle.records.kept
        self.share = lifecycle.options.share

    async def count_chunk(
        self,
        upload_id: str,
        plan: UploadPlan,
        number: int,
        token: str,
        room: BodyRoom | None = None,
    ) -> bool:
        """Count a chunk whose bytes are staged, and submit the job of its part if that is whole.

        Returns False if the bytes of another request count for this chunk.
        """
        state = self._records.state(upload_id)
        chunk = NewChunk(number, chunk_length(plan, number), b"", token)
        puts, refusal = await state.put([chunk], last=False, most=plan.most_chunks)
        if refusal is not None:
            raise refusal
        put = puts[0]
        if put.token == token:
            budget = self._records.budget
            whole = room is not None and put.turn is not None
            (gone, renewed), _ = await asyncio.gather(
                self._records.chunks(upload_id).place({number: token}, put.generation),
                room.finish(put.part) if room and whole else budget.renew(upload_id, [put.part]),
            )
            if renewed:
                await budget.renew(upload_id, renewed_parts(plan, renewed))
            if gone and await state.lose(put.generation, {number: token}):
                raise ChunkLost(upload_id, f"chunk {number}")
            last = number + 1 == plan.total_chunks
            await self._lifecycle.tell_chunk(upload_id, number, last=last)
        else:
            await self.chunks(upload_id).delete((), [token])
        if put.turn is not None:
            await self._lifecycle.submit(Work(upload_id, put.generation, put.part, put.turn))
        return put.token in (token, "")

    async def reserve(
        self,
        writing: Writing,
        parts: Mapping[int, int],
        *,
        stays: bool = True,
        waits: bool = False,
    ) -> None:
        """Reserve room for *parts*; the values are the bytes of each that the body brings.

        With *waits*, it tries for some seconds. Raises BudgetFull, ShareFull.
        """
        until = steady() + (_ROOM_WITHIN if waits else 0.0)
        while True:
            refusal = await self._reserve_all(writing, parts, stays=stays)
            if refusal is None:
                return
            if steady() >= until:
                raise refused(writing.upload_id, refusal)
            await asyncio.sleep(_LOOK_EVERY)

    async def _reserve_all(
        self, writing: Writing, parts: Mapping[int, int], *, stays: bool
    ) -> NoRoom | None:
        """Reserve all or none, so that a waiting body holds no room that another needs."""
        room, got = writing.room, list[int]()
        for part, own in parts.items():
            extent = writing.plan.part_length(part)
            refusal = await room.reserve(part, extent=extent, own=own, stays=stays)
            if refusal is not None:
                for other in got:
                    await room.finish(other)
                return refusal
            got.append(part)
        return None

    async def touch(self, upload_id: str, part: int) -> None:
        """Note that the upload is active and that the part has begun."""
        await self._records.state(upload_id).touch(part)

    async def require_missing(self, writing: Writing) -> None:
        """Require that the chunk in which the body ends is still the first missing one.

        Raises ChunkLost if it is not: no request would continue the staged bytes, so they are
        deleted. Raises UploadUnknown.
        """
        front = await self._records.state(writing.upload_id).front()
        if (front.generation, front.chunk) != (writing.front.generation, writing.number):
            await self.chunks(writing.upload_id).delete((), [writing.token(writing.number)])
            raise ChunkLost(writing.upload_id, f"chunk {writing.number}")

    async def append(self, upload_id: str, token: str, offset: int, piece: memoryview) -> None:
        """Append *piece* to a chunk at *offset*. Raises ChunkLost if its bytes end elsewhere."""
        stays = self._lifecycle.options.chunk_expiry
        await self.chunks(upload_id).append(token, offset, piece, stays=stays)

    def chunks(self, upload_id: str) -> Chunks:
        return self._records.chunks(upload_id)

    async def count(self, writing: Writing, number: int, token: str) -> None:
        """Count a chunk. Raises ChunkLost if the bytes of another request count for it."""
        id, plan = writing.upload_id, writing.plan
        if not await self.count_chunk(id, plan, number, token, writing.room):
            raise ChunkLost(writing.upload_id, f"chunk {number}")


class Start(NamedTuple):
    """Where a body begins."""

    upload_id: str
    plan: UploadPlan
    front: Front
    offset: int
    length: int | None
    """The length of the body; None = not announced."""


class Writing:
    """One request body that is being received, and its position."""

    def __init__(self, own: Steps, room: BodyRoom, start: Start) -> None:
        self.own, self.room = own, room
        self.upload_id, self.plan, self.front, self.offset, length = start
        self._start, self._end = start.offset, None if length is None else start.offset + length
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
        return tail_token(self.front.generation, number)

    async def reserve_first(self) -> None:
        """Reserve the part of the next byte before the body is read.

        Raises BudgetFull, ShareFull without waiting.
        """
        if chunk_length(self.plan, self.number) > self.inside:
            part = self.plan.part_of(self.number)
            await self.own.reserve(self, {part: self._own_of(part)})

    async def write_all(self, body: AsyncIterator[bytes]) -> None:
        """Append *body*, each piece while the next one arrives. Raises as `write`."""
        before = Before()
        try:
            async for piece in in_pieces(self.room.watch(body)):
                await before.done()
                before.start(self.write(piece))
            await before.done()
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
                await self.own.reserve(self, {part: self._own_of(part)}, waits=True)
            some = memoryview(piece)[at : at + room]
            await self._append(part, number, inside, some)
            at += len(some)
            self.offset += len(some)
            if len(some) == room:
                await self.own.count(self, number, self.token(number))
            elif steady() - self._touched > _TOUCH_EVERY:
                await self.own.touch(self.upload_id, part)
                self._touched = steady()

    def _own_of(self, part: int) -> int:
        """How many bytes the body may still bring of *part*."""
        end = part * self.plan.part_size + self.plan.part_length(part)
        return max(min(end, self._end or end) - self.offset, 0)

    async def _append(self, part: int, number: int, inside: int, some: memoryview) -> None:
        self.room.keep(part, len(some))
        try:
            await self.own.append(self.upload_id, self.token(number), inside, some)
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
            await self.own.require_missing(self)
        part, kept, generation = (
            self.plan.part_of(self.number),
            self.own.kept,
            self.front.generation,
        )
        if self.room.has(part) and not kept.knows(self.upload_id, generation, part):
            await asyncio.gather(self.own.touch(self.upload_id, part), self.room.finish(part))
            kept.note(self.upload_id, generation, part)


class Fork:
    """A request body that is staged apart from the received bytes until its checksum matches."""

    def __init__(self, writing: Writing) -> None:
        self._writing, self._chunks = writing, writing.own.chunks(writing.upload_id)
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
        if need > writing.own.share:
            reason = f"a body with Upload-Checksum would need {need} bytes of room here"
            reason += f" and can have {writing.own.share}: send at most {PIECE} bytes at a time"
            raise UploadTooLarge(reason, writing.upload_id)
        await writing.own.reserve(writing, parts, stays=False)
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
            await writing.own.count(writing, number, self._token(number))
        else:
            before = max(self._first - start, 0)
            await self._chunks.adopt(writing.token(number), before, self._token(number))
            await writing.own.touch(writing.upload_id, writing.plan.part_of(number))

    async def drop(self) -> None:
        """Delete the staged bytes."""
        try:
            await self._chunks.delete((), [self._token(number) for number in self._numbers()])
        except ServerError:
            return  # staged bytes expire


def sized(plan: UploadPlan, front: Front) -> UploadPlan:
    return msgspec.structs.replace(plan, size=front.size) if front.size is not None else plan


def chunk_length(plan: UploadPlan, number: int) -> int:
    """The bytes of a chunk; without a known size, its maximum."""
    length = plan.chunk_length(number)
    return plan.chunk_size if length is None else max(length, 0)
