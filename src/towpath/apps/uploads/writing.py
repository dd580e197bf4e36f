"""Writing a body: its bytes are appended to those received, or first staged beside them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple

import msgspec

from towpath.apps.uploads.errors import BudgetFull, ChunkLost, UploadTooLarge
from towpath.apps.uploads.lifecycle import Lifecycle, Work
from towpath.apps.uploads.model import UploadPlan
from towpath.apps.uploads.pieces import ASK_EVERY, Before, in_pieces, with_room
from towpath.apps.uploads.records import Chunks, NoRoom, renewed_parts, tail_token
from towpath.apps.uploads.states import Front, NewChunk
from towpath.apps.uploads.stores.port import Piece
from towpath.clock import steady
from towpath.errors import ServerError

_ROOM_WITHIN = 20.0
"""Seconds that a body which has begun waits for the room of its next part, unread."""
_LOOK_EVERY = 0.1
_RETRY_AFTER = 1


class Steps:
    """What is done in Redis for bytes that come one behind the other."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._own, self._records = lifecycle, lifecycle.records
        self.kept = lifecycle.records.kept

    async def count_chunk(self, upload_id: str, plan: UploadPlan, number: int, token: str) -> bool:
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
            (gone, renewed), _ = await asyncio.gather(
                self._records.chunks(upload_id).place({number: token}, put.generation),
                budget.renew(upload_id, [put.part]),
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
        self, writing: Writing, rooms: Mapping[int | str, int], *, waits: bool = False
    ) -> None:
        """Room for all of these parts, and for a body beside another one. Of each its size.

        A body that has begun *waits* for it. Raises BudgetFull.
        """
        until = steady() + (_ROOM_WITHIN if waits else 0.0)
        while True:
            refusal = await self._reserved(writing, rooms)
            if refusal is None:
                return
            if steady() >= until:
                # Also for a full share: clients of tus give up at 429, and try again at 503.
                what = (
                    "the chunks of this key use half of the budget"
                    if refusal.share
                    else "the budget has no room for another part"
                )
                raise BudgetFull(writing.upload_id, (), after=_RETRY_AFTER, what=what)
            await asyncio.sleep(_LOOK_EVERY)

    async def _reserved(self, writing: Writing, rooms: Mapping[int | str, int]) -> NoRoom | None:
        """Room for all, or for none but the one that is begun: who waits keeps nobody waiting."""
        budget, got = self._records.budget, list[int | str]()
        for part, size in rooms.items():
            refusal = await budget.reserve(
                writing.upload_id, part, holder=writing.holder, size=size
            )
            if refusal is not None:
                begun = writing.plan.part_of(writing.number) if writing.inside else -1
                # With room beside them, the parts are those of a body that is on its way.
                beside = [room for room in got if isinstance(room, str)]
                rest = beside or [part for part in got if part != begun]
                await budget.release(writing.upload_id, rest)
                return refusal
            got.append(part)
        return None

    async def keep(self, upload_id: str, part: int) -> None:
        """The part is begun, and has its room for as long as its bytes are here."""
        state, budget = self._records.state(upload_id), self._records.budget
        await asyncio.gather(state.touch(part), budget.renew(upload_id, [part]))

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
        if not await self.count_chunk(writing.upload_id, writing.plan, number, token):
            raise ChunkLost(writing.upload_id, f"chunk {number}")


class Start(NamedTuple):
    """Where a body begins."""

    upload_id: str
    plan: UploadPlan
    front: Front
    offset: int
    holder: str


class Writing:
    """One body that is being received: how far it is, and which part has room."""

    def __init__(self, own: Steps, start: Start) -> None:
        self.own = own
        self.upload_id, self.plan, self.front, self.offset, self.holder = start
        self._start = start.offset
        self._reserved: int | None = None
        self._kept = steady()

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

        Raises BudgetFull at once.
        """
        if chunk_length(self.plan, self.number) > self.inside:
            await self._reserve(self.plan.part_of(self.number), waits=False)

    async def _reserve(self, part: int, *, waits: bool) -> None:
        if not self.own.kept.knows(self.upload_id, self.front.generation, part):
            await self.own.reserve(self, {part: self.plan.part_length(part)}, waits=waits)
        self._reserved = part

    async def write_all(self, body: AsyncIterator[bytes]) -> None:
        """Put *body* behind what is here, a piece while the next one comes. Raises as `write`."""
        before = Before()
        try:
            async for piece in in_pieces(with_room(body, self._ask_again)):
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
            if self._reserved != part:
                await self._reserve(part, waits=True)
            some = memoryview(piece)[at : at + room]
            await self.own.append(self.upload_id, self.token(number), inside, some)
            at += len(some)
            self.offset += len(some)
            if len(some) == room:
                await self.own.count(self, number, self.token(number))
            elif steady() - self._kept > ASK_EVERY:
                await self.own.keep(self.upload_id, part)
                self._kept = steady()

    async def _ask_again(self) -> None:
        if (part := self._reserved) is not None:
            await self.own.reserve(self, {part: self.plan.part_length(part)}, waits=True)

    async def rest(self) -> None:
        """The body has ended: what is not whole stays for as long as its upload's chunks.

        Raises ChunkLost if that has come otherwise since the body began.
        """
        if not self.inside or self.offset == self.plan.size:
            return
        if self.number * self.plan.chunk_size >= self._start:  # else an append has compared it
            await self.own.require_missing(self)
        part, kept, generation = self._reserved, self.own.kept, self.front.generation
        if part is None or kept.knows(self.upload_id, generation, part):
            return
        await self.own.keep(self.upload_id, part)
        kept.note(self.upload_id, generation, part)


class Fork:
    """A body that is staged beside the received bytes until its checksum matches."""

    def __init__(self, writing: Writing, rooms: Mapping[int | str, int]) -> None:
        self._writing, self._chunks = writing, writing.own.chunks(writing.upload_id)
        self._name, self._rooms = secrets.token_hex(8), rooms
        self._first, self._offset = writing.offset, writing.offset

    @classmethod
    async def of(cls, writing: Writing, numbers: range, beside: str) -> Fork:
        """With room for all of these chunks, and *beside* for their parts if others have that.

        Raises BudgetFull, ChunkLost.
        """
        plan, rooms = writing.plan, dict[int | str, int]()
        if beside:
            rooms[beside] = len(numbers) * plan.chunk_size
        for part in range(plan.part_of(numbers[0]), plan.part_of(numbers[-1]) + 1):
            rooms[part] = plan.part_length(part)
        fork = cls(writing, rooms)
        await fork.reserve()
        if writing.inside:
            await fork._chunks.fork(
                writing.token(writing.number), writing.inside, fork._token(writing.number)
            )
        return fork

    async def reserve(self) -> None:
        """Room for all of it, or for longer. Raises BudgetFull."""
        await self._writing.own.reserve(self._writing, self._rooms)

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
            if end - number * size == chunk_length(writing.plan, number):
                await writing.own.count(writing, number, self._token(number))
            else:
                before = max(self._first - number * size, 0)
                await self._chunks.adopt(writing.token(number), before, self._token(number))
                await writing.own.keep(writing.upload_id, writing.plan.part_of(number))
            writing.offset = end

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
