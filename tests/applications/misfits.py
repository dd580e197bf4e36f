"""Applications that cannot be mounted, each for another reason; the names that they declare are in
this module.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel
from sqlalchemy import Column, Integer, Table

from towpath import QueueOptions
from towpath.apps.application import Application
from towpath.ledger.database.tables import Tables
from towpath.ledger.keys.key import KeyInfo, Scope
from towpath.options import Options
from towpath.telemetry.events import LogEvent, LogEvents
from towpath.telemetry.measures import MetricKind, MetricSpec
from towpath.web.application_routes import ApplicationRoutes, WebhookListener
from towpath.web.audit import not_audited
from towpath.web.auth import scoped

CanRead = Annotated[KeyInfo, Depends(scoped(Scope.READ))]


class NoOptions(Options, frozen=True, kw_only=True):
    """No options."""

    secrets: tuple[str, ...] = ()
    """None."""


def application(name: str = "misfit", **named: Any) -> Application:
    here: dict[str, Any] = {
        key: f"{__name__}:{value}" if isinstance(value, str) else value
        for key, value in named.items()
    }
    here.setdefault("options", NoOptions)
    return Application(name=name, **here)


NO_APPLICATION = {"name": "misfit"}
NO_WORD = application("Mis fit")
NAME_TAKEN = application("messages")
PART_TAKEN = application("ledger")
SETTING_TAKEN = application("worker")
NO_OPTIONS = application(options=dict)
QUEUE_TAKEN = application(queues="QUEUE")
QUEUE = {"reviews.post": QueueOptions()}
PREFIX_TAKEN = application(queues="PREFIX")
PREFIX = {"messages*": QueueOptions()}
METRIC_OF_ANOTHER = application(
    metrics=(MetricSpec("towpath_jobs_total", MetricKind.COUNTER, (), "Jobs.", "How many?"),)
)
EVENT_OF_ANOTHER = application(
    log_events=LogEvents((LogEvent("worker.started", "A misfit was started.", ()),))
)
FIELD_UNKNOWN = application(
    log_events=LogEvents((LogEvent("misfit.met", "A misfit was met.", ("height",)),))
)
FIELD_OF_ANOTHER = application(
    log_events=LogEvents(
        (LogEvent("misfit.met", "A misfit was met.", ("queue",)),),
        {"queue": "How many are before it."},
    )
)
NO_QUEUE = application(queues="NAMELESS")
NAMELESS = {"Not a queue": QueueOptions()}
ALL_QUEUES = application(queues="ALL")
ALL = {"*": QueueOptions()}
RAW_ELSEWHERE = application(queues="OWN", raw={"mails": ("claim",)})
RAW_UNKNOWN = application(queues="OWN", raw={"misfits": ("claim", "steal")})
OWN = {"misfits": QueueOptions()}
CALLS_OF_ANOTHER = application(purposes=("callback",))
COMMAND_TAKEN = application("explain")
NO_SERVICE = application(service="nothing_here")
NO_TABLES = application(tables="NOTHING")


# ── paths ────────────────────────────────────────────────────────────────────────────────


@not_audited("it changes nothing")
async def _scoped(_: CanRead) -> None:
    """A route with a scope."""


async def _undeclared(_: CanRead) -> None:
    """A route that declares nothing for the audit log."""


async def _open() -> None:
    """A route without a scope."""


async def _body(body: "_Body", _: CanRead) -> None:
    """A route that takes a body."""


class _Body(BaseModel):
    text: str


def _routes(path: str, endpoint: Any = _scoped, **more: Any) -> ApplicationRoutes:
    router = APIRouter()
    router.add_api_route(path, endpoint, methods=["POST"])
    return ApplicationRoutes(routers=(router,), **more)


async def _plain(_: Any) -> PlainTextResponse:
    return PlainTextResponse("open to all")


def _around() -> ApplicationRoutes:
    router = APIRouter()
    router.add_route("/api/v1/misfit", _plain)
    return ApplicationRoutes(routers=(router,))


def _listening(*paths: str) -> ApplicationRoutes:
    async def take(_: Any, __: Any) -> Any: ...

    listeners = (
        WebhookListener(
            path=path,
            secrets="secrets",
            read=lambda *_, **__: None,
            take=take,
            answer=_Body,
            signature="X",
            signed="X.",
            headers={},
            about="X.",
        )
        for path in paths
    )
    return ApplicationRoutes(listeners=tuple(listeners))


ROUTES_REFUSED = {
    "/api/v1/reviews/{id} belongs to reviews": _routes("/api/v1/reviews/{id}"),
    "/api/v1/{any} belongs to": _routes("/api/v1/{any}"),
    "/{rest:path} belongs to": _routes("/{rest:path}"),
    "/livez belongs to the server": _routes("/livez"),
    "/openapi.json belongs to the server": _routes("/openapi.json"),
    "/api/v1/webhooks/github belongs to the server": _routes("/api/v1/webhooks/github"),
    "/api/v1/misfit requires no scope": _routes("/api/v1/misfit", _open),
    "/api/v1/misfit takes a body": _routes("/api/v1/misfit", _body),
    "/api/v1/misfit declares nothing for the audit log": _routes("/api/v1/misfit", _undeclared),
    "is not a FastAPI route": _around(),
    "/api/v1/reviews is not one of its own paths": _routes(
        "/api/v1/misfit", open=("/api/v1/reviews",)
    ),
    "OPTIONS /api/v1/reviews is not one of its own paths": _routes(
        "/api/v1/misfit", open=("OPTIONS /api/v1/reviews",)
    ),
    "its path /api/v1/misfit requires no scope": _routes(
        "/api/v1/misfit", _open, open=("OPTIONS /api/v1/misfit",)
    ),
    "must begin with misfit/": _listening("reviews/github"),
    "it registers github twice": _listening("github", "github"),
}


def with_routes(reason: str) -> Application:
    """An application with these paths."""
    globals()["ROUTES"] = ROUTES_REFUSED[reason]
    return application(http="ROUTES")


# ── tables ───────────────────────────────────────────────────────────────────────────────

TABLES_OF_ANOTHER = Tables("reviews", version="0001", steps=__name__)
TABLE_TAKEN = Tables("misfit", version="0001", steps=__name__)
Table("towpath_jobs", TABLE_TAKEN.metadata, Column("id", Integer, primary_key=True))
OTHER_TABLES = application(tables="TABLES_OF_ANOTHER")
TAKEN_TABLE = application(tables="TABLE_TAKEN")
