"""The clients tuspy, aiotus and tus-js-client: interrupted, resumed, and in parallel."""

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import aiotus
import httpx
import pytest
from fastapi import FastAPI
from tusclient.client import TusClient
from tusclient.exceptions import TusCommunicationError

from tests.apps.uploads.tus_client import content
from tests.server.in_process import listening
from tests.tcp_server import LOOPBACK, accepting
from tests.waiting import eventually_async
from towpath.apps.uploads.options import MIB

BROUGHT = Path(sys.prefix) / "npm" / "node_modules"
NODE = shutil.which("node")


@pytest.fixture
def file(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "f.bin"
    path.write_bytes(data)
    return path


@pytest.fixture
async def endpoint(app: FastAPI) -> AsyncIterator[str]:
    async with listening(app) as url:
        yield f"{url}/files"


@pytest.fixture
def key(tus: httpx.AsyncClient) -> str:
    """The key of `tus`, with which tests read what the clients sent."""
    return tus.headers["X-API-Key"]


def path_of(url: str) -> str:
    return httpx.URL(url).path


@asynccontextmanager
async def holding(endpoint: str, *, after: int) -> AsyncGenerator[tuple[asyncio.Event, str]]:
    """A relay to *endpoint* that lets *after* bytes of a large body through, and its URL."""
    held, over = asyncio.Event(), asyncio.Event()

    async def pass_on(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, most: int
    ) -> None:
        with suppress(OSError):
            while most and (some := await reader.read(min(most, 1 << 16))):
                most -= len(some)
                writer.write(some)
                await writer.drain()
            if not most:
                held.set()
                await over.wait()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        place = httpx.URL(endpoint)
        answers, upstream = await asyncio.open_connection(place.host, place.port)
        try:
            await asyncio.gather(
                pass_on(reader, upstream, after), pass_on(answers, writer, 1 << 40)
            )
        finally:
            upstream.transport.abort()

    async with accepting(serve) as server:
        try:
            yield held, f"http://{LOOPBACK}:{server.port}"
        finally:
            over.set()


class TestTuspy:
    def upload(
        self, endpoint: str, key: str, file: Path, *, stop_at: int | None = None, **more: Any
    ) -> Any:
        client: Any = TusClient(endpoint, headers={"Authorization": f"Bearer {key}"})
        given = {"chunk_size": 3 * MIB + 1, "metadata": {"filename": "ä b.bin"}, **more}
        with file.open("rb") as stream:
            uploader = client.uploader(file_stream=stream, **given)
            begun = uploader.offset
            uploader.upload(stop_at=stop_at)
        return begun, uploader

    @pytest.mark.parametrize("checksum", [False, True])
    async def test_tuspy_resumes_after_an_interruption(
        self,
        endpoint: str,
        key: str,
        tus: httpx.AsyncClient,
        file: Path,
        data: bytes,
        *,
        checksum: bool,
    ) -> None:
        told: dict[str, Any] = {"endpoint": endpoint, "key": key, "file": file}
        told |= {"upload_checksum": checksum}
        _, first = await asyncio.to_thread(self.upload, **told, stop_at=7 * MIB)
        begun, second = await asyncio.to_thread(self.upload, **told, url=first.url)
        assert begun == first.offset >= 7 * MIB
        assert await content(tus, path_of(second.url)) == data

    async def test_tuspy_reports_a_wrong_key(self, endpoint: str, file: Path) -> None:
        with pytest.raises(TusCommunicationError) as refused:
            await asyncio.to_thread(self.upload, endpoint, "tp_wrong", file)
        told: Any = refused.value
        assert told.status_code == 401


class TestAiotus:
    @pytest.mark.parametrize("parallel", [False, True])
    async def test_aiotus_sends_a_file(
        self, endpoint: str, key: str, tus: httpx.AsyncClient, file: Path, data: bytes,
        *, parallel: bool,
    ) -> None:  # fmt: skip
        told: dict[str, Any] = {
            "endpoint": endpoint,
            "headers": {"Authorization": f"Bearer {key}"},
            "metadata": {"filename": "ä b.bin".encode(), "filetype": b"text/csv"},
            "chunksize": MIB,
        }
        with file.open("rb") as one, file.open("rb") as other:
            url = await (
                aiotus.upload_multiple(files=[one, other], **told)
                if parallel
                else aiotus.upload(file=one, **told)
            )
        assert str(url).startswith(endpoint)
        assert await content(tus, path_of(str(url))) == data * (1 + parallel)


@pytest.mark.skipif(
    NODE is None or not BROUGHT.is_dir(),
    reason="needs Node.js and tus-js-client, which `make test` brings where npm is",
)
class TestTusJsClient:
    async def begin(self, **told: Any) -> asyncio.subprocess.Process:
        script = Path(__file__).with_name("tus_upload.js")
        return await asyncio.create_subprocess_exec(
            str(NODE), str(script), json.dumps(told, default=str),
            env={**os.environ, "NODE_PATH": str(BROUGHT)},
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip

    async def upload(self, **told: Any) -> dict[str, Any]:
        process = await self.begin(**told)
        assert process.stdout is not None
        said = await process.stdout.read()  # its input stays open: nothing interrupts it
        await process.wait()
        return json.loads(said)

    async def test_tus_js_client_resumes_after_an_interruption(
        self, endpoint: str, key: str, tus: httpx.AsyncClient, file: Path, data: bytes
    ) -> None:
        """In the middle of one request for the whole file: the received bytes count."""
        told = {"key": key, "file": file}
        async with holding(endpoint, after=9 * MIB) as (held, url):
            process = await self.begin(**told, endpoint=f"{url}/files")
            await held.wait()  # the rest never arrives, though it may be in buffers on the way
            said, _ = await process.communicate(b"")  # its input is closed
        begun = path_of(json.loads(said)["url"])
        await eventually_async(partial(self.has_come, tus, begun))
        second = await self.upload(
            **told, endpoint=endpoint, url=str(httpx.URL(endpoint).join(begun))
        )
        assert path_of(second["url"]) == begun
        assert await content(tus, begun) == data
        found = await tus.get(f"/api/v1/uploads/{second['url'].rpartition('/')[2]}")
        assert (found.json()["name"], found.json()["mime_type"]) == (
            "from-js.bin",
            "application/x-test",
        )

    async def has_come(self, tus: httpx.AsyncClient, path: str) -> bool:
        """Whether some bytes arrived, and no more than were let through."""
        found = await tus.head(path)
        assert found.status_code == 200, (path, found.status_code, found.headers)
        offset = int(found.headers["Upload-Offset"])
        assert offset <= 9 * MIB
        return offset > 0

    @pytest.mark.parametrize("chunk", [MIB, 5 * MIB])
    async def test_tus_js_client_sends_chunks(
        self, endpoint: str, key: str, tus: httpx.AsyncClient, file: Path, *, data: bytes,
        chunk: int,
    ) -> None:  # fmt: skip
        done = await self.upload(endpoint=endpoint, key=key, file=file, chunk=chunk)
        assert await content(tus, path_of(done["url"])) == data

    async def test_tus_js_client_sends_in_parallel(
        self, endpoint: str, key: str, tus: httpx.AsyncClient, file: Path, data: bytes
    ) -> None:
        done = await self.upload(endpoint=endpoint, key=key, file=file, parallel=4)
        assert await content(tus, path_of(done["url"])) == data
        found = await tus.head(path_of(done["url"]))
        assert found.headers["Upload-Concat"].startswith("final;")

    async def test_tus_js_client_reports_a_wrong_key(self, endpoint: str, file: Path) -> None:
        done = await self.upload(endpoint=endpoint, key="tp_wrong", file=file)
        assert done["refused"] == 401
