"""Uploads in your own program, without a server: it uploads a file, stores it and reads it back.

    REDIS_URL=redis://localhost python examples/uploads/archive.py report.pdf

`UploadService` has the operations and guarantees of the HTTP API. If you run the program twice, the
file is sent once. If you kill it, the next run sends the missing chunks.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

from towpath import Towpath, Worker
from towpath.apps.uploads.model import NewUpload, Status
from towpath.apps.uploads.options import UploadsOptions
from towpath.apps.uploads.parts import add_uploads
from towpath.apps.uploads.service import UploadService
from towpath.apps.uploads.serving import open_uploads
from towpath.apps.uploads.stores.directory import DirectoryStore
from towpath.apps.uploads.tables import TABLES
from towpath.ledger.ledger import Ledger

HOME = Path(os.environ.get("ARCHIVE", "archive"))
CHUNK = 1024 * 1024


async def send(uploads: UploadService, name: str, data: bytes) -> str:
    """Start the upload, or find the one that was started before, and send the missing chunks."""
    new = NewUpload(name=name, size=len(data), chunk_size=CHUNK)
    key = f"{name} {sha256(data).hexdigest()}"
    view, _ = await uploads.start(new, owner="archive", idempotency_key=key)
    upload = view.upload.upload_id
    for gap in await uploads.missing(upload):
        for number in range(gap.first, gap.last + 1):
            chunk = data[number * CHUNK : (number + 1) * CHUNK]
            await uploads.put_chunk(upload, number, body_of(chunk), holder="archive")
    return upload


async def body_of(chunk: bytes) -> AsyncIterator[bytes]:
    yield chunk


async def archive(uploads: UploadService, name: str, data: bytes) -> None:
    upload = await send(uploads, name, data)
    [*_, view] = [view async for view in uploads.watch(upload)]
    if view.status is not Status.COMPLETED:
        sys.exit(f"{view.status}: {view.fields['error_message']}")
    async with uploads.content(upload) as content:
        digest = sha256()
        async for piece in content.pieces:
            digest.update(piece)
    sys.stdout.write(f"{name}: {content.size} bytes, sha256 {digest.hexdigest()}\n")


async def main(name: str, data: bytes) -> None:
    options = UploadsOptions(directory=HOME / "objects")
    ledger = Ledger(f"sqlite:///{HOME}/archive.db", tables=[TABLES])
    async with ledger:
        await ledger.migrate()
    app = Towpath(os.environ.get("REDIS_URL", "redis://localhost"), ledger=ledger)
    async with DirectoryStore(options) as store, app:
        add_uploads(app, store, options)
        worker = Worker(app, signals=())
        working = asyncio.create_task(worker.run())
        try:
            async with open_uploads(app.engine, app.ledger, options) as uploads:
                await archive(uploads, name, data)
        finally:
            worker.stop("the file is stored")
            await working


if __name__ == "__main__":
    HOME.mkdir(exist_ok=True)
    file = Path(sys.argv[1])
    asyncio.run(main(file.name, file.read_bytes()))
