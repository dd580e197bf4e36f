"""Sends requests about uploads, as a client does."""

from typing import Any

import httpx
from fastapi import FastAPI

from tests.waiting import eventually_async
from towpath.apps.uploads.options import MIB

C = 4 * MIB
ROOT = "/api/v1/uploads"


async def pause(app: FastAPI) -> None:
    """Store no further parts."""
    await app.state.services["uploads"].lifecycle.engines[0].queues.pause("uploads")


async def start(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    body = {"name": "a.bin", "chunk_size": C, **fields}
    answer = await client.post(ROOT, json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def put(
    client: httpx.AsyncClient, upload: dict[str, Any], number: int | str, data: bytes, **more: Any
) -> httpx.Response:
    path = f"{ROOT}/{upload['upload_id']}/chunks/{number}"
    return await client.put(path, content=data, **more)


async def finished(client: httpx.AsyncClient, upload: dict[str, Any]) -> dict[str, Any]:
    """Wait for the end of an upload; returns it."""
    found: dict[str, Any] = {}

    async def ended() -> bool:
        found.update((await client.get(f"{ROOT}/{upload['upload_id']}")).json())
        return found["status"] in ("COMPLETED", "FAILED")

    await eventually_async(ended)
    return found


async def uploaded(client: httpx.AsyncClient, data: bytes, **fields: Any) -> dict[str, Any]:
    upload = await start(client, size=len(data), **fields)
    for number, at in enumerate(range(0, len(data), C)):
        assert (await put(client, upload, number, data[at : at + C])).status_code == 200
    return await finished(client, upload)
