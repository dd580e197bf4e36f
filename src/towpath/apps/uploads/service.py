"""The service of uploads: start, send chunks, read, complete, download."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec

from towpath.apps.uploads import tables
from towpath.apps.uploads.credentials import Credentials
from towpath.apps.uploads.digests import ContentDigest
from towpath.apps.uploads.errors import (
    PieceInUse,
    RangeInvalid,
    StoreAway,
    UploadConflict,
    UploadEnded,
    UploadGone,
    UploadIncomplete,
    UploadJoined,
    UploadNotFailed,
    UploadNotFound,
    UploadsOff,
)
from towpath.apps.uploads.hashes import fields_of
from towpath.apps.uploads.ingest import ChunkReceipt, ChunkRequest, Ingest, Safety
from towpath.apps.uploads.lifecycle import Lifecycle, Work
from towpath.apps.uploads.measures import CHUNK_LATENCY
from towpath.apps.uploads.model import NewUpload, Range, Status, Upload, UploadPlan
from towpath.apps.uploads.options import UploadsOptions
from towpath.apps.uploads.states import UploadMap, UploadUnknown, not_open, require_current
from towpath.apps.uploads.stores.errors import ObjectNotFound, StoreError
from towpath.apps.uploads.sweeping import Sweep
from towpath.clock import Duration, instant, steady, wall_ms
from towpath.engine.check import integer
from towpath.ids import new_job_id
from towpath.recent import RecentCache

LARGEST_PAGE = 1000
_FIRST_LOOK, _LOOK_EVERY = 0.02, 0.25
"""Seconds between two reads of an upload that a client waits for."""
_KNOWN_MOST = 10_000


class View(msgspec.Struct, frozen=True):
    """An upload as it is now."""

    upload: Upload
    """Its row."""
    fields: dict[str, str]
    """Its state hash."""

    @property
    def status(self) -> Status:
        return Status(self.fields["status"])


class Content(msgspec.Struct, frozen=True):
    """The finished object, or a range of it."""

    upload: Upload
    size: int
    start: int
    length: int
    etag: str
    pieces: AsyncIterator[bytes]


class KnownUpload(NamedTuple):
    """The facts of an upload that a server caches."""

    owner: str
    node_id: str
    mime_type: str
    plan: UploadPlan
    """Its size is the one that was known when the row was read."""
    joined: bool
    """Whether it is joined from other uploads, and takes no bytes."""


class UploadService:
    """Uploads on a server: it receives chunks; workers store them and complete uploads."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle, self._records = lifecycle, lifecycle.records
        self.lifecycle = lifecycle
        self.options: UploadsOptions = lifecycle.options
        self.ingest = Ingest(lifecycle)
        self.sweeping = Sweep(lifecycle)
        self.credentials = Credentials(self.options.secrets, longest=self.options.credential_ttl)
        self._known = RecentCache[str, KnownUpload](_KNOWN_MOST)

    # ── starting ─────────────────────────────────────────────────────────────────────────

    async def start(
        self, new: NewUpload, *, owner: str = "", idempotency_key: str | None = None
    ) -> tuple[View, bool]:
        """Start an upload; returns it, and whether its *idempotency_key* had started it before.

        Over HTTP, only keys of *owner* and admins may use it; without an owner, only admins.
        Its row is written when this returns. Raises InvalidOption, UploadTooLarge, PartTooLarge,
        UploadDiffers, QuotaReached, UploadsOff, LedgerError, ServerError.
        """
        bucket = self.options.bucket_of(new.drive)
        self._lifecycle.store_of(bucket)
        row = self._new_row(new, bucket, owner=owner, idempotency_key=idempotency_key)
        upload, existed = await self._lifecycle.ledger.decide(
            tables.insert_upload(
                row,
                most_open=self.options.open_per_key,
                most_bytes=self.options.bytes_per_key,
            )
        )
        if existed:
            return await self.status(upload.upload_id), True
        state = self._records.state(upload.upload_id)
        await state.open(upload, {})
        if upload.sources:
            await self._lifecycle.submit(Work(upload.upload_id, upload.generation))
        elif upload.size == 0:
            closed = await state.close(0)
            await self._lifecycle.submit(Work(upload.upload_id, closed.generation))
        else:
            self._remember(upload)
            return View(upload, fields_of(upload)), False
        return View(upload, (await state.look())[0]), False

    def _new_row(
        self, new: NewUpload, bucket: str, *, owner: str, idempotency_key: str | None
    ) -> dict[str, Any]:
        chunk_size = self.options.chunk_size if new.chunk_size is None else new.chunk_size
        plan = UploadPlan.of(new.size, chunk_size, largest_part=self.options.largest_part)
        node_id, now = str(uuid4()), wall_ms()
        plain: dict[str, Any] = msgspec.structs.asdict(new) | {"chunk_size": chunk_size}
        asked = msgspec.json.encode(plain, order="deterministic")
        checksum = new.checksum
        del plain["checksum"]
        return plain | {
            "upload_id": new_job_id(),
            "node_id": node_id,
            "owner": owner,
            "idempotency_key": idempotency_key,
            "request": sha256(asked).digest(),
            "status": Status.PENDING.value,
            "generation": 1,
            "part_size": plan.part_size,
            "custom_metadata": msgspec.json.encode(new.custom_metadata).decode(),
            "checksum_algorithm": checksum.algorithm.value if checksum else None,
            "checksum_value": checksum.value if checksum else None,
            "bucket": bucket,
            "s3_key": f"connectors/{new.connector_id}/{node_id}{self.options.suffix}",
            "created_at": now,
            "updated_at": now,
            "deadline": now + round(self.options.expiry.total_seconds() * 1000),
        }

    # ── chunks ───────────────────────────────────────────────────────────────────────────

    async def put_chunk(
        self,
        upload_id: str,
        number: int,
        body: AsyncIterator[bytes],
        *,
        holder: str,
        count: int = 1,
        length: int | None = None,
        digest: ContentDigest | None = None,
        is_last: bool = False,
        safety: Safety | None = None,
    ) -> ChunkReceipt:
        """Receive a chunk; when this returns it counts, and is as safe as the receipt says.

        *body* is read in pieces, once there is room for it; the same bytes again are a duplicate.
        With *count*, it has so many chunks of one part, from *number* on; those that arrive whole
        count even if the rest does not arrive. Raises UploadNotFound, UploadGone, UploadEnded,
        UploadFailed, ChunkInvalid, ChunkCut, DigestMismatch, ChunkDiffers, LastChunkDiffers,
        UploadTooLarge, BudgetFull, ShareFull, DurabilityUnavailable, ServerError.
        """
        request = ChunkRequest(
            upload_id=upload_id,
            number=number,
            count=count,
            holder=holder,
            length=length,
            digest=digest,
            last=is_last,
            safety=safety,
        )
        with self._lifecycle.measures.timed(CHUNK_LATENCY):
            node_id, plan = await self.plan_of(upload_id)
            try:
                put = await self.ingest.receive(request, body, plan)
            except UploadUnknown:
                self._known.pop(upload_id)
                await self._lifecycle.restore(upload_id)
                put = await self.ingest.receive(request, body, plan)
            safety = await self.ingest.safety(request, put)
        return ChunkReceipt(
            node_id=node_id,
            state=put.status,
            chunk_number=number,
            received_chunks=put.received,
            duplicate=put.duplicate,
            safety=safety,
        )

    async def plan_of(self, upload_id: str) -> tuple[str, UploadPlan]:
        """The document's id and the plan, which never change, of an upload that takes bytes.

        Raises UploadNotFound, UploadJoined.
        """
        known = await self.known(upload_id)
        if known.joined:
            raise UploadJoined(upload_id)
        return known.node_id, known.plan

    async def known(self, upload_id: str, *, again: bool = False) -> KnownUpload:
        """Returns cached facts of an upload, which is read once; *again* = read it now.

        Of these, only a size that was not known at the start can change. Raises UploadNotFound.
        """
        found = None if again else self._known.get(upload_id)
        return self._remember(await self._lifecycle.row(upload_id)) if found is None else found

    def _remember(self, upload: Upload) -> KnownUpload:
        known = KnownUpload(
            upload.owner, upload.node_id, upload.mime_type, upload.plan, bool(upload.sources)
        )
        self._known.put(upload.upload_id, known)
        return known

    async def complete(self, upload_id: str) -> View:
        """Declare that all chunks were sent; this sets a size that was not known.

        Raises UploadIncomplete with the missing chunks.
        """
        chart = await self.chart(upload_id)
        if missing := chart.missing():
            raise UploadIncomplete(upload_id, missing)
        status = Status(chart.fields["status"])
        if status.open:
            total = chart.plan.total_chunks
            total = int(chart.fields["highest"]) + 1 if total is None else total
            closed = await self._records.state(upload_id).close(total)
            await self._lifecycle.save_size(upload_id, closed)
            await self._lifecycle.submit_ready(upload_id)
        elif status is not Status.COMPLETED:
            raise not_open(upload_id, status)
        return await self.status(upload_id)

    # ── looking ──────────────────────────────────────────────────────────────────────────

    async def status(self, upload_id: str) -> View:
        """The upload as it is now. Raises UploadNotFound."""
        upload = await self._lifecycle.row(upload_id)
        if upload.status.open:
            try:
                fields, _ = await self._records.state(upload_id).look()
                require_current(fields["generation"], upload)
            except UploadUnknown:
                try:
                    upload = await self._lifecycle.restore(upload_id)
                except (UploadEnded, UploadGone):  # it ended after its row was read
                    return await self.status(upload_id)
                fields, _ = await self._records.state(upload_id).look()
            heard_of = instant(int(fields["updated_at"]))
            until = max(upload.deadline, heard_of + self.options.expiry)
            return View(msgspec.structs.replace(upload, deadline=until), fields)
        return View(upload, fields_of(upload))

    async def ended(self, upload_id: str, *, within: Duration) -> View:
        """Wait until the upload ends, or for at most *within*. Raises UploadNotFound."""
        state, until = self._records.state(upload_id), steady() + within.total_seconds()
        pause = _FIRST_LOOK
        with suppress(UploadUnknown):
            while (left := until - steady()) > 0 and (await state.progress()).status.open:
                await asyncio.sleep(min(pause, left))
                pause = min(pause * 1.5, _LOOK_EVERY)
        return await self.status(upload_id)

    async def missing(self, upload_id: str) -> list[Range]:
        """The missing chunks, those included whose bytes have expired.

        Without a known size, those before the highest received one. Raises UploadNotFound,
        UploadGone.
        """
        return (await self.chart(upload_id)).missing()

    async def chart(self, upload_id: str) -> UploadMap:
        """Returns all chunks and parts. Raises UploadNotFound, UploadGone."""
        upload = await self._lifecycle.row(upload_id)
        if upload.status in (Status.ABORTED, Status.EXPIRED):
            raise UploadGone(upload_id, upload.status)
        try:
            chart = await self._records.sync(upload_id)
            require_current(chart.generation, upload)
        except UploadUnknown:
            await self._lifecycle.restore(upload_id)
            return await self._records.sync(upload_id)
        return chart

    async def list(
        self,
        *,
        status: Status | None = None,
        owner: str | None = None,
        after: str | None = None,
        size: int = 50,
    ) -> Sequence[Upload]:
        """A page of uploads, newest first; *after* is the last id of the page before."""
        integer("size", size, 1, LARGEST_PAGE)
        query = tables.page(status=status, owner=owner, after=after, size=size)
        return await self._lifecycle.ledger.read(query)

    async def watch(self, upload_id: str) -> AsyncGenerator[View]:
        """Yield the upload now and after each change, up to its end; if it has ended, only that."""
        last: View | None = None
        while True:
            view = await self.status(upload_id)
            if last is None or _progress(view) != _progress(last):
                yield view
            if not view.status.open:
                return
            last = view
            await asyncio.sleep(_LOOK_EVERY)

    # ── ends ─────────────────────────────────────────────────────────────────────────────

    async def resume(self, upload_id: str) -> View:
        """Resume a failed upload, and failed pieces that it is joined from.

        Raises UploadNotFailed, UploadGone, StoreAway.
        """
        while True:
            upload = await self._lifecycle.row(upload_id)
            if upload.status in (Status.ABORTED, Status.EXPIRED):
                raise UploadGone(upload_id, upload.status)
            if upload.status is not Status.FAILED:
                raise UploadNotFailed(upload_id, upload.status)
            for piece in upload.sources:  # a piece that stays FAILED would fail it again
                with suppress(UploadNotFailed):
                    await self.resume(piece)
            if await self._lifecycle.revive(upload) is not None:
                return await self.status(upload_id)

    async def abort(self, upload_id: str, *, stored_piece: bool = False) -> View:
        """Abort an upload that is not completed, and delete its bytes. It can be repeated.

        With *stored_piece*, a completed piece is aborted as well. Raises UploadNotFound,
        UploadConflict for an upload that is completed, PieceInUse.
        """
        while True:
            upload = await self._lifecycle.row(upload_id)
            await self.require_unused(upload)
            if upload.status is Status.COMPLETED and not (stored_piece and upload.partial):
                raise UploadConflict(upload_id, "is COMPLETED and can't be aborted")
            if upload.status in (Status.ABORTED, Status.EXPIRED):
                await self._lifecycle.remove(upload, upload.status)
                return await self.status(upload_id)
            if await self._lifecycle.end(upload, Status.ABORTED):
                return await self.status(upload_id)

    async def require_unused(self, upload: Upload) -> None:
        """Raises PieceInUse if an upload under way is joined from *upload*."""
        ended = upload.status in (Status.ABORTED, Status.EXPIRED)
        if not ended and (final := await self._lifecycle.final_of(upload)) is not None:
            raise PieceInUse(upload.upload_id, final.upload_id)

    # ── content ──────────────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def content(
        self, upload_id: str, *, start: int | None = None, end: int | None = None
    ) -> AsyncGenerator[Content]:
        """The finished object from *start* to *end*, both included; without *start*, the last
        *end* bytes.

        Raises UploadNotFound, UploadGone, UploadConflict, RangeInvalid, StoreAway.
        """
        upload = await self._lifecycle.row(upload_id)
        if upload.status is not Status.COMPLETED:
            if upload.status in (Status.ABORTED, Status.EXPIRED):
                raise UploadGone(upload_id, upload.status)
            raise UploadConflict(upload_id, f"is {upload.status}: it has no content yet")
        size = upload.final_size or 0
        first, length = _range(size, start, end)
        store = self._lifecycle.store_of(upload.bucket)
        try:
            async with store.get(upload.s3_key, start=first, length=length or None) as pieces:
                yield Content(upload, size, first, length, upload.etag or "", pieces)
        except ObjectNotFound as error:
            raise UploadNotFound(upload_id) from error
        except StoreError as error:
            raise StoreAway(upload_id, str(error)) from error

    @property
    def is_on(self) -> bool:
        """Whether the options name an object store."""
        with suppress(UploadsOff):
            self._lifecycle.store_of("")
            return True
        return False

    async def probe(self) -> None:
        """Check that the object store can be used, if there is one. Raises StoreError."""
        if self.is_on:
            await self._lifecycle.store_of("").check()


def _range(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    """Returns the first byte of a range, and how many bytes it has. Raises RangeInvalid."""
    if start is None:
        length = size if end is None else min(end, size)
        if end == 0:
            raise RangeInvalid(size)
        return size - length, length
    last = size - 1 if end is None else min(end, size - 1)
    if start > last:
        raise RangeInvalid(size)
    return start, last - start + 1


def _progress(view: View) -> tuple[str, ...]:
    names = ("status", "received_chunks", "uploaded_chunks", "total_chunks", "error_message")
    return tuple(view.fields.get(name, "") for name in names)
