"""Schedules: list, create, change, pause, fire, delete, preview."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, cast

from fastapi import APIRouter, Query, Response
from pydantic import BeforeValidator, Field

from towpath.clock import Duration, instant, parse_duration, seconds
from towpath.engine.model import JobAttributes, JobOptions
from towpath.engine.preview import MOST_FIRINGS, ClockChange, Preview, preview
from towpath.engine.schedule import Cron, Every, Missed, Schedule
from towpath.engine.stored_schedules import ScheduleInfo
from towpath.errors import InvalidOption, ScheduleNotFound
from towpath.ledger.keys.key import Scope
from towpath.server.job_fields import (
    in_seconds,
    job_attributes,
    options_in,
    with_job_attributes,
    with_job_options,
)
from towpath.server.models import PayloadIn, SubmittedOut
from towpath.server.routes.jobs import After, Size
from towpath.web.audit import audited, not_audited
from towpath.web.auth import CanRead, CanSubmit, changes_only, hide_foreign, require
from towpath.web.bodies import BodyRoute
from towpath.web.dependencies import Named, TheEngine
from towpath.web.fields import (
    Answer,
    Body,
    Instant,
    Json,
    Queue,
    ScheduleName,
    Seconds,
    answer_from,
    example,
    json_field,
)
from towpath.web.problems import documented

router = APIRouter(prefix="/api/v1/schedules", tags=["schedules"], route_class=BodyRoute)

_DECIDED = ("id", "delay", "due", "owner")
Interval = Seconds | Annotated[str, Field(max_length=100)]
_InSeconds = Annotated[float | None, BeforeValidator(in_seconds)]


class _When(Body):
    cron: Annotated[str | None, Field(max_length=256)] = None
    """A cron expression of five fields, or six with seconds first. Pass this or `every`."""
    every: Interval | None = None
    """An interval of at least one second: seconds, or text such as `5m`. Pass this or `cron`."""
    tz: Annotated[str | None, Field(max_length=100)] = None
    """Time zone of `cron`, such as `Europe/Berlin`. Default: UTC."""
    anchor: Instant | None = None
    """A time from which `every` counts. Default: 1970."""

    def when(self) -> Schedule:
        """Raises InvalidOption."""
        if (self.cron is None) == (self.every is None):
            rule = "give one of cron and every"
            raise InvalidOption("cron", self.cron, rule=rule)
        if self.cron is not None:
            if self.anchor is not None:
                raise InvalidOption("anchor", self.anchor, rule="can only be used with `every`")
            return Cron(self.cron, "UTC" if self.tz is None else self.tz)
        if self.tz is not None:
            raise InvalidOption(
                "tz", self.tz, rule="can only be used with `cron`; an interval has no time zone"
            )
        return Every(self._interval(), self.anchor or instant(0))

    def _interval(self) -> Duration:
        every = self.every
        return parse_duration("every", every) if isinstance(every, str) else seconds(every or 0)


class _PlainSchedule(_When, PayloadIn):
    missed: Missed = Missed.ONCE
    """What to do about firings that were missed: skip them, fire once, or fire all."""
    paused: Annotated[bool, Field(strict=True)] = False
    """Whether the schedule is paused."""


class ScheduleIn(with_job_options(_PlainSchedule, but=_DECIDED)):
    """A schedule and the options of its jobs."""

    model_config = example(
        cron="0 3 * * *", tz="Europe/Berlin", payload={"kind": "full"}, missed="once"
    )


class ScheduleChange(ScheduleIn):
    """Changes of a schedule. Fields left out stay as they are; null removes an option."""

    model_config = example(paused=True)

    def changes(self) -> dict[str, Any]:
        """The arguments of `schedules.change`. Raises InvalidOption."""
        given = self.model_fields_set
        found: dict[str, Any] = {}
        if given & {"cron", "every", "tz", "anchor"}:
            found["when"] = self.when()
        if given & {"payload", "payload_base64"}:
            found["payload"] = self.data()
        found |= {name: getattr(self, name) for name in ("missed", "paused") if name in given}
        options = cast("dict[str, Any]", options_in(self))
        for name in given & JobOptions.__annotations__.keys():
            found[name] = getattr(self, name)
        return found | options


class PreviewIn(_When):
    """A schedule to preview."""

    model_config = example(cron="30 2 * * *", tz="Europe/Berlin", count=3)

    count: Annotated[int, Field(ge=1, le=MOST_FIRINGS, strict=True)] = 5
    """Number of firings."""
    after: Instant | None = None
    """Start of the preview. Default: now."""


class ClockChangeOut(answer_from(ClockChange)):
    """A clock change that affects the schedule."""

    effect: str
    """What happens to the firings: skipped, moved, doubled or once."""


class PreviewOut(Answer):
    """The next firings of a schedule."""

    model_config = example(
        schedule="30 2 * * * Europe/Berlin",
        firings=["2026-11-17T02:30:00+01:00", "2026-11-18T02:30:00+01:00"],
        clock_changes=[
            {
                "at": "2027-03-28T01:00:00Z",
                "effect": "moved",
                "text": "clocks go forward, 2027-03-28 02:00 to 03:00 does not exist: "
                "02:30 fires at 03:00",
            }
        ],
    )

    schedule: str
    """The schedule as text."""
    firings: list[datetime]
    """Times of the next firings."""
    clock_changes: list[ClockChangeOut]
    """Clock changes within a year that skip, move or repeat firings."""

    @classmethod
    def of(cls, when: Schedule, seen: Preview) -> PreviewOut:
        changes = [ClockChangeOut.model_validate(change) for change in seen.clock_changes]
        return cls(schedule=str(when), firings=seen.firings, clock_changes=changes)


class _ScheduleHead(Answer):
    queue: str
    name: str
    source: str
    """`stored`, or `code` for a schedule declared by an app; then payload and options are not
    shown."""
    schedule: str
    """The schedule as text."""
    cron: str | None = None
    tz: str | None = None
    every: float | None = None
    """The interval in seconds."""
    anchor: datetime | None = None
    missed: str | None = None
    """What happens to missed firings: skip, once or all."""
    paused: bool = False
    readable: bool = True
    """false if only a newer release can read the schedule; then this server does not fire it."""
    last: datetime | None = None
    """The time of its last firing."""
    next: datetime | None = None
    """The time of its next firing; null while it is paused."""
    payload: Json = None
    """The payload, if it is JSON. Lists leave it out."""
    payload_base64: str | None = None
    """The payload, if it is not JSON."""
    lease: _InSeconds = None
    """Lease of the jobs, in seconds."""
    keep: _InSeconds = None
    """Seconds that the jobs are kept after they end."""


class ScheduleOut(with_job_attributes(_ScheduleHead)):
    """A schedule as it is now."""

    @classmethod
    def of(cls, info: ScheduleInfo) -> ScheduleOut:
        options = cast("dict[str, Any]", info.options)
        attributes = JobAttributes(
            **{name: options[name] for name in JobAttributes.__struct_fields__ if name in options}
        )
        return cls(
            queue=info.queue,
            name=info.name,
            source=info.source,
            schedule=info.about,
            missed=info.missed,
            paused=info.paused,
            readable=info.readable,
            last=info.last,
            next=info.next,
            lease=options.get("lease"),
            keep=options.get("keep"),
            **_rhythm(info.when),
            **job_attributes(attributes),
            **json_field("payload", info.payload or b""),
        )


def _rhythm(when: Schedule | None) -> dict[str, Any]:
    match when:
        case Cron():
            return {"cron": when.expression, "tz": when.tz}
        case Every():
            anchored = when.anchor != instant(0)
            return {
                "every": when.interval.total_seconds(),
                "anchor": when.anchor if anchored else None,
            }
        case None:
            return {}


class SchedulesOut(Answer):
    """A page of schedules, by queue and name; payloads are left out."""

    schedules: list[ScheduleOut]
    after: str | None
    """Pass it as `after` to get the next page; null on the last page."""


@router.get("", response_model=SchedulesOut, responses=documented())
async def list_schedules(
    engine: TheEngine,
    key: CanRead,
    queue: Annotated[str | None, Query(max_length=64, description="Only this queue.")] = None,
    after: After = None,
    size: Size = 100,
) -> SchedulesOut:
    """List the schedules of the queues that the key covers, stored ones and those declared in
    code."""
    if queue is not None:
        require(key, Scope.READ, queue)
    names = [queue] if queue is not None else await engine.queues.list()
    page = await engine.schedules.list(
        queues=[name for name in names if key.covers(name)], after=after, size=size
    )
    return SchedulesOut(
        schedules=[ScheduleOut.of(info) for info in page.schedules], after=page.after
    )


@router.post("/preview", response_model=PreviewOut, responses=documented())
@not_audited("it only computes")
async def preview_schedule(body: PreviewIn, engine: TheEngine, _: CanRead) -> PreviewOut:
    """Preview the next firings of a schedule, and the effects of clock changes."""
    when = body.when()
    after = body.after or (await engine.schedules.changes()).now
    if after.tzinfo is None:
        raise InvalidOption("after", after, rule="must have a time zone")
    return PreviewOut.of(when, preview(when, after, body.count))


@router.put(
    "/{queue}/{name}",
    response_model=ScheduleOut,
    responses={201: {"model": ScheduleOut, "description": "Created."}, **documented(409)},
)
@audited("cron", "every", "tz", "anchor", "missed", "paused", "lane")
async def put(
    queue: Queue,
    name: ScheduleName,
    *,
    body: ScheduleIn,
    response: Response,
    engine: TheEngine,
    key: CanSubmit,
) -> ScheduleOut:
    """Create a schedule (201) or replace one (200). A new schedule starts now; a replaced one
    continues from its last firing. It applies everywhere within a second. A name that code
    declares is refused with 409. The schedule and its jobs belong to the owner of the key; one of
    another owner needs the scope `manage`.
    """
    done = await engine.schedules.set(
        queue,
        name,
        body.when(),
        body.data(),
        missed=body.missed,
        paused=body.paused,
        for_owner=changes_only(key),
        **{**options_in(body), "owner": key.owner},
    )
    response.status_code = 201 if done.new else 200
    return ScheduleOut.of(done.schedule)


@router.get("/{queue}/{name}", response_model=ScheduleOut, responses=documented(404))
async def look(queue: Queue, name: ScheduleName, engine: TheEngine, _: CanRead) -> ScheduleOut:
    """Read a schedule with its last and next firing."""
    return ScheduleOut.of(await engine.schedules.get(queue, name))


@router.patch("/{queue}/{name}", response_model=ScheduleOut, responses=documented(404, 409))
@audited("cron", "every", "tz", "anchor", "missed", "paused", "lane")
async def change(
    queue: Queue, name: ScheduleName, body: ScheduleChange, engine: TheEngine, key: CanSubmit
) -> ScheduleOut:
    """Change parts of a schedule; `{"paused": true}` and `{"paused": false}` pause and resume it.
    It continues from its last firing; a resumed schedule continues from now. A schedule of another
    owner needs the scope `manage`.
    """
    changing = engine.schedules.change(queue, name, for_owner=changes_only(key), **body.changes())
    return ScheduleOut.of(await hide_foreign(changing, key, ScheduleNotFound(queue, name)))


@router.delete(
    "/{queue}/{name}",
    status_code=204,
    response_class=Response,
    responses=documented(404, 409),
)
@audited()
async def delete(queue: Queue, name: ScheduleName, engine: TheEngine, key: CanSubmit) -> None:
    """Delete a schedule; its jobs stay. A schedule of another owner needs the scope `manage`."""
    deleting = engine.schedules.delete(queue, name, for_owner=changes_only(key))
    await hide_foreign(deleting, key, ScheduleNotFound(queue, name))


@router.post(
    "/{queue}/{name}/fire",
    status_code=202,
    response_model=SubmittedOut,
    responses=documented(404, 409),
)
@audited(answer=("id",))
async def fire(
    queue: Queue, name: ScheduleName, engine: TheEngine, named: Named, key: CanSubmit
) -> SubmittedOut:
    """Submit the schedule's job once, now. `last` and `next` do not change. A schedule of another
    owner needs the scope `manage`.
    """
    call, id = (named.call(), named.job_id(0)) if named else (None, None)
    firing = engine.schedules.fire(queue, name, id=id, call=call, for_owner=changes_only(key))
    fired = await hide_foreign(firing, key, ScheduleNotFound(queue, name))
    return SubmittedOut.model_validate(fired)
