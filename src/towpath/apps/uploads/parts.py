"""The jobs of uploads in a worker: store a part, or complete an upload whose parts are all stored.

Both may run twice, in two workers at once, and after a crash at any point: storing a part twice
overwrites it with the same bytes, the object store completes an object once, and the row changes
once, in the transaction that puts the event into the outbox.

These are hops 11 to 18 of a chunk: see the table in docs/explanation/applications.md, "Uploads".
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

import msgspec

from towpath.app.app import Towpath
from towpath.apps.uploads import tables
from towpath.apps.uploads.concatenation import joined
from towpath.apps.uploads.errors import ChecksumMismatch, UploadError, UploadNotFound
from towpath.apps.uploads.lifecycle import Lifecycle, Work, entry_of, part_algorithm, part_of
from towpath.apps.uploads.measures import COMPLETION_LATENCY, PROCESSED, STORE_LATENCY, Measures
from towpath.apps.uploads.model import ATTEMPTS, RETRY, UPLOADS, Status, Upload
from towpath.apps.uploads.options import UploadsOptions
from towpath.apps.uploads.states import PartStale, TakenPart, UploadUnknown
from towpath.apps.uploads.stores.checksums import Checksum, RunningChecksum, combined
from towpath.apps.uploads.stores.errors import (
    ChecksumDiffers,
    MultipartNotFound,
    ObjectNotFound,
    PartsDiffer,
    StoreError,
    StoreUnreachable,
)
from towpath.apps.uploads.stores.port import UPLOAD, Object, ObjectStore, Part, Piece
from towpath.clock import ZERO, Duration, days, seconds, wall_ms
from towpath.engine.engine import Engine
from towpath.ledger.outbox.event import NewEvent
from towpath.worker.context import Context, Retry

COMPLETED_EVENT = "towpath.upload.completed"
_LONGEST = days(1)
"""The time limit of a job: enough to read back 5 TiB at 64 MB/s for a SHA-256. Calls that hang end
sooner, by limits of their own."""


class BytesGone(Exception):
    """Chunks of the part are no longer in Redis."""

    def __init__(self, gone: dict[int, str]) -> None:
        super().__init__("chunks are gone")
        self.gone = gone


def add_uploads(
    app: Towpath, store: ObjectStore, options: UploadsOptions, *, chunks: Engine | None = None
) -> None:
    """Let *app*, which must have a ledger, store the parts of uploads and complete them.

    *store*, and *chunks* if the bytes are in another Redis, must be entered.
    """

    @app.handler(
        UPLOADS,
        max_attempts=ATTEMPTS,
        retry=RETRY,
        time_limit=_LONGEST,
        concurrency=options.parts_at_once,
        keep=ZERO,
    )
    async def work(payload: bytes, ctx: Context) -> None:
        lifecycle = Lifecycle(  # made here, because the app has its engine only while it is entered
            engine=app.engine,
            chunks=chunks,
            ledger=app.ledger,
            store=store,
            options=options,
            measures=Measures(app.metrics),
        )
        await Storing(lifecycle).work(payload, ctx)


class Storing:
    """Stores parts, and completes uploads."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle, self._records = lifecycle, lifecycle.records

    async def work(self, payload: bytes, ctx: Context) -> None:
        """Run a job. A permanent error fails the upload."""
        work = msgspec.json.decode(payload, type=Work)
        try:
            upload = await self._lifecycle.row(work.upload)
            if not upload.status.open or upload.generation != work.generation:
                await self._repeat_end(upload)
            elif work.part is None:
                await self.complete(upload, work.turn)
            else:
                await self.store_part(upload, work.part, work.turn)
        except (UploadNotFound, PartStale):
            return
        except UploadUnknown:
            with suppress(UploadError):
                await self._lifecycle.restore(work.upload)
        except StoreUnreachable as error:
            await self._retry_or_fail(work, ctx, str(error), after=error.after)
        except ChecksumDiffers as error:  # damaged on the way: a retry may succeed
            await self._retry_or_fail(work, ctx, str(error))
        except StoreError as error:
            await self._lifecycle.fail(work.upload, work.generation, str(error))
        except ChecksumMismatch as error:
            await self._lifecycle.fail(work.upload, work.generation, str(error), drop=True)

    async def _retry_or_fail(
        self, work: Work, ctx: Context, reason: str, *, after: Duration | None = None
    ) -> None:
        if ctx.attempt < ATTEMPTS:
            raise Retry(reason, after=after)
        await self._lifecycle.fail(work.upload, work.generation, reason)

    async def _repeat_end(self, upload: Upload) -> None:
        """Repeat the end of an upload, if it has ended: the process that ended it may have stopped
        before it changed Redis.
        """
        if upload.status is Status.COMPLETED:
            await self._note_completed(upload, upload.etag or "", upload.final_size or 0)
        elif upload.status in (Status.ABORTED, Status.EXPIRED):
            await self._lifecycle.remove(upload, upload.status)

    # ── parts ────────────────────────────────────────────────────────────────────────────

    async def store_part(self, upload: Upload, part: int, turn: int) -> None:
        """Store a part; a file of one part is stored whole.

        Raises StoreError, UploadUnknown, PartStale.
        """
        state = self._records.state(upload.upload_id)
        try:
            taken = await state.take(upload.generation, part, turn)
        except UploadError:
            return  # the upload has ended meanwhile
        last, whole = taken.last, None
        if taken.tokens:
            try:
                body = await self._read_chunks(upload, taken)
            except BytesGone as error:
                await state.lose(upload.generation, error.gone)
                await self._lifecycle.publish_progress(upload.upload_id)
                return
            with self._lifecycle.measures.timed(STORE_LATENCY):
                stored, whole = await self._send_part(upload, part, body)
            try:
                entry = entry_of(stored)
                last = await state.note_part_stored(upload.generation, part, turn, entry)
            except UploadError:  # the upload has ended meanwhile: delete what was stored
                await self._repeat_end(await self._lifecycle.row(upload.upload_id))
                return
            self._lifecycle.measures.count(PROCESSED, taken.chunks)
        numbers = range(taken.first, taken.first + taken.chunks)
        # Delete the bytes first: released room may be reserved again at once.
        await self._records.chunks(upload.upload_id).delete(numbers, taken.tokens)
        await self._records.budget.release(upload.upload_id, [part])
        if last and whole is not None:
            await self._finish(upload, whole, [Part(1, whole.size, whole.etag, whole.checksum)])
            return
        if last:
            await self._lifecycle.submit(Work(upload.upload_id, upload.generation))
        await self._lifecycle.publish_progress(upload.upload_id)

    async def _read_chunks(self, upload: Upload, taken: TakenPart) -> list[Piece]:
        """The bytes of a part, in pieces. Raises BytesGone."""
        chunks, plan = self._records.chunks(upload.upload_id), upload.plan
        tokens = dict(enumerate(taken.tokens, start=taken.first))
        found = await chunks.fetch(tokens, plan.chunk_size)
        body: list[Piece] = []
        gone: dict[int, str] = {}
        for number, token in tokens.items():
            pieces, length = found.get(number), plan.chunk_length(number)
            if not pieces or length not in (None, sum(map(len, pieces))):
                gone[number] = token
            body += pieces or ()
        if gone:
            raise BytesGone(gone)
        return body

    async def _send_part(
        self, upload: Upload, part: int, body: Sequence[Piece]
    ) -> tuple[Part, Object | None]:
        """Store a part; for a file of one part, also returns its object, which is whole then."""
        store, size = self._lifecycle.store_of(upload.bucket), upload.size
        if size is None:  # the size may be known by now
            size = (await self._records.state(upload.upload_id).chart()).plan.size
        if upload.s3_upload_id is None and size is not None and size <= upload.part_size:
            made = await self._put_whole(upload, store, body)
            return Part(1, made.size, made.etag, made.checksum), made
        begun = await self._ensure_multipart(upload, store)
        multipart = self._lifecycle.multipart(begun)
        if multipart is None:
            raise PartStale
        return await store.put_part(multipart, part + 1, body), None

    async def _put_whole(self, upload: Upload, store: ObjectStore, body: Sequence[Piece]) -> Object:
        wanted = upload.checksum
        if wanted is not None:
            compute = partial(Checksum.of, wanted.algorithm, body)  # a CRC is fast
            found = compute() if wanted.algorithm.combines else await asyncio.to_thread(compute)
            if found != wanted:
                raise ChecksumMismatch(upload.upload_id, wanted.value, found.value)
        return await store.put(
            upload.s3_key,
            body,
            checksum=wanted if wanted and wanted.algorithm.combines else None,
            metadata={"upload": upload.upload_id},  # for people: nothing reads it
            content_type=upload.mime_type,
        )

    async def _ensure_multipart(self, upload: Upload, store: ObjectStore) -> Upload:
        """Begin the multipart upload of *upload*; if two workers begin one, the row keeps one."""
        if upload.s3_upload_id is not None:
            return await self._publish_multipart(upload)
        fresh = await self._lifecycle.row(upload.upload_id)
        if fresh.s3_upload_id is None and fresh.generation == upload.generation:
            made = await store.begin_multipart(
                fresh.s3_key,
                upload=fresh.upload_id,
                content_type=fresh.mime_type,
                algorithm=part_algorithm(fresh),
            )
            counts = await self._lifecycle.ledger.write(tables.save_multipart(fresh, made.id))
            if counts != made.id:
                await store.abort(made)
            if counts is None:
                raise PartStale
            fresh = msgspec.structs.replace(fresh, s3_upload_id=counts)
        return await self._publish_multipart(fresh)

    async def _publish_multipart(self, upload: Upload) -> Upload:
        """Copy the id of the multipart upload from the row to the state; returns *upload*.

        The process that wrote the row may have stopped before it wrote the state.
        """
        if upload.s3_upload_id is not None:
            state = self._records.state(upload.upload_id)
            await state.note_multipart(upload.generation, upload.s3_upload_id)
        return upload

    # ── completion ───────────────────────────────────────────────────────────────────────

    async def complete(self, upload: Upload, turn: int = 0) -> None:
        """Make the object from its parts, check it, and write row and event in one transaction.

        Raises StoreError, UploadUnknown.
        """
        if upload.sources:
            await self._join(upload, turn)
            return
        chart = await self._records.state(upload.upload_id).chart()
        plan = chart.plan
        if plan.size is None or len(chart.parts) != plan.total_parts:
            return  # chunks are missing again
        if upload.size is None:  # a rebuild without Redis recognizes the object by its size
            await self._lifecycle.ledger.write(tables.save_size(upload, plan.size))
        store = self._lifecycle.store_of(upload.bucket)
        parts = [part_of(number, entry) for number, entry in sorted(chart.parts.items())]
        try:
            made = await self._complete_object(upload, store, parts, plan.size)
        except (ObjectNotFound, PartsDiffer) as error:
            # The object store is the truth: clients send again what is gone there or differs.
            await self._lifecycle.reopen(upload)
            raise PartStale from error
        if made.size != plan.size:
            await store.delete(upload.s3_key)
            raise ChecksumMismatch(upload.upload_id, f"{plan.size} bytes", f"{made.size} bytes")
        await self._finish(upload, made, parts)

    async def _finish(self, upload: Upload, made: Object, parts: Sequence[Part]) -> None:
        """Verify the object, which is whole, then write row and event. Raises StoreError."""
        await self._verify_content(upload, store := self._lifecycle.store_of(upload.bucket), parts)
        await self._activate(upload, made, store)

    async def _join(self, upload: Upload, turn: int) -> None:
        """Complete an upload that was joined from other uploads, once all of those are completed.

        Until then this submits another job with a delay, and does not keep a worker waiting.
        """
        pieces = [await self._lifecycle.row(id) for id in upload.sources]
        if lacking := next(
            (piece for piece in pieces if not (piece.status.open or is_completed(piece))), None
        ):
            reason = f"its piece {lacking.upload_id} is {lacking.status}"
            await self._lifecycle.fail(upload.upload_id, upload.generation, reason)
            return
        if not all(map(is_completed, pieces)):
            again = Work(upload.upload_id, upload.generation, turn=turn + 1)
            await self._lifecycle.submit(
                again, delay=min(seconds(0.1) * 2 ** min(turn, 10), seconds(5))
            )
            return
        store = self._lifecycle.store_of(upload.bucket)
        if not upload.size:
            made = await self._put_whole(upload, store, [])
        else:
            begun = await self._ensure_multipart(upload, store)
            multipart = self._lifecycle.multipart(begun)
            if multipart is None:
                raise PartStale
            try:
                made = await joined(store, multipart, pieces)
            except MultipartNotFound:
                if (found := await self._find_object(upload, store)) is None:
                    raise
                made = found
        fresh = await self._lifecycle.row(upload.upload_id)
        if fresh.status.open and fresh.generation == upload.generation:
            await self._activate(fresh, made, store)
        if is_completed(await self._lifecycle.row(upload.upload_id)):
            for piece in pieces:
                if await self._lifecycle.final_of(piece) is None:
                    await self._lifecycle.end(piece, Status.ABORTED)

    async def _complete_object(
        self, upload: Upload, store: ObjectStore, parts: Sequence[Part], size: int
    ) -> Object:
        """Complete the object. A repeat returns the same object."""
        multipart = self._lifecycle.multipart(upload)
        if multipart is None:
            if size == 0:
                return await self._put_whole(upload, store, [])
            return await store.head(upload.s3_key)
        if not all(part.etag for part in parts):  # rebuilt from a completed object
            return await store.head(upload.s3_key)
        wanted = upload.checksum
        if (
            wanted
            and _are_combinable(parts, wanted)
            and (found := _combine_checksums(parts)) != wanted
        ):
            await store.abort(multipart)
            raise ChecksumMismatch(upload.upload_id, wanted.value, found.value)
        try:
            return await store.complete(
                multipart, parts, checksum=wanted if wanted and wanted.algorithm.combines else None
            )
        except MultipartNotFound:
            found = await self._find_object(upload, store)
            if found is None:
                raise
            return found

    async def _find_object(self, upload: Upload, store: ObjectStore) -> Object | None:
        """Returns the object, if this upload has made it."""
        with suppress(ObjectNotFound):
            found = await store.head(upload.s3_key)
            return found if found.metadata.get(UPLOAD) == upload.upload_id else None
        return None

    async def _verify_content(
        self, upload: Upload, store: ObjectStore, parts: Sequence[Part]
    ) -> None:
        """Read the object back and compare its checksum, unless that of the parts was enough.

        Deletes the object and raises ChecksumMismatch if it differs.
        """
        wanted = upload.checksum
        if wanted is None or _are_combinable(parts, wanted):
            return
        running = RunningChecksum(wanted.algorithm)
        async with store.get(upload.s3_key) as pieces:
            async for piece in pieces:
                await asyncio.to_thread(running.update, piece)
        if running.checksum != wanted:
            await store.delete(upload.s3_key)
            raise ChecksumMismatch(upload.upload_id, wanted.value, running.checksum.value)

    async def _activate(self, upload: Upload, made: Object, store: ObjectStore) -> None:
        """Write row and event in one transaction; then change the state and publish progress."""
        event = NewEvent(
            type=COMPLETED_EVENT,
            key=upload.node_id,
            id=f"upload-{upload.upload_id}",
            data=msgspec.json.encode(
                {
                    "node_id": upload.node_id,
                    "upload_id": upload.upload_id,
                    "s3_key": upload.s3_key,
                    "etag": made.etag,
                    "size": made.size,
                    "timestamp": wall_ms(),
                }
            ),
        )
        # A piece of another upload is no document, so it has no event.
        put = None if upload.partial else self._lifecycle.ledger.outbox.putting([event])
        fields = {"etag": made.etag, "final_size": made.size, "size": made.size, "error": None}
        change = tables.change_status(upload, Status.COMPLETED, fields, also=put)
        active = await self._lifecycle.ledger.write(change)
        if not active:
            now = await self._lifecycle.row(upload.upload_id)
            if now.status in (Status.ABORTED, Status.EXPIRED):
                await store.delete(upload.s3_key)
            if now.status is not Status.COMPLETED:
                return
        fields = await self._note_completed(upload, made.etag, made.size)
        if active and fields and not upload.sources:
            began = int(fields.get("first_chunk_at") or fields["created_at"])
            self._lifecycle.measures.observe(COMPLETION_LATENCY, (wall_ms() - began) / 1000)

    async def _note_completed(self, upload: Upload, etag: str, size: int) -> Mapping[str, str]:
        state = self._records.state(upload.upload_id)
        fields = {"final_etag": etag, "final_size": str(size)}
        await state.end(upload.generation, Status.COMPLETED, fields)
        return await self._lifecycle.publish_progress(upload.upload_id)


def is_completed(upload: Upload) -> bool:
    return upload.status is Status.COMPLETED


def _are_combinable(parts: Sequence[Part], wanted: Checksum) -> bool:
    """Whether the checksums of the parts combine to the one that is wanted."""
    kinds = {part.checksum.algorithm if part.checksum else None for part in parts}
    return wanted.algorithm.combines and kinds == {wanted.algorithm}


def _combine_checksums(parts: Sequence[Part]) -> Checksum:
    return combined([(part.checksum, part.size) for part in parts if part.checksum is not None])
