"""`towpath schedules`: list, show, set, delete, fire, preview, pause, resume."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from towpath.cli.submit import HandlerName, Raw, command_with_job_fields
from towpath.console.arguments import (
    After,
    Limit,
    QueueArgument,
    QueueOption,
    duration,
    existing_queue,
    instant,
)
from towpath.console.verb import Session, noun, verb
from towpath.errors import InvalidOption

if TYPE_CHECKING:
    from towpath.engine.schedule import Missed, Schedule
    from towpath.engine.stored_schedules import ScheduleInfo

app = typer.Typer(help="Jobs on a schedule: list, set, pause, fire, delete.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.")]
Payload = Annotated[
    str, typer.Argument(metavar="PAYLOAD", help="JSON, @FILE, or - for standard input.")
]
CronOption = Annotated[
    str | None, typer.Option("--cron", metavar="FIELDS", help="Five fields, or six with seconds.")
]
EveryOption = Annotated[
    str | None, typer.Option("--every", metavar="TIME", help="An interval, 1s at least.")
]
ZoneOption = Annotated[
    str | None, typer.Option("--tz", metavar="ZONE", help="The time zone of --cron.  [UTC]")
]
AnchorOption = Annotated[
    str | None,
    typer.Option("--anchor", metavar="INSTANT", help="A time from which --every counts."),
]
MissedOption = Annotated[
    str,
    typer.Option(metavar="skip|once|all", help="What to do about missed firings."),
]
Paused = Annotated[bool, typer.Option("--paused", help="Create it paused.")]
Declared = Annotated[bool, typer.Option("--declared", help="Delete a schedule that code declared.")]
Count = Annotated[
    int, typer.Option("--count", "-n", min=1, max=100, help="How many firings to show.")
]
_COLUMNS = ("queue", "schedule", "when", "source", "next", "last")
_DECIDED = ("id", "delay", "due")


@noun(app, examples="towpath schedules\ntowpath schedules set reports nightly --cron '0 3 * * *'")
async def schedules(session: Session) -> None:
    """Show all schedules, those that code declares too; with a verb, make and change them."""
    await _list(session, None, None, 1000)


@verb(app, "list", examples="towpath schedules list --queue reports --json")
async def list_(
    session: Session, *, queue: QueueOption = None, after: After = None, limit: Limit = 1000
) -> None:
    """List schedules: next and last firing, and where each comes from.

    SOURCE is `stored` for schedules made at run time, `code` for those that an app declares. If
    NEXT is in the past, no process has fired it yet.
    """
    await _list(session, queue, after, limit)


async def _list(session: Session, queue: str | None, after: str | None, limit: int) -> None:
    async with session.engine() as engine:
        named = None if queue is None else [await existing_queue(engine, queue)]
        page = await engine.schedules.list(queues=named, after=after, size=limit)
    session.out.answers(
        [column.upper() for column in _COLUMNS],
        page.schedules,
        lambda info: (info.queue, info.name, _when(info), info.source.value, info.next, info.last),
        _described,
        none="no schedules yet: `towpath schedules set` creates one, @app.recurring declares one",
    )
    if page.after:
        session.out.more(page.after, "towpath schedules list")


@verb(app, "show", examples="towpath schedules show reports nightly")
async def show(session: Session, *, queue: QueueArgument, name: NameArgument) -> None:
    """Show one schedule with its payload and its job options."""
    from towpath.cli.listing import content  # noqa: PLC0415 -- slow to import

    async with session.engine() as engine:
        info = await engine.schedules.get(queue, name)
    fields = _described(info) | content("payload", info.payload)
    session.out.answer(
        fields, {fact: value for fact, value in fields.items() if value is not False}
    )


_SET = """
    towpath schedules set reports nightly '{"kind": "full"}' --cron '0 3 * * *' --tz Europe/Berlin
    towpath schedules set mails digest --every 15m --missed skip --priority low
    towpath schedules set reports weekly @weekly.json --cron '0 8 * * MON' --handler weekly
