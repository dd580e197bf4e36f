"""A server with messages, and its clients."""

from typing import Any

import httpx
from fastapi import FastAPI

from tests.apps.messages.sending import SECRET
from tests.server.in_process import build_server
from towpath.apps.application import Application
from towpath.apps.messages.options import MessagesOptions
from towpath.engine.channel import Limits
from towpath.ledger.ledger import Ledger

HELLO = {"user_id": "test", "org_id": "org", "message": "hello", "client_id": "web"}


def app_on(
    url: str,
    ledger: Ledger,
    mounted: tuple[Application, ...] | None = None,
    *,
    patience: Limits | None = None,
) -> FastAPI:
    """A server with messages. With *patience* it waits longer for Redis: for many requests."""
    options = {"messages": MessagesOptions(secrets=(SECRET,))}
    return build_server(url, ledger, options, mounted=mounted, patience=patience)


async def post(client: httpx.AsyncClient, **fields: Any) -> Any:
    answer = await client.post("/api/v1/message", json={**HELLO, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def claim(client: httpx.AsyncClient, **wish: Any) -> Any:
    answer = await client.post("/api/v1/queues/messages/claim", json={"worker": "w", **wish})
    assert answer.status_code == 200, answer.text
    return answer.json()["jobs"][0]


async def settle(client: httpx.AsyncClient, verb: str, job: Any, **more: Any) -> None:
    path = f"/api/v1/queues/messages/jobs/{job['id']}/{verb}"
    answer = await client.post(path, json={"token": job["token"], **more})
    assert answer.status_code == 200, answer.text
