"""The composition root: all parts of a server put together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import msgspec
from fastapi import FastAPI

from towpath.app.app import Towpath
from towpath.app.connection import Connection
from towpath.apps.application import Application, applications
from towpath.clock import seconds
from towpath.engine.channel import Limits
from towpath.engine.engine import Engine
from towpath.ledger.ledger import Ledger
from towpath.ledger.outbox.options import EventsOptions
from towpath.server.applications import Applications, working
from towpath.server.description import describe
from towpath.server.readings import PLACE, QueueReadings
from towpath.server.routes import events, health, jobs, queues, work
from towpath.server.sinks import Sinks
from towpath.telemetry.logs import Log
from towpath.telemetry.metrics import Metrics
from towpath.web import problems
from towpath.web.auth import Door
from towpath.web.bodies import Bodies
from towpath.web.limits import Rates, ServerLimits
from towpath.web.sessions import Sessions
from towpath.web.streams import Followed


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """What a server is made of."""

    connect: Callable[[Limits], Engine]
    ledger: Ledger
    limits: ServerLimits
    metrics: Metrics
    log: Log
    version: str
    applications: tuple[Application, ...] = msgspec.field(default_factory=applications)
    options: Mapping[str, Any] = {}
    """Of the applications, by name; for one that is not here, its defaults."""
    events: EventsOptions = EventsOptions(sinks=())
    """Its sinks are those of the ledger."""
    app: Callable[[], Towpath] | None = None
    """Makes the app whose handlers run beside the server; none = they run elsewhere."""


def build(parts: Parts) -> FastAPI:
    """The server as an ASGI application. It connects when it starts, and serves while it can't.

    Raises ApplicationInvalid, InvalidOption for what an application can't do, and what `Sinks`
    raises.
    """
    mounted = Applications(parts.applications, parts.options)
    app = FastAPI(
        title="Towpath",
        version=parts.version,
        summary="A broker for work that must be done once, in order and on time.",
        lifespan=_life(parts, mounted),
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.ledger = parts.ledger
    app.state.metrics = parts.metrics
    app.state.probes = mounted.probes
    app.state.webhooks = mounted.configured_webhooks
    app.state.bodies = Bodies(parts.limits)
    app.state.sessions = Sessions(parts.limits)
    app.state.followed = Followed()
    app.state.draining = asyncio.Event()
    problems.install(app)
    app.add_middleware(
        Door,
        keys=parts.ledger.keys,
        rates=Rates(parts.limits.rate),
        open=OPEN | mounted.open,
        signed=set(mounted.webhooks),
    )
    # What is asked for most comes first: paths are tried one after the other.
    own = [it.router for it in (work, jobs, queues, events, health)]
    for router in mounted.routers(own, open=OPEN, limits=parts.limits):
        app.include_router(router)
    describe(app, mounted, open=OPEN | mounted.open)
    return app


OPEN = frozenset({"/livez", "/readyz"})
"""What answers to everybody, beside what applications have."""


LIMITS = Limits(answer=seconds(1), give_up=seconds(1.5), channels=16)
"""A caller over HTTP is told within two seconds that the store is away."""


def _life(
    parts: Parts, mounted: Applications
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """All that runs while the server does. Asking for it checks what it will be made of."""
    sinks = Sinks(parts.events)

    def connect() -> Engine:
        # What can be done without the store is done: readiness and its log say what is wrong.
        return parts.connect(LIMITS).tolerant()

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncGenerator[None]:
        async with Connection(connect, ledger=parts.ledger, log=parts.log) as connection:
            app.state.engine = connection.engine
            parts.metrics.watch(QueueReadings(connection.engine).read, place=PLACE)

            def engine() -> Engine:
                return connection.engine

            async with (
                # First in and last out: what the handlers end while they stop is sent as well.
                sinks.sending(parts.ledger, engine, log=parts.log, metrics=parts.metrics),
                mounted.running(
                    engine=engine, ledger=parts.ledger, metrics=parts.metrics, log=parts.log
                ) as app.state.services,
                working(parts.app, mounted.consumers, grace=parts.limits.grace, log=parts.log),
            ):
                try:
                    yield
                finally:
                    await app.state.sessions.close()

    return life
