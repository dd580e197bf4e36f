"""Random bodies on two servers: bytes stay within the budget, and all files arrive."""

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from tests.amounts import amount
from tests.apps.uploads.uploading import UploadServices
from tests.waiting import HANGS
from towpath.apps.uploads import appending, ingest, model, records
from towpath.apps.uploads.appending import Appending, ExpectedDigest
from towpath.apps.uploads.errors import BudgetFull, ChunkLost, OffsetDiffers
from towpath.apps.uploads.model import NewUpload, Status
from towpath.apps.uploads.options import KIB, MIB, UploadsOptions
from towpath.apps.uploads.service import View
from towpath.apps.uploads.stores import port
from towpath.apps.uploads.stores.directory import DirectoryStore
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.errors import InvalidInput
from towpath.ledger.ledger import Ledger

C = 64 * KIB
PART = 2 * C
BUDGET = 16 * PART
SHARE = BUDGET // 4
COUNT = """
local bytes = 0
for _, kind in ipairs({'staging', 'chunks'}) do
  for _, key in ipairs(redis.call('KEYS', 'upload:*:' .. kind .. ':*')) do
    bytes = bytes + redis.call('STRLEN', key)
  end
end
local shares = redis.call('HVALS', 'uploads:{budget}:shares')
local most = 0
for _, share in ipairs(shares) do most = math.max(most, tonumber(share)) end
return { bytes, tonumber(redis.call('GET', 'uploads:{budget}:total') or 0), most }
"""
"""Bytes that are in Redis, bytes that are counted, and the largest share, in one moment."""


class Cut(Exception):
    """The client went away."""


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UploadsOptions:
    """A smaller budget, and smaller parts, than a server accepts."""
    monkeypatch.setattr(model, "LEAST_PART", PART)
    monkeypatch.setattr(port, "LEAST_PART", C)
    monkeypatch.setattr("towpath.apps.uploads.appending._ROOM_WITHIN", 0.0)
    monkeypatch.setattr(ingest, "_STAGED_AT_ONCE", C // 4)
    monkeypatch.setattr(appending, "_APPENDED_AT_ONCE", C // 4)
    monkeypatch.setattr(records, "PIECE", C // 4)
    options = UploadsOptions(directory=tmp_path / "objects", budget=32 * MIB)
    msgspec.structs.force_setattr(options, "budget", BUDGET)
    return options


class Campaign:
    """Clients of four owners, which send files in all ways and try again after failures."""

    def __init__(
        self, servers: list[UploadServices], server: EmbeddedServer, chance: random.Random
    ) -> None:
        self.servers, self.server, self.chance = servers, server, chance
        self.waits, self.most, self.left = list[int](), 0, 0

    def check(self) -> None:
        there, counted, share = cast("list[int]", self.server.ask("EVAL", COUNT, "0"))
        assert there <= counted <= BUDGET
        assert share <= SHARE
        self.most = max(self.most, counted)

    async def body(self, data: bytes, cut: int | None) -> AsyncIterator[bytes]:
        for at in range(0, len(data), C // 8):
            if cut is not None and at >= cut:
                raise Cut
            yield data[at : at + C // 8]
            self.check()
            await asyncio.sleep(0)

    def cut(self, data: bytes) -> int | None:
        return self.chance.randrange(len(data)) if self.chance.random() < 0.2 else None

    async def upload(self, owner: str, data: bytes) -> None:
        new = NewUpload(name="a", size=len(data), chunk_size=C)
        view, _ = await self.chance.choice(self.servers).service.start(new, owner=owner)
        send = self.chance.choice([self.put, self.put_together, self.append])
        while (await self.servers[0].status(view)) is not Status.COMPLETED:
            sending = asyncio.create_task(send(owner, view, data))
            if self.chance.random() < 0.1:
                await asyncio.sleep(0)
                sending.cancel()
            try:
                await sending
            except BudgetFull as refusal:
                self.waits.append(refusal.after)
            except (Cut, ChunkLost, OffsetDiffers, InvalidInput):
                pass
            except asyncio.CancelledError:
                if cast("asyncio.Task[None]", asyncio.current_task()).cancelling():
                    raise
            await asyncio.sleep(0)
        self.left -= 1

    async def put(self, owner: str, view: View, data: bytes) -> None:
        uploads = self.chance.choice(self.servers).service
        missing = await uploads.missing(view.upload.upload_id)
        numbers = [n for gap in missing for n in range(gap.first, gap.last + 1)]
        if numbers:
            number = self.chance.choice(numbers)
            some = data[number * C : (number + 1) * C]
            bodies = [
                uploads.put_chunk(
                    view.upload.upload_id,
                    number,
                    self.body(some, self.cut(some)),
                    holder=owner,
                    length=len(some),
                )
                for _ in range(self.chance.choice((1, 1, 1, 2)))
            ]
            for end in await asyncio.gather(*bodies, return_exceptions=True):
                if isinstance(end, BaseException):
                    raise end

    async def put_together(self, owner: str, view: View, data: bytes) -> None:
        uploads = self.chance.choice(self.servers).service
        missing = await uploads.missing(view.upload.upload_id)
        if missing:
            first = self.chance.choice(missing).first
            count = min(2 - first % 2, -(-len(data) // C) - first)
            some = data[first * C : (first + count) * C]
            body = self.body(some, self.cut(some))
            more: dict[str, Any] = {"count": count, "length": len(some)}
            await uploads.put_chunk(view.upload.upload_id, first, body, holder=owner, **more)

    async def append(self, owner: str, view: View, data: bytes) -> None:
        appending = Appending(self.chance.choice(self.servers).service)
        offset = (await appending.look(view.upload.upload_id)).offset or 0
        if offset == len(data):
            return
        some = data[offset : offset + self.chance.randint(1, 4 * C)]
        wanted = None
        if self.chance.random() < 0.3:
            wanted = ExpectedDigest("sha256", hashlib.sha256(some).digest(), hashlib.sha256)
        body = self.body(some, self.cut(some))
        await appending.append(
            view.upload.upload_id, offset, body, holder=owner, length=len(some), wanted=wanted
        )

    async def work(self) -> None:
        while self.left:
            await self.chance.choice(self.servers).work()
            self.check()
            await asyncio.sleep(0)


async def test_bytes_never_exceed_their_room_and_every_file_arrives(
    server: EmbeddedServer, ledger: Ledger, options: UploadsOptions, seed: int
) -> None:
    chance = random.Random(seed)
    async with AsyncExitStack() as stack:
        servers: list[UploadServices] = []
        for _ in range(2):
            engine = await stack.enter_async_context(Engine(server.url))
            store = await stack.enter_async_context(DirectoryStore(options))
            servers.append(UploadServices(engine, ledger, store, options))
        campaign = Campaign(servers, server, chance)
        files = [
            chance.randbytes(chance.randint(1, 6 * C)) for _ in range(amount(16, thoroughly=80))
        ]
        campaign.left = len(files)
        async with asyncio.timeout(HANGS), asyncio.TaskGroup() as group:
            for at, data in enumerate(files):
                group.create_task(campaign.upload(f"owner{at % 4}", data))
            group.create_task(campaign.work())
        assert campaign.waits
        assert 1 <= min(campaign.waits) <= max(campaign.waits) <= 60
        assert campaign.most > BUDGET // 2
        budget = servers[0].lifecycle.records.budget
        assert await budget.leases() == {}
        await servers[0].service.sweeping.once()
        assert await budget.used() == 0
        assert server.ask("KEYS", "upload:*:chunks:*") == []
