"""The composition root: builds a server from its setup."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from hashlib import sha256
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

from towpath.app.app import Towpath
from towpath.app.backend import Backend
from towpath.app.jobs import AllJobs
from towpath.apps.application import Application, applications
from towpath.calls.caller import Caller
from towpath.calls.errors import CallRefused
from towpath.calls.guard import parse_target
from towpath.calls.signature import OUTBOX, derive_secret
from towpath.clock import seconds
from towpath.dashboard import engine_pages, operator_pages, public_routes, searching
from towpath.dashboard.snapshot_cache import SnapshotCache
from towpath.engine.channel import Limits
from towpath.engine.engine import Engine
from towpath.errors import InvalidOption
from towpath.ledger.keys.key import KeyInfo
from towpath.ledger.ledger import Ledger
from towpath.ledger.outbox.courier import Courier
from towpath.ledger.outbox.event import Sink
from towpath.ledger.outbox.options import KAFKA, REDIS, WEBHOOK, OutboxOptions
from towpath.ledger.outbox.sinks.kafka import KafkaSink
from towpath.ledger.outbox.sinks.redis_stream import RedisStreamSink
from towpath.ledger.outbox.sinks.webhook import WebhookSink
from towpath.server.applications import Applications, working
from towpath.server.records_elsewhere import RecordsElsewhere
from towpath.server.routes import health, jobs, operating, queues, schedules, work
from towpath.server.routes.health import PLACE, QueueReadings
from towpath.supervise import Background
from towpath.telemetry.logs import Log
from towpath.telemetry.metrics import Metrics
from towpath.web import problems
from towpath.web.application_routes import CrossOrigin, scheme_of
from towpath.web.audit import Auditor
from towpath.web.auth import HEALTH, CredentialCheck, KeyMiddleware
from towpath.web.bodies import Bodies
from towpath.web.fields import PREFIX
from towpath.web.limits import Guesses, Rates, ServerLimits
from towpath.web.open_requests import OpenRequests
from towpath.web.problems import Problem
from towpath.web.tools import PATH as TOOLS
from towpath.web.tools import ToolsPath
from towpath.worker.schedules import DeclaredSchedules, keep_firing


class ServerSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What a server is built from."""

    engine: Engine
    """Not entered. A server gives its engine `LIMITS`."""
    ledger: Ledger
    limits: ServerLimits
    metrics: Metrics
    log: Log
    version: str
    applications: tuple[Application, ...] = msgspec.field(default_factory=applications)
    options: Mapping[str, Any] = {}
    """Options of the applications, by name; one that is not here has its defaults."""
    outbox: OutboxOptions = OutboxOptions(sinks=())
    """Its sinks are those of the ledger."""
    app: Towpath | None = None
    """The app whose handlers run in the server; None = they run elsewhere."""


