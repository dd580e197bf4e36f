"""The sweep: delete expired uploads, continue stalled ones, delete leftovers.

A process can die after each step of an upload. The sweep starts from the rows and finds what was
not done: jobs that were not submitted, bytes that are gone, reservations that are not needed,
states that Redis has lost, parts that no row knows. It may run twice, or in two servers at once.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from towpath.apps.uploads import tables
from towpath.apps.uploads.errors import UploadError, UploadsOff
from towpath.apps.uploads.lifecycle import Lifecycle
from towpath.apps.uploads.measures import ORPHANS, QUEUED, RESERVED
from towpath.apps.uploads.model import Status, Upload
from towpath.apps.uploads.states import UploadUnknown, require_current
from towpath.apps.uploads.stores.errors import BucketNotFound, StoreError
from towpath.clock import Duration, duration_ms, hours, minutes, steady, wall_ms

if TYPE_CHECKING:
    from towpath.apps.uploads.stores.port import Multipart, ObjectStore

_PAGE = 200
_SETTLED = hours(1)
"""After this time no process still works for an upload that has ended, or is about to write the id
of a multipart upload into its row."""
_QUIET = 30_000
"""Milliseconds without activity after which the sweep continues an upload."""
_LIST_EVERY = minutes(15)
"""How often all multipart uploads in the object store are listed."""
_NODE = re.compile(
    r"connectors/[A-Za-z0-9_-]{1,128}/"
    r"([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})[A-Za-z0-9._-]{0,32}"
)
"""The key of an object of ours; its group is the document's id."""


class Swept(msgspec.Struct, kw_only=True):
    """What a sweep has done."""

    looked_at: int = 0
    """Uploads under way."""
    expired: int = 0
    """Uploads that were silent for too long, and have expired now."""
    deleted: int = 0
    """Uploads that were aborted or expired before, and whose bytes are all deleted now."""
    released: int = 0
    """Parts whose reservation was released, since they have no bytes."""
    orphans: int = 0
    """Multipart uploads in the object store that belonged to no upload, and were aborted."""
    chunks_queued: int = 0
    """Chunks in Redis that wait for their part to be stored."""
    troubles: int = 0
    """Uploads and buckets that could not be swept now; the next sweep tries again."""


