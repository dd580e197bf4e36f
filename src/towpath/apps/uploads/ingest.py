"""Receive one chunk: reserve room, stage its bytes, then count it or refuse it.

The body is read in pieces of at most 1 MiB, and only once the whole part has room. A body that is
shorter than announced, or does not match its digest, never counts.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import AbstractAsyncContextManager
from enum import StrEnum

import msgspec

from towpath.apps.uploads import tables
from towpath.apps.uploads.digests import ContentDigest, Digesting
from towpath.apps.uploads.errors import (
    ChunkCut,
    ChunkDiffers,
    ChunkInvalid,
    ChunkLost,
    DigestMismatch,
    LastChunkDiffers,
    UploadEnded,
    UploadError,
    UploadTooLarge,
)
from towpath.apps.uploads.lifecycle import Lifecycle, Work
from towpath.apps.uploads.model import Status, UploadPlan
from towpath.apps.uploads.pieces import Before, in_pieces
from towpath.apps.uploads.records import Chunks, renewed_parts
from towpath.apps.uploads.room import BodyRoom, refused
from towpath.apps.uploads.states import (
    Closed,
    Known,
    NewChunk,
    PartStale,
    Put,
    UploadUnknown,
    not_open,
)
from towpath.clock import steady
from towpath.engine.durability import Disk, Durability
from towpath.errors import DurabilityUnavailable, InvalidInput, MemoryFull, ServerError

_STORED_WITHIN = 30.0
"""Seconds that a client may wait for its part to be stored."""
_LOOK_EVERY = 0.05
_NUMBER_MOST = 2**31


class Safety(StrEnum):
    """How safe a chunk is."""

    MEMORY = "memory"
    """In the memory of Redis."""
    DISK = "disk"
    """On its disk."""
    REPLICA = "replica"
    """On a replica, too."""
    STORED = "stored"
    """In the object store."""


_ASKED = {
    Safety.DISK: Durability(disk=Disk.DISK),
    Safety.REPLICA: Durability(replicas=1),
}


REFUSED = (UploadError, InvalidInput, DurabilityUnavailable, MemoryFull)
"""Errors after which nothing was written. After any other error the chunk may count."""


class Incoming(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk, as the client announces it before the body."""

    upload_id: str
    number: int
    holder: str
    """The owner of the key that sends it, whose share of the budget it uses."""
    length: int | None = None
    """None = not announced."""
    digest: ContentDigest | None = None
    last: bool = False
    safety: Safety | None = None
    """The safety that the client waits for; None = whatever Redis provides."""

    @property
    def durability(self) -> Durability | None:
        """The durability that Redis must confirm."""
        return _ASKED.get(self.safety) if self.safety else None


class ChunkReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk that counts."""

    node_id: str
    state: Status
    chunk_number: int
    received_chunks: int
    duplicate: bool
    safety: Safety


class Receiving:
    """Receives chunks, one per request."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle, self._records = lifecycle, lifecycle.records

    async def receive(
        self, incoming: Incoming, body: AsyncIterator[bytes], plan: UploadPlan
    ) -> Put:
        """Stage the chunk, count it, and submit the job of its part if that is whole.

        Raises UploadUnknown, and the error if the chunk is refused.
        """
        check_number(incoming, plan)
        alone = range(incoming.number, incoming.number + 1)
        known = (await self._records.state(incoming.upload_id).admit(alone))[0]
        if known.size is not None and plan.size is None:
            plan = msgspec.structs.replace(plan, size=known.size)
            check_number(incoming, plan)
        if known.here:
            return await self._compare_repeat(incoming, known, body, plan)
        ends = _is_empty_end(incoming) and plan.total_chunks in (None, incoming.number)
        if not known.status.open and not (ends and known.status is Status.COMPLETED):
            raise not_open(incoming.upload_id, known.status)
        if ends:
            return await self._close_empty(incoming, known, body)
        _check_length(incoming, plan, incoming.length)
        async with self.room(incoming) as room:
            await self.reserve(room, incoming, plan)
            return await self._receive_new(incoming, room, body, plan)

    async def safety(self, incoming: Incoming, put: Put) -> Safety:
        """Returns how safe the chunk is now; waits until its part is stored, if requested."""
        wait = incoming.safety is Safety.STORED and put.turn is not None
        if not put.token or (wait and await self._wait_until_stored(incoming.upload_id, put)):
            return Safety.STORED
        if incoming.safety is Safety.REPLICA:
            return Safety.REPLICA
        return Safety.DISK if await self._are_on_disk() else Safety.MEMORY

    async def _are_on_disk(self) -> bool:
        """Whether both Redis servers, of states and of bytes, write to disk before they reply."""
        try:
            facts = [await engine.current_facts() for engine in self._lifecycle.engines]
        except ServerError:
            return False
        return all(fact.durability.disk is Disk.DISK for fact in facts)

    async def _wait_until_stored(self, upload_id: str, put: Put) -> bool:
        """Wait until the part of a chunk is stored; False if it takes too long, or can't be."""
        state, until = self._records.state(upload_id), steady() + _STORED_WITHIN
        while steady() < until:
            try:
                taken = await state.take(put.generation, put.part, put.turn or 0)
            except (UploadUnknown, PartStale, UploadError):
                return False
            if not taken.tokens:
                return True
            await asyncio.sleep(_LOOK_EVERY)
        return False

    # ── before the body ──────────────────────────────────────────────────────────────────

    def room(self, incoming: Incoming) -> AbstractAsyncContextManager[BodyRoom]:
        """The reservations of a body, which are renewed while the block runs."""
        return BodyRoom(self._records, incoming.upload_id, incoming.holder).opened()

    async def reserve(
        self, room: BodyRoom, incoming: Incoming, plan: UploadPlan, run: int | None = None
    ) -> None:
        """Reserve room for the body and the rest of its part; *run* = the bytes of several chunks.

        Raises BudgetFull, ShareFull.
        """
        part = plan.part_of(incoming.number)
        extent = plan.part_length(part)
        length = plan.chunk_length(incoming.number)
        if length is None:
            length = plan.chunk_size if incoming.length is None else incoming.length
            if incoming.last or length < plan.chunk_size:  # it is the last chunk
                before = incoming.number - plan.chunks_of(part)[0]
                extent = min(extent, before * plan.chunk_size + length)
        own, stays = (length, False) if run is None else (run, True)
        refusal = await room.reserve(part, extent=extent, own=own, stays=stays)
        if refusal is not None:
            chart = await self._records.state(incoming.upload_id).chart()
            raise refused(incoming.upload_id, refusal, chart.missing_of_begun())

    async def _close_empty(
        self, incoming: Incoming, known: Known, body: AsyncIterator[bytes]
    ) -> Put:
        """Close the upload: the file ended with the chunk before. A repeat is a duplicate."""
        async for data in body:
            if data:
                raise ChunkInvalid(f"chunk {incoming.number}: more bytes than Content-Length says")
        state = self._records.state(incoming.upload_id)
        try:
            closed = await state.close(incoming.number)
        except UploadEnded as error:
            if error.status != Status.COMPLETED:
                raise
        else:
            await self.follow_up(incoming.upload_id, closed)
        fields, _ = await state.look()
        status = Status(fields["status"])
        return Put(
            duplicate=known.size is not None,
            status=status,
            received=int(fields["received_chunks"]),
            part=0,
            turn=None,
            generation=known.generation,
            token="" if status is Status.COMPLETED else "none",
        )

    # ── the body ─────────────────────────────────────────────────────────────────────────

    async def _compare_repeat(
        self, incoming: Incoming, known: Known, body: AsyncIterator[bytes], plan: UploadPlan
    ) -> Put:
        """Read a chunk that was already received: equal bytes are a duplicate.

        Raises ChunkDiffers for other bytes.
        """
        digesting, length = Digesting(incoming.digest), 0
        async for piece in in_pieces(body):
            length += len(piece)
            _check_most(incoming, plan, length)
            await digesting.update(piece)
        self._check_whole(incoming, digesting, length)
        if known.digest and known.digest != digesting.own:
            raise ChunkDiffers(incoming.upload_id, incoming.number)
        put = await self._count_chunk(incoming, digesting, length, token="", plan=plan)
        if put.token:
            renewal = self._records.budget.renew(incoming.upload_id, [put.part])
            await self.place(incoming, {incoming.number: put.token}, put, plan, ended=renewal)
        await self.follow(incoming, put, plan)
        return put

    async def _receive_new(
        self, incoming: Incoming, room: BodyRoom, body: AsyncIterator[bytes], plan: UploadPlan
    ) -> Put:
        chunks, token = self._records.chunks(incoming.upload_id), secrets.token_hex(8)
        part = plan.part_of(incoming.number)
        room.tokens.add(token)
        try:
            digesting, length = await self._stage_body(
                incoming, chunks, token, room.watch(body), plan
            )
            self._check_whole(incoming, digesting, length)
            _check_length(incoming, plan, length)
        except BaseException:
            await asyncio.shield(self.drop(chunks, token))
            raise
        room.keep(part, length)
        try:
            put = await self._count_chunk(incoming, digesting, length, token=token, plan=plan)
        except REFUSED:
            room.keep(part, -length)
            await self.drop(chunks, token)
            raise
        # From here on the chunk may count, so its bytes stay whatever fails.
        if put.token != token:
            room.keep(part, -length)
            await self.drop(chunks, token)
        else:
            # Publish the chunk after `place`, which raises ChunkLost if its bytes are gone.
            ended = room.finish(part)
            await self.place(incoming, {incoming.number: token}, put, plan, ended=ended)
            await self._lifecycle.tell_chunk(
                incoming.upload_id, incoming.number, last=incoming.last
            )
        await self.follow(incoming, put, plan)
        return put

    async def place(
        self,
        incoming: Incoming,
        tokens: Mapping[int, str],
        put: Put,
        plan: UploadPlan,
        *,
        ended: Awaitable[None] | None = None,
    ) -> None:
        """Move staged bytes that count to their chunks, unless their part is stored by now.

        All chunks belong to one part; *put* is the outcome of one of them. *ended* ends or renews
        their reservation and runs meanwhile. Raises ChunkLost if bytes are gone; their chunks are
        missing again.
        """
        id, budget = incoming.upload_id, self._records.budget
        chunks = self._records.chunks(id)
        place = chunks.place(tokens, put.generation, durability=incoming.durability)
        if ended is None:
            gone, renewed = await place
        else:
            (gone, renewed), _ = await asyncio.gather(place, ended)
        if renewed:
            await budget.renew(id, renewed_parts(plan, renewed))
        if gone:
            lost = {number: tokens[number] for number in gone}
            if await self._records.state(id).lose(put.generation, lost):
                raise ChunkLost(id, f"chunk {gone[0]}")

    async def _stage_body(
        self,
        incoming: Incoming,
        chunks: Chunks,
        token: str,
        body: AsyncIterator[bytes],
        plan: UploadPlan,
    ) -> tuple[Digesting, int]:
        """Stage the body under *token*, piece by piece. It does not count yet."""
        digesting, length, before = Digesting(incoming.digest), 0, Before()
        try:
            async for piece in in_pieces(body):
                _check_most(incoming, plan, length + len(piece))
                await digesting.update(piece)
                await before.done()
                staging = chunks.stage(token, length, piece)
                length += len(piece)
                if length == incoming.length:
                    await staging
                else:
                    before.start(staging)
            await before.done()
        finally:
            await before.give_up()
        return digesting, length

    async def drop(self, chunks: Chunks, *tokens: str) -> None:
        """Delete what is staged under *tokens*."""
        try:
            await chunks.delete((), tokens)
        except ServerError:
            return  # staged bytes expire

    @staticmethod
    def _check_whole(incoming: Incoming, digesting: Digesting, length: int) -> None:
        if incoming.length is not None and length != incoming.length:
            reason = f"{length} of {incoming.length} bytes came"
            raise ChunkCut(f"chunk {incoming.number}: {reason}")
        if not digesting.fits() and incoming.digest is not None:
            raise DigestMismatch(incoming.number, incoming.digest.algorithm)

    # ── after the body ───────────────────────────────────────────────────────────────────

    async def _count_chunk(
        self, incoming: Incoming, digesting: Digesting, length: int, *, token: str, plan: UploadPlan
    ) -> Put:
        """Count the chunk. Raises ChunkLost if Redis has lost the state of the upload."""
        chunk = NewChunk(incoming.number, length, digesting.own, token)
        puts, refusal = await self._records.state(incoming.upload_id).put(
            [chunk], last=incoming.last, most=plan.most_chunks, durability=incoming.durability
        )
        if isinstance(refusal, UploadUnknown):
            raise ChunkLost(incoming.upload_id, f"chunk {incoming.number}") from refusal
        if refusal is not None:
            raise refusal
        return puts[0]

    async def follow(self, incoming: Incoming, put: Put, plan: UploadPlan) -> None:
        """Submit the job of a whole part, and close the upload after its last chunk.

        A client that sends the chunk again repeats both.
        """
        if put.turn is not None:
            await self._lifecycle.submit(
                Work(incoming.upload_id, put.generation, put.part, put.turn)
            )
        if incoming.last and plan.size is None:
            state = self._records.state(incoming.upload_id)
            try:
                closed = await state.close(incoming.number + 1)
            except UploadUnknown as error:
                raise ChunkLost(incoming.upload_id, f"chunk {incoming.number}") from error
            await self.follow_up(incoming.upload_id, closed)

    async def follow_up(self, upload_id: str, closed: Closed) -> None:
        """Save the size in the row, then submit the job that is ready now, if there is one."""
        upload = await self._lifecycle.row(upload_id)
        await self._lifecycle.ledger.write(tables.sized(upload, closed.size))
        if closed.last:
            await self._lifecycle.submit(Work(upload_id, closed.generation))
        elif closed.part is not None:
            await self._lifecycle.submit(
                Work(upload_id, closed.generation, closed.part, closed.turn)
            )


