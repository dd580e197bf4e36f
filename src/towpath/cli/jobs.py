"""`towpath jobs`: list, show, cancel, move, retry, delete; `towpath explain`: why one waits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from towpath.cli.records import retrying
from towpath.console.arguments import (
    After,
    All,
    JobArgument,
    JobsArgument,
    Limit,
    QueueOption,
    Yes,
    duration,
    find_job,
    instant,
)
from towpath.console.verb import Session, each, verb
from towpath.errors import InvalidOption

if TYPE_CHECKING:
    from towpath.engine.engine import Engine
    from towpath.engine.model import JobRef

app = typer.Typer(no_args_is_help=True, help="Jobs: list, show, cancel, move, retry, delete.")

StateOption = Annotated[
    list[str] | None,
    typer.Option(
        "--state", "-s", metavar="STATE", help="Only jobs in this state; can be repeated."
    ),
]
LaneOption = Annotated[
    str | None, typer.Option("--lane", metavar="LANE", help="Only jobs of this lane.")
]


@verb(
    app,
    "list",
    examples="""
        towpath jobs list --queue mails --state dead --state leased
        towpath jobs list --queue mails --lane anna
        towpath jobs list --all --json
    """,
)
async def list_(
    session: Session,
    *,
    queue: QueueOption = None,
    state: StateOption = None,
    lane: LaneOption = None,
    limit: Limit = 50,
    after: After = None,
    all: All = False,
) -> None:
    """List jobs, page by page.

    Sorted by when they run or ended; payloads are left out.

    \b
    States: leased, ready, delayed, waiting, dead, done, cancelled
    """
    from towpath.cli.listing import PageQuery, places_of, show_pages  # noqa: PLC0415 -- slow to import

    async with session.engine() as engine:
        places = await places_of(engine, queue, state or [])
        wanted = PageQuery(places, lane=lane, limit=1000 if all else limit, after=after)
        named = [("--queue", queue), *(("--state", one) for one in state or ()), ("--lane", lane)]
        again = [f"{name} {value}" for name, value in named if value]
        command = " ".join(["towpath jobs list", *again, f"--limit {limit}"])
        await show_pages(session.out, engine, wanted, every=all, command=command)


@verb(
    app,
    "show",
    examples="""
        towpath jobs show mails/01JB7Q
        towpath jobs show 01JB7Q --json
    """,
)
async def show(session: Session, *, job: JobArgument, queue: QueueOption = None) -> None:
    """Show everything about one job.

    Its state, payload, progress and result.
    """
    from towpath.cli.listing import described, told  # noqa: PLC0415 -- slow to import

    async with session.engine() as engine:
        ref = await find_job(engine, job, queue)
        found = await engine.inspect.job(ref)
        position = await engine.inspect.position(ref)
        why = await engine.inspect.explain(ref)
    session.out.answer(described(found, position, why), told(found, position, why))


@verb(
    app,
    "cancel",
    examples="""
        towpath jobs cancel mails/01JB7Q
        towpath jobs cancel --queue mails 01JB7Q 01JB7R
    """,
)
async def cancel(session: Session, *, jobs: JobsArgument, queue: QueueOption = None) -> None:
    """Cancel jobs that have not ended.

    A running job is asked to stop; its state stays leased until it has.
    """
    await _each(session, jobs, queue, lambda engine, ref: engine.cancel(ref))


Delay = Annotated[
    str | None, typer.Option("--delay", metavar="TIME", help="How long from now, such as 10m.")
]
Due = Annotated[
    str | None,
    typer.Option("--due", metavar="INSTANT", help="A time in ISO 8601; a past time means now."),
]


@verb(
    app,
    "move",
    examples="""
        towpath jobs move mails/01JB7Q --delay 10m
        towpath jobs move --queue mails 01JB7Q 01JB7R --due 2030-01-31T08:00:00Z
        towpath jobs move mails/01JB7Q --delay 0
    """,
)
async def move(
    session: Session,
    *,
    jobs: JobsArgument,
    delay: Delay = None,
    due: Due = None,
    queue: QueueOption = None,
) -> None:
    """Move waiting jobs to another due time.

    A ready job becomes delayed again; a time in the past means now. Jobs that are running or have
    ended are refused (exit code 4).
    """
    wait, moment = duration("delay", delay), instant("due", due)
    if (wait is None) == (moment is None):
        raise InvalidOption("delay", delay, rule="pass either --delay or --due")
    await _each(session, jobs, queue, lambda engine, ref: engine.move(ref, delay=wait, due=moment))


@verb(app, "retry", examples="towpath jobs retry mails/01JB7Q")
async def retry(session: Session, *, jobs: JobsArgument, queue: QueueOption = None) -> None:
    """Give dead jobs new attempts.

    A job with a record in the database is retried through its record.
    """
    async with session.engine() as engine, retrying(session, engine) as retry:
        await _see_to_each(session, engine, jobs, queue, retry)


@verb(app, "delete", examples="towpath jobs delete mails/01JB7Q --yes")
async def delete(
    session: Session, *, jobs: JobsArgument, queue: QueueOption = None, yes: Yes = False
) -> None:
    """Delete jobs that have ended: dead, done or cancelled."""
    session.confirm(f"{len(jobs)} job(s) would be deleted for good.", yes=yes)

    async def gone(engine: Engine, ref: JobRef) -> str:
        await engine.delete(ref)
        return "gone"

    await _each(session, jobs, queue, gone)


async def _each(
    session: Session,
    jobs: list[str],
    queue: str | None,
    do: Callable[[Engine, JobRef], Awaitable[str]],
) -> None:
    """Do it to one job after the other and tell each one's new state, or why it is refused."""
    async with session.engine() as engine:
        await _see_to_each(session, engine, jobs, queue, lambda ref: do(engine, ref))


async def _see_to_each(
    session: Session,
    engine: Engine,
    jobs: list[str],
    queue: str | None,
    do: Callable[[JobRef], Awaitable[str]],
) -> None:
    async def see_to(text: str) -> None:
        ref = await find_job(engine, text, queue)
        state = await do(ref)
        told = {"queue": ref.queue, "id": ref.id, "state": state}
        session.out.answer(told, f"{ref}  {state}")

    await each(session, jobs, see_to)


EXAMPLES = """
    towpath explain mails/01JB7Q
    towpath explain 01JB7Q --json
"""


async def explain(session: Session, *, job: JobArgument, queue: QueueOption = None) -> None:
    """Say why a job is not running.

    Also shows how many jobs are ahead of it, and about how long it will wait.
    """
    from towpath.cli.listing import in_words, placed  # noqa: PLC0415 -- slow to import
    from towpath.clock import timely  # noqa: PLC0415 -- slow to import

    async with session.engine() as engine:
        ref = await find_job(engine, job, queue)
        why, position = await engine.inspect.explain(ref), await engine.inspect.position(ref)
    if session.out.as_json:
        told = {"queue": ref.queue, "id": ref.id, "why": why.why, "text": why.text}
        session.out.object(told | placed(position))
        return
    session.out.line(f"{ref}: {timely(why.text)}")
    if position is not None and why.why in _IN_LINE:
        session.out.line(in_words(position))


_IN_LINE = ("behind_lane", "behind_others", "all_busy", "next")
"""Why a job waits that will run when it is its turn: only then a place says something."""


def register(app: typer.Typer) -> None:
    verb(app, "explain", examples=EXAMPLES)(explain)
