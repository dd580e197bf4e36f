"""Writing a body: its bytes are appended to those received, or first staged beside them."""

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
"""Seconds that a body which has begun waits for the room of its next part, unread."""
_LOOK_EVERY = 0.1
_TOUCH_EVERY = 60.0
"""Seconds after which a slow body is a sign of life of its upload."""


class Steps:
    """What is done in Redis for bytes that come one behind the other."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._own, self._records = lifecycle, lifecycle.records
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
        """A chunk whose bytes are staged counts, and its part is stored if that is whole.

        False: it is here with bytes that came otherwise.
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
            await self._own.tell_chunk(upload_id, number, last=last)
        else:
            await self.chunks(upload_id).delete((), [token])
        if put.turn is not None:
            await self._own.submit(Work(upload_id, put.generation, put.part, put.turn))
        return put.token in (token, "")

    async def reserve(
        self,
        writing: Writing,
        parts: Mapping[int, int],
        *,
        stays: bool = True,
        waits: bool = False,
    ) -> None:
        """Room for all of these parts: of each the bytes that the body brings.

        A body that has begun *waits* for it. Raises BudgetFull, ShareFull.
        """
        until = steady() + (_ROOM_WITHIN if waits else 0.0)
        while True:
            refusal = await self._reserved(writing, parts, stays=stays)
            if refusal is None:
                return
            if steady() >= until:
                raise refused(writing.upload_id, refusal)
            await asyncio.sleep(_LOOK_EVERY)

    async def _reserved(
        self, writing: Writing, parts: Mapping[int, int], *, stays: bool
    ) -> NoRoom | None:
        """Room for all or for none: who waits keeps nobody waiting."""
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
        """The upload was heard of, and the part is begun."""
        await self._records.state(upload_id).touch(part)

    async def require_missing(self, writing: Writing) -> None:
        """The chunk in which the body ends is not here yet: so somebody goes on with its bytes.

        Raises ChunkLost, UploadUnknown.
        """
        front = await self._records.state(writing.upload_id).front()
        if (front.generation, front.chunk) != (writing.front.generation, writing.number):
            await self.chunks(writing.upload_id).delete((), [writing.token(writing.number)])
            raise ChunkLost(writing.upload_id, f"chunk {writing.number}")

    async def append(self, upload_id: str, token: str, offset: int, piece: memoryview) -> None:
        """Put *piece* behind what has come of a chunk. Raises ChunkLost if that ends elsewhere."""
        stays = self._own.options.chunk_expiry
        await self.chunks(upload_id).append(token, offset, piece, stays=stays)

    def chunks(self, upload_id: str) -> Chunks:
        return self._records.chunks(upload_id)

    async def count(self, writing: Writing, number: int, token: str) -> None:
        """Raises ChunkLost if it came otherwise."""
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
    """Of the body; None = it does not say."""


class Writing:
    """One body that is being received: how far it is."""

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
        """Where in that chunk."""
        return self.offset % self.plan.chunk_size

    def token(self, number: int) -> str:
        return tail_token(self.front.generation, number)

    async def reserve_first(self) -> None:
        """Room for the part that the next byte belongs to, before anything of the body is read.

        Raises BudgetFull, ShareFull at once.
        """
        if chunk_length(self.plan, self.number) > self.inside:
            part = self.plan.part_of(self.number)
            await self.own.reserve(self, {part: self._own_of(part)})

    async def write_all(self, body: AsyncIterator[bytes]) -> None:
        """Put *body* behind what is here, a piece while the next one comes. Raises as `write`."""
        before = Before()
        try:
            async for piece in in_pieces(self.room.watch(body)):
                await before.done()
                before.start(self.write(piece))
            await before.done()
        finally:
            await before.give_up()

    async def write(self, piece: Piece) -> None:
        """Put *piece* behind what is here. Raises ChunkLost if another did before."""
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
        """The body has ended: what is not whole stays for as long as its upload's chunks.

        Raises ChunkLost if that has come otherwise since the body began.
        """
        if not self.inside or self.offset == self.plan.size:
            return
        if self.number * self.plan.chunk_size >= self._start:  # else an append has compared it
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
    """A body that is staged beside the received bytes until its checksum matches."""

    def __init__(self, writing: Writing) -> None:
        self._writing, self._chunks = writing, writing.own.chunks(writing.upload_id)
        self._name = secrets.token_hex(8)
        self._first, self._offset = writing.offset, writing.offset

    @classmethod
    async def of(cls, writing: Writing, numbers: range, end: int) -> Fork:
        """With room for all of these chunks, up to the offset *end*.

        Raises BudgetFull, ChunkLost, and UploadTooLarge if they never had enough room.
        """
        plan, start, fork = writing.plan, numbers[0] * writing.plan.chunk_size, cls(writing)
        parts: dict[int, int] = {}
        for part in range(plan.part_of(numbers[0]), plan.part_of(numbers[-1]) + 1):
            first = part * plan.part_size
            parts[part] = min(first + plan.part_size, end) - max(first, start)
        # What is here of the first part stays while the fork has a copy of it.
        here = {
            plan.part_of(numbers[0]): writing.offset - plan.part_of(numbers[0]) * plan.part_size
        }
        need = sum(
            max(plan.part_length(part), here.get(part, 0) + own) for part, own in parts.items()
        )
        if need > writing.own.share:
            told = f"a body with Upload-Checksum would need {need} bytes of room here"
            told += f" and can have {writing.own.share}: send at most {PIECE} bytes at a time"
            raise UploadTooLarge(told, writing.upload_id)
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
        """All of it is what it should be. Raises ChunkLost if another came first."""
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
        """None of it counts."""
        try:
            await self._chunks.delete((), [self._token(number) for number in self._numbers()])
        except ServerError:
            return  # it expires


def sized(plan: UploadPlan, front: Front) -> UploadPlan:
    return msgspec.structs.replace(plan, size=front.size) if front.size is not None else plan


def chunk_length(plan: UploadPlan, number: int) -> int:
    """How many bytes a chunk has; without a size, at most."""
    length = plan.chunk_length(number)
    return plan.chunk_size if length is None else max(length, 0)
