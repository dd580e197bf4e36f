"""Timers over HTTP: submit, set, read, move, cancel, list; types, and the log of firings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple
from urllib.parse import quote

from fastapi import APIRouter, Depends, Path, Query, Response
from pydantic import BeforeValidator, Field

from towpath.apps.owners import Access
from towpath.apps.timers.forms import (
    ExplainedTimerOut,
    FiringOut,
    FiringsOut,
    MoveTimerIn,
    RefusedTimerOut,
    SetIn,
    TimerIn,
    TimerOrTimers,
    TimerOut,
    TimerPageOut,
    TimersOut,
    TimerUnfit,
    TypeOut,
    TypesOut,
)
from towpath.apps.timers.instances_http import instances_router, settle_router
from towpath.apps.timers.listing import TimerQuery
from towpath.apps.timers.model import NewTimer, Timer, TypeKey
from towpath.apps.timers.service import TimerService
from towpath.apps.timers.types import queue_of
from towpath.engine.states import State
from towpath.errors import InvalidInput, InvalidOption, TowpathError
from towpath.ledger.keys.key import KeyInfo, Scope
from towpath.web.application_routes import ApplicationRoutes
from towpath.web.audit import audited
from towpath.web.auth import require, scoped
from towpath.web.bodies import BodyRoute
from towpath.web.dependencies import Named, Repeatable, service
from towpath.web.fields import Instant, alike, decoded
from towpath.web.problems import Refused, documented, status_of

router = APIRouter(prefix="/api/v1/timers", tags=["timers"], route_class=BodyRoute)

TheTimers = Annotated[TimerService, Depends(service("timers"))]
CanSubmit = Annotated[KeyInfo, Depends(scoped(Scope.SUBMIT))]
CanLook = Annotated[KeyInfo, Depends(scoped(Scope.READ))]
App = Annotated[
    str | None, Query(max_length=128, description="The app that the type belongs to, if any.")
]


class NamedTimer(NamedTuple):
    """The timer that a path names."""

    key: TypeKey
    task_id: str

    def checked(self, key: KeyInfo, scope: Scope) -> NamedTimer:
        """Returns itself. 403 unless *key* has *scope* for the queue of its type."""
        require(key, scope, queue_of(self.key))
        return self


async def _timer_of_path(
    task_type: Annotated[
        str,
        Field(max_length=128),
        BeforeValidator(decoded),
        Path(description="The task type; any text, percent-encoded.", examples=["order.timeout"]),
    ],
    task_id: Annotated[
        str,
        Field(max_length=512),
        BeforeValidator(decoded),
        Path(description="The timer's id; any text, percent-encoded.", examples=["order-7"]),
    ],
    app: App = None,
) -> NamedTimer:
    return NamedTimer(TypeKey(task_type, app or None), task_id)


TheTimer = Annotated[NamedTimer, Depends(_timer_of_path)]


# ── a timer's life ───────────────────────────────────────────────────────────────────────

_LOCATION = {"Location": {"description": "URL of the timer.", "schema": {"type": "string"}}}
_EXISTED = {
    200: {
        "model": TimerOut | TimersOut,
        "description": "The timer existed before; or the answer to a list.",
    },
    201: {"headers": _LOCATION},
}


@router.post(
    "", status_code=201, response_model=TimerOut | TimersOut, responses=_EXISTED | documented(409)
)
@audited("task_id", "task_type", "app", answer=("task_id",), only_people=True)
async def submit(
    body: TimerOrTimers, response: Response, timers: TheTimers, named: Named, key: CanSubmit
) -> TimerOut | TimersOut:
    """Submit a timer, or a list of timers. 201: it is new. 200: the same timer exists, and its
    state is returned. 409 `timer_differs`: it exists with other params or another time. 409
    `timer_ended`: it has ended. 409 `timer_taken`: it belongs to another owner. A list is answered
    with 200 and one entry per timer, in order; refused timers have an error, the others are
    submitted.
    """
    if isinstance(body, list):
        response.status_code = 200
        return TimersOut(timers=await _submit_all(timers, body, named, key))
    type_key = TypeKey(body.task_type, body.app)
    require(key, Scope.SUBMIT, queue_of(type_key))
    access = timers.access(key)
    task_id = body.task_id or (named.job_id(0) if named else None)
    new = body.new(type_key, task_id, owner=access.owner)
    call = named.call(repr(new).encode()) if named else None
    [answer] = await timers.submit_many([new], call=call, access=access)
    if isinstance(answer, TowpathError):
        raise answer
    response.status_code = 200 if answer.existed else 201
    response.headers["Location"] = _url_of(answer)
    return TimerOut.of(answer)


@router.put(
    "/{task_type}/{task_id}",
    status_code=201,
    response_model=TimerOut,
    responses={200: {"model": TimerOut, "description": "It replaced a waiting timer."}}
    | documented(409),
)
@audited("app", only_people=True)
async def set_(
    which: TheTimer,
    body: SetIn,
    response: Response,
    *,
    timers: TheTimers,
    named: Named,
    key: CanSubmit,
) -> TimerOut:
    """Create the timer, or replace the one that waits under this id. An ended timer is created
    again. 409 `timer_running` while a worker runs it, `timer_taken` if it belongs to another owner.
    """
    type_key, task_id = which
    if type_key.app is None and body.app is not None:
        type_key = TypeKey(type_key.task_type, body.app)
    path = {"task_type": type_key.task_type, "task_id": task_id, "app": type_key.app}
    for field, value in path.items():
        if getattr(body, field) not in (None, value):
            raise InvalidOption(field, getattr(body, field), rule="must equal the one in the path")
    require(key, Scope.SUBMIT, queue_of(type_key))
    access = timers.access(key)
    new = body.new(type_key, task_id, owner=access.owner)
    call = named.call(repr(("set", new)).encode()) if named else None
    timer = await timers.set(new, call=call, access=access)
    response.status_code = 200 if timer.existed else 201
    return TimerOut.of(timer)


@router.get("/{task_type}/{task_id}", response_model=TimerOut, responses=documented(404))
async def look(which: TheTimer, timers: TheTimers, key: CanLook) -> TimerOut:
    """Read a timer. Another owner's timer is answered as a missing one, here and below."""
    which.checked(key, Scope.READ)
    return TimerOut.of(await timers.get(*which, access=timers.access(key)))


