"""A fault at every step of an upload: before and after each call of Redis, database and object
store.

One upload goes through start, chunks, parts and completion, and its calls are counted. Then it is
repeated once for each call: the call is not made, its answer is lost, or the process dies before or
after it. After each fault, a client that repeats what failed, a worker that gets the job again and
the sweep complete the upload once, and leave nothing else behind.

TOWPATH_UPLOAD_STEPS=all tries every kind of fault at each step, even at those that change little.
"""

import os
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

from tests.apps.uploads.uploading import UploadServices, end_leases, in_pieces
from towpath.apps.uploads import ingest, model, records
from towpath.apps.uploads.model import UPLOADS, NewUpload, Status
from towpath.apps.uploads.options import KIB, MIB, UploadsOptions
from towpath.apps.uploads.stores import port
from towpath.apps.uploads.stores.checksums import Algorithm, Checksum
from towpath.apps.uploads.stores.directory import DirectoryStore
from towpath.apps.uploads.stores.errors import StoreUnreachable
from towpath.clock import ZERO, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.engine.space import SpaceRecord
from towpath.errors import ServerUnreachable, TowpathError
from towpath.ledger.errors import LedgerUnreachable
from towpath.ledger.ledger import Ledger
from towpath.worker.context import Context, Retry

C = 64 * KIB
DATA = bytes(range(256)) * (2 * C // 256) + b"the end"
ALL = os.environ.get("TOWPATH_UPLOAD_STEPS") == "all"
TELLING = (
    "Ledger.decide",
    "DirectoryStore",
    "SpaceRecord.put",
    "SpaceRecord.note_part_stored",
    "Engine.submit",
)
"""Steps at which each kind of fault is tried always."""
EACH = (
    "SpaceRecord.reserve SpaceRecord.keep SpaceRecord.put SpaceRecord.finish SpaceRecord.place"
    " SpaceRecord.note_part_stored Engine.submit Ledger.decide"
)
IN_PARTS = f"{EACH} SpaceRecord.extend DirectoryStore.put_part DirectoryStore.complete"
TOGETHER_IN_PARTS = f"{EACH} DirectoryStore.put_part DirectoryStore.complete"
WHOLE = f"{EACH} DirectoryStore.put"
"""What is among the steps of a file in parts, and of one that is an object at once."""
STORE = ("put", "begin_multipart", "put_part", "complete", "abort", "head", "delete", "list_parts")


class FaultKind(StrEnum):
    """The fault at a call."""

    LOST_BEFORE = "the call is not made"
    LOST_AFTER = "the answer is lost"
    DIES_BEFORE = "the process dies before"
    DIES_AFTER = "the process dies after"


class Died(BaseException):
    """The process is dead: not even its cleanup runs."""


class CallFaults:
    """Counts calls, and plants a fault in one of them."""

    now: ClassVar["CallFaults"]

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.at, self.fault = -1, FaultKind.LOST_BEFORE
        self.dead = False

    def plant(self, at: int, fault: FaultKind) -> None:
        self.calls, self.at, self.fault, self.dead = [], at, fault, False

    async def call(self, name: str, error: Exception, do: Callable[[], Awaitable[Any]]) -> Any:
        if self.dead:
            raise Died
        self.calls.append(name)
        if len(self.calls) - 1 != self.at:
            return await do()
        if self.fault in (FaultKind.LOST_AFTER, FaultKind.DIES_AFTER):
            await do()
        if self.fault in (FaultKind.DIES_BEFORE, FaultKind.DIES_AFTER):
            self.dead = True
            raise Died
        raise error


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> CallFaults:
    """Plants faults in all calls; parts are small, so that a run is quick."""
    monkeypatch.setattr(model, "LEAST_PART", 2 * C)
    monkeypatch.setattr(port, "LEAST_PART", C)
    monkeypatch.setattr(ingest, "_STAGED_AT_ONCE", C // 2)
    monkeypatch.setattr(records, "PIECE", C // 2)
    CallFaults.now = found = CallFaults()

    def counted(kind: type, name: str, error: Exception) -> None:
        real = getattr(kind, name)

        async def call(*args: Any, **more: Any) -> Any:
            word = args[1] if name in ("run", "read") and kind is SpaceRecord else name
            told = f"{kind.__name__}.{word}"
            return await CallFaults.now.call(told, error, lambda: real(*args, **more))

        monkeypatch.setattr(kind, name, call)

    for kind, names, error in (
        (SpaceRecord, ("run", "read", "keep", "extend", "part"), ServerUnreachable("no answer")),
        (Ledger, ("read", "decide"), LedgerUnreachable("no answer")),
        (Engine, ("submit",), ServerUnreachable("no answer")),
        (DirectoryStore, STORE, StoreUnreachable("no answer")),
    ):
        for name in names:
            counted(cast("type", kind), name, error)
    return found


@pytest.fixture
def options(tmp_path: Path) -> UploadsOptions:
    return UploadsOptions(directory=tmp_path / "objects", budget=32 * MIB)


class UploadRun:
    """A client, a server and a worker, which repeat what failed."""

    def __init__(
        self, uploads: UploadServices, faults: CallFaults, data: bytes, sends: Sequence[range]
    ) -> None:
        self.uploads, self.faults, self.data, self.sends = uploads, faults, data, sends

    async def again(self, do: Callable[[], Awaitable[Any]]) -> Any:
        """Call *do* until it succeeds: the fault occurs once."""
        for _ in range(3):
            try:
                return await do()
            except (TowpathError, Died):
                self.faults.dead = False  # another process
        return await do()

    async def upload(self, name: str) -> str:
        """Upload a file from its start to its end."""
        service = self.uploads.service
        checksum = Checksum.of(Algorithm.CRC32C, [self.data])
        new = NewUpload(name=name, size=len(self.data), chunk_size=C, checksum=checksum)
        view, _ = await self.again(lambda: service.start(new, owner="k", idempotency_key=name))
        upload = view.upload.upload_id
        for numbers in self.sends:
            await self.again(lambda n=numbers: self.put(upload, n))
        for _ in range(6):
            await self.work()
            status = (await self.again(lambda: service.status(upload))).status
            if status is Status.COMPLETED:
                break
            assert status is not Status.FAILED
            await self.again(lambda: service.sweeping.once(older=ZERO))
            for gap in await self.again(lambda: service.missing(upload)):
                for number in range(gap.first, gap.last + 1):
                    await self.again(lambda n=number: self.put(upload, range(n, n + 1)))
        return upload

    async def put(self, upload: str, numbers: range) -> None:
        body = self.data[numbers.start * C : numbers.stop * C]
        await self.uploads.service.put_chunk(
            upload,
            numbers[0],
            in_pieces(body),
            holder="k",
            count=len(numbers),
            length=len(body),
        )

    async def work(self) -> None:
        engine = self.uploads.engine
        while leases := await engine.claim(UPLOADS, worker="w", lease=seconds(60), count=10):
            for lease in leases:
                ctx = Context(
                    lease, handler="uploads", time_limit=seconds(60), send_note=lambda _: None
                )
                try:
                    await self.uploads.storing.work(lease.payload, ctx)
                except (TowpathError, Retry, Died):
                    self.faults.dead = False
                    await engine.release(lease)
                else:
                    await engine.complete(lease)

    async def check(self, upload: str, server: EmbeddedServer) -> None:
        """Check that the upload was completed once with the right bytes, and left nothing else."""
        view = await self.uploads.service.status(upload)
        assert view.status is Status.COMPLETED
        assert await self.uploads.content(view) == self.data
        events = [event for event in await self.uploads.events() if event["upload_id"] == upload]
        assert len(events) == 1
        await end_leases(self.uploads.lifecycle.records.budget)
        await self.uploads.service.sweeping.once(older=ZERO)
        assert [multipart async for multipart in self.uploads.store.list_multiparts()] == []
        assert await self.uploads.lifecycle.records.budget.used() == 0
        assert server.ask("KEYS", f"upload:{{{upload}}}:chunks:*") == []
        for key in cast("list[bytes]", server.ask("KEYS", f"upload:{{{upload}}}:*")):
            assert cast("int", server.ask("PTTL", key.decode())) > 0, key


ALONE = (range(2, 3), range(1), range(1, 2))
TOGETHER = (range(2, 3), range(2))
"""In which order chunks are sent, and which of them in one request."""


@pytest.mark.parametrize(
    ("sends", "needed"),
    [(ALONE, IN_PARTS), (TOGETHER, TOGETHER_IN_PARTS), (ALONE[1:2], WHOLE)],
    ids=["in parts", "in parts, two chunks together", "whole"],
)
async def test_a_fault_at_each_step_leaves_one_whole_object(
    uploads: UploadServices,
    faults: CallFaults,
    server: EmbeddedServer,
    sends: Sequence[range],
    needed: str,
) -> None:
    run = UploadRun(uploads, faults, DATA if len(sends) > 1 else DATA[: C // 2], sends)
    await run.check(await run.upload("plain"), server)
    faults.plant(-1, FaultKind.LOST_BEFORE)
    await run.upload("counted")
    steps = list(faults.calls)
    assert set(needed.split()) <= set(steps)
    for at, step in enumerate(steps):
        every = ALL or step.startswith(TELLING)
        for fault in list(FaultKind) if every else [list(FaultKind)[at % len(FaultKind)]]:
            faults.plant(at, fault)
            try:
                upload = await run.upload(f"{at} {fault}")
                faults.plant(-1, fault)
                await run.check(upload, server)
            except AssertionError as error:
                raise AssertionError(f"step {at}, {step}: {fault}") from error