def check_number(incoming: Incoming, plan: UploadPlan) -> None:
    """Raises ChunkInvalid or UploadTooLarge if the plan has no chunk of this number, and
    LastChunkDiffers if the client calls it the last one and it is not.
    """
    number = incoming.number
    if not 0 <= number < _NUMBER_MOST:
        raise ChunkInvalid(f"chunk {number}: chunk numbers start at 0")
    if _is_empty_end(incoming) and number == plan.total_chunks:
        return
    if plan.size is not None and number >= plan.most_chunks:
        raise ChunkInvalid(f"chunk {number}: the last chunk is {plan.most_chunks - 1}")
    if plan.size is not None and incoming.last and number != plan.most_chunks - 1:
        raise LastChunkDiffers(incoming.upload_id, number, plan.most_chunks - 1)
    if number >= plan.most_chunks + _is_empty_end(incoming):
        raise UploadTooLarge(
            f"chunk {number}: an object has at most {plan.most_chunks} chunks of this size",
            incoming.upload_id,
        )


def _is_empty_end(incoming: Incoming) -> bool:
    """Whether this is a last chunk without bytes: the file ended with the chunk before."""
    return incoming.last and incoming.length == 0


def _check_length(incoming: Incoming, plan: UploadPlan, length: int | None) -> None:
    """Raises ChunkInvalid if the chunk can't have this length."""
    if length is None:
        return
    wanted = plan.chunk_length(incoming.number)
    if wanted is not None and length != wanted:
        raise ChunkInvalid(f"chunk {incoming.number}: {length} bytes, not {wanted}")
    _check_most(incoming, plan, length)
    if length < 1:
        raise ChunkInvalid(f"chunk {incoming.number}: it is empty")


def _check_most(incoming: Incoming, plan: UploadPlan, length: int) -> None:
    most = plan.chunk_length(incoming.number) or plan.chunk_size
    if incoming.length is not None:
        most = min(most, incoming.length)
    if length > most:
        raise ChunkInvalid(f"chunk {incoming.number}: more than {most} bytes")