class Sweep:
    """Sweeps once, or repeatedly."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle, self._records = lifecycle, lifecycle.records
        self._name = f"{socket.gethostname()}:{os.getpid()}:{id(self)}"
        self._listed: float | None = None
        self._waiting: dict[str, str] = {}
        """The owner of each upload that has chunks in Redis."""
        self.queued = 0
        """Chunks that waited in Redis at the last sweep of any server."""

    async def keep_on(self) -> None:
        """Sweep whenever it is this server's turn, until cancelled."""
        every = self._lifecycle.options.sweep_every
        while True:
            mine, self.queued = await self._records.sweep_turns.take(self._name, lasts=every * 3)
            if mine:
                listed = self._listed
                lists = listed is None or steady() - listed >= _LIST_EVERY.total_seconds()
                if lists:
                    self._listed = steady()
                swept = await self.once(store_too=lists)
                self.queued = swept.chunks_queued
                await self._records.sweep_turns.save_queued(swept.chunks_queued)
                self._lifecycle.measures.count(ORPHANS, swept.orphans)
            self._lifecycle.measures.set(QUEUED, self.queued)
            self._lifecycle.measures.set(RESERVED, await self._records.budget.used())
            await asyncio.sleep(every.total_seconds())

    async def once(self, *, older: Duration | None = None, store_too: bool = True) -> Swept:
        """Sweep all uploads, and with *store_too* the multipart uploads in the object store.

        Bytes of uploads that have ended, and multipart uploads without an upload, are deleted if
        they are *older*. None = an hour, and `uploads.expiry` for what no row knows. Raises
        ServerError, LedgerError.
        """
        swept = Swept()
        await self._expire(swept)
        await self._continue_stalled(swept, quiet=_QUIET if older is None else 0)
        await self._count_room(swept)
        await self._remove(swept, _SETTLED if older is None else older)
        if store_too:
            for store in self._stores():
                try:
                    await self._abort_orphans(store, swept, older)
                except BucketNotFound:  # a bucket that is made when needed has no leftovers yet
                    swept.troubles += not self._lifecycle.options.make_bucket
                except StoreError:
                    swept.troubles += 1
        return swept

    # ── rows ─────────────────────────────────────────────────────────────────────────────

    async def _expire(self, swept: Swept) -> None:
        """Expire uploads that were silent for too long; extend the deadlines of the others."""
        while found := await self._lifecycle.ledger.read(tables.overdue(wall_ms(), _PAGE)):
            for upload in found:
                swept.expired += await self._lifecycle.expire(upload)
            if len(found) < _PAGE:
                return

    async def _continue_stalled(self, swept: Swept, *, quiet: int) -> None:
        """Continue uploads that stand still: submit their jobs, rebuild their states."""
        self._waiting.clear()
        async for upload in self._under_way():
            swept.looked_at += 1
            state = self._records.state(upload.upload_id)
            try:
                fields, _ = await state.look()
                require_current(fields["generation"], upload)
                queued = int(fields["received_chunks"]) - int(fields["uploaded_chunks"])
                swept.chunks_queued += queued
                if queued:
                    self._waiting[upload.upload_id] = upload.owner
                if wall_ms() - int(fields["updated_at"]) >= quiet:
                    await self._lifecycle.submit_ready(upload.upload_id, stalled=True)
            except UploadUnknown:
                await self._restore(upload, swept)
            except (UploadError, StoreError):  # it has ended meanwhile, or the object store is away
                swept.troubles += 1

    async def _restore(self, upload: Upload, swept: Swept) -> None:
        try:
            await self._lifecycle.restore(upload.upload_id)
        except (UploadError, StoreError):
            swept.troubles += 1

    async def _under_way(self) -> AsyncGenerator[Upload]:
        after = ""
        while found := await self._lifecycle.ledger.read(tables.under_way(after, _PAGE)):
            for upload in found:
                yield upload
            after = found[-1].upload_id

    async def _count_room(self, swept: Swept) -> None:
        """Correct the reservations by the bytes in Redis, as processes may have died."""
        budget = self._records.budget
        await budget.tidy()
        counted = await budget.without_bodies()
        for upload_id in counted.keys() | self._waiting.keys():
            before = counted.get(upload_id, {})
            there: dict[int, int] = {}
            with suppress(UploadUnknown):
                there = await self._records.bytes_in_redis(upload_id)
            parts = {part: (before.get(part, 0), there.get(part, 0)) for part in before | there}
            wrong = {part: pair for part, pair in parts.items() if pair[0] != pair[1]}
            if wrong:
                await budget.correct(upload_id, self._waiting.get(upload_id, ""), wrong)
            swept.released += sum(not left for _, left in wrong.values())

    async def _remove(self, swept: Swept, older: Duration) -> None:
        """Delete the bytes of ended uploads again: late workers may have stored some."""
        before = wall_ms() - duration_ms("older", older)
        while found := await self._lifecycle.ledger.read(tables.left_behind(before, _PAGE)):
            gone = 0
            for upload in found:
                if await self._lifecycle.remove(upload, upload.status):
                    await self._lifecycle.ledger.write(tables.note_removal(upload))
                    gone += 1
                else:
                    swept.troubles += 1
            swept.deleted += gone
            if not gone or len(found) < _PAGE:
                return

    # ── the store ────────────────────────────────────────────────────────────────────────

    def _stores(self) -> list[ObjectStore]:
        """The object store of each bucket that the options name."""
        buckets = sorted({"", *self._lifecycle.options.drives.values()})
        with suppress(UploadsOff):
            return [self._lifecycle.store_of(bucket) for bucket in buckets]
        return []

    async def _abort_orphans(
        self, store: ObjectStore, swept: Swept, older: Duration | None
    ) -> None:
        """Abort multipart uploads that no row knows, or whose row has another one."""
        found = [one async for one in store.list_multiparts() if _NODE.fullmatch(one.key)]
        for at in range(0, len(found), _PAGE):
            some = found[at : at + _PAGE]
            rows = await self._lifecycle.ledger.read(
                tables.of_nodes([_node_of(one) for one in some])
            )
            for one in some:
                upload = rows.get(_node_of(one))
                usual = _SETTLED if upload else self._lifecycle.options.expiry
                if not _belongs(one, upload) and _is_older(one, usual if older is None else older):
                    await store.abort(one)
                    swept.orphans += 1


def _node_of(multipart: Multipart) -> str:
    match = _NODE.fullmatch(multipart.key)
    return match[1] if match else ""


def _belongs(multipart: Multipart, upload: Upload | None) -> bool:
    """Whether *upload* uses this multipart upload, or may use it after a resume."""
    if upload is None or not (upload.status.open or upload.status is Status.FAILED):
        return False
    return upload.s3_upload_id == multipart.id


def _is_older(multipart: Multipart, age: Duration) -> bool:
    if multipart.begun is None:
        return True
    return wall_ms() - multipart.begun.timestamp() * 1000 >= duration_ms("older", age)
