"""`towpath issues`: add, list, show, release, sync, policy."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from towpath.console.arguments import After, Limit
from towpath.console.verb import DatabaseOption, Session, open_ledger, verb
from towpath.errors import InvalidOption

if TYPE_CHECKING:
    from towpath.apps.issues.model import Issue
    from towpath.apps.issues.policy import IssuePolicy
    from towpath.apps.issues.service import Issues
    from towpath.ledger.ledger import Ledger

app = typer.Typer(no_args_is_help=True, help="Issues: add, list, show, release, sync, policy.")

COLUMNS = ("ISSUE", ">PRIORITY", "ROLE", "TASK", "STATE", "HOLDER", "EXPIRES", "TITLE")
POLICY_COLUMNS = ("ISSUE", "NOW", "WITH THIS POLICY", "TITLE")
_LARGEST_PAGE = 200
_TITLE_MOST = 60

RepositoryArgument = Annotated[
    str, typer.Argument(metavar="REPOSITORY", help="The repository, as owner/name.")
]
NumberArgument = Annotated[int, typer.Argument(metavar="NUMBER", min=1, help="The issue's number.")]
RepositoryOption = Annotated[
    str | None,
    typer.Option("--repository", "-r", metavar="REPOSITORY", help="Only this repository."),
]
Title = Annotated[str, typer.Option("--title", help="The title.")]
Text = Annotated[str, typer.Option("--body", help="The text.")]
LabelsOption = Annotated[
    list[str] | None,
    typer.Option("--label", "-l", metavar="LABEL", help="A label; can be repeated."),
]
UrlOption = Annotated[str, typer.Option("--page", metavar="URL", help="The URL of its web page.")]
Closed = Annotated[bool, typer.Option("--closed", help="The issue is closed.")]
StateOption = Annotated[
    str | None,
    typer.Option(
        "--state", "-s", metavar="STATE", help="Only issues in this state: open, closed or gone."
    ),
]
Assignable = Annotated[
    bool | None,
    typer.Option(
        "--assignable/--not-assignable",
        help="Only issues that agents can get now, or only the others.",
    ),
]
Agent = Annotated[
    str | None, typer.Option("--agent", metavar="AGENT", help="Only issues that this agent holds.")
]
Reason = Annotated[str, typer.Option("--reason", help="The reason.")]
FileArgument = Annotated[
    str | None,
    typer.Argument(metavar="FILE", help="The policy.  [setting: issues.policy]"),
]
Wanted = Annotated[
    str | None, typer.Argument(metavar="REPOSITORY", help="Only this repository. [default: all]")
]
Wait = Annotated[
    str, typer.Option("--wait", metavar="TIME", help="How long to wait for the result.")
]


@verb(
    app,
    "add",
    examples="""
        towpath issues add octo/repo 12 --title 'It breaks' --label P1 --label role:backend
        towpath issues add octo/repo 12 --closed
    """,
)
async def add(
    session: Session,
    *,
    repository: RepositoryArgument,
    number: NumberArgument,
    title: Title = "",
    body: Text = "",
    label: LabelsOption = None,
    page: UrlOption = "",
    closed: Closed = False,
    database: DatabaseOption = None,
) -> None:
    """Add an issue of any tracker, or update one.

    The policy decides by its labels who gets it. Repeating the command changes nothing.
    """
    from towpath.apps.issues.model import Facts, IssueState  # noqa: PLC0415 -- slow to import

    facts = Facts(
        repository=repository,
        number=number,
        title=title,
        body=body,
        labels=tuple(label or ()),
        url=page,
        state=IssueState.CLOSED if closed else IssueState.OPEN,
    )
    async with _issues(session, database) as issues:
        issue = await issues.put(facts)
    session.out.answer(described(issue), f"{issue.id}  {_state_text(issue)}")


@verb(
    app,
    "list",
    examples="""
        towpath issues list --assignable
        towpath issues list --repository octo/repo --state open --json
    """,
)
async def list_(
    session: Session,
    *,
    repository: RepositoryOption = None,
    state: StateOption = None,
    assignable: Assignable = None,
    agent: Agent = None,
    limit: Limit = 50,
    after: After = None,
    database: DatabaseOption = None,
) -> None:
    """List issues by repository and number: which are free, and who holds which."""
    from towpath.apps.issues.model import IssueState  # noqa: PLC0415 -- slow to import

    if state is not None and state not in set(IssueState):
        raise InvalidOption("state", state, rule=f"must be one of {', '.join(IssueState)}")
    async with _issues(session, database) as issues:
        page = await issues.list(
            repository=repository,
            state=IssueState(state) if state else None,
            assignable=assignable,
            agent=agent,
            after=after,
            size=min(limit, _LARGEST_PAGE),
        )
    session.out.answers(COLUMNS, page.issues, _row, described, none="no such issues")
    if page.after is not None:
        named = {"repository": repository, "state": state, "agent": agent, "limit": limit}
        words = [f"--{name} {value}" for name, value in named.items() if value is not None]
        if assignable is not None:
            words.append("--assignable" if assignable else "--not-assignable")
        session.out.more(page.after, " ".join(["towpath issues list", *words]))


@verb(app, "show", examples="towpath issues show octo/repo 12")
async def show(
    session: Session,
    *,
    repository: RepositoryArgument,
    number: NumberArgument,
    database: DatabaseOption = None,
) -> None:
    """Show an issue: who holds it, or why it is not handed out."""
    async with _issues(session, database) as issues:
        issue = await issues.get(repository, number)
        why = await issues.explain(repository, number)
    if session.out.as_json:
        session.out.object(described(issue) | {"explanation": why.why, "text": why.text})
        return
    session.out.facts({**described(issue), "why": why.text})


@verb(app, "release", examples="towpath issues release octo/repo 12 --reason 'its agent hangs'")
async def release(
    session: Session,
    *,
    repository: RepositoryArgument,
    number: NumberArgument,
    reason: Reason = "",
    database: DatabaseOption = None,
) -> None:
    """Take an issue away from its agent and offer it again.

    Later calls of that agent are refused. An issue that was given up or completed is offered
    again, too. Exit code 4 if there is nothing to release.
    """
    async with _issues(session, database) as issues:
        issue = await issues.take_away(repository, number, reason=reason)
    session.out.answer(described(issue), f"{issue.id}  {_state_text(issue)}")


@verb(
    app,
    "sync",
    examples="""
        towpath issues sync
        towpath issues sync octo/repo --wait 5m
    """,
)
async def sync(session: Session, *, repository: Wanted = None, wait: Wait = "60s") -> None:
    """Compare issues with GitHub now.

    A server does the work, with its token. With a repository, the command waits and shows the
    result.
    """
    import msgspec  # noqa: PLC0415 -- slow to import

    from towpath.apps.issues.model import QUEUES, SYNCS  # noqa: PLC0415 -- slow to import
    from towpath.apps.issues.sync import Synced, submit_sync  # noqa: PLC0415 -- the same
    from towpath.clock import parse_duration  # noqa: PLC0415 -- the same
    from towpath.engine.model import job_ref  # noqa: PLC0415 -- the same
    from towpath.errors import JobUnfinished  # noqa: PLC0415 -- the same

    within = parse_duration("wait", wait)
    async with session.engine() as engine:
        await engine.queues.introduce(SYNCS, QUEUES[SYNCS])
        ref = job_ref(SYNCS, await submit_sync(engine, repository))
        job = await engine.events.ended(ref, within=within)
    if not job.result:
        if job.reason:
            raise JobUnfinished(ref, job.state, job.reason)
        session.out.note("the server now compares all known repositories")
        return
    if job.result == b"null":
        session.out.note("the server now compares all known repositories")
        return
    synced = msgspec.json.decode(job.result, type=Synced)
    text = (
        f"{synced.repository}  {synced.issues} open, {synced.changed} changed,"
        f" {synced.repaired} labels corrected, {synced.requests} requests"
    )
    session.out.answer(msgspec.to_builtins(synced), text)


@verb(
    app,
    "policy",
    examples="""
        towpath issues policy
        towpath issues policy policy.toml --json
    """,
)
async def policy(
    session: Session,
    *,
    file: FileArgument = None,
    limit: Limit = 50,
    database: DatabaseOption = None,
) -> None:
    """Check a policy file and show what it would change.

    Lists the known open issues that it would treat differently from now. Changes nothing. Exit
    code 2 if the file is not a valid policy.
    """
    from towpath.apps.issues.options import IssuesOptions  # noqa: PLC0415 -- slow to import
    from towpath.apps.issues.policy import policy_at  # noqa: PLC0415 -- the same

    wanted = policy_at(session.settings.of(IssuesOptions).policy if file is None else file)
    async with _ledger(session, database) as ledger:
        issues = await _open_issues(ledger)
    shown = [(before, after) for before, after in _judge_all(issues, wanted)]
    differ = [pair for pair in shown if _sentence(pair[0]) != _sentence(pair[1])]
    session.out.answers(
        POLICY_COLUMNS,
        differ[:limit],
        _difference_row,
        _difference_fields,
        none="this policy changes nothing",
    )
    handed = sum(1 for _, after in shown if not after.withheld)
    session.out.note(
        f"the policy is valid; of {len(shown)} open issues {handed} are handed out with it,"
        f" {len(differ)} differently from now"
    )


# ── how it is done ───────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def _ledger(session: Session, database: str | None) -> AsyncGenerator[Ledger]:
    def tables() -> Iterator[Any]:
        from towpath.apps.issues.tables import TABLES  # noqa: PLC0415 -- needs the libraries of an extra

        yield TABLES

    async with open_ledger(session, database, tables) as ledger:
        yield ledger


@asynccontextmanager
async def _issues(session: Session, database: str | None) -> AsyncGenerator[Issues]:
    async with AsyncExitStack() as stack:
        ledger = await stack.enter_async_context(_ledger(session, database))
        engine = await stack.enter_async_context(session.engine())
        from towpath.apps.issues.issue_store import IssueStore  # noqa: PLC0415 -- slow to import
        from towpath.apps.issues.options import IssuesOptions  # noqa: PLC0415 -- the same
        from towpath.apps.issues.policy import policy_at  # noqa: PLC0415 -- the same
        from towpath.apps.issues.service import Issues  # noqa: PLC0415 -- the same
        from towpath.telemetry.logs import Silent  # noqa: PLC0415 -- the same
        from towpath.telemetry.metrics import Metrics  # noqa: PLC0415 -- the same

        options = session.settings.of(IssuesOptions)
        yield Issues(
            IssueStore(
                engine=engine,
                ledger=ledger,
                options=options,
                policy=policy_at(options.policy),
                metrics=Metrics(),
                log=Silent(),
            )
        )


async def _open_issues(ledger: Ledger) -> list[Issue]:
    from functools import partial  # noqa: PLC0415 -- rarely needed

    from towpath.apps.issues import tables  # noqa: PLC0415 -- needs the libraries of an extra

    found: list[Issue] = []
    while some := await ledger.read(
        partial(tables.all_issues, after=found[-1].id if found else "", size=_LARGEST_PAGE)
    ):
        found += some
    return [issue for issue in found if issue.state == "open"]


def _judge_all(issues: list[Issue], wanted: IssuePolicy) -> Iterator[tuple[Issue, Issue]]:
    from towpath.apps.issues.transitions import judge  # noqa: PLC0415 -- slow to import
    from towpath.clock import wall_ms  # noqa: PLC0415 -- the same

    known = {issue.id for issue in issues}
    for issue in issues:
        blocking = [id for id in wanted.blockers(issue) if id in known]
        yield issue, judge(issue, wanted, now=wall_ms(), open_blockers=blocking)


# ── for people and for programs ──────────────────────────────────────────────────────────


def described(issue: Issue) -> dict[str, Any]:
    """An issue as JSON, with the names of the HTTP API. Fields without a value are left out."""
    from towpath.apps.issues.forms import IssueOut  # noqa: PLC0415 -- slow to import

    facts = IssueOut.of(issue).model_dump(mode="json")
    return {name: value for name, value in facts.items() if value not in (None, [], "")}


def _state_text(issue: Issue) -> str:
    if issue.held:
        return f"held by {issue.agent}"
    if issue.withheld:
        return f"withheld: {issue.why}"
    from towpath.clock import instant, wall_ms  # noqa: PLC0415 -- slow to import

    if issue.assignable_at(wall_ms()):
        return "handed out"
    return f"offered at {instant(issue.due).isoformat(timespec='seconds')}"


def _offer_state(issue: Issue) -> str:
    from towpath.clock import wall_ms  # noqa: PLC0415 -- slow to import

    if issue.held:
        return "held"
    if issue.assignable_at(wall_ms()):
        return "offered"
    return "refused" if issue.was_refused else "not_due"


def _row(issue: Issue) -> list[object]:
    from towpath.clock import instant  # noqa: PLC0415 -- slow to import

    return [
        issue.id,
        issue.priority,
        issue.role,
        issue.task_type,
        issue.withheld or _offer_state(issue),
        issue.agent or None,
        instant(issue.expires) if issue.held else None,
        issue.title[:_TITLE_MOST],
    ]


def _sentence(issue: Issue) -> str:
    if issue.withheld:
        return f"withheld: {issue.why}"
    return f"{issue.task_type} for {issue.role}, priority {issue.priority}"


def _difference_row(pair: tuple[Issue, Issue]) -> list[object]:
    before, after = pair
    return [before.id, _sentence(before), _sentence(after), before.title[:_TITLE_MOST]]


def _difference_fields(pair: tuple[Issue, Issue]) -> dict[str, Any]:
    before, after = pair
    return {"issue": before.id, "now": _sentence(before), "then": _sentence(after)}
