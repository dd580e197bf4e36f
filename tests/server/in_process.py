"""The HTTP server inside the test's own process, and clients that have a key for it."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from towpath.app.app import Towpath
from towpath.apps.application import Application, applications
from towpath.engine.channel import Limits
from towpath.engine.engine import Engine
from towpath.ledger.ledger import Ledger
from towpath.server.build import LIMITS, ServerSetup, build
from towpath.telemetry.logs import Log
from towpath.telemetry.metrics import Metrics
from towpath.web.limits import ServerLimits


def build_server(
    url: str,
    ledger: Ledger,
    options: Mapping[str, Any],
    *,
    mounted: tuple[Application, ...] | None = None,
    patience: Limits | None = None,
    with_workers: bool = False,
) -> FastAPI:
    """A server that was not started yet. *options* are those of its applications.

    With *patience* it waits longer for Redis; by default it answers 503 after 1.5 s. With workers
    it runs the handlers of its applications.
    """
    metrics = Metrics()
    app = None
    if with_workers:
        app = Towpath(url, ledger=ledger)
        app.metrics = metrics
    setup = ServerSetup(
        engine=Engine(url, limits=patience or LIMITS),
        ledger=ledger,
        limits=ServerLimits(),
        metrics=metrics,
        log=Log(),
        version="0",
        applications=mounted or applications(),
        options=dict(options),
        app=app,
    )
    return build(setup)


@asynccontextmanager
async def started(app: FastAPI) -> AsyncGenerator[FastAPI]:
    async with app.router.lifespan_context(app):
        yield app


@asynccontextmanager
async def listening(app: FastAPI) -> AsyncGenerator[str]:
    """Lets *app*, which was started, listen on a port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        config = uvicorn.Config(app, lifespan="off", ws="none", log_config=None)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[door]))
        try:
            yield f"http://127.0.0.1:{door.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


async def key_of(
    app: FastAPI, *scopes: str, queues: tuple[str, ...] = ("*",), owner: str | None = None
) -> str:
    ledger: Ledger = app.state.ledger
    made = await ledger.keys.create("test", scopes=scopes, queues=queues, owner=owner)
    return made.secret.get_secret_value()


def client_of(app: FastAPI, key: str | None = None) -> httpx.AsyncClient:
    headers = {"X-API-Key": key} if key else {}
    transport = httpx.ASGITransport(app=app)
    return httpx.AsyncClient(transport=transport, base_url="http://towpath", headers=headers)
