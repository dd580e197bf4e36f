"""How an upload is rebuilt from its row, and how it fails, is aborted or expires.

The row is changed first and Redis last, so that the next request or sweep can finish what a crash
interrupted. A job's id has the upload, part, generation and turn: submitting it twice makes one
job, and a new turn or generation makes a new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress

import msgspec

from towpath.apps.uploads import tables
from towpath.apps.uploads.errors import StoreAway, UploadNotFound, UploadsOff
from towpath.apps.uploads.hashes import PartEntry
from towpath.apps.uploads.measures import Measures
from towpath.apps.uploads.model import ATTEMPTS, RETRY, UPLOADS, Status, Upload
from towpath.apps.uploads.options import UploadsOptions
from towpath.apps.uploads.records import UploadRecords
from towpath.apps.uploads.states import KnownSize, UploadUnknown, not_open
from towpath.apps.uploads.stores.checksums import Algorithm, Checksum
from towpath.apps.uploads.stores.errors import MultipartNotFound, ObjectNotFound, StoreError
from towpath.apps.uploads.stores.port import UPLOAD, Multipart, ObjectStore, Part
from towpath.clock import ZERO, Duration, instant, minutes, steady, wall_ms
from towpath.engine.engine import Engine
from towpath.engine.model import JobOptions, Submitted
from towpath.engine.states import State
from towpath.errors import JobError, JobNotWaiting, ServerError
from towpath.ledger.ledger import Ledger

CHUNK_CHANNEL = "upload:chunk:received"
_JOINED_AGAIN = 60_000
"""ms: within this time, `submit_ready` submits at most one new job for an upload that is joined
from others."""
_DELAYED_MOST = minutes(1)
"""Longer than any delay of our jobs: if a job is due later, an operator has moved it."""
_ERROR_LONGEST = 500
_OTHERS_HAVE, _LOOK_EVERY = 1.0, 0.05
"""Seconds that another process has to rebuild a state after it has changed the row; and between
two reads of that state."""


class Work(msgspec.Struct, frozen=True):
    """The payload of a job: a part to be stored, or an upload to be completed."""

    upload: str
    generation: int
    """The generation of the upload: grows with each resume and with each rebuild of its state."""
    part: int | None = None
    """None = all parts are stored: complete it."""
    turn: int = 0
    """How often the part has lost chunks; of a joined upload, how often it waited for its pieces.
    """

    @property
    def id(self) -> str:
        if self.part is None:
            again = f".{self.turn}" if self.turn else ""
            return f"{self.upload}/complete/{self.generation}{again}"
        return f"{self.upload}/{self.part}/{self.generation}.{self.turn}"


class Lifecycle:
    """What servers and workers both do with uploads."""

    def __init__(
        self,
        *,
        engine: Engine,
        chunks: Engine | None = None,
        ledger: Ledger,
        store: ObjectStore | None,
        options: UploadsOptions,
        measures: Measures | None = None,
    ) -> None:
        self._engine, self.ledger = engine, ledger
        self._store, self.options = store, options
        self.engines = engine, chunks or engine
        """The engine with the states, and the one with the bytes; often the same."""
        self.records = UploadRecords(*self.engines, options)
        self.measures = measures or Measures()

    def store_of(self, bucket: str) -> ObjectStore:
        """The object store of a bucket. Raises UploadsOff."""
        if self._store is None:
            raise UploadsOff
        return self._store.at(bucket)

    def multipart(self, upload: Upload) -> Multipart | None:
        """The multipart upload in the object store, if it was begun."""
        if upload.s3_upload_id is None:
            return None
        algorithm = part_algorithm(upload)
        return Multipart(upload.s3_key, upload.s3_upload_id, upload.upload_id, algorithm)

    async def row(self, upload_id: str) -> Upload:
        """Read the row of an upload. Raises UploadNotFound."""
        found = await self.ledger.read(tables.read_upload(upload_id))
        if found is None:
            raise UploadNotFound(upload_id)
        return found

    # ── jobs ─────────────────────────────────────────────────────────────────────────────

    async def submit(self, work: Work, *, delay: Duration = ZERO, stalled: bool = False) -> None:
        """Submit the job that stores a part or completes an upload; a repeat is the same job.

        If that job is dead, because workers died or because Redis or the database was away for too
        long, the upload fails; a resume gives it new jobs. A foreign job with the same id is
        replaced. For a *stalled* upload, so is its own job if that has ended or was moved.
        """
        engine, payload = self._engine, msgspec.json.encode(work)
        options: JobOptions = {
            "id": work.id, "delay": delay, "max_attempts": ATTEMPTS, "retry": RETRY,
        }  # fmt: skip
        submitted = await engine.submit(UPLOADS, payload, **options)
        if not submitted.existed:
            return
        if submitted.same_payload is False or (stalled and await self._is_lost(submitted)):
            try:
                await engine.set(UPLOADS, payload, **options)
            except JobNotWaiting:  # leased: the next sweep replaces it
                with suppress(JobError):
                    await engine.cancel(submitted.job)
        elif submitted.state is State.DEAD:
            with suppress(JobError):
                job = await engine.inspect.job(submitted.job)
                reason = f"its job failed for good: {job.reason}"
                await self.fail(work.upload, work.generation, reason)
                await engine.delete(submitted.job)

    async def save_size(self, upload_id: str, known: KnownSize) -> None:
        """Save the size of an upload in its row, then submit the job that is ready, if any."""
        upload = await self.row(upload_id)
        await self.ledger.write(tables.save_size(upload, known.size))
        await self.submit_after_size(upload_id, known)

    async def submit_after_size(self, upload_id: str, known: KnownSize) -> None:
        """Submit the job for which an upload is ready now that its size is known, if any."""
        if known.last:
            await self.submit(Work(upload_id, known.generation))
        elif known.part is not None:
            await self.submit(Work(upload_id, known.generation, known.part, known.turn))

    async def _is_lost(self, submitted: Submitted) -> bool:
        """Whether a job will not run in time, because it has ended or was moved."""
        if submitted.state in (State.DONE, State.CANCELLED, State.GONE):
            return True
        if submitted.state is not State.DELAYED:
            return False
        with suppress(JobError):
            job = await self._engine.inspect.job(submitted.job)
            return job.due_at is not None and job.due_at > instant(wall_ms()) + _DELAYED_MOST
        return True

    # ── rebuilding ───────────────────────────────────────────────────────────────────────

    async def restore(self, upload_id: str) -> Upload:
        """Rebuild a lost state from the row and the object store's list of parts.

        Chunks that were only in Redis are missing again. Raises UploadNotFound, StoreAway; and
        UploadEnded, UploadFailed, UploadGone for an upload that has ended.
        """
        state, seen, until = self.records.state(upload_id), 0, 0.0
        while True:
            upload = await self.row(upload_id)
            if upload.generation != seen:  # another process began it: give it time
                seen, until = upload.generation, steady() + _OTHERS_HAVE
            if not upload.status.open:
                raise not_open(upload_id, upload.status)
            with suppress(UploadUnknown):
                fields, _ = await state.look()
                if int(fields["generation"]) >= upload.generation:
                    return upload
            moved = wall_ms() - round(upload.updated_at.timestamp() * 1000)
            if 0 <= moved < _OTHERS_HAVE * 1000 and steady() < until:
                await asyncio.sleep(_LOOK_EVERY)  # another process rebuilds it
            elif (opened := await self.reopen(upload)) is not None:
                return opened

    async def reopen(self, upload: Upload) -> Upload | None:
        """Rebuild the state in a new generation from the stored parts, and continue from there.

        Returns None if another process has changed the row meanwhile.
        """
        parts = await self._read_stored(upload)
        generation = upload.generation + 1
        changes = {"generation": generation, "error": None}
        if parts is None:
            changes["s3_upload_id"] = None
        if not await self.ledger.write(tables.change_status(upload, Status.UPLOADING, changes)):
            return None
        upload = await self.row(upload.upload_id)
        if upload.generation != generation or not upload.status.open:
            return None
        state = self.records.state(upload.upload_id)
        tails = await self.records.tail_tokens(upload.upload_id)
        await self.records.chunks(upload.upload_id).delete_all(tails)
        with suppress(UploadUnknown):
            begun = (await state.chart()).fill
            await self.records.budget.release(upload.upload_id, begun)
        await state.open(upload, parts or {})
        if upload.sources:
            await self.submit(Work(upload.upload_id, generation))
        elif upload.size is not None and len(parts or {}) == upload.plan.total_parts:
            await state.close(upload.plan.total_chunks or 0)
            await self.submit(Work(upload.upload_id, generation))
        return upload

    async def revive(self, upload: Upload) -> Upload | None:
        """Continue a failed upload; None if another process has changed the row meanwhile.

        Raises StoreAway.
        """
        if upload.sources or await self._read_stored(upload) is None:
            return await self.reopen(upload)
        generation = upload.generation + 1
        changes = {"generation": generation, "error": None}
        if not await self.ledger.write(tables.change_status(upload, Status.UPLOADING, changes)):
            return None
        upload = await self.row(upload.upload_id)
        try:
            await self.records.state(upload.upload_id).revive(generation)
            await self.records.keep_tail(upload.upload_id, generation)
            await self.submit_ready(upload.upload_id)
        except UploadUnknown:
            return await self.reopen(upload)
        return upload

    async def submit_ready(self, upload_id: str, *, stalled: bool = False) -> None:
        """Submit all jobs that an upload is ready for, as `submit` does. Raises UploadUnknown."""
        upload = await self.row(upload_id)
        if upload.sources:
            # With an id of its own, as the job that was to try again may be dead.
            turn = wall_ms() // _JOINED_AGAIN
            await self.submit(Work(upload_id, upload.generation, turn=turn))
            return
        chart = await self.records.sync(upload_id)
        for part, turn in chart.whole_parts():
            await self.submit(Work(upload_id, chart.generation, part, turn), stalled=stalled)
        plan = chart.plan
        if plan.size is not None and len(chart.parts) == plan.total_parts:
            await self.records.state(upload_id).close(plan.total_chunks or 0)
            await self.submit(Work(upload_id, chart.generation), stalled=stalled)

    async def _read_stored(self, upload: Upload) -> dict[int, PartEntry] | None:
        """Read the parts from the object store; None = the multipart upload is gone there."""
        multipart = self.multipart(upload)
        if multipart is None or upload.sources:
            return {}
        plan, store = upload.plan, self.store_of(upload.bucket)
        try:
            found = await store.list_parts(multipart)
        except MultipartNotFound:
            return await self._parts_of_object(upload, store)
        except StoreError as error:
            raise StoreAway(upload.upload_id, str(error)) from error
        return {
            part.number - 1: entry_of(part)
            for part in found
            if part.size == plan.part_length(part.number - 1)
        }

    async def _parts_of_object(
        self, upload: Upload, store: ObjectStore
    ) -> dict[int, PartEntry] | None:
        """Returns all parts if the object was completed, though the row does not say so yet."""
        try:
            found = await store.head(upload.s3_key)
        except ObjectNotFound:
            return None
        except StoreError as error:
            raise StoreAway(upload.upload_id, str(error)) from error
        if found.metadata.get(UPLOAD) != upload.upload_id or found.size != upload.size:
            return None
        plan = upload.plan
        return {
            part: PartEntry("", plan.part_length(part)) for part in range(plan.total_parts or 0)
        }

    # ── ends ─────────────────────────────────────────────────────────────────────────────

    async def fail(
        self, upload_id: str, generation: int, error: str, *, drop: bool = False
    ) -> None:
        """Fail an upload that is still under way. Its row has the reason; it can be resumed.

        Its bytes stay in the object store and in Redis until they expire; *drop* = forget the
        received chunks, so that all of them must be sent again.
        """
        while True:
            upload = await self.row(upload_id)
            if not upload.status.open or upload.generation != generation:
                return
            reason = error[:_ERROR_LONGEST]
            if await self.ledger.write(
                tables.change_status(upload, Status.FAILED, {"error": reason})
            ):
                break
        state = self.records.state(upload_id)
        fields = {"error_message": reason}
        tails = await self.records.tail_tokens(upload_id) if drop else []
        begun = await state.end(generation, Status.FAILED, fields, drop=drop)
        if drop:
            await self.records.chunks(upload_id).delete_all(tails)
            await self.records.budget.release(upload_id, begun)
        await self.publish_progress(upload_id)

    async def end(self, upload: Upload, status: Status) -> bool:
        """Abort or expire *upload*, and delete its bytes from the object store and Redis.

        Returns False if its row has changed meanwhile. What can't be deleted now is left to the
        sweep.
        """
        if not await self.ledger.write(tables.change_status(upload, status)):
            return False
        await self.remove(upload, status)
        return True

    async def remove(self, upload: Upload, status: Status) -> bool:
        """Delete the bytes of an aborted or expired upload. It can be repeated.

        Returns False if the object store did not delete everything.
        """
        gone = False
        with suppress(UploadsOff, StoreError):
            store, multipart = self.store_of(upload.bucket), self.multipart(upload)
            if multipart is not None:
                await store.abort(multipart)
            # No row has the id of a multipart upload if the reply that had it was lost.
            async for other in store.list_multiparts(upload.s3_key):
                await store.abort(other)
            await store.delete(upload.s3_key)
            gone = True
        state = self.records.state(upload.upload_id)
        tails = await self.records.tail_tokens(upload.upload_id)
        begun = await state.end(upload.generation, status, drop=True)
        await self.records.chunks(upload.upload_id).delete_all(tails)
        await self.records.budget.release(upload.upload_id, begun)
        await self.publish_progress(upload.upload_id)
        return gone

    async def final_of(self, upload: Upload) -> Upload | None:
        """The upload under way that is joined from *upload*, if there is one."""
        if not upload.partial:
            return None
        return await self.ledger.read(tables.read_joined_from(upload.upload_id))

    async def expire(self, upload: Upload) -> bool:
        """Expire *upload*, unless it was active recently or an upload under way is joined from it.

        Returns whether it expired; if it is still needed, its deadline is extended.
        """
        if (final := await self.final_of(upload)) is not None:
            until = max(final.deadline.timestamp() * 1000, wall_ms() + _JOINED_AGAIN)
            await self.ledger.write(tables.set_deadline(upload, round(until)))
            return False
        expiry = round(self.options.expiry.total_seconds() * 1000)
        with suppress(UploadUnknown):
            fields, _ = await self.records.state(upload.upload_id).look()
            until = int(fields["updated_at"]) + expiry
            if until > wall_ms():
                await self.ledger.write(tables.set_deadline(upload, until))
                return False
        return await self.end(upload, Status.EXPIRED)

    # ── publishing ───────────────────────────────────────────────────────────────────────

    async def publish_chunk(self, upload_id: str, number: int, *, last: bool) -> None:
        """Publish that a chunk was received."""
        message = {
            "upload_id": upload_id,
            "chunk_number": number,
            "is_last": last,
            "timestamp": wall_ms(),
        }
        await self._publish(CHUNK_CHANNEL, message)

    async def publish_progress(self, upload_id: str) -> Mapping[str, str]:
        """Publish the progress of an upload; returns the fields of its state, if Redis has it."""
        with suppress(UploadUnknown, ServerError):
            fields, _ = await self.records.state(upload_id).look()
            await self._publish(f"upload:progress:{upload_id}", progress_of(fields))
            return fields
        return {}

    async def _publish(self, channel: str, message: Mapping[str, object]) -> None:
        # Messages are only for watching: without PUBLISH rights or subscribers nothing is lost.
        with suppress(ServerError, TimeoutError):
            async with asyncio.timeout(1):
                await self._engine.broadcast(channel, msgspec.json.encode(message))


def progress_of(fields: Mapping[str, str]) -> dict[str, object]:
    """The published message about the progress of an upload."""
    total, done = int(fields["total_chunks"]), int(fields["uploaded_chunks"])
    size, stored = int(fields["expected_size"]), int(fields["bytes_uploaded"])
    ended = fields["status"] == Status.COMPLETED
    share = stored / size if size else 0.0
    return {
        "uploaded_chunks": done,
        "total_chunks": total,
        "bytes_uploaded": stored,
        "total_bytes": size,
        "percent": 100.0 if ended else min(round(share * 100, 1), 100.0),
        "status": fields["status"],
    }


def part_algorithm(upload: Upload) -> Algorithm:
    """The algorithm of the parts' checksums: if they can combine to the client's, that one."""
    wanted = upload.checksum.algorithm if upload.checksum else Algorithm.CRC64NVME
    return wanted if wanted.combines else Algorithm.CRC64NVME


def entry_of(part: Part) -> PartEntry:
    """A part as Redis keeps it."""
    checksum = f"{part.checksum.algorithm}:{part.checksum.value}" if part.checksum else ""
    return PartEntry(part.etag, part.size, checksum)


def part_of(number: int, entry: PartEntry) -> Part:
    """A part as the object store has it; *number* counts from 0."""
    algorithm, _, value = entry.checksum.partition(":")
    checksum = Checksum(Algorithm(algorithm), value) if value else None
    return Part(number + 1, entry.size, entry.etag, checksum)
