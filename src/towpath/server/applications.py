"""The applications of a server: checks them when it is built, and runs them while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import msgspec
from fastapi import APIRouter
from fastapi.routing import APIRoute

from towpath.app.app import Towpath
from towpath.apps.application import (
    Application,
    ApplicationInvalid,
    Consumers,
    ErrorCodes,
    Host,
    Probe,
    Tasks,
    raw_queues,
    tools_of,
)
from towpath.clock import Duration, seconds
from towpath.errors import ServerError, TowpathError
from towpath.ledger.errors import LedgerError
from towpath.supervise import Background
from towpath.telemetry.logs import Log
from towpath.web import problems
from towpath.web.application_routes import (
    SHARED,
    ApplicationRoutes,
    CrossOriginRule,
    Listening,
    path_of,
    router_of,
)
from towpath.web.audit import must_declare
from towpath.web.auth import has_scope
from towpath.web.bodies import BodyRoute, Deliveries
from towpath.web.fields import PAGES
from towpath.web.limits import ServerLimits
from towpath.web.pages import Pages
from towpath.web.tools import PATH as TOOLS
from towpath.worker.worker import Worker

_TRY_EVERY = 1.0
_FLUSH = seconds(10)
"""How long a worker may take, after its grace, to release its jobs."""


class Mounted(msgspec.Struct, frozen=True):
    """An application with its options, and the loaded parts that a server runs."""

    application: Application
    options: Any
    routes: ApplicationRoutes
    consumers: Consumers | None
    pages: Pages | None = None

    @classmethod
    def of(cls, application: Application, options: Any) -> Mounted:
        """Load *application*. Raises ApplicationInvalid for a part that can't be loaded, and
        InvalidOption.
        """
        load = application.load
        for named in (application.service, application.tasks, application.probe):
            load(named)
        answers: Mapping[type[TowpathError], ErrorCodes] = load(application.errors, {})
        for kind, answered in answers.items():
            problems.STATUSES.setdefault(kind, answered.status)
        with application.named_by_setting():
            consumers = load(application.handlers)(options) if application.handlers else None
        routes, pages = load(application.http, ApplicationRoutes()), load(application.pages)
        return cls(application, options, routes, consumers, pages)

    @property
    def listening(self) -> list[Listening]:
        return [
            Listening(self.application.name, listener, getattr(self.options, listener.secrets))
            for listener in self.routes.listeners
        ]


class Applications:
    """All applications of a server. Raises as `Mounted.of` does."""

    def __init__(self, applications: Iterable[Application], options: Mapping[str, Any]) -> None:
        self.mounted = [
            Mounted.of(
                application,
                options[application.name] if application.name in options else application.options(),
            )
            for application in applications
        ]
        self.listening = [one for mounted in self.mounted for one in mounted.listening]
        self.open = {path for mounted in self.mounted for path in mounted.routes.open}
        self.webhooks = {
            path_of(listening.listener): listening.listener for listening in self.listening
        }
        self.configured_webhooks = list(
            dict.fromkeys(
                path_of(listening.listener) for listening in self.listening if listening.secrets
            )
        )
        self.schemas = {
            name: schema
            for mounted in self.mounted
            for name, schema in mounted.routes.schemas.items()
        }
        self.origins = {
            path: CrossOriginRule(origins, mounted.routes.exposed)
            for mounted in self.mounted
            for path, option in mounted.routes.origins.items()
            if (origins := getattr(mounted.options, option))
        }
        self.credentials = {
            prefix: (mounted.application.name, check)
            for mounted in self.mounted
            for prefix, check in mounted.routes.credentials.items()
        }
        self.pages = {
            mounted.application.name: mounted.pages for mounted in self.mounted if mounted.pages
        }
        self.consumers = [mounted.consumers for mounted in self.mounted if mounted.consumers]
        self.tools = tools_of(mounted.application for mounted in self.mounted)
        self.raw = raw_queues(mounted.application for mounted in self.mounted)
        self.tags = [
            {"name": name, "description": about}
            for mounted in self.mounted
            for name, about in mounted.routes.tags.items()
        ]
        self.metric_queues = {
            spec.name.removesuffix("_total"): next(iter(mounted.application.behaviours()), "")
            for mounted in self.mounted
            for spec in mounted.application.metrics
        }
        """The first queue of the application, by metric. Only keys that cover this queue see the
        application's totals."""
        self.probes: dict[str, Probe] = {
            mounted.application.name: mounted.application.load(mounted.application.probe)
            for mounted in self.mounted
            if mounted.application.probe
        }

    def routers(
        self, own: Sequence[APIRouter], *, open: Iterable[str], limits: ServerLimits
    ) -> list[APIRouter]:
        """The routers of the server (*own*) and of all applications.

        Raises ApplicationInvalid for a path that two owners have, a path that is neither open nor
        requires a scope, and an open path that the application does not have.
        """
        webhooks = router_of(self.listening, self._deliveries(limits))
        claimed = {"/openapi.json": "the server", TOOLS: "the server"}
        claimed |= dict.fromkeys(
            (route.path for route in _routes("server", webhooks)), "the server"
        )
        for router in own:
            _claim(claimed, "the server", _routes("server", router), open=open)
        for mounted in self.mounted:
            name, theirs = mounted.application.name, mounted.routes
            routes = [route for router in theirs.routers for route in _routes(name, router)]
            _claim(claimed, name, routes, open=theirs.open)
            if strange := set(theirs.open).difference(*map(_names, routes)):
                raise ApplicationInvalid(
                    name, f"{strange.pop()} is not one of its own paths, so it can't be open"
                )
            _require_own_webhooks(name, [each.path for each in theirs.listeners])
            _claim(claimed, name, _own_pages(name, mounted.pages), open=())
        routers = [router for mounted in self.mounted for router in mounted.routes.routers]
        shown = [pages.router for pages in self.pages.values()]
        return [*own, webhooks, *routers, *shown]

    def _deliveries(self, limits: ServerLimits) -> Deliveries:
        sizes = {
            f"{mounted.application.name}.{each.largest}": getattr(mounted.options, each.largest)
            for mounted in self.mounted
            for each in mounted.routes.listeners
            if each.largest
        }
        largest = max(sizes, key=lambda name: sizes[name], default="http.body")
        return Deliveries(
            largest=sizes.get(largest, limits.body), within=limits.body_within, setting=largest
        )

    @asynccontextmanager
    async def running(self, **given: Any) -> AsyncGenerator[dict[str, Any]]:
        """Run the services and tasks of all applications while the body runs. Yields the services
        by name.
        """
        services: dict[str, Any] = {}
        async with AsyncExitStack() as stack:
            for mounted in self.mounted:
                application, host = mounted.application, Host(options=mounted.options, **given)
                for spec in application.metrics:
                    host.metrics.own(spec)  # exported from the start, before anything is counted
                service = services[application.name] = (
                    await stack.enter_async_context(application.load(application.service)(host))
                    if application.service
                    else host
                )
                tasks: Tasks | None = application.load(application.tasks)
                for name, run in tasks(service).items() if tasks else ():
                    task = Background(f"{application.name}: {name}", run, log=host.log).start()
                    stack.push_async_callback(task.stop)
            yield services


