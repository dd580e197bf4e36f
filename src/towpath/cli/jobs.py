"""`towpath jobs`: list, show, cancel, move, retry, delete; `towpath explain`: why one waits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
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
from towpath.engine.states import State
from towpath.errors import InvalidOption

if TYPE_CHECKING:
    from towpath.app.jobs import AllJobs
    from towpath.engine.model import JobRef

app = typer.Typer(no_args_is_help=True, help="Jobs: list, show, cancel, move, retry, delete.")


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

    async with session.jobs() as (engine, jobs):
        places = await places_of(engine, queue, state or [])
        wanted = PageQuery(places, lane=lane, limit=1000 if all else limit, after=after)
        named = [("--queue", queue), *(("--state", one) for one in state or ()), ("--lane", lane)]
        again = [f"{name} {value}" for name, value in named if value]
        command = " ".join(["towpath jobs list", *again, f"--limit {limit}"])
        await show_pages(session.out, jobs, wanted, every=all, command=command)


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
    from towpath.cli.listing import described, job_facts  # noqa: PLC0415 -- slow to import

    async with session.jobs() as (engine, jobs):
        ref = await find_job(engine, jobs, job, queue)
        found = await jobs.get(ref)
        why, position = await jobs.explain(ref)
    session.out.answer(described(found, position, why), job_facts(found, position, why))


@verb(
    app,
    "cancel",
    examples="""
        towpath jobs cancel mails/01JB7Q
        towpath jobs cancel --queue mails 01JB7Q 01JB7R
        towpath jobs cancel --queue mails --state ready --handler newsletter
        towpath jobs cancel --queue mails --all --older-than 2h --yes
    """,
)
async def cancel(
    session: Session,
    *,
    jobs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[JOB…]", help="QUEUE/ID, or an ID alone, which is looked up."),
    ] = None,
    queue: QueueOption = None,
    all: Annotated[bool, typer.Option("--all", help="All open jobs of the queue.")] = False,
    state: StateOption = None,
    handler: HandlerOption = None,
    lane: LaneOption = None,
    older_than: OlderThan = None,
    yes: Yes = False,
) -> None:
    """Cancel jobs that have not ended.

    Name the jobs; or name a queue, and choose by state, handler, lane and age, or pass --all. What
    was chosen is counted first, and cancelled after you confirm. A running job is asked to stop;
    its state stays leased until it has.

    \b
    States: waiting, delayed, ready, leased
    """
    choice = Choice(state, handler, lane, older_than)
    if jobs:
        if all or any(choice):
            raise InvalidOption("jobs", jobs[0], rule="name jobs or choose some, not both")
        await _each(session, jobs, queue, lambda every, ref: every.cancel(ref), asks_to_stop=True)
    elif not (all or any(choice)):
        rule = "name at least one job, or choose some: --queue with --all, --state, --handler, …"
        raise InvalidOption("jobs", "", rule=rule)
    elif queue is None:
        raise InvalidOption("queue", "", rule="name the queue whose jobs are to be cancelled")
    else:
        await _cancel_many(session, queue, choice, yes=yes)


async def _cancel_many(session: Session, queue: str, choice: Choice, *, yes: bool) -> None:
    from towpath.app.jobs import OPEN  # noqa: PLC0415 -- slow to import

    wanted = choice.filter(OPEN)
    async with session.jobs() as (_, every):
        counted = await count_jobs(every.count_matching, queue, wanted)
        total = counted.total()
        if total:
            session.confirm(f"{in_words(counted)} of {queue} would be cancelled.", yes=yes)
            counted = await change_jobs(
                session, every.cancel_matching, queue, wanted, done="cancelled", total=total
            )
    show_changed(session, queue, "cancelled", counted)
    if running := counted.get(State.LEASED):
        session.out.note(f"{running} of them are running: their workers are asked to stop")


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
    await _each(session, jobs, queue, lambda every, ref: every.move(ref, delay=wait, due=moment))


@verb(app, "retry", examples="towpath jobs retry mails/01JB7Q")
async def retry(session: Session, *, jobs: JobsArgument, queue: QueueOption = None) -> None:
    """Give dead jobs new attempts.

    A job with a record in the database is retried through its record.
    """
    await _each(session, jobs, queue, lambda every, ref: every.retry(ref))


@verb(app, "delete", examples="towpath jobs delete mails/01JB7Q --yes")
async def delete(
    session: Session, *, jobs: JobsArgument, queue: QueueOption = None, yes: Yes = False
) -> None:
    """Delete jobs that have ended: dead, done or cancelled."""
    session.confirm(f"{len(jobs)} job(s) would be deleted for good.", yes=yes)

    async def delete_one(every: AllJobs, ref: JobRef) -> str:
        await every.delete(ref)
        return "gone"

    await _each(session, jobs, queue, delete_one)


async def _each(
    session: Session,
    jobs: list[str],
    queue: str | None,
    do: Callable[[AllJobs, JobRef], Awaitable[str]],
    *,
    asks_to_stop: bool = False,
) -> None:
    """Call *do* for one job after the other, and print each job's new state or its error.

    With *asks_to_stop*, a job that is leased afterwards was asked to stop.
    """
    async with session.jobs() as (engine, every):

        async def change_one(text: str) -> None:
            ref = await find_job(engine, every, text, queue)
            state = await do(every, ref)
            fields: dict[str, Any] = {"queue": ref.queue, "id": ref.id, "state": state}
            asked = asks_to_stop and state == "leased"
            if asks_to_stop:
                fields["cancel_requested"] = asked
            session.out.answer(fields, f"{ref}  {state}" + (", asked to stop" if asked else ""))

        await each(session, jobs, change_one)


EXAMPLES = """
    towpath explain mails/01JB7Q
    towpath explain 01JB7Q --json
"""


async def explain(session: Session, *, job: JobArgument, queue: QueueOption = None) -> None:
    """Say why a job is not running.

    Also shows how many jobs are ahead of it, and about how long it will wait.
    """
    from towpath.cli.listing import in_words, placed  # noqa: PLC0415 -- slow to import
    from towpath.clock import trim_timestamps  # noqa: PLC0415 -- slow to import

    async with session.jobs() as (engine, jobs):
        ref = await find_job(engine, jobs, job, queue)
        why, position = await jobs.explain(ref)
    if session.out.as_json:
        fields = {"queue": ref.queue, "id": ref.id, "why": why.why, "text": why.text}
        session.out.object(fields | placed(position))
        return
    session.out.line(f"{ref}: {trim_timestamps(why.text)}")
    if position is not None and why.why in _IN_LINE:
        session.out.line(in_words(position))


_IN_LINE = ("behind_lane", "behind_others", "all_busy", "next")
"""Reasons of jobs that run when it is their turn: only for these, a position is useful."""


def register(towpath: typer.Typer) -> None:
    towpath.add_typer(app, name="jobs")
    verb(towpath, "explain", examples=EXAMPLES)(explain)
