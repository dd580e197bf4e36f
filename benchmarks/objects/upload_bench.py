"""A bench for uploads: SeaweedFS, our server that stores there, and a plain S3 client."""

from __future__ import annotations

import asyncio
import http.client
import os
import sysconfig
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from aiobotocore.config import AioConfig  # pyright: ignore[reportMissingTypeStubs] -- it has none
from aiobotocore.session import get_session  # pyright: ignore -- the same

from benchmarks.bench import Bench, Persistence, bench
from benchmarks.web.process import started
from benchmarks.web.serving import KEY, ServerProcess, served_with
from towpath.embedded.objects import EmbeddedObjects

MIB = 1024 * 1024
BUCKET = "bench"
AT_ONCE = 4
PART = 8 * MIB
_COMMAND = str(Path(sysconfig.get_path("scripts")) / "towpath")
_LONGEST_LINE = 2**20


class _UploadedFile(msgspec.Struct):
    """The fields of `towpath upload --json` that matter here."""

    upload_id: str
    seconds: float


class UploadBench:
    """One object store, one server before it, one client of each."""

    def __init__(
        self, workbench: Bench, objects: EmbeddedObjects, serving: ServerProcess, s3: Any
    ) -> None:
        self.workbench, self.objects, self.serving, self.s3 = workbench, objects, serving, s3
        self._number = 0

    @property
    def url(self) -> str:
        host, port = self.serving.place
        return f"http://{host}:{port}"

    async def uploaded(self, file: Path, chunk: str, *more: str) -> float:
        """The seconds from reading the file to COMPLETED, by `towpath upload`."""
        return (await self.told([file], "--chunk-size", chunk, *more))[0].seconds

    async def told(self, files: Sequence[Path], *more: str) -> list[_UploadedFile]:
        words = [_COMMAND, "upload", *map(str, files), "--again", "--json", *more]
        env = {**os.environ, "TOWPATH_API_URL": self.url, "TOWPATH_API_KEY": KEY}
        process = await asyncio.create_subprocess_exec(
            *words, env=env, stdout=PIPE, limit=_LONGEST_LINE
        )
        out, _ = await process.communicate()
        assert process.returncode == 0, "the upload failed"
        return [msgspec.json.decode(line, type=_UploadedFile) for line in out.splitlines()]

    async def direct(self, file: Path) -> float:
        """The seconds from reading the file to its object, by `upload_part` of aiobotocore."""
        self._number += 1
        place = {"Bucket": BUCKET, "Key": f"direct-{self._number}"}
        began = time.perf_counter()
        made = await self.s3.create_multipart_upload(**place)
        place["UploadId"] = made["UploadId"]
        room, size = asyncio.Semaphore(AT_ONCE), os.path.getsize(file)  # noqa: PTH202, ASYNC240 -- nobody waits

        async def part(number: int) -> dict[str, Any]:
            async with room:
                with file.open("rb") as stream:
                    stream.seek((number - 1) * PART)
                    body = stream.read(PART)
                sent = await self.s3.upload_part(**place, PartNumber=number, Body=body)
                return {"PartNumber": number, "ETag": sent["ETag"]}

        parts = await asyncio.gather(*(part(n + 1) for n in range(-(-size // PART))))
        await self.s3.complete_multipart_upload(**place, MultipartUpload={"Parts": parts})
        return time.perf_counter() - began

    async def stored(self, url: str) -> float:
        """The seconds until the upload at *url* is COMPLETED."""
        began = time.perf_counter()
        while await asyncio.to_thread(self._status, url.rpartition("/")[2]) != "COMPLETED":  # noqa: ASYNC110 -- only the server knows
            await asyncio.sleep(0.02)
        return time.perf_counter() - began

    def _status(self, upload_id: str) -> str:
        connection = http.client.HTTPConnection(*self.serving.place)
        connection.request("GET", f"/api/v1/uploads/{upload_id}", headers={"X-API-Key": KEY})
        answer = msgspec.json.decode(connection.getresponse().read())
        connection.close()
        assert answer["status"] != "FAILED", answer["error_message"]
        return answer["status"]

    async def clear(self) -> None:
        """Removes all objects, because the disk is not measured."""
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
        async for page in pages:
            if keys := [{"Key": found["Key"]} for found in page.get("Contents", [])]:
                await self.s3.delete_objects(Bucket=BUCKET, Delete={"Objects": keys})


@asynccontextmanager
async def upload_bench(kept: Persistence, **settings: str) -> AsyncGenerator[UploadBench]:
    """Starts all of it, with workers beside the server. Everything is removed at the end."""
    with TemporaryDirectory(prefix="towpath-bench-") as folder:
        objects = EmbeddedObjects(Path(folder) / "objects")
        with objects:
            config = AioConfig(
                s3={"addressing_style": "path"},
                request_checksum_calculation="when_required",
                max_pool_connections=64,
            )
            client: Any = get_session().create_client(  # pyright: ignore -- the same
                "s3",
                endpoint_url=objects.url,
                region_name="us-east-1",
                aws_access_key_id=objects.access_key,
                aws_secret_access_key=objects.secret_key,
                config=config,
            )
            given = {
                "TOWPATH_UPLOADS__BUCKET": BUCKET,
                "TOWPATH_UPLOADS__ENDPOINT": objects.url,
                "TOWPATH_UPLOADS__ACCESS_KEY": objects.access_key,
                "TOWPATH_UPLOADS__SECRET_KEY": objects.secret_key,
                **settings,
            }
            async with client as s3, bench(kept) as workbench:
                await s3.create_bucket(Bucket=BUCKET)
                database = f"sqlite:///{folder}/ledger.db"
                async with served_with(workbench, database, **given) as serving:
                    yield UploadBench(workbench, objects, serving, s3)


def new_file(folder: str, size: int) -> Path:
    """A file of random bytes."""
    path = Path(folder) / "file.bin"
    with path.open("wb") as stream:
        for at in range(0, size, MIB):
            stream.write(os.urandom(min(MIB, size - at)))
    return path


async def node(script: str, told: object, modules: Path) -> AsyncGenerator[dict[str, Any]]:
    """The output lines of a Node program."""
    path = str(Path(__file__).with_name(script))
    settings = {"NODE_PATH": str(modules / "node_modules")}
    command = ["node", path, msgspec.json.encode(told).decode()]
    async with started(command, settings, longest_line=_LONGEST_LINE) as process:
        while line := await process.said.readline():
            yield msgspec.json.decode(line)