# ── paths ────────────────────────────────────────────────────────────────────────────────


def _routes(owner: str, router: APIRouter) -> list[APIRoute]:
    for route in router.routes:
        if not isinstance(route, APIRoute):
            raise ApplicationInvalid(owner, f"{route} is not a FastAPI route")
    return [route for route in router.routes if isinstance(route, APIRoute)]


def _claim(
    claimed: dict[str, str], owner: str, routes: Sequence[APIRoute], *, open: Iterable[str]
) -> None:
    """Add *routes* to the *claimed* paths. Raises ApplicationInvalid if one breaks a rule."""
    for route in routes:
        for path, other in claimed.items():
            if other != owner and _overlap(_parts(route.path), _parts(path)):
                raise ApplicationInvalid(owner, f"its path {route.path} belongs to {other}: {path}")
        if not _is_open(route, open) and not has_scope(route.dependant):
            raise ApplicationInvalid(owner, f"its path {route.path} requires no scope")
        if route.body_field and not isinstance(route, BodyRoute):
            reason = (
                f"its path {route.path} takes a body, so its router needs route_class=BodyRoute"
            )
            raise ApplicationInvalid(owner, reason)
        if must_declare(route):
            reason = (
                f"its path {route.path} may change something, so its function needs @audited or "
                "@not_audited of towpath.web.audit"
            )
            raise ApplicationInvalid(owner, reason)
    claimed |= dict.fromkeys((route.path for route in routes), owner)


