"""Receive chunks: reserve room, stage their bytes in Redis, then count them or refuse them.

A request brings one chunk, or several small consecutive ones of one part. Its body is read once the
whole part has room, in pieces: one is written to Redis while the next one arrives. A chunk that is
shorter than announced, or does not match its digest, never counts. All chunks are counted by
`Ingest.commit`, also those whose bytes were appended by a client of tus.

These are hops 3 to 10 of a chunk: see the table in docs/explanation/applications.md, "Uploads".
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import count as numbers_from
from typing import Any

import msgspec

from towpath.apps.uploads.digests import ContentDigest, Digesting
from towpath.apps.uploads.errors import (
    ChunkCut,
    ChunkInvalid,
    ChunkLost,
    DigestMismatch,
    LastChunkDiffers,
    UploadEnded,
    UploadError,
    UploadTooLarge,
)
from towpath.apps.uploads.lifecycle import Lifecycle, Work
from towpath.apps.uploads.model import MOST_AT_ONCE, Status, UploadPlan
from towpath.apps.uploads.options import MIB
from towpath.apps.uploads.records import PIECE, renewed_parts
from towpath.apps.uploads.room import BodyRoom, refused
from towpath.apps.uploads.states import (
    CountedChunk,
    KnownChunk,
    NewChunk,
    PartStale,
    UploadUnknown,
    not_open,
)
from towpath.clock import steady
from towpath.engine.check import integer
from towpath.engine.durability import Disk, Durability
from towpath.errors import DurabilityUnavailable, InvalidInput, MemoryFull, ServerError

_STAGED_AT_ONCE = 2 * MIB
"""Bytes of a chunk in one call to Redis. A body has two such pieces in memory: one is written, one
arrives. Pieces of 1 MiB cost more CPU; those of 4 MiB no longer fit the caches of a CPU and delay
the acknowledgement."""
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


_DURABILITIES = {
    Safety.DISK: Durability(disk=Disk.DISK),
    Safety.REPLICA: Durability(replicas=1),
}
_REFUSED = (UploadError, InvalidInput, DurabilityUnavailable, MemoryFull)
"""Errors after which nothing was written. After any other error the chunks may count."""


class ChunkRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The chunks of a request, as the client announces them before the body."""

    upload_id: str
    number: int
    """The first of them."""
    count: int = 1
    holder: str
    """The owner of the key that sends them, whose share of the budget they use."""
    length: int | None = None
    """The length of the body; None = not announced."""
    digest: ContentDigest | None = None
    last: bool = False
    """Whether the file ends with them."""
    safety: Safety | None = None
    """The safety that the client waits for; None = whatever Redis provides."""

    @property
    def numbers(self) -> range:
        return range(self.number, self.number + self.count)

    @property
    def durability(self) -> Durability | None:
        """The durability that Redis must confirm."""
        return _DURABILITIES.get(self.safety) if self.safety else None

    @property
    def is_empty_end(self) -> bool:
        """Whether this is a last chunk without bytes: the file ended with the chunk before."""
        return self.last and self.length == 0 and self.count == 1


class ChunkReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk that was received, and counts."""

    node_id: str
    state: Status
    """The status of the upload."""
    chunk_number: int
    received_chunks: int
    """Number of chunks received so far."""
    duplicate: bool
    """Whether the same chunk had been received before."""
    safety: Safety
    """How safe the chunk is now: memory or disk of Redis, a replica, or stored in the object store.
    """


class Ingest:
    """Receives the chunks of a server's clients."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle, self._records = lifecycle, lifecycle.records

    async def receive(
        self, request: ChunkRequest, body: AsyncIterator[bytes], plan: UploadPlan
    ) -> CountedChunk:
        """Receive chunks; returns the outcome of the last one, a duplicate if all of them are.

        If one is refused, those before it count. Raises the error of the refused one; and
        UploadUnknown, with the body unread.
        """
        integer("count", request.count, 1, MOST_AT_ONCE)
        _check_numbers(request, plan)
        known = await self._records.state(request.upload_id).admit(request.numbers)
        size, status = known[0].size, known[0].status
        if size is not None and plan.size is None:
            plan = msgspec.structs.replace(plan, size=size)
            _check_numbers(request, plan)
        if request.count > 1:
            _check_run(request, plan)
        new = [n for n, chunk in zip(request.numbers, known, strict=True) if not chunk.here]
        if new:
            ends = request.is_empty_end and plan.total_chunks in (None, request.number)
            if not status.open and not (ends and status is Status.COMPLETED):
                raise not_open(request.upload_id, status)
            if ends:
                return await self._close_empty(request, known[0], body)
            if request.count == 1:
                _check_length(request, plan, request.length)
        async with BodyRoom(self._records, request.upload_id, request.holder).opened() as room:
            if new:
                await self._reserve(room, request, plan, new)
            receive = self._receive_one if request.count == 1 else self._receive_several
            try:
                puts = await receive(request, known, room, body, plan)
            except UploadUnknown as error:  # Redis has lost the state while the body arrived
                raise ChunkLost(request.upload_id, f"chunk {request.number}") from error
        return puts[-1]._replace(duplicate=all(put.duplicate for put in puts))

    # ── before the body ──────────────────────────────────────────────────────────────────

    async def _reserve(
        self, room: BodyRoom, request: ChunkRequest, plan: UploadPlan, new: Sequence[int]
    ) -> None:
        """Reserve room for the *new* chunks and the rest of their part.

        Raises BudgetFull, ShareFull.
        """
        part = plan.part_of(request.number)
        extent, own = plan.part_length(part), sum(plan.chunk_length(n) or 0 for n in new)
        if plan.size is None:
            own = plan.chunk_size if request.length is None else request.length
            if request.last or own < plan.chunk_size:  # it is the last chunk
                before = request.number - plan.chunks_of(part)[0]
                extent = min(extent, before * plan.chunk_size + own)
        refusal = await room.reserve(part, extent=extent, own=own, stays=request.count > 1)
        if refusal is not None:
            chart = await self._records.state(request.upload_id).chart()
            raise refused(request.upload_id, refusal, chart.missing_of_begun())

    async def _close_empty(
        self, request: ChunkRequest, known: KnownChunk, body: AsyncIterator[bytes]
    ) -> CountedChunk:
        """Close the upload: the file ended with the chunk before. A repeat is a duplicate."""
        async for data in body:
            if data:
                raise ChunkInvalid(f"chunk {request.number}: more bytes than Content-Length says")
        state = self._records.state(request.upload_id)
        try:
            closed = await state.close(request.number)
        except UploadEnded as error:
            if error.status != Status.COMPLETED:
                raise
        else:
            await self._lifecycle.save_size(request.upload_id, closed)
        fields, _ = await state.look()
        status = Status(fields["status"])
        return CountedChunk(
            duplicate=known.size is not None,
            status=status,
            received=int(fields["received_chunks"]),
            part=0,
            turn=None,
            generation=known.generation,
            token="" if status is Status.COMPLETED else "none",
        )

    # ── one chunk ────────────────────────────────────────────────────────────────────────

    async def _receive_one(
        self,
        request: ChunkRequest,
        known: Sequence[KnownChunk],
        room: BodyRoom,
        body: AsyncIterator[bytes],
        plan: UploadPlan,
    ) -> list[CountedChunk]:
        """Stage and count a chunk. If Redis has it already, its bytes are only compared."""
        token = "" if known[0].here else secrets.token_hex(8)
        if token:
            room.tokens.add(token)
        try:
            chunk = await self._stage_body(request, token, room.watch(body), plan)
        except BaseException:
            if token:
                await asyncio.shield(self.drop(request.upload_id, [token]))
            raise
        puts = await self.commit(
            request.upload_id,
            plan,
            [chunk],
            room,
            last=request.number if request.last else None,
            durability=request.durability,
            is_end=True,
        )
        if request.last and plan.size is None:
            closed = await self._records.state(request.upload_id).close(request.number + 1)
            await self._lifecycle.save_size(request.upload_id, closed)
        return puts

    async def _stage_body(
        self, request: ChunkRequest, token: str, body: AsyncIterator[bytes], plan: UploadPlan
    ) -> NewChunk:
        """Stage the body under *token*, piece by piece, and check it; without a token, only check
        it. It does not count yet.
        """
        chunks, digesting = self._records.chunks(request.upload_id), Digesting(request.digest)
        length, before = 0, PendingWrite()
        try:
            async for piece in in_pieces(body, _STAGED_AT_ONCE):
                _check_most(request, plan, length + len(piece))
                await digesting.update(piece)
                if token:
                    await before.wait()
                    staging = chunks.stage(token, length, piece)
                    if length + len(piece) == request.length:
                        await staging
                    else:
                        before.start(staging)
                length += len(piece)
            await before.wait()
        finally:
            await before.give_up()
        if request.length is not None and length != request.length:
            reason = f"{length} of {request.length} bytes came"
            raise ChunkCut(f"chunk {request.number}: {reason}")
        if not digesting.fits() and request.digest is not None:
            raise DigestMismatch(request.number, request.digest.algorithm)
        if token:
            _check_length(request, plan, length)
        return NewChunk(request.number, length, digesting.own, token)

    # ── several chunks ───────────────────────────────────────────────────────────────────

    async def _receive_several(
        self,
        request: ChunkRequest,
        known: Sequence[KnownChunk],
        room: BodyRoom,
        body: AsyncIterator[bytes],
        plan: UploadPlan,
    ) -> list[CountedChunk]:
        """Count the chunks of one MiB while those of the next MiB arrive."""
        size, number, came = plan.chunk_size, request.number, 0
        wanted, before, puts = _run_length(request, plan), PendingWrite(), list[CountedChunk]()

        async def write(chunks: Mapping[int, bytes]) -> None:
            puts.extend(await self._write(request, chunks, known, room, plan))

        try:
            async for piece in in_pieces(room.watch(body), PIECE // size * size):
                came += len(piece)
                if came > wanted:
                    reason = f"the body has more bytes than {request.count} chunks"
                    raise ChunkInvalid(f"chunk {request.numbers.stop}: {reason}")
                complete = len(piece) if came == wanted else len(piece) // size * size
                chunks = [piece[at : at + size] for at in range(0, complete, size)]
                await before.wait()
                if chunks:
                    before.start(write(dict(zip(numbers_from(number), chunks))))
                    number += len(chunks)
            await before.wait()
        finally:
            await before.give_up()
        if came < wanted:
            raise ChunkCut(f"chunk {number}: {came} of {wanted} bytes came")
        return puts

    async def _write(
        self,
        request: ChunkRequest,
        bodies: Mapping[int, bytes],
        known: Sequence[KnownChunk],
        room: BodyRoom,
        plan: UploadPlan,
    ) -> list[CountedChunk]:
        """Stage and count some chunks, whose bytes have all arrived."""
        chunks: list[NewChunk] = []
        for number, data in bodies.items():
            digesting = Digesting(None)
            await digesting.update(data)
            token = "" if known[number - request.number].here else secrets.token_hex(8)
            chunks.append(NewChunk(number, len(data), digesting.own, token))
        stage = self._records.chunks(request.upload_id).stage
        staging = (stage(chunk.token, 0, bodies[chunk.number]) for chunk in chunks if chunk.token)
        try:
            await _wait_for_all(staging)
        except BaseException:
            tokens = [chunk.token for chunk in chunks if chunk.token]
            await asyncio.shield(self.drop(request.upload_id, tokens))
            raise
        return await self.commit(
            request.upload_id,
            plan,
            chunks,
            room,
            last=plan.most_chunks - 1,
            durability=request.durability,
            is_end=chunks[-1].number == request.numbers[-1],
        )

    # ── counting ─────────────────────────────────────────────────────────────────────────

    async def commit(
        self,
        upload_id: str,
        plan: UploadPlan,
        chunks: Sequence[NewChunk],
        room: BodyRoom | None,
        *,
        last: int | None,
        durability: Durability | None = None,
        is_end: bool = False,
        is_tail: bool = False,
    ) -> list[CountedChunk]:
        """Count staged chunks of one part, in order, and submit the job of the part if it is whole.

        *last* = the chunk that ends the file, if that is known; *is_end* = the body brings no more
        bytes of the part. The bytes of a tail were counted in *room* when they were appended, and
        stay staged if the chunk is refused.

        Returns the outcomes. If a chunk is refused, those before it count, and its error is raised:
        one of those that `UploadState.put` returns. Raises ChunkLost if bytes are gone.
        """
        part, own = plan.part_of(chunks[0].number), () if is_tail else chunks
        _keep(room, part, own)
        try:
            puts, refusal = await self._records.state(upload_id).put(
                chunks,
                last=chunks[-1].number == last,
                most=plan.most_chunks,
                durability=durability,
            )
        except _REFUSED:
            _keep(room, part, own, sign=-1)
            await self.drop(upload_id, [chunk.token for chunk in own if chunk.token])
            raise
        # The chunks in `puts` count from here on, so their bytes stay even if a later step fails.
        # The bytes of another request are placed, too: that request may have died before it did
        # so, and this client is told that its chunk was received.
        tokens = {
            chunk.number: put.token for chunk, put in zip(chunks, puts, strict=False) if put.token
        }
        counted = [chunk for chunk in chunks if chunk.token and _counts(chunk, tokens)]
        answered = chunks[: len(puts)] if is_tail else chunks
        unused = [chunk for chunk in answered if chunk.token and not _counts(chunk, tokens)]
        if unused:
            _keep(room, part, () if is_tail else unused, sign=-1)
            await self.drop(upload_id, [chunk.token for chunk in unused])
        if tokens:
            is_end = is_end or puts[-1].turn is not None
            # The lease ends before the job is submitted, which releases the room of the part.
            # A body whose bytes were all dropped keeps no room: its lease ends with the request.
            brought_none = all(chunk in unused for chunk in chunks if chunk.number in tokens)
            (gone, renewed), _ = await asyncio.gather(
                self._records.chunks(upload_id).place(
                    tokens, puts[-1].generation, durability=durability
                ),
                self._keep_room(upload_id, part, None if brought_none else room, is_end=is_end),
            )
            if renewed:
                await self._records.budget.renew(upload_id, renewed_parts(plan, renewed))
            lost = {number: tokens[number] for number in gone}
            # If a job has stored the part meanwhile, its bytes are not lost.
            if lost and await self._records.state(upload_id).lose(puts[-1].generation, lost):
                raise ChunkLost(upload_id, f"chunk {gone[0]}")
        publish = self._lifecycle.publish_chunk
        following: list[Coroutine[Any, Any, None]] = [
            publish(upload_id, chunk.number, last=chunk.number == last) for chunk in counted
        ]
        if puts and puts[-1].turn is not None:
            work = Work(upload_id, puts[-1].generation, part, puts[-1].turn)
            following.append(self._lifecycle.submit(work))
        await asyncio.gather(*following)
        if refusal is not None:
            raise refusal
        return puts

    async def _keep_room(
        self, upload_id: str, part: int, room: BodyRoom | None, *, is_end: bool
    ) -> None:
        """Keep room for bytes that count: end the lease of their body, or renew a reservation that
        has no lease. A lease that stays is renewed while the body arrives.
        """
        if room is None or not room.has(part):
            await self._records.budget.renew(upload_id, [part])
        elif is_end:
            await room.finish(part)

    async def drop(self, upload_id: str, tokens: Sequence[str]) -> None:
        """Delete what is staged under *tokens*."""
        try:
            await self._records.chunks(upload_id).delete((), tokens)
        except ServerError:
            return  # staged bytes expire

    # ── safety ───────────────────────────────────────────────────────────────────────────

    async def safety(self, request: ChunkRequest, put: CountedChunk) -> Safety:
        """Returns how safe the chunk is now; waits until its part is stored, if requested."""
        wait = request.safety is Safety.STORED and put.turn is not None
        if not put.token or (wait and await self._wait_until_stored(request.upload_id, put)):
            return Safety.STORED
        if request.safety is Safety.REPLICA:
            return Safety.REPLICA
        return Safety.DISK if await self._are_on_disk() else Safety.MEMORY

    async def _are_on_disk(self) -> bool:
        """Whether both Redis servers, of states and of bytes, write to disk before they reply."""
        try:
            facts = [await engine.current_facts() for engine in self._lifecycle.engines]
        except ServerError:
            return False
        return all(fact.durability.disk is Disk.DISK for fact in facts)

    async def _wait_until_stored(self, upload_id: str, put: CountedChunk) -> bool:
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


def _keep(room: BodyRoom | None, part: int, chunks: Sequence[NewChunk], *, sign: int = 1) -> None:
    """Note in *room* that the bytes of staged chunks stay, or with -1 that they do not."""
    if room is not None:
        room.keep(part, sign * sum(chunk.length for chunk in chunks if chunk.token))


def _counts(chunk: NewChunk, tokens: Mapping[int, str]) -> bool:
    """Whether the bytes that count for a chunk are the ones of this request."""
    return tokens.get(chunk.number) == chunk.token


# ── reading a body ───────────────────────────────────────────────────────────────────────


class PendingWrite:
    """The write of the previous piece to Redis, which may still run."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    def start(self, writing: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.create_task(writing)

    async def wait(self) -> None:
        """Wait for the write. Raises its error."""
        task, self._task = self._task, None
        if task is not None:
            try:
                await asyncio.shield(task)
            finally:
                self._task = None if task.done() else task

    async def give_up(self) -> None:
        """Wait for the write and ignore its outcome.

        The caller may delete staged bytes next, and a write that is still running would come after
        that.
        """
        task, self._task = self._task, None
        if task is not None:
            await asyncio.gather(task, return_exceptions=True)


async def _wait_for_all(writing: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Wait until all writes are over; then raise the error of the first that failed.

    The caller may delete what was written, and a write that is still running would come after that.
    """
    for failure in await asyncio.gather(*writing, return_exceptions=True):
        if failure is not None:
            raise failure


async def in_pieces(body: AsyncIterator[bytes], size: int) -> AsyncGenerator[bytes]:
    """*body* in pieces of *size* bytes; the last may be shorter. Copies bytes once."""
    waiting: list[memoryview] = []
    length = 0
    async for data in body:
        rest = memoryview(data)
        while rest:
            some = rest[: size - length]
            waiting.append(some)
            length += len(some)
            rest = rest[len(some) :]
            if length == size:
                yield b"".join(waiting)
                waiting, length = [], 0
    if length:
        yield b"".join(waiting)


# ── checks ───────────────────────────────────────────────────────────────────────────────


def _check_numbers(request: ChunkRequest, plan: UploadPlan) -> None:
    """Raises ChunkInvalid, UploadTooLarge, LastChunkDiffers."""
    if request.count > 1:
        _check_number(request, plan, request.number, is_last=False)
    _check_number(request, plan, request.numbers[-1], is_last=request.last)


def _check_number(request: ChunkRequest, plan: UploadPlan, number: int, *, is_last: bool) -> None:
    """Raises ChunkInvalid or UploadTooLarge if the plan has no chunk of this number, and
    LastChunkDiffers if the client calls it the last one and it is not.
    """
    if not 0 <= number < _NUMBER_MOST:
        raise ChunkInvalid(f"chunk {number}: chunk numbers start at 0")
    if request.is_empty_end and number == plan.total_chunks:
        return
    if plan.size is not None and number >= plan.most_chunks:
        raise ChunkInvalid(f"chunk {number}: the last chunk is {plan.most_chunks - 1}")
    if plan.size is not None and is_last and number != plan.most_chunks - 1:
        raise LastChunkDiffers(request.upload_id, number, plan.most_chunks - 1)
    if number >= plan.most_chunks + request.is_empty_end:
        raise UploadTooLarge(
            f"chunk {number}: an object has at most {plan.most_chunks} chunks of this size",
            request.upload_id,
        )


def _check_run(request: ChunkRequest, plan: UploadPlan) -> None:
    """Raises ChunkInvalid if these chunks can't be sent in one request."""
    first, last = request.numbers[0], request.numbers[-1]
    which = f"chunks {first} to {last}"
    if plan.size is None:
        raise ChunkInvalid(f"{which}: send them one by one, as the upload has no size")
    if plan.chunk_size > PIECE:
        raise ChunkInvalid(f"{which}: send them one by one, as they are larger than 1 MiB")
    if plan.part_of(first) != plan.part_of(last):
        raise ChunkInvalid(f"{which}: all chunks must belong to one part (see `part_size`)")
    if request.digest is not None:
        raise ChunkInvalid(f"{which}: Content-Digest is checked for one chunk per request")
    wanted = _run_length(request, plan)
    if request.length is not None and request.length != wanted:
        raise ChunkInvalid(f"{which}: {request.length} bytes, not {wanted}")


def _run_length(request: ChunkRequest, plan: UploadPlan) -> int:
    return sum(plan.chunk_length(number) or 0 for number in request.numbers)


def _check_length(request: ChunkRequest, plan: UploadPlan, length: int | None) -> None:
    """Raises ChunkInvalid if the chunk can't have this length."""
    if length is None:
        return
    wanted = plan.chunk_length(request.number)
    if wanted is not None and length != wanted:
        raise ChunkInvalid(f"chunk {request.number}: {length} bytes, not {wanted}")
    _check_most(request, plan, length)
    if length < 1:
        raise ChunkInvalid(f"chunk {request.number}: it is empty")


def _check_most(request: ChunkRequest, plan: UploadPlan, length: int) -> None:
    most = plan.chunk_length(request.number) or plan.chunk_size
    if request.length is not None:
        most = min(most, request.length)
    if length > most:
        raise ChunkInvalid(f"chunk {request.number}: more than {most} bytes")
