"""Receive several small consecutive chunks in one request, which saves the cost of more requests.

All chunks belong to one part, so room for all of them is reserved before the body is read. Chunks
count after each MiB: if the body is cut, those that arrived whole count.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from itertools import count as numbers_from

import msgspec

from towpath.apps.uploads.digests import Digesting
from towpath.apps.uploads.errors import ChunkCut, ChunkInvalid, ChunkLost
from towpath.apps.uploads.lifecycle import Lifecycle
from towpath.apps.uploads.model import UploadPlan
from towpath.apps.uploads.pieces import Before, in_pieces
from towpath.apps.uploads.receiving import REFUSED, Incoming, Receiving, check_number
from towpath.apps.uploads.records import PIECE
from towpath.apps.uploads.room import BodyRoom
from towpath.apps.uploads.states import Known, NewChunk, Put, UploadUnknown, not_open


class Run:
    """The chunks of one request."""

    def __init__(
        self, own: Lifecycle, receiving: Receiving, first: Incoming, numbers: range
    ) -> None:
        self._lifecycle, self._receiving, self._incoming = own, receiving, first
        self._numbers, self._id = numbers, first.upload_id
        self._puts: list[Put] = []
        self._room = BodyRoom(own.records, first.upload_id, first.holder)

    async def receive(self, body: AsyncIterator[bytes], plan: UploadPlan) -> Put:
        """Receive and count all chunks; returns the last one's outcome, a duplicate if all are.

        Raises UploadUnknown, and the error for a refused chunk; the chunks before it count.
        """
        self._check_numbers(plan)
        known = await self._lifecycle.records.state(self._id).admit(self._numbers)
        if known[0].size is not None and plan.size is None:
            plan = msgspec.structs.replace(plan, size=known[0].size)
            self._check_numbers(plan)
        self._check(plan)
        before = dict(zip(self._numbers, known, strict=True))
        async with self._room.opened():
            if new := [number for number, chunk in before.items() if not chunk.here]:
                if not known[0].status.open:
                    raise not_open(self._id, known[0].status)
                size = sum(plan.chunk_length(number) or 0 for number in new)
                await self._receiving.reserve(self._room, self._incoming, plan, run=size)
            await self._read(self._room.watch(body), plan, before)
        duplicate = all(put.duplicate for put in self._puts)
        return self._puts[-1]._replace(duplicate=duplicate)

    def _check_numbers(self, plan: UploadPlan) -> None:
        """Raises ChunkInvalid, UploadTooLarge, LastChunkDiffers."""
        check_number(msgspec.structs.replace(self._incoming, last=False), plan)
        check_number(msgspec.structs.replace(self._incoming, number=self._numbers[-1]), plan)

    def _check(self, plan: UploadPlan) -> None:
        """Raises ChunkInvalid if these chunks can't be sent in one request."""
        first, last = self._numbers[0], self._numbers[-1]
        which = f"chunks {first} to {last}"
        if plan.size is None:
            raise ChunkInvalid(f"{which}: send them one by one, as the upload has no size")
        if plan.chunk_size > PIECE:
            raise ChunkInvalid(f"{which}: send them one by one, as they are larger than 1 MiB")
        if plan.part_of(first) != plan.part_of(last):
            raise ChunkInvalid(f"{which}: all chunks must belong to one part (see `part_size`)")
        if self._incoming.digest is not None:
            raise ChunkInvalid(f"{which}: Content-Digest is checked for one chunk per request")
        wanted = self._length(plan)
        if self._incoming.length is not None and self._incoming.length != wanted:
            raise ChunkInvalid(f"{which}: {self._incoming.length} bytes, not {wanted}")

    def _length(self, plan: UploadPlan) -> int:
        return sum(plan.chunk_length(number) or 0 for number in self._numbers)

    async def _read(
        self, body: AsyncIterator[bytes], plan: UploadPlan, known: dict[int, Known]
    ) -> None:
        """Count the chunks of one MiB while those of the next MiB arrive."""
        before, size, came = Before(), plan.chunk_size, 0
        wanted, number = self._length(plan), self._numbers[0]
        try:
            async for piece in in_pieces(body, PIECE // size * size):
                came += len(piece)
                if came > wanted:
                    reason = f"the body has more bytes than {len(self._numbers)} chunks"
                    raise ChunkInvalid(f"chunk {self._numbers[-1] + 1}: {reason}")
                whole = len(piece) if came == wanted else len(piece) // size * size
                chunks = [piece[at : at + size] for at in range(0, whole, size)]
                await before.done()
                if chunks:
                    before.start(self._count(dict(zip(numbers_from(number), chunks)), plan, known))
                    number += len(chunks)
            await before.done()
        finally:
            await before.give_up()
        if came < wanted:
            raise ChunkCut(f"chunk {number}: {came} of {wanted} bytes came")

    async def _count(
        self, chunks: dict[int, bytes], plan: UploadPlan, known: dict[int, Known]
    ) -> None:
        """Count chunks. Raises the error for a refused one after the ones before it are placed."""
        new = [await _new_chunk(number, data, known[number]) for number, data in chunks.items()]
        tokens = [chunk.token for chunk in new if chunk.token]
        state, staging = (
            self._lifecycle.records.state(self._id),
            self._lifecycle.records.chunks(self._id),
        )
        size = sum(chunk.length for chunk in new if chunk.token)
        try:
            await self._stage(new, chunks)
        except BaseException:
            await asyncio.shield(self._receiving.drop(staging, *tokens))
            raise
        self._room.keep(plan.part_of(new[0].number), size)
        try:
            puts, refusal = await state.put(
                new,
                last=self._incoming.last and new[-1].number == self._numbers[-1],
                most=plan.most_chunks,
                durability=self._incoming.durability,
            )
        except REFUSED:
            self._room.keep(plan.part_of(new[0].number), -size)
            await self._receiving.drop(staging, *tokens)
            raise
        await self._place_counted(new, puts, plan)
        if isinstance(refusal, UploadUnknown):
            raise ChunkLost(self._id, f"chunk {new[len(puts)].number}") from refusal
        if refusal is not None:
            raise refusal

    async def _stage(self, new: Sequence[NewChunk], chunks: dict[int, bytes]) -> None:
        stage = self._lifecycle.records.chunks(self._id).stage
        sent = (stage(chunk.token, 0, chunks[chunk.number]) for chunk in new if chunk.token)
        # Wait for all: after a failure they are deleted, and a late write would come after that.
        for failure in await asyncio.gather(*sent, return_exceptions=True):
            if failure is not None:
                raise failure

    async def _place_counted(
        self, new: Sequence[NewChunk], puts: Sequence[Put], plan: UploadPlan
    ) -> None:
        """Place bytes that count, delete others, submit the job of the part if that is whole."""
        self._puts += puts
        counted = {chunk.number: put.token for chunk, put in zip(new, puts, strict=False)}
        ours = [chunk for chunk in new if chunk.token and counted.get(chunk.number) == chunk.token]
        left = [chunk for chunk in new if chunk.token and chunk not in ours]
        part = plan.part_of(new[0].number)
        if left:
            self._room.keep(part, -sum(chunk.length for chunk in left))
            tokens = [chunk.token for chunk in left]
            await self._receiving.drop(self._lifecycle.records.chunks(self._id), *tokens)
        if placed := {number: token for number, token in counted.items() if token}:
            ended = self._room.finish(part) if new[-1].number == self._numbers[-1] else None
            await self._receiving.place(self._incoming, placed, puts[-1], plan, ended=ended)
        publish, end = self._lifecycle.tell_chunk, plan.most_chunks
        published = (
            publish(self._id, chunk.number, last=chunk.number + 1 == end) for chunk in ours
        )
        await asyncio.gather(*published)
        if puts:
            await self._receiving.follow(self._incoming, puts[-1], plan)


async def _new_chunk(number: int, data: bytes, known: Known) -> NewChunk:
    digesting = Digesting(None)
    await digesting.update(data)
    token = "" if known.here else secrets.token_hex(8)
    return NewChunk(number, len(data), digesting.own, token)