def _names(route: APIRoute) -> set[str]:
    """The names under which a route may be listed as open: its path, or each method and path."""
    return {route.path, *(f"{method} {route.path}" for method in route.methods or ())}


def _is_open(route: APIRoute, open: Iterable[str]) -> bool:
    by_method = _names(route) - {route.path}
    return route.path in open or (bool(by_method) and by_method <= set(open))


def _own_pages(name: str, pages: Pages | None) -> list[APIRoute]:
    """The routes of an application's pages. Raises ApplicationInvalid for another path."""
    routes = _routes(name, pages.router) if pages else []
    for route in routes:
        if _parts(route.path)[:2] != [PAGES.strip("/"), name]:
            raise ApplicationInvalid(name, f"its page {route.path} is not below {PAGES}{name}")
    return routes


def _parts(path: str) -> list[str]:
    return path.strip("/").split("/")


def _overlap(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether one request could match both paths."""
    for mine, its in zip(one, other, strict=False):
        if mine.endswith(":path}") or its.endswith(":path}"):
            return True
        if mine != its and "{" not in mine + its:
            return False
    return len(one) == len(other)


def _require_own_webhooks(name: str, paths: Sequence[str]) -> None:
    for path in paths:
        if path not in SHARED and not path.startswith(f"{name}/"):
            forges = " and ".join(SHARED)
            reason = f"its webhook {path} must begin with {name}/; only {forges} are shared"
            raise ApplicationInvalid(name, reason)
        if paths.count(path) > 1:
            raise ApplicationInvalid(name, f"it registers {path} twice")


# ── handlers ─────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def working(
    app: Towpath | None, consumers: Sequence[Consumers], *, grace: Duration, log: Log
) -> AsyncGenerator[None]:
    """Run a worker for *consumers* while the body runs, and restart it if it ends before.
    Handlers may be added later: the worker starts with the first one.

    If Redis or the database is unreachable, the worker tries again. The server answers meanwhile,
    and reports it.
    """
    if app is None:
        yield
        return
    async with AsyncExitStack() as stack:
        for consumer in consumers:
            await stack.enter_async_context(consumer.added(app))
        # The server handles the signals, and stops its worker after its own requests.
        worker = Worker(app, grace=grace, signals=(), handlers_later=True)
        begin = _FirstHandler(app)
        running = Background("handlers", partial(_run, worker, begin), log=log).start()
        try:
            with app.followed(begin.check):
                begin.check()
                yield
        finally:
            running.retire()
            worker.stop("the server stops")
            begin.stop()
            await running.stop(grace=grace + _FLUSH)


class _FirstHandler:
    """Waits until an app has a handler: without one, a worker would only take connections."""

    def __init__(self, app: Towpath) -> None:
        self._app, self._over = app, asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def check(self) -> None:
        """End the wait if there is a handler. May be called from any thread."""
        if self._app.handlers:
            self._loop.call_soon_threadsafe(self._over.set)

    def stop(self) -> None:
        """End the wait, because the server stops."""
        self._over.set()

    async def wait(self) -> bool:
        """Waits. Returns True once there is a handler, False if `stop` was called before."""
        await self._over.wait()
        return bool(self._app.handlers)


async def _run(worker: Worker, begin: _FirstHandler) -> None:
    """Run *worker* until it stops: because the server does, or because it lost its slots."""
    while await begin.wait():
        try:
            await worker.run()
        except (ServerError, LedgerError):
            # The engine and the relay have logged it.
            await asyncio.sleep(_TRY_EVERY)
        else:
            return
