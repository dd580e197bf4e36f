"""`towpath timers`: submit, set, show, list, move, cancel, log, types."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from towpath.apps.timers import view
from towpath.console.arguments import After, Limit, instant
from towpath.console.verb import DatabaseOption, Session, each, file_in, open_ledger, verb

if TYPE_CHECKING:
    from towpath.apps.timers.model import NewTimer, Timer, Times
    from towpath.apps.timers.service import TimerService

app = typer.Typer(
    no_args_is_help=True, help="Timers: submit, set, show, list, move, cancel, log, types."
)

TypeArgument = Annotated[str, typer.Argument(metavar="TYPE", help="The task type: any text.")]
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The timer's id.")]
IdsArgument = Annotated[list[str], typer.Argument(metavar="ID…", help="The timers' ids.")]
ParamsArgument = Annotated[
    str, typer.Argument(metavar="PARAMS", help="JSON, @FILE, or - for standard input.")
]
Text = Annotated[bool, typer.Option("--text", help="PARAMS are text, not JSON.")]
IdOption = Annotated[
    str | None, typer.Option("--id", help="Your own id; the same id twice is one timer.")
]
AppOption = Annotated[
    str | None, typer.Option("--app", metavar="APP", help="The app that the type belongs to.")
]
Delay = Annotated[
    str | None, typer.Option("--delay", metavar="TIME", help="How long from now, such as 30m.")
]
Due = Annotated[
    str | None,
    typer.Option("--due", metavar="INSTANT", help="A time in ISO 8601; UTC unless it has a zone."),
]
DelayTime = Annotated[
    int | None,
    typer.Option(
        "--delay-time", metavar="NUMBER", help="Time since 1970: 13 digits (ms) or 16 digits (µs)."
    ),
]
Retry = Annotated[
    str | None,
    typer.Option(
        "--retry", metavar="POLICY", help="Retry policy: fixed:30s, listed:1s,5s, never, …"
    ),
]
Record = Annotated[bool, typer.Option("--record", help="Keep it in the database, as a record.")]
TypeOption = Annotated[
    str | None, typer.Option("--type", "-t", metavar="TYPE", help="Only this type.")
]
StateOption = Annotated[
    str | None, typer.Option("--state", "-s", metavar="STATE", help="Only in this state.")
]
Since = Annotated[
    str | None, typer.Option("--since", metavar="INSTANT", help="Only from this time on.")
]
Until = Annotated[
    str | None, typer.Option("--until", metavar="INSTANT", help="Only before this time.")
]


@verb(
    app,
    "submit",
    examples="""
        towpath timers submit order.timeout '{"order": 7}' --delay 30m --id order-7
        towpath timers submit order.timeout @order.json --due 2030-01-31T08:00:00Z
        towpath timers submit reminder 'call Anna' --text --delay-time 1900000000000 --app crm
    """,
)
async def submit(
    session: Session,
    *,
    task_type: TypeArgument,
    params: ParamsArgument = "null",
    id: IdOption = None,
    app: AppOption = None,
    delay: Delay = None,
    due: Due = None,
    delay_time: DelayTime = None,
    text: Text = False,
    retry: Retry = None,
    record: Record = False,
    database: DatabaseOption = None,
) -> None:
    """Submit a timer. Returns once it is stored.

    Pass one of --delay, --due and --delay-time; a time in the past means now. With --id, repeating
    the command is safe; other params or another time under the same id are refused (exit code 4).
    """
    times = _times(delay, due, delay_time)
    timer = _new(task_type, params, times, id=id, app=app, text=text, retry=retry, record=record)
    async with _timers(session, database, record=record) as timers:
        _show(session, await timers.submit(timer))


@verb(
    app,
    "set",
    examples="""
        towpath timers set order.timeout order-7 '{"order": 7}' --delay 1h
        towpath timers set reminder anna 'call Anna' --text --due 2030-01-31T08:00:00Z
    """,
)
async def set_(
    session: Session,
    *,
    task_type: TypeArgument,
    id: IdArgument,
    params: ParamsArgument = "null",
    app: AppOption = None,
    delay: Delay = None,
    due: Due = None,
    delay_time: DelayTime = None,
    text: Text = False,
    retry: Retry = None,
    record: Record = False,
    database: DatabaseOption = None,
) -> None:
    """Create a timer under an id, or replace the one that waits there.

    An ended timer is created again. A timer that a worker is running is refused (exit code 4).
    """
    times = _times(delay, due, delay_time)
    timer = _new(task_type, params, times, id=id, app=app, text=text, retry=retry, record=record)
    async with _timers(session, database, record=record) as timers:
        _show(session, await timers.set(timer))


@verb(app, "show", examples="towpath timers show order.timeout order-7")
async def show(
    session: Session,
    *,
    task_type: TypeArgument,
    id: IdArgument,
    app: AppOption = None,
    database: DatabaseOption = None,
) -> None:
    """Show a timer, and why it is not running."""
    from towpath.apps.timers.model import ENDED, TypeKey  # noqa: PLC0415 -- slow to import
    from towpath.errors import TowpathError  # noqa: PLC0415

    key, why = TypeKey(task_type, app), None
    async with _timers(session, database) as timers:
        timer = await timers.get(key, id)
        if timer.state not in ENDED:
            try:
                why = (await timers.explain(key, id)).text
            except TowpathError:
                why = None  # the timer has ended meanwhile, or has a record and no job
    if session.out.as_json:
        session.out.object(view.timer_fields(timer) | ({"why": why} if why else {}))
    else:
        session.out.facts(view.timer_for_people(timer) | {"why": why})


@verb(app, "move", examples="towpath timers move order.timeout order-7 order-8 --delay 10m")
async def move(
    session: Session,
    *,
    task_type: TypeArgument,
    ids: IdsArgument,
    app: AppOption = None,
    delay: Delay = None,
    due: Due = None,
    delay_time: DelayTime = None,
    database: DatabaseOption = None,
) -> None:
    """Move waiting timers to another time; a time in the past means now."""
    from towpath.apps.timers.model import TypeKey, when  # noqa: PLC0415 -- slow to import

    key, at = TypeKey(task_type, app), when(**_times(delay, due, delay_time))
    async with _timers(session, database) as timers:

        async def see_to(id: str) -> None:
            _show(session, await timers.move(key, id, at))

        await each(session, ids, see_to)


@verb(app, "cancel", examples="towpath timers cancel order.timeout order-7")
async def cancel(
    session: Session,
    *,
    task_type: TypeArgument,
    ids: IdsArgument,
    app: AppOption = None,
    database: DatabaseOption = None,
) -> None:
    """Cancel timers.

    A running timer is asked to stop; it stays leased until it has.
    """
    from towpath.apps.timers.model import TypeKey  # noqa: PLC0415 -- slow to import

    key = TypeKey(task_type, app)
    async with _timers(session, database) as timers:

        async def see_to(id: str) -> None:
            _show(session, await timers.cancel(key, id))

        await each(session, ids, see_to)


@verb(
    app,
    "list",
    examples="""
        towpath timers list --type order.timeout --state delayed
        towpath timers list --app shop --since 2030-01-01T00:00:00Z --json
    """,
)
async def list_(
    session: Session,
    *,
    task_type: TypeOption = None,
    app: AppOption = None,
    state: StateOption = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 50,
    after: After = None,
) -> None:
    """List timers by type and state, page by page; params are left out.

    Waiting timers are sorted by due time; --since and --until filter by it.

    \b
    States: delayed, ready, leased, dead, done, cancelled
    """
    from towpath.apps.timers.listing import TimerQuery  # noqa: PLC0415 -- slow to import

    wanted = TimerQuery(
        app=app,
        task_type=task_type,
        state=_state(state),
        since=instant("since", since),
        until=instant("until", until),
    )
    async with _timers(session, None) as timers:
        page = await timers.list(wanted, after=after, size=limit)
    out = session.out
    out.answers(view.COLUMNS, page.timers, view.timer_row, view.timer_fields, none="no such timers")
    if page.after is not None:
        filters = {"type": task_type, "app": app, "state": state, "since": since, "until": until}
        out.more(page.after, _repeating_command("list", filters | {"limit": limit}))


@verb(app, "types", examples="towpath timers types --json")
async def types(session: Session) -> None:
    """List task types: who owns and serves each, and how many timers it has."""
    async with _timers(session, None) as timers:
        views = await timers.all_types()
    session.out.answers(view.TYPE_COLUMNS, views, view.type_row, view.fields, none="no types yet")


@verb(
    app,
    "log",
    examples="""
        towpath timers log order.timeout
        towpath timers log order.timeout --since 2030-01-01T00:00:00Z --json
    """,
)
async def log(
    session: Session,
    *,
    task_type: TypeArgument,
    app: AppOption = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 50,
    after: After = None,
) -> None:
    """Show which timers of a type ran, latest first: when, how late, where, with what outcome."""
    from towpath.apps.timers.model import TypeKey  # noqa: PLC0415 -- slow to import

    async with _timers(session, None) as timers:
        page = await timers.log.read(
            TypeKey(task_type, app),
            since=instant("since", since),
            until=instant("until", until),
            after=after,
            size=limit,
        )
    none = "nothing of this type has run, or its log has expired"
    session.out.answers(view.LOG_COLUMNS, page.firings, view.firing_row, view.fields, none=none)
    if page.after is not None:
        filters = {"app": app, "since": since, "until": until, "limit": limit}
        session.out.more(page.after, _repeating_command(f"log {task_type}", filters))


# ── how it is done ───────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def _timers(
    session: Session, database: str | None, *, record: bool = False
) -> AsyncGenerator[TimerService]:
    """Yields the service; with records if *database*, the settings or the data folder has a
    database, or *record* demands one.
    """
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(session.engine())
        from towpath.apps.timers.options import TimersOptions  # noqa: PLC0415 -- slow to import
        from towpath.apps.timers.service import TimerService  # noqa: PLC0415

        settings = session.settings
        jobs = None
        if record or database or settings.database or file_in(settings.data).exists():
            ledger = await stack.enter_async_context(open_ledger(session, database))
            jobs = ledger.jobs
        options = settings.of(TimersOptions)
        yield TimerService(engine, options, jobs=jobs)


def _new(
    task_type: str,
    params: str,
    times: Times,
    *,
    id: str | None,
    app: str | None,
    text: bool,
    retry: str | None,
    record: bool,
) -> NewTimer:
    from towpath.apps.timers.model import new_timer  # noqa: PLC0415 -- slow to import
    from towpath.engine.spelling import read_retry  # noqa: PLC0415

    policy = None if retry is None else read_retry(retry)
    value = _params(params, text=text)
    return new_timer(task_type, value, task_id=id, app=app, retry=policy, record=record, **times)


def _params(given: str, *, text: bool) -> Any:
    """Read the value of PARAMS: JSON, @FILE or -. Raises InvalidOption."""
    import msgspec  # noqa: PLC0415 -- a help text needs none

    from towpath.errors import InvalidOption  # noqa: PLC0415

    if text and given != "-" and not given.startswith("@"):
        return given
    try:
        if given == "-":
            data = sys.stdin.buffer.read()
        elif given.startswith("@"):
            with open(given[1:], "rb") as file:  # noqa: PTH123 -- a path that the user typed
                data = file.read()
        else:
            data = given.encode()
        return data.decode() if text else msgspec.json.decode(data)
    except OSError as error:
        raise InvalidOption("params", given, rule=f"can't be read: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        rule = "must be JSON; --text sends it as text"
        raise InvalidOption("params", "…", rule=rule) from error


def _times(delay: str | None, due: str | None, delay_time: int | None) -> Times:
    return {"delay": delay, "due": instant("due", due), "delay_time": delay_time}


def _state(text: str | None) -> Any:
    from towpath.engine.states import State  # noqa: PLC0415 -- slow to import
    from towpath.errors import InvalidOption  # noqa: PLC0415

    if text is None:
        return None
    if text.lower() not in set(State):
        raise InvalidOption("state", text, rule=f"must be one of {', '.join(State)}")
    return State(text.lower())


def _repeating_command(what: str, filters: dict[str, Any]) -> str:
    """Returns the command line that repeats the query."""
    words = [f"--{name} {value}" for name, value in filters.items() if value is not None]
    return " ".join(["towpath timers", what, *words])


def _show(session: Session, timer: Timer) -> None:
    words = f"{timer.task_id}  {timer.state}  due {timer.due.isoformat().replace('+00:00', 'Z')}"
    session.out.answer(view.timer_fields(timer), words)
