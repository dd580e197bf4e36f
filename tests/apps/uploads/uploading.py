"""Uploads for tests: small rows without a database, and the service with its worker."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, cast

import msgspec

from towpath.apps.uploads.ingest import ChunkReceipt
from towpath.apps.uploads.lifecycle import Lifecycle
from towpath.apps.uploads.model import UPLOADS, NewUpload, Status, Upload
from towpath.apps.uploads.options import MIB, UploadsOptions
from towpath.apps.uploads.parts import Storing
from towpath.apps.uploads.records import BodyLease, Budget
from towpath.apps.uploads.service import UploadService, View
from towpath.apps.uploads.states import CountedChunk, NewChunk, UploadState
from towpath.apps.uploads.stores.checksums import Algorithm, Checksum
from towpath.apps.uploads.stores.port import ObjectStore
from towpath.clock import hours, seconds
from towpath.engine.engine import Engine
from towpath.engine.model import Lease
from towpath.ledger.ledger import Ledger
from towpath.worker.context import Context, Retry

THEN = datetime(2026, 1, 1, tzinfo=UTC)


def new_row(
    upload_id: str = "u1",
    *,
    size: int | None = 50,
    chunk_size: int = 4,
    part_size: int = 12,
    generation: int = 1,
) -> Upload:
    """An upload in chunks of four bytes and parts of three chunks."""
    return Upload(
        upload_id=upload_id,
        node_id=f"node-{upload_id}",
        owner="key",
        status=Status.PENDING,
        generation=generation,
        name="a.bin",
        size=size,
        chunk_size=chunk_size,
        part_size=part_size,
        mime_type="text/plain",
        drive="default",
        connector_id="c",
        parent_id=None,
        path="",
        custom_metadata="{}",
        client_node_id=None,
        checksum=None,
        bucket="",
        s3_key=f"connectors/c/node-{upload_id}",
        s3_upload_id=None,
        etag=None,
        final_size=None,
        error=None,
        created_at=THEN,
        updated_at=THEN,
        deadline=THEN,
    )


def digest_of(data: bytes) -> bytes:
    return Checksum.of(Algorithm.CRC64NVME, [data]).raw


async def put_one(
    state: UploadState, number: int, data: bytes, token: str, *, last: bool = False, most: int = 100
) -> CountedChunk:
    """Count a staged chunk."""
    chunk = NewChunk(number, len(data), digest_of(data), token)
    puts, refusal = await state.put([chunk], last=last, most=most)
    if refusal is not None:
        raise refusal
    return puts[0]


async def in_pieces(data: bytes, size: int = 300_000) -> AsyncIterator[bytes]:
    """A body in pieces, as it arrives from a socket."""
    for at in range(0, len(data), size):
        yield data[at : at + size]


class UploadServices:
    """The service, and a worker that runs jobs when a test says so."""

    def __init__(
        self,
        engine: Engine,
        ledger: Ledger,
        store: ObjectStore,
        options: UploadsOptions,
        *,
        chunks: Engine | None = None,
    ) -> None:
        self.engine, self.ledger = engine, ledger
        self.store = self.faults = FaultyStore(store)
        self.lifecycle = Lifecycle(
            engine=engine,
            chunks=chunks,
            ledger=ledger,
            store=cast("ObjectStore", self.store),
            options=options,
        )
        self.service = UploadService(self.lifecycle)
        self.storing = Storing(self.lifecycle)
        self.later: list[Lease] = []

    async def start(self, **fields: Any) -> View:
        fields = {"name": "a.bin", "chunk_size": 4 * MIB, **fields}
        view, _ = await self.service.start(NewUpload(**fields), owner="key")
        return view

    async def put(self, view: View, number: int, data: bytes, **more: Any) -> ChunkReceipt:
        length = more.pop("length", len(data))
        return await self.service.put_chunk(
            view.upload.upload_id,
            number,
            in_pieces(data),
            holder="key",
            length=length,
            **more,
        )

    async def send(self, view: View, data: bytes) -> None:
        """Send all chunks of a file."""
        size = view.upload.chunk_size
        for number, at in enumerate(range(0, len(data), size)):
            await self.put(view, number, data[at : at + size])

    async def work(self, *, attempt: int | None = None, parts_only: bool = False) -> None:
        """Run all waiting jobs. Those that ask for another attempt are kept in `later`."""
        while leases := await self.engine.claim(UPLOADS, worker="w", lease=seconds(60), count=10):
            for lease in leases:
                if parts_only and "/complete/" in lease.job.id:
                    self.later.append(lease)
                elif attempt is None:
                    await self.do(lease)
                else:
                    await self.do(msgspec.structs.replace(lease, attempt=attempt))

    async def work_again(self) -> None:
        """Run the jobs in `later`, and the jobs that they submit."""
        later, self.later = self.later, []
        for lease in later:
            await self.do(lease)
        await self.work()

    async def do(self, lease: Lease) -> None:
        ctx = Context(lease, handler="uploads", time_limit=hours(1), send_note=lambda _: None)
        try:
            await self.storing.work(lease.payload, ctx)
        except Retry:
            self.later.append(lease)
        else:
            await self.engine.complete(lease)

    async def status(self, view: View) -> Status:
        return (await self.service.status(view.upload.upload_id)).status

    async def content(self, view: View) -> bytes:
        async with self.service.content(view.upload.upload_id) as content:
            return b"".join([piece async for piece in content.pieces])

    async def events(self) -> list[dict[str, Any]]:
        """The events in the outbox."""

        def read(connection: Any) -> list[dict[str, Any]]:
            rows = connection.exec_driver_sql("SELECT data FROM towpath_outbox ORDER BY seq")
            return [msgspec.json.decode(row[0]) for row in rows]

        return await self.ledger.read(read)


class FaultyStore:
    """An object store whose calls fail before or after their effect, as a test says."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.before: dict[str, Exception] = {}
        self.after: dict[str, Exception] = {}

    def at(self, bucket: str) -> "FaultyStore":
        return self

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)
        if name not in self.before and name not in self.after:
            return call

        async def faulty(*args: Any, **more: Any) -> Any:
            if name in self.before:
                raise self.before[name]
            await call(*args, **more)
            raise self.after[name]

        return faulty


async def change(uploads: UploadServices, view: View, **values: int) -> None:
    """Write *values* into a row, as the passing of time would."""
    words = ", ".join(f"{name} = {value}" for name, value in values.items())
    sql = f"UPDATE towpath_uploads_documents SET {words} WHERE upload_id = ?"  # noqa: S608

    def write(connection: Any) -> None:
        connection.exec_driver_sql(sql, (view.upload.upload_id,))

    await uploads.ledger.write(write)


async def end_leases(budget: Budget) -> None:
    """End all leases, as they expire if their servers die or stand still."""
    for name in await budget.leases():
        await budget.finish(BodyLease(name, "", 0, "", extent=0, own=0, stays=True), 0)
