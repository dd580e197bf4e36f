"""Uploads as watchers see them: events, messages and metrics."""

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

import httpx
from fastapi import FastAPI

from tests.apps.uploads.requests import ROOT, C, put, start, uploaded
from tests.server.in_process import client_of, key_of
from towpath.embedded import EmbeddedServer


class TestWatching:
    async def test_an_event_stream_ends_with_the_end_also_if_opened_late(
        self, app: FastAPI, client: httpx.AsyncClient, data: bytes
    ) -> None:
        data = data[: 2 * C + 7]
        upload = await start(client, size=len(data))
        path = f"{ROOT}/{upload['upload_id']}/events"
        watching = asyncio.create_task(client.get(path))
        for number, at in enumerate(range(0, len(data), C)):
            await put(client, upload, number, data[at : at + C])
        early = (await watching).text
        late = (await client.get(path)).text
        for told in (early, late):
            last = told.replace("\r\n", "\n").strip().split("\n\n")[-1]
            name, message = last.split("\n")
            assert name == "event: completed"
            assert json.loads(message.removeprefix("data: ")) == {
                "uploaded_chunks": 3,
                "total_chunks": 3,
                "bytes_uploaded": len(data),
                "total_bytes": len(data),
                "percent": 100.0,
                "status": "COMPLETED",
            }

    async def test_progress_is_published_in_the_documented_messages(
        self, client: httpx.AsyncClient, server: EmbeddedServer, data: bytes
    ) -> None:
        reader, writer = await asyncio.open_unix_connection(urlsplit(server.url).path)
        writer.write(b"PSUBSCRIBE upload:*\r\n")
        await reader.readuntil(b":1\r\n")
        found = await uploaded(client, data[: C + 7])
        told: dict[str, list[dict[str, Any]]] = {}
        while told.get("progress", [{}])[-1].get("status") != "COMPLETED":
            words = [await _word(reader) for _ in range(int((await reader.readline())[1:]))]
            told.setdefault(words[2].split(":")[1], []).append(json.loads(words[3]))
            assert words[2] in ("upload:chunk:received", f"upload:progress:{found['upload_id']}")
        writer.close()
        assert [sorted(message) for message in told["chunk"]] == [
            ["chunk_number", "is_last", "timestamp", "upload_id"]
        ] * 2
        assert told["progress"][-1] == {
            "uploaded_chunks": 2,
            "total_chunks": 2,
            "bytes_uploaded": C + 7,
            "total_bytes": C + 7,
            "percent": 100.0,
            "status": "COMPLETED",
        }

    async def test_metrics_have_their_published_names(
        self, app: FastAPI, client: httpx.AsyncClient, data: bytes
    ) -> None:
        await uploaded(client, data[: C + 7])
        async with client_of(app, await key_of(app, "read", "admin")) as reader:
            told = (await reader.get("/metrics")).text
        for line in (
            "repository_chunks_processed_total 2.0",
            "repository_upload_chunk_latency_count 2.0",
            "repository_s3_upload_latency_count 1.0",
            "repository_upload_completion_latency_count 1.0",
            "repository_chunks_queued ",
            "towpath_uploads_reserved_bytes ",
            "towpath_uploads_orphans_total 0.0",
        ):
            assert f"\n{line}" in told, line


async def _word(reader: asyncio.StreamReader) -> str:
    """Read a bulk string from Redis."""
    size = int((await reader.readline())[1:])
    return (await reader.readexactly(size + 2))[:-2].decode()
