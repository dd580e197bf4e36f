"""A server with messages, and those who talk to it."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from tests.apps.messages.sending import SECRET
from towpath.apps.application import Application, applications
from towpath.apps.messages.options import MessagesOptions
from towpath.engine.channel import Limits
from towpath.engine.engine import Engine
from towpath.ledger.ledger import Ledger
from towpath.server.build import Parts, build
from towpath.telemetry.logs import Log
from towpath.telemetry.metrics import Metrics
from towpath.web.limits import ServerLimits

HELLO = {"user_id": "test", "org_id": "org", "message": "hello", "client_id": "web"}


def app_on(
    url: str,
    ledger: Ledger,
    mounted: tuple[Application, ...] | None = None,
    *,
    patience: Limits | None = None,
) -> FastAPI:
    """A server. With *patience* it waits longer for its store: for many requests at once."""
    parts = Parts(
        connect=lambda limits: Engine(url, limits=patience or limits),
        ledger=ledger,
        limits=ServerLimits(),
        metrics=Metrics(),
        log=Log(),
        version="0",
        applications=mounted or applications(),
        options={"messages": MessagesOptions(secrets=(SECRET,))},
    )
    return build(parts)


@asynccontextmanager
async def started(app: FastAPI) -> AsyncGenerator[FastAPI]:
    async with app.router.lifespan_context(app):
        yield app


@asynccontextmanager
async def listening(app: FastAPI) -> AsyncGenerator[str]:
    """*app*, which was started, on a port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        config = uvicorn.Config(app, lifespan="off", ws="none", log_config=None)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[door]))
        try:
            yield f"http://127.0.0.1:{door.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


async def key_of(app: FastAPI, *scopes: str, queues: tuple[str, ...] = ("*",)) -> str:
    ledger: Ledger = app.state.ledger
    made = await ledger.keys.create("test", scopes=scopes, queues=queues)
    return made.secret.get_secret_value()


def client_of(app: FastAPI, key: str | None = None) -> httpx.AsyncClient:
    headers = {"X-API-Key": key} if key else {}
    transport = httpx.ASGITransport(app=app)
    return httpx.AsyncClient(transport=transport, base_url="http://towpath", headers=headers)


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
