"""`towpath dead`: list, groups, search, retry, delete."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from towpath.cli import jobs as one_by_one
from towpath.cli.listing import brief
from towpath.console.arguments import (
    After,
    All,
    Limit,
    QueueOption,
    Yes,
    chosen_queues,
    existing_queue,
)
from towpath.console.verb import Session, verb
from towpath.errors import InvalidOption

if TYPE_CHECKING:
    from towpath.app.jobs import AllJobs
    from towpath.engine.engine import Engine
    from towpath.engine.inspect import ErrorGroup
    from towpath.engine.model import JobInfo, JobRef

app = typer.Typer(no_args_is_help=True, help="Dead jobs: list, groups, search, retry, delete.")

SomeJobs = Annotated[
    list[str] | None,
    typer.Argument(metavar="[JOB…]", help="QUEUE/ID or ID; with --all, names of queues."),
]
AllDead = Annotated[bool, typer.Option("--all", help="All dead jobs of these queues.")]
Group = Annotated[
    str | None,
    typer.Option(
        "--group", metavar="GROUP", help="All dead jobs of this error group; see `dead groups`."
    ),
]


@verb(
    app,
    "list",
    examples="""
        towpath dead list --queue mails
        towpath dead list --all --json
    """,
)
async def list_(
    session: Session,
    *,
    queue: QueueOption = None,
    limit: Limit = 50,
    after: After = None,
    all: All = False,
) -> None:
    """List dead jobs with their reasons, oldest first."""
    await one_by_one.list_(session, queue=queue, state=["dead"], limit=limit, after=after, all=all)


@verb(
    app,
    "groups",
    examples="""
        towpath dead groups
        towpath dead groups --queue mails --json
    """,
)
async def groups(session: Session, *, queue: QueueOption = None) -> None:
    """Count dead jobs by error, the largest groups of each queue first.

    An error is the first line of a reason, with # for numbers and ids.
    """
    out, rows, ungrouped = session.out, list[tuple[object, ...]](), 0
    async with session.engine() as engine:
        for name in await chosen_queues(engine, [queue] if queue else []):
            found = await engine.inspect.dead_groups(name)
            ungrouped += found.ungrouped
            for group in found.groups:
                rows.append(
                    (name, group.group, group.count, group.last, group.error or f"({group.group})")
                )
                if out.as_json:
                    out.object({"queue": name, **_group_fields(group)})
    if rows and not out.as_json:
        out.table(("QUEUE", "GROUP", ">DEAD", "LAST", "ERROR"), rows)
    if ungrouped:
        out.note(f"{ungrouped} more died under an older release, which did not group errors")


def _group_fields(group: ErrorGroup) -> dict[str, object]:
    return {
        "group": group.group,
        "error": group.error,
        "count": group.count,
        "first": group.first.isoformat(),
        "last": group.last.isoformat(),
    }


@verb(
    app,
    "search",
    examples="""
        towpath dead search "disk is full" --queue mails
        towpath dead search timeout --queue mails --json
    """,
)
async def search(
    session: Session,
    *,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="Text that the reason contains.")],
    queue: Annotated[str, typer.Option("--queue", metavar="QUEUE", help="The queue to search.")],
) -> None:
    """Search dead jobs by their reasons, newest first.

    Covers the newest 10,000 dead jobs of the queue and ignores case.
    """
    out, looked, is_over = session.out, 0, False
    rows: list[tuple[object, ...]] = []
    async with session.jobs() as (engine, jobs):
        name = await existing_queue(engine, queue)
        while not is_over:
            found = await jobs.search_dead(name, text, looked=looked)
            looked, is_over = found.looked, found.is_over
            for job in found.jobs:
                if out.as_json:
                    out.object(brief(job))
                else:
                    rows.append((job.ref, job.attempts, job.ended_at, job.reason))
    if rows:
        out.table(("JOB", ">ATTEMPTS", "DIED", "REASON"), rows)
    out.note(f"{looked} dead jobs were searched; the newest 10,000 are covered")


@verb(
    app,
    "retry",
    examples="""
        towpath dead retry mails/01JB7Q
        towpath dead retry mails --all
        towpath dead retry mails --group 9a1f0c37e2b4
    """,
)
async def retry(
    session: Session,
    *,
    jobs: SomeJobs = None,
    all: AllDead = False,
    group: Group = None,
    queue: QueueOption = None,
) -> None:
    """Give dead jobs new attempts.

    Name the jobs, or pass --all or --group. A job with a record in the database is retried through
    its record.
    """
    if all or group:
        queues = _queues(jobs, queue, group)
        async with session.jobs() as (engine, every):
            await _sweep(
                session, engine, every, queues, done="retried", do=every.retry, group=group
            )
    else:
        await one_by_one.retry(session, jobs=_require_jobs(jobs), queue=queue)


@verb(
    app,
    "delete",
    examples="""
        towpath dead delete mails/01JB7Q --yes
        towpath dead delete mails --all
        towpath dead delete mails --group 9a1f0c37e2b4
    """,
)
async def delete(
    session: Session,
    *,
    jobs: SomeJobs = None,
    all: AllDead = False,
    group: Group = None,
    queue: QueueOption = None,
    yes: Yes = False,
) -> None:
    """Delete dead jobs for good.

    Name the jobs, or pass --all or --group.
    """
    if not (all or group):
        await one_by_one.delete(session, jobs=_require_jobs(jobs), queue=queue, yes=yes)
        return
    queues = _queues(jobs, queue, group)
    whose = ", ".join(queues) or "every queue"
    which = f"All dead jobs of group {group}" if group else "All dead jobs"
    session.confirm(f"{which} of {whose} would be deleted.", yes=yes)
    async with session.jobs() as (engine, every):
        await _sweep(session, engine, every, queues, done="deleted", do=every.delete, group=group)


def _require_jobs(jobs: list[str] | None) -> list[str]:
    if not jobs:
        raise InvalidOption("jobs", "", rule="name at least one job, or pass --all or --group")
    return jobs


def _queues(words: list[str] | None, queue: str | None, group: str | None) -> list[str]:
    """The named queues; empty = all. Raises InvalidOption for a group without its queue."""
    found = [*(words or []), *([queue] if queue else [])]
    if group and len(found) != 1:
        raise InvalidOption("group", group, rule="name the queue that the group belongs to")
    return found


async def _sweep(
    session: Session,
    engine: Engine,
    every: AllJobs,
    queues: list[str],
    *,
    done: str,
    do: Callable[[JobRef], Awaitable[object]],
    group: str | None,
) -> None:
    """Call *do* for every job that is dead now; skips jobs that are no longer dead."""
    from towpath.errors import JobError, JobHasRecord  # noqa: PLC0415 -- a help text needs none

    out = session.out

    async def change_one(job: JobInfo) -> int:
        try:
            await do(job.ref)
        except JobHasRecord:
            raise
        except JobError:
            return 0
        return 1

    for name in await chosen_queues(engine, queues):
        total, changed = await _total(engine, name, group), 0
        with out.progress(f"{name}: {done}", total) as advance:
            async for page in _dead(every, name, total, group):
                changed += sum(await asyncio.gather(*(change_one(job) for job in page)))
                advance(len(page))
        if out.as_json:
            out.object({"queue": name, done: changed})
        elif changed or queues:
            out.line(f"{name}  {changed} {done}")


async def _total(engine: Engine, queue: str, group: str | None) -> int:
    if group is None:
        return (await engine.inspect.counts(queue)).dead
    found = await engine.inspect.dead_groups(queue)
    return sum(entry.count for entry in found.groups if entry.group == group)


async def _dead(
    every: AllJobs, queue: str, total: int, group: str | None
) -> AsyncIterator[list[JobInfo]]:
    """Yields the *total* oldest dead jobs. A job that dies again meanwhile is a newer one, so this
    ends.
    """
    from towpath.engine.states import State  # noqa: PLC0415 -- slow to import

    cursor = None
    while total > 0:
        size = min(total, 200)
        page = await every.list(queue, State.DEAD, group=group, after=cursor, size=size)
        if page.jobs:
            yield page.jobs
        total -= len(page.jobs)
        cursor = page.after
        if cursor is None:
            return


def register(towpath: typer.Typer) -> None:
    towpath.add_typer(app, name="dead")
