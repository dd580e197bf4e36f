"""The composition root: all parts of a server put together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import msgspec
from fastapi import FastAPI
from fastapi.routing import APIRoute

from towpath.app.app import Towpath
from towpath.app.connection import Connection
from towpath.apps.messages.options import MessagesOptions
from towpath.apps.messages.service import Messages
from towpath.apps.reviews.adapters import Outgoing
from towpath.apps.reviews.options import ReviewsOptions
from towpath.apps.reviews.service import Reviews
from towpath.clock import Duration, seconds
from towpath.engine.channel import Limits
from towpath.engine.engine import Engine
from towpath.ledger.ledger import Ledger
from towpath.server.description import describe
from towpath.server.readings import PLACE, QueueReadings
from towpath.server.routes import (
    events,
    health,
    jobs,
    messages,
    queues,
    reviews,
    webhooks,
    work,
)
from towpath.server.sinks import EventsOptions, Sinks
from towpath.server.workers import Consumers, working
from towpath.telemetry.logs import Log
from towpath.telemetry.metrics import Metrics
from towpath.web import problems
from towpath.web.auth import Door
from towpath.web.bodies import Bodies, BodyRoute, Deliveries
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
    messages: MessagesOptions = MessagesOptions()
    reviews: ReviewsOptions = ReviewsOptions()
    events: EventsOptions = EventsOptions()
    """Its sinks are those of the ledger."""
    app: Callable[[], Towpath] | None = None
    """Makes the app whose handlers run beside the server; none = they run elsewhere."""
    grace: Duration = seconds(10)


def build(parts: Parts) -> FastAPI:
    """The server as an ASGI application. It connects when it starts, and serves while it can't.

    Raises InvalidOption for a reviewer that there is not, and what `Sinks` raises.
    """
    app = FastAPI(
        title="Towpath",
        version=parts.version,
        summary="A broker for work that must be done once, in order and on time.",
        lifespan=_life(parts),
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.ledger = parts.ledger
    app.state.reviews = Reviews(parts.ledger.jobs)
    app.state.inbox = _inbox(parts, app.state.reviews)
    app.state.metrics = parts.metrics
    app.state.bodies = Bodies(parts.limits)
    app.state.sessions = Sessions(parts.limits)
    app.state.followed = Followed()
    app.state.draining = asyncio.Event()
    problems.install(app)
    app.add_middleware(Door, keys=parts.ledger.keys, rates=Rates(parts.limits.rate))
    # What is asked for most comes first: paths are tried one after the other.
    for subject in (messages, work, webhooks, reviews, jobs, queues, events, health):
        app.include_router(subject.router)
    app.include_router(messages.health_router)
    _require_bounds(app)
    describe(app)
    return app


def _require_bounds(app: FastAPI) -> None:
    """Every path that takes a body reads it within the limits."""
    for route in app.routes:
        if isinstance(route, APIRoute) and route.body_field and not isinstance(route, BodyRoute):
            raise TypeError(f"{route.path} takes a body: its router needs route_class=BodyRoute")


LIMITS = Limits(answer=seconds(1), give_up=seconds(1.5), channels=16)
"""A caller over HTTP is told within two seconds that the store is away."""


def _life(parts: Parts) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """All that runs while the server does. Asking for it checks what it will be made of."""
    sinks = Sinks(parts.events)
    consumers = Consumers(parts.messages, parts.reviews, Outgoing(parts.reviews))

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
                Messages(engine, parts.messages) as app.state.messages,
                working(parts.app, consumers, grace=parts.grace, log=parts.log),
            ):
                try:
                    yield
                finally:
                    await app.state.sessions.close()

    return life


def _inbox(parts: Parts, service: Reviews) -> webhooks.Inbox:
    largest, within = parts.reviews.largest_delivery, parts.limits.body_within
    return webhooks.Inbox(service, parts.reviews, Deliveries(largest=largest, within=within))