@router.patch("/{task_type}/{task_id}", response_model=TimerOut, responses=documented(404, 409))
@audited("app", "delay", "delay_time", only_people=True)
async def move(
    which: TheTimer, body: MoveTimerIn, timers: TheTimers, named: Named, key: CanSubmit
) -> TimerOut:
    """Move a waiting timer to another time. 409 while a worker runs it and after it ended."""
    which.checked(key, Scope.SUBMIT)
    at = body.when()
    call = named.call(repr(("move", which, at)).encode()) if named else None
    return TimerOut.of(await timers.move(*which, at, call=call, access=timers.access(key)))


@router.post(
    "/{task_type}/{task_id}/cancel", response_model=TimerOut, responses=documented(404, 409)
)
@router.delete(
    "/{task_type}/{task_id}",
    response_model=TimerOut,
    responses=documented(404, 409),
    deprecated=True,
)
@audited("app", only_people=True)
async def cancel(which: TheTimer, timers: TheTimers, key: CanSubmit) -> TimerOut:
    """Cancel a timer: it is `cancelled`, or stays `leased` until its worker stops."""
    which.checked(key, Scope.SUBMIT)
    return TimerOut.of(await timers.cancel(*which, access=timers.access(key)))


@router.get(
    "/{task_type}/{task_id}/explain", response_model=ExplainedTimerOut, responses=documented(404)
)
async def explain(which: TheTimer, timers: TheTimers, key: CanLook) -> ExplainedTimerOut:
    """Explain why the timer is not running: not due, no worker, no instance, …"""
    which.checked(key, Scope.READ)
    found = await timers.explain(*which, access=timers.access(key))
    return ExplainedTimerOut(why=found.why, text=found.text)


# ── many ─────────────────────────────────────────────────────────────────────────────────

After = Annotated[
    str | None,
    Query(max_length=4096, description="The `after` value returned with the previous page."),
]
Size = Annotated[int, Query(ge=1, le=1000, description="Entries per page.")]
Type = Annotated[str | None, Query(min_length=1, max_length=128, description="Only this type.")]
Since = Annotated[Instant | None, Query(description="Due at this time or later; with a time zone.")]
Until = Annotated[Instant | None, Query(description="Due before this time; with a time zone.")]


