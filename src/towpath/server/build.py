"""The composition root: all parts of a server put together."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import msgspec
from fastapi import FastAPI

from towpath.apps.messages.options import MessagesOptions
from towpath.apps.messages.service import Messages
from towpath.engine.channel import Limits
from towpath.engine.engine import Engine
from towpath.ledger.ledger import Ledger
from towpath.server import problems
from towpath.server.gateway import Gateway
from towpath.server.limits import Bodies, Rates, ServerLimits, Streams
from towpath.server.routes import events, health, jobs, messages, queues, work
from towpath.telemetry.logs import Log
from towpath.telemetry.metrics import Metrics


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """What a server is made of."""

    connect: Callable[[Limits], Engine]
    ledger: Ledger
    limits: ServerLimits
    metrics: Metrics
    log: Log
    version: str
    messages: MessagesOptions = MessagesOptions()


def build(parts: Parts) -> FastAPI:
    """The server as an ASGI application. It connects when it starts, and serves while it can't."""

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncGenerator[None]:
        async with parts.ledger, Gateway(parts.connect, log=parts.log) as gateway:
            app.state.gateway = gateway
            async with Messages(lambda: gateway.engine, parts.messages) as app.state.messages:
                yield

    app = FastAPI(
        title="Towpath",
        version=parts.version,
        summary="A broker for work that must be done once, in order and on time.",
        lifespan=life,
        docs_url="/docs",
        redoc_url=None,
        openapi_tags=_TAGS,
    )
    app.state.ledger, app.state.keys = parts.ledger, parts.ledger.keys
    app.state.metrics = parts.metrics
    app.state.rates, app.state.streams = Rates(parts.limits.rate), Streams(parts.limits.streams)
    problems.install(app)
    app.add_middleware(Bodies, limits=parts.limits)
    for subject in (health, work, jobs, queues, events):
        app.include_router(subject.router)
    app.include_router(messages.router)
    app.include_router(messages.health_router)
    return app


_TAGS = [
    {"name": "jobs", "description": "Submit, look, explain, list, cancel."},
    {"name": "work", "description": "Claim, renew, complete, fail, release: all a worker needs."},
    {"name": "queues", "description": "Counts, pause and resume, dead jobs."},
    {"name": "events", "description": "What happens, as a stream."},
    {"name": "messages", "description": "One at a time per user: send, look, wait, cancel."},
    {"name": "health", "description": "Needs no key."},
]