"""


async def set_(
    session: Session,
    *,
    queue: QueueArgument,
    name: NameArgument,
    payload: Payload = "null",
    cron: CronOption = None,
    every: EveryOption = None,
    tz: ZoneOption = None,
    anchor: AnchorOption = None,
    missed: MissedOption = "once",
    paused: Paused = False,
    raw: Raw = False,
    handler: HandlerName = None,
    **said: Any,
) -> None:
    """Create a schedule, or replace a stored one.

    It applies within a second. The workers of its queue and all servers fire it. A new schedule
    starts now; a replaced one continues from its last firing. A name that code declares is refused
    (exit code 4).
    """
    from towpath.cli.job_input import options_in, payload_of  # noqa: PLC0415 -- slow to import

    if handler is not None:
        said["headers"] = [*(said["headers"] or ()), f"handler={handler}"]
    options, when = options_in(said), _parse_schedule(cron, every, tz, anchor)
    data = payload_of(payload, raw=raw)
    async with session.engine() as engine:
        done = await engine.schedules.set(
            queue, name, when, data, missed=_parse_missed(missed), paused=paused, **options
        )
    word = "made" if done.new else "replaced"
    fields = _described(done.schedule) | {"new": done.new}
    coming = "paused" if done.schedule.paused else f"next {_plain(done.schedule.next)}"
    session.out.answer(fields, f"{queue}/{name}  {word}  {coming}")


verb(
    app, "set", examples=_SET, cls=command_with_job_fields(set_, "set", examples=_SET, but=_DECIDED)
)(set_)  # fmt: skip


@verb(
    app,
    "delete",
    examples="""
        towpath schedules delete reports nightly
        towpath schedules delete reports weekly --declared
    """,
)
async def delete(
    session: Session, *, queue: QueueArgument, name: NameArgument, declared: Declared = False
) -> None:
    """Delete a schedule; its jobs stay.

    Deletes a stored schedule; with --declared, one that code declared. A worker that still
    declares it creates it again, starting now.
    """
    async with session.engine() as engine:
        if declared:
            await engine.schedules.delete_declared(await existing_queue(engine, queue), name)
        else:
            await engine.schedules.delete(queue, name)
    session.out.answer({"queue": queue, "name": name, "deleted": True}, f"{queue}/{name}  deleted")


@verb(app, "fire", examples="towpath schedules fire reports nightly")
async def fire(session: Session, *, queue: QueueArgument, name: NameArgument) -> None:
    """Submit the schedule's job once, now.

    NEXT and LAST do not change.
    """
    async with session.engine() as engine:
        done = await engine.schedules.fire(queue, name)
    fields = {"queue": queue, "name": name, "id": done.id, "state": done.state}
    session.out.answer(fields, f"{done.job}  {done.state}")


@verb(app, "pause", examples="towpath schedules pause reports nightly")
async def pause(session: Session, *, queue: QueueArgument, name: NameArgument) -> None:
    """Stop firing a schedule until it is resumed."""
    async with session.engine() as engine:
        info = await engine.schedules.pause(queue, name)
    session.out.answer(_described(info), f"{queue}/{name}  paused")


@verb(app, "resume", examples="towpath schedules resume reports nightly")
async def resume(session: Session, *, queue: QueueArgument, name: NameArgument) -> None:
    """Fire a schedule again from now on; missed firings are skipped."""
    async with session.engine() as engine:
        info = await engine.schedules.resume(queue, name)
    session.out.answer(_described(info), f"{queue}/{name}  resumed  next {_plain(info.next)}")


@verb(app, "preview", examples="towpath schedules preview --cron '30 2 * * *' --tz Europe/Berlin")
async def preview(
    session: Session,
    *,
    cron: CronOption = None,
    every: EveryOption = None,
    tz: ZoneOption = None,
    anchor: AnchorOption = None,
    count: Count = 5,
) -> None:
    """Show the next firings of a schedule before you create it.

    Also lists the clock changes within a year that skip, move or repeat a firing. Needs no server.
    """
    from towpath.clock import instant, wall_ms  # noqa: PLC0415 -- slow to import
    from towpath.engine.preview import preview as previewed  # noqa: PLC0415

    seen = previewed(_parse_schedule(cron, every, tz, anchor), instant(wall_ms()), count)
    if session.out.as_json:
        for at in seen.firings:
            session.out.object({"firing": at})
        for change in seen.clock_changes:
            session.out.object(
                {"clock_change": change.at, "effect": change.effect, "text": change.text}
            )
        return
    for at in seen.firings:
        session.out.line(at.isoformat())
    for change in seen.clock_changes:
        session.out.note(change.text)


def _parse_schedule(
    cron: str | None, every: str | None, tz: str | None, anchor: str | None
) -> Schedule:
    """The schedule in the options. Raises InvalidOption."""
    from towpath.clock import ZERO  # noqa: PLC0415 -- slow to import
    from towpath.clock import instant as at_ms  # noqa: PLC0415
    from towpath.engine.schedule import Cron, Every  # noqa: PLC0415

    if (cron is None) == (every is None):
        raise InvalidOption("cron", cron, rule="give one of --cron and --every")
    if cron is not None:
        if anchor is not None:
            raise InvalidOption("anchor", anchor, rule="needs --every")
        return Cron(cron, "UTC" if tz is None else tz)
    if tz is not None:
        raise InvalidOption("tz", tz, rule="needs --cron; an interval has no time zone")
    return Every(duration("every", every) or ZERO, instant("anchor", anchor) or at_ms(0))


def _parse_missed(text: str) -> Missed:
    from towpath.engine.schedule import Missed  # noqa: PLC0415 -- slow to import

    try:
        return Missed(text)
    except ValueError as error:
        raise InvalidOption("missed", text, rule="must be skip, once or all") from error


def _when(info: ScheduleInfo) -> str:
    if not info.readable:
        return "(this release can't read it)"
    return f"{info.about} (paused)" if info.paused else info.about


def _plain(value: Any) -> str:
    return value.isoformat() if value else "never"


def _described(info: ScheduleInfo) -> dict[str, Any]:
    from towpath.engine.spelling import written  # noqa: PLC0415 -- slow to import

    options: dict[str, Any] = dict(info.options)
    return {
        "queue": info.queue,
        "name": info.name,
        "schedule": info.about,
        "source": info.source.value,
        "missed": info.missed,
        "paused": info.paused,
        "readable": info.readable,
        "next": info.next,
        "last": info.last,
        **{
            name: value if isinstance(value, str | dict) else written(value)
            for name, value in options.items()
        },
    }


def register(towpath: typer.Typer) -> None:
    towpath.add_typer(app, name="schedules")
