"""A client of tus that sends any request, valid or not."""

import asyncio
import base64
from typing import Any
from urllib.parse import urlsplit

import httpx
from fastapi import FastAPI

from tests.waiting import eventually_async
from towpath.apps.uploads.options import MIB
from towpath.apps.uploads.records import BodyLease

TUS = {"Tus-Resumable": "1.0.0"}
BODY = {"Content-Type": "application/offset+octet-stream"}
P = 8 * MIB
"""Bytes of a chunk and of a part."""


def encoded(**metadata: str) -> str:
    return ",".join(f"{k} {base64.b64encode(v.encode()).decode()}" for k, v in metadata.items())


async def create(tus: httpx.AsyncClient, size: int | None = None, **headers: str) -> str:
    """Create an upload; returns its path."""
    length = {"Upload-Defer-Length": "1"} if size is None else {"Upload-Length": str(size)}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = await tus.post("/files", headers=length | named)
    assert answer.status_code == 201, answer.text
    assert answer.headers["Tus-Resumable"] == "1.0.0"
    return urlsplit(answer.headers["Location"]).path


async def patch(
    tus: httpx.AsyncClient, path: str, offset: int, data: bytes, **headers: str
) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    given = BODY | {"Upload-Offset": str(offset)} | named
    return await tus.patch(path, content=data, headers=given)


async def offset_of(tus: httpx.AsyncClient, path: str) -> int:
    return int((await tus.head(path)).headers["Upload-Offset"])


async def content(tus: httpx.AsyncClient, path: str) -> bytes:
    """Wait for the completion; returns the file."""
    api = f"/api/v1/uploads/{path.rpartition('/')[2]}"
    found: dict[str, Any] = {}

    async def ended() -> bool:
        found.update((await tus.get(api)).json())
        return found["status"] in ("COMPLETED", "FAILED")

    await eventually_async(ended)
    assert found["status"] == "COMPLETED", found["error_message"]
    return (await tus.get(f"{api}/content")).content


async def cut(
    url: str,
    tus: httpx.AsyncClient,
    path: str,
    some: bytes,
    *,
    length: int,
    more: str = "",
    offset: int = 0,
) -> None:
    """Announces *length* bytes, sends *some* and closes the connection."""
    _, writer = await asyncio.open_connection(urlsplit(url).hostname, urlsplit(url).port)
    head = head_of_patch(tus, path, length=length, more=more, offset=offset)
    writer.write(head.encode() + some)
    await writer.drain()
    writer.close()
    await writer.wait_closed()


def head_of_patch(
    tus: httpx.AsyncClient, path: str, *, length: int, more: str = "", offset: int = 0
) -> str:
    """The head of a PATCH, whose body the test sends itself."""
    return (
        f"PATCH {path} HTTP/1.1\r\nHost: x\r\nX-API-Key: {tus.headers['X-API-Key']}\r\n"
        f"Tus-Resumable: 1.0.0\r\nContent-Type: application/offset+octet-stream\r\n{more}"
        f"Upload-Offset: {offset}\r\nContent-Length: {length}\r\n\r\n"
    )


async def fill_budget(app: FastAPI) -> None:
    """Use up the rest of the budget with bytes of others."""
    budget, number = app.state.services["uploads"].lifecycle.records.budget, 0
    for size in (MIB, MIB // 16, 4096, 256, 16, 1):
        while True:
            number += 1
            lease = BodyLease(
                f"body-{number}", f"other-{number}", 0, f"{number}", size, size, stays=True
            )
            if await budget.reserve(lease):
                break
            await budget.finish(lease, size)