@router.get("", response_model=TimerPageOut, responses=documented())
async def list_timers(
    timers: TheTimers,
    key: CanLook,
    *,
    app: App = None,
    task_type: Type = None,
    state: Annotated[State | None, Query(description="Only timers in this state.")] = None,
    since: Since = None,
    until: Until = None,
    after: After = None,
    size: Size = 100,
) -> TimerPageOut:
    """List the owner's timers by type and state; waiting ones are sorted by due time. `since` and
    `until` filter by due time. An empty `app` selects types without an app. A page may have fewer
    timers than asked for: continue until `after` is null.
    """
    wanted = TimerQuery(app=app, task_type=task_type, state=state, since=since, until=until)
    page = await timers.list(
        wanted, after=after, size=size, covers=key.covers, access=timers.access(key)
    )
    return TimerPageOut(timers=[TimerOut.of(timer) for timer in page.timers], after=page.after)


@router.get("/types", response_model=TypesOut, responses=documented())
async def types(timers: TheTimers, key: CanLook) -> TypesOut:
    """List all types: who serves them, and how many timers of all owners wait, run and are dead."""
    views = await timers.all_types(key.covers)
    return TypesOut(types=[TypeOut.of(view) for view in views])


@router.get("/log", response_model=FiringsOut, responses=documented())
async def log(
    timers: TheTimers,
    key: CanLook,
    *,
    task_type: Annotated[str, Query(min_length=1, max_length=128, description="The type.")],
    app: App = None,
    since: Since = None,
    until: Until = None,
    after: After = None,
    size: Size = 100,
) -> FiringsOut:
    """List the firings of the owner's timers of a type, latest first: when, how late, where, with
    what outcome. A page may have fewer than asked for: continue until `after` is null.
    """
    type_key = TypeKey(task_type, app or None)
    require(key, Scope.READ, queue_of(type_key))
    page = await timers.log.read(
        type_key, since=since, until=until, after=after, size=size, access=timers.access(key)
    )
    firings = [FiringOut(**alike(FiringOut, firing, but=())) for firing in page.firings]
    return FiringsOut(firings=firings, after=page.after)


# ── how it is done ───────────────────────────────────────────────────────────────────────


async def _submit_all(
    timers: TimerService,
    bodies: Sequence[TimerIn | TimerUnfit],
    named: Repeatable | None,
    key: KeyInfo,
) -> list[TimerOut | RefusedTimerOut]:
    """Submit the valid timers. Returns an answer for each timer, in order."""
    access = timers.access(key)
    made = [_new(body, named, key, access, place) for place, body in enumerate(bodies)]
    fit = [one for one in made if isinstance(one, NewTimer)]
    call = named.call(b"\n".join(repr(one).encode() for one in fit)) if named else None
    answers = iter(await timers.submit_many(fit, call=call, access=access) if fit else [])
    return [
        _answer_out(next(answers) if isinstance(one, NewTimer) else one, one, body)
        for one, body in zip(made, bodies, strict=True)
    ]


def _new(
    body: TimerIn | TimerUnfit, named: Repeatable | None, key: KeyInfo, access: Access, place: int
) -> NewTimer | TowpathError | Refused:
    if isinstance(body, TimerUnfit):
        return body
    try:
        type_key = TypeKey(body.task_type, body.app)
        require(key, Scope.SUBMIT, queue_of(type_key))
        task_id = body.task_id or (named.job_id(place) if named else None)
        new = body.new(type_key, task_id, owner=access.owner)
        new.packed()
    except (InvalidInput, Refused) as error:
        return error
    return new


def _answer_out(
    answer: Timer | TowpathError | Refused,
    made: NewTimer | TowpathError | Refused,
    body: TimerIn | TimerUnfit,
) -> TimerOut | RefusedTimerOut:
    if isinstance(answer, Timer):
        return TimerOut.of(answer)
    task_id = made.task_id if isinstance(made, NewTimer) else getattr(body, "task_id", None)
    return RefusedTimerOut(
        task_id=task_id,
        error=answer.code,
        status=answer.status if isinstance(answer, Refused) else status_of(answer),
        detail=str(answer),
        remedy=answer.remedy,
    )


def _url_of(timer: Timer) -> str:
    path = "/".join(_segment(part) for part in (timer.task_type, timer.task_id))
    query = "" if timer.app is None else f"?app={quote(timer.app, safe='')}"
    return f"{router.prefix}/{path}{query}"


def _segment(name: str) -> str:
    """Returns *name* as a segment of a path. Clients would resolve `.` and `..`, so their dots are
    percent-encoded.
    """
    return quote(name, safe="") if name.strip(".") else name.replace(".", "%2E")


ROUTES = ApplicationRoutes(
    routers=(router, instances_router, settle_router),
    tags={"timers": "Work that runs at a given time: submit, set, read, move, cancel, list."},
)
