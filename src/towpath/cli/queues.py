"""`towpath queues`: counts, options, purge and delete."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from towpath.cli.many_jobs import (
    Choice,
    HandlerOption,
    LaneOption,
    OlderThan,
    StateOption,
    change_jobs,
    count_jobs,
    in_words,
    show_changed,
)
from towpath.console.arguments import (
    QueueArgument,
    Yes,
    duration,
    existing_queue,
    pairs,
    whole_number,
)
from towpath.console.exits import did_you_mean
from towpath.console.verb import Session, noun, verb
from towpath.errors import InvalidOption

if TYPE_CHECKING:
    from towpath.clock import Duration
    from towpath.engine.engine import Engine
    from towpath.engine.inspect import Counts
    from towpath.engine.options import QueueOptions
    from towpath.engine.worker_registry import LiveWorker

app = typer.Typer()

COLUMNS = (
    "QUEUE", ">READY", ">DELAYED", ">WAITING", ">LEASED", ">DEAD", ">OLDEST", ">DONE/MIN", "",
)  # fmt: skip


@noun(
    app,
    examples="""
        towpath queues
        towpath queues --over 10s --json
        towpath queues show mails
        towpath queues configure mails --set keep=1h --set max_attempts=8
        towpath queues purge mails --state dead
    """,
)
async def queues(
    session: Session,
    *,
    over: Annotated[
        str, typer.Option(metavar="TIME", help="Measure DONE/MIN over this time; 0 = skip it.")
    ] = "1s",
) -> None:
    """Count the jobs of every queue.

    With a verb after it: one queue, its options, or an end of its jobs.
    """
    span = duration("over", over)
    async with session.engine() as engine:
        known = sorted(await engine.queues.names())
        before = await engine.inspect.counts_of(known)
        now = before
        if span:
            await asyncio.sleep(span.total_seconds())
            now = await all_counts(engine)
    out = session.out
    for name in known:
        if name not in before:
            out.note(f"{name} cannot be read: towpath queues show {name}")
    if out.as_json:
        for name, counts in now.items():
            out.object(described(name, counts, rate(before.get(name), counts, span)))
        return
    if not known:
        out.note('no queue yet: towpath submit mails \'{"to": "anna"}\'')
        return
    rows = [row(name, counts, rate(before.get(name), counts, span)) for name, counts in now.items()]
    out.table(COLUMNS, rows)
    for hint in hints(now):
        out.note(hint)


async def all_counts(engine: Engine) -> dict[str, Counts]:
    """The counts of every queue, sorted by name. One round trip reads fifty queues."""
    return await engine.inspect.counts_of(sorted(await engine.queues.names()))


def rate(before: Counts | None, now: Counts, span: Duration | None) -> float | None:
    """Completions per minute between two measurements; None if there is only one."""
    if before is None or not span:
        return None
    done = now.totals["completed"] - before.totals["completed"]
    return done * 60 / span.total_seconds()


def row(name: str, counts: Counts, per_minute: float | None) -> list[object]:
    """A row of the table."""
    return [
        name,
        counts.ready,
        counts.delayed,
        counts.waiting,
        counts.leased,
        counts.dead,
        counts.oldest,
        None if per_minute is None else f"{per_minute:.0f}",
        "paused" if counts.paused else " ",
    ]


def described(name: str, counts: Counts, per_minute: float | None) -> dict[str, Any]:
    """The counts as JSON, with all fields."""
    from msgspec.structs import asdict  # noqa: PLC0415 -- slow to import

    fields: dict[str, Any] = {"queue": name, **asdict(counts)}
    oldest, totals = fields.pop("oldest"), fields.pop("totals")
    fields["oldest_seconds"] = oldest.total_seconds() if oldest is not None else None
    return fields | {"done_per_minute": per_minute, "totals": totals}


def hints(found: Mapping[str, Counts]) -> list[str]:
    """Hints for dead jobs, paused queues and queues without a worker."""
    dead = [
        f"{counts.dead} dead job{'s' if counts.dead > 1 else ''}: towpath dead list --queue {name}"
        for name, counts in found.items()
        if counts.dead
    ]
    paused = [f"paused: towpath resume {name}" for name, counts in found.items() if counts.paused]
    alone = [f"no worker for {name}: towpath workers" for name in found if found[name].no_worker]
    return dead + paused + alone


@verb(app, "show", examples="towpath queues show mails")
async def show(session: Session, *, queue: QueueArgument) -> None:
    """Show one queue: counts, totals, options."""
    async with session.engine() as engine:
        name = await existing_queue(engine, queue)
        counts, options = await engine.inspect.counts(name), await engine.queues.options(name)
    fields = described(name, counts, None)
    del fields["done_per_minute"]
    if session.out.as_json:
        session.out.object(fields | {"options": written(options)})
        return
    totals = fields.pop("totals")
    fields["oldest"] = counts.oldest
    del fields["oldest_seconds"]
    so_far = {f"total {verb}": count for verb, count in totals.items() if count}
    chosen = {f"option {name}": value for name, value in written(options).items()}
    session.out.facts(fields | so_far | chosen)


def written(options: QueueOptions) -> dict[str, Any]:
    """Every option as `configure` parses it; numbers stay numbers."""
    from towpath.engine import spelling  # noqa: PLC0415 -- slow to import

    return {name: spelling.written(getattr(options, name)) for name in options.__struct_fields__}


@verb(
    app,
    "configure",
    examples="""
        towpath queues configure mails --set keep=1h --set max_attempts=8
        towpath queues configure mails --set lanes=park --set retry=fixed:30s
    """,
)
async def configure(
    session: Session,
    *,
    queue: QueueArgument,
    set: Annotated[
        list[str],
        typer.Option("--set", metavar="OPTION=VALUE", help="An option to change; can be repeated."),
    ],
) -> None:
    """Change the options of a queue.

    The change applies at once, to everybody and to existing jobs. A queue that does not exist is
    created. Changes made here override what handlers declare, until `reset`. An option that was
    never declared or changed follows the default of each release.

    \b
    Retry policies: exponential[:FIRST[:LONGEST[:FACTOR[:JITTER]]]], fixed:EVERY,
    listed:WAIT,WAIT,…, never
    """
    from towpath.engine.options import QueueOptions  # noqa: PLC0415 -- slow to import

    wanted = pairs("set", set)
    changed(QueueOptions(), wanted)  # raises before a new queue is created
    async with session.engine() as engine:
        options = await engine.queues.change_options(
            queue, lambda stored: changed(stored, wanted), decides=wanted
        )
    session.out.answer({"queue": queue, "options": written(options)}, written(options))


def changed(stored: QueueOptions, texts: Mapping[str, str]) -> QueueOptions:
    """*stored* with the options in *texts* replaced. Raises InvalidOption."""
    from msgspec.structs import replace  # noqa: PLC0415 -- slow to import

    return replace(stored, **{name: _parse_option(name, text) for name, text in texts.items()})


def _parse_option(name: str, text: str) -> Any:
    from towpath.clock import Duration  # noqa: PLC0415 -- slow to import
    from towpath.engine.options import EventPolicy, LanePolicy, QueueOptions  # noqa: PLC0415 -- the same
    from towpath.engine.spelling import DEFAULT, read_retry  # noqa: PLC0415 -- the same

    fields = QueueOptions.__struct_fields__
    if name not in fields:
        hint = did_you_mean(name, fields) or f"there are {', '.join(fields)}"
        raise InvalidOption(name, text, rule=f"is not an option of a queue; {hint}")
    match getattr(QueueOptions(), name):
        case Duration():
            return duration(name, text)
        case LanePolicy() | EventPolicy():
            return text
        case None if text == DEFAULT:
            return None
        case int() | None:
            return whole_number(name, text)
        case _:
            return read_retry(text)


@verb(
    app,
    "reset",
    examples="""
        towpath queues reset mails
        towpath queues reset mails --option keep --option retry
    """,
)
async def reset(
    session: Session,
    *,
    queue: QueueArgument,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="OPTION", help="Only this option; can be repeated."),
    ] = None,
) -> None:
    """Undo changes of a queue's options.

    Options go back to what handlers and applications declare, or else to their defaults. The
    change applies at once.
    """
    async with session.engine() as engine:
        name = await existing_queue(engine, queue)
        options = (await engine.queues.reset(name, *option or ())).now
    session.out.answer({"queue": name, "options": written(options)}, written(options))


@verb(
    app,
    "purge",
    examples="""
        towpath queues purge mails
        towpath queues purge mails --state dead --state done --yes
        towpath queues purge mails --handler newsletter --older-than 2h
    """,
)
async def purge(
    session: Session,
    *,
    queue: QueueArgument,
    state: StateOption = None,
    handler: HandlerOption = None,
    lane: LaneOption = None,
    older_than: OlderThan = None,
    yes: Yes = False,
) -> None:
    """Delete the jobs of a queue for good.

    Counts them first, and deletes them with payloads, results and records after you confirm. The
    queue, its options and its schedules stay, and so do jobs that are running: `towpath jobs
    cancel` stops those.

    \b
    States: waiting, delayed, ready, dead, done, cancelled
    """
    from towpath.app.jobs import PURGED  # noqa: PLC0415 -- slow to import

    wanted = Choice(state, handler, lane, older_than).filter(PURGED)
    async with session.jobs() as (_, every):
        counted = await count_jobs(every.count_matching, queue, wanted)
        total = counted.total()
        if total:
            session.confirm(f"{in_words(counted)} of {queue} would be deleted.", yes=yes)
            counted = await change_jobs(
                session, every.purge, queue, wanted, done="deleted", total=total
            )
    show_changed(session, queue, "deleted", counted)


@verb(
    app,
    "delete",
    examples="""
        towpath queues delete mails
        towpath queues delete mails --yes
    """,
)
async def delete(session: Session, *, queue: QueueArgument, yes: Yes = False) -> None:
    """Delete a queue with all its jobs.

    Counts its jobs first, and deletes them, the options and the remembered ids after you confirm.
    A queue with running jobs or with schedules is refused (exit code 4). The next submit or worker
    creates the queue again.
    """
    from towpath.app.jobs import PURGED  # noqa: PLC0415 -- slow to import

    async with session.jobs() as (engine, every):
        name = await every.require_deletable(queue)
        wanted = Choice().filter(PURGED)
        counted = await count_jobs(every.count_matching, name, wanted)
        what = f"{name} and its {in_words(counted)}" if counted else f"{name}, which has no jobs,"
        session.confirm(f"{what} would be deleted.", yes=yes)
        deleted = await change_jobs(
            session, every.purge, name, wanted, done="deleted", total=counted.total()
        )
        await every.delete_queue(name)
        serving = [worker.name for worker in await engine.workers.list() if serves(worker, name)]
    session.out.answer(
        {"queue": name, "state": "gone", "deleted": deleted.total()},
        f"{name}  gone, {deleted.total()} jobs deleted",
    )
    if serving:
        session.out.note(f"{', '.join(serving)} still serves {name} and creates it again")


def serves(worker: LiveWorker, queue: str) -> bool:
    return queue in worker.report.queues


def register(towpath: typer.Typer) -> None:
    towpath.add_typer(app, name="queues")