def build(setup: ServerSetup) -> FastAPI:
    """The server as an ASGI application. It connects when it starts, and also serves while Redis or
    the database is unreachable.

    Raises ApplicationInvalid and InvalidOption for an application that can't run, and what `Sinks`
    raises.
    """
    mounted = Applications(setup.applications, setup.options)
    app = FastAPI(
        title="Towpath",
        version=setup.version,
        summary="A job queue for work that must be done once, in order and on time.",
        lifespan=_make_lifespan(setup, mounted),
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    _share(app, setup, mounted)
    public_routes.install(app, mounted.pages)
    problems.install(app)
    app.add_middleware(
        KeyMiddleware,
        keys=setup.ledger.keys,
        rates=app.state.rates,
        requests=app.state.open_requests,
        guesses=app.state.guesses,
        open=OPEN | mounted.open,
        signed=set(mounted.webhooks),
        pages=public_routes.OPEN,
        login_sessions=app.state.login_sessions,
        audit=Auditor(setup.ledger, setup.log),
        login_page=public_routes.LoginPage(app.state.frame),
        credentials=_credentials(app, mounted),
    )
    if mounted.origins:
        app.add_middleware(CrossOrigin, rules=mounted.origins)
    own = [
        work.router, jobs.router, queues.router, queues.events_router, schedules.router,
        operating.router, health.router, engine_pages.router, operator_pages.router,
        searching.router, public_routes.router,
    ]  # fmt: skip
    for router in [
        *mounted.routers(own, open=OPEN, limits=setup.limits),
        public_routes.fallback_router,
    ]:
        # `include_router` would match each request twice: against the router and its route.
        app.router.routes.extend(router.routes)
    if mounted.tools:
        app.router.routes.append(Route(TOOLS, app.state.tools))
    describe(app, mounted, open=OPEN | mounted.open)
    app.router.routes.insert(0, RouteIndex(app.router.routes))
    return app


def _credentials(app: FastAPI, mounted: Applications) -> dict[str, CredentialCheck]:
    """The checks of credentials, each with the service of its application while the server runs."""

    def with_service(name: str, check: Callable[..., Awaitable[KeyInfo | None]]) -> CredentialCheck:
        return lambda scope, token: check(app.state.services[name], scope, token)

    return {prefix: with_service(*found) for prefix, found in mounted.credentials.items()}


def _share(app: FastAPI, setup: ServerSetup, mounted: Applications) -> None:
    """Put the shared parts into `app.state`, where dependencies find them."""
    app.state.ledger = setup.ledger
    app.state.metrics = setup.metrics
    app.state.metric_queues = mounted.metric_queues
    app.state.probes = mounted.probes
    app.state.raw = mounted.raw
    app.state.webhooks = mounted.configured_webhooks
    app.state.bodies = Bodies(setup.limits)
    app.state.open_requests = OpenRequests(setup.limits)
    app.state.rates = Rates(setup.limits.rate, setup.limits.credential_share)
    app.state.guesses = Guesses(setup.limits.guesses)
    app.state.limits = setup.limits
    app.state.stopping = asyncio.Event()
    app.state.tools = ToolsPath(mounted.tools, version=setup.version, limits=setup.limits)


OPEN = HEALTH | public_routes.OPEN
"""Paths of the server that need no key."""


DESCRIPTION = "/openapi.json"
LIMITS = Limits(answer=seconds(1), give_up=seconds(1.5), channels=16)
"""Short limits: an HTTP client gets an error within two seconds if Redis is unreachable."""


def _make_lifespan(
    setup: ServerSetup, mounted: Applications
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """Returns the lifespan of the server: connections, services, tasks and workers. Raises what
    `Sinks` raises.
    """
    sinks = Sinks(setup.outbox)
    # What needs no Redis is served while Redis is unreachable; readiness and the log report it.
    engine = setup.engine.tolerant()

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncGenerator[None]:
        async with Backend(lambda: engine, ledger=setup.ledger, log=setup.log) as backend:
            app.state.engine = engine
            app.state.jobs = AllJobs(engine, backend.open_ledger)
            app.state.snapshots = SnapshotCache(engine)
            app.state.elsewhere = RecordsElsewhere(engine, setup.ledger, setup.log)
            setup.metrics.watch(QueueReadings(engine).read, place=PLACE)
            async with (
                # Entered first and left last: events of handlers that stop are sent as well.
                sinks.sending(setup.ledger, engine, log=setup.log, metrics=setup.metrics),
                mounted.running(
                    engine=engine, ledger=setup.ledger, metrics=setup.metrics, log=setup.log
                ) as app.state.services,
                working(setup.app, mounted.consumers, grace=setup.limits.grace, log=setup.log),
                _fire_schedules(engine, setup.log, setup.metrics),
            ):
                app.state.open_requests.start()
                try:
                    yield
                finally:
                    await app.state.tools.close()
                    await app.state.open_requests.close()

    return life


@asynccontextmanager
async def _fire_schedules(engine: Engine, log: Log, metrics: Metrics) -> AsyncGenerator[None]:
    """Fire the schedules of all queues while the body runs, also of queues without a worker."""

    async def fire() -> None:
        await keep_firing(engine, DeclaredSchedules(), log=log, metrics=metrics)

    firing = Background("firing of schedules", fire, log=log).start()
    try:
        yield
    finally:
        await firing.stop()


# ── matching ─────────────────────────────────────────────────────────────────────────────


class RouteIndex(BaseRoute):
    """Finds the route of a request among those with the same subject, in their order.

    The subject is the segment after `/api/v1/`, or else the first one. Without an index, a path is
    compared with one route after the other: with 67 until a job is submitted, which takes 50 µs. A
    path or method that is not found is left to the routes after this one, which answer it.
    """

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        self._routes: dict[str, list[Route]] = {}
        for route in routes:
            if isinstance(route, Route):
                self._routes.setdefault(_subject(route.path), []).append(route)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        for route in self._routes.get(_subject(scope["path"]), ()):
            match, found = route.matches(scope)
            if match is Match.FULL:
                return match, {**found, "route": route}
        return Match.NONE, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await scope["route"].handle(scope, receive, send)


def _subject(path: str) -> str:
    return path.removeprefix(PREFIX).lstrip("/").partition("/")[0]


# ── OpenAPI 3.1 ──────────────────────────────────────────────────────────────────────────

TAGS = [
    {"name": "jobs", "description": "Submit, read, explain, list and cancel jobs."},
    {
        "name": "work",
        "description": "Claim, renew, complete, fail and release jobs: all that a worker needs.",
    },
    {"name": "queues", "description": "Counts, history, pause and resume, dead jobs, lanes."},
    {"name": "events", "description": "Events of a queue, as a stream."},
    {"name": "schedules", "description": "Create, change, pause and fire schedules."},
    {"name": "operating", "description": "Health checks, workers, API keys and the audit log."},
]
_HEALTH = {
    "name": "health",
    "description": "Liveness, readiness and metrics.",
}
_IN_HEADER = {"type": "apiKey", "in": "header"}
_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "`Authorization: Bearer tp_…`"},
    "plain": _IN_HEADER | {"name": "X-API-Key", "description": "The key alone: `tp_…`"},
}
_DELIVERY: dict[str, Any] = {
    "type": "object",
    "description": "A delivery as its forge documents it.",
    "examples": [{"action": "opened", "pull_request": {}, "repository": {}}],
}
_Security = list[dict[str, list[str]]]
"""Security requirements of OpenAPI: a request must fulfil one of them."""
_ANY_KEY: _Security = [{"bearer": []}, {"plain": []}]


def describe(app: FastAPI, mounted: Applications, *, open: Collection[str]) -> None:
    """Add /openapi.json to *app*, with security schemes and problems. It is built at the first
    request, and is the same for all keys.
    """
    made: dict[str, Any] = {}

    def description() -> dict[str, Any]:
        if not made:
            made.update(_build_openapi(app, mounted, open))
        return made

    encoded: list[tuple[bytes, str]] = []

    async def answer(request: Request) -> Response:
        if not encoded:
            content = msgspec.json.encode(description())
            encoded.append((content, f'"{sha256(content).hexdigest()[:32]}"'))
        [(content, tag)] = encoded
        headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
        known = [name.strip() for name in request.headers.get("if-none-match", "").split(",")]
        if tag in known or f"W/{tag}" in known:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type="application/json", headers=headers)

    app.openapi = description
    app.add_route(DESCRIPTION, answer, include_in_schema=False)


def _build_openapi(app: FastAPI, mounted: Applications, open: Collection[str]) -> dict[str, Any]:
    page = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        routes=app.routes,
        tags=[*TAGS, *mounted.tags, _HEALTH],
    )
    parts = page["components"]
    schemes = {
        scheme_of(webhook): _IN_HEADER | {"name": webhook.signature, "description": webhook.signed}
        for webhook in mounted.webhooks.values()
    }
    parts["securitySchemes"] = _SCHEMES | schemes
    parts["schemas"]["Problem"] = Problem.model_json_schema()
    parts["schemas"]["Delivery"] = _DELIVERY
    parts["schemas"] |= mounted.schemas
    for path, methods in page["paths"].items():
        for operation in methods.values():
            listener = mounted.webhooks.get(path)
            signed: _Security = [{scheme_of(listener): []}] if listener else _ANY_KEY
            operation["security"] = [] if path in open else signed
    return page


# ── sinks of the outbox ──────────────────────────────────────────────────────────────────

_WITHIN = seconds(15)
"""Timeout of the webhook sink for an event."""


class Sinks:
    """The sinks of *options*. Creating it checks the options; nothing is sent before `sending`.

    The operator chose the webhook's address, so its host may be a private one. Raises
    InvalidOption, SecretInvalid, SinkNotInstalled.
    """

    def __init__(self, options: OutboxOptions) -> None:
        self._options = options
        self._caller: Caller | None = None
        self._outside: list[Sink] = []
        if KAFKA in options.sinks:
            self._outside.append(_kafka(options))
        if WEBHOOK in options.sinks:
            self._outside.append(self._webhook(options))

    @asynccontextmanager
    async def sending(
        self, ledger: Ledger, engine: Engine, *, log: Log, metrics: Metrics
    ) -> AsyncGenerator[None]:
        """Send the events of *ledger* while the body runs.

        The courier runs also without sinks: it counts events for sinks that were removed.
        """
        sinks = list(self._outside)
        if REDIS in self._options.sinks:
            stream, kept = self._options.redis_stream, self._options.redis_kept
            sinks.append(RedisStreamSink(engine, stream, name=REDIS, kept=kept))
        async with self._caller or nullcontext(), Courier(ledger, sinks, log=log, metrics=metrics):
            yield

    def _webhook(self, options: OutboxOptions) -> WebhookSink:
        url = options.webhook_url or ""
        try:
            host = parse_target(url).host
        except CallRefused as error:
            raise InvalidOption("outbox.webhook_url", "…", rule=error.reason) from None
        self._caller = Caller(allow=(host, *options.allow), timeout=_WITHIN)
        secrets = [derive_secret(secret, OUTBOX) for secret in options.secrets]
        return WebhookSink(self._caller, url, secrets=secrets, name=WEBHOOK)


def _kafka(options: OutboxOptions) -> KafkaSink:
    servers, topic = options.kafka_servers or "", options.kafka_topic
    try:
        return KafkaSink(servers, topic, name=KAFKA, options=options.kafka_options)
    except InvalidOption as error:
        # With the name of the setting, and without its value, which may be secret.
        raise InvalidOption("outbox.kafka_options", "…", rule=error.rule) from None
