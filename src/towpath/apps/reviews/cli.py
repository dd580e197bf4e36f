"""`towpath reviews`: submit, list, show, cancel, retry. Uses the database: Redis may be away."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import typer

from towpath.apps.reviews.model import (
    Action,
    Forge,
    ReviewKind,
    ReviewState,
    ReviewTask,
    subject_of,
)
from towpath.console.arguments import After, Limit, priority
from towpath.console.verb import DatabaseOption, Session, each, open_ledger, verb
from towpath.errors import InvalidOption

if TYPE_CHECKING:
    from towpath.apps.reviews.service import Reviews
    from towpath.apps.reviews.view import PostingView, ReviewView, TakenReview

E = TypeVar("E", bound=StrEnum)

app = typer.Typer(no_args_is_help=True, help="Reviews: submit, list, show, cancel, retry.")

COLUMNS = ("REVIEW", "STATE", "ABOUT", "HEAD", ">ATTEMPTS", "CREATED", "ERROR")
_LARGEST_PAGE = 200
_REASON_MOST = 100

ReviewArgument = Annotated[str, typer.Argument(metavar="REVIEW", help="The review's id.")]
ReviewsArgument = Annotated[list[str], typer.Argument(metavar="REVIEW…", help="The reviews' ids.")]
RepositoryArgument = Annotated[
    str, typer.Argument(metavar="REPOSITORY", help="The repository, as owner/name.")
]
HeadArgument = Annotated[
    str, typer.Argument(metavar="COMMIT", help="The commit to review: its full id.")
]
Number = Annotated[
    int | None, typer.Option("--number", min=1, help="The number of the pull request.")
]
Ref = Annotated[
    str | None, typer.Option("--ref", metavar="BRANCH", help="The branch that was pushed.")
]
Base = Annotated[
    str | None,
    typer.Option("--base", metavar="COMMIT", help="The commit that the pull request starts from."),
]
Before = Annotated[
    str | None,
    typer.Option("--before", metavar="COMMIT", help="The commit that the branch was at before."),
]
Title = Annotated[str | None, typer.Option("--title", help="The title.")]
CloneUrl = Annotated[
    str | None,
    typer.Option("--clone-url", metavar="URL", help="The URL to clone the repository from."),
]
Priority = Annotated[
    str | None,
    typer.Option(
        "--priority",
        metavar="HIGH|0-100",
        help="Higher runs first.  [default: high for a pull request]",
    ),
]
Id = Annotated[
    str | None, typer.Option("--id", help="Your own id; the same id is the same review.")
]
StateOption = Annotated[
    str | None, typer.Option("--state", "-s", metavar="STATE", help="Only reviews in this state.")
]
RepositoryOption = Annotated[
    str | None,
    typer.Option("--repository", "-r", metavar="REPOSITORY", help="Only this repository."),
]
ForgeOption = Annotated[
    str | None,
    typer.Option(
        "--forge",
        metavar="FORGE",
        help="Only reviews from this source: the name of a forge (github), or api.",
    ),
]


@verb(
    app,
    "submit",
    examples="""
        towpath reviews submit octo/repo 0d1a26e67d8f5eaf1f6ba5c57fc3c7d91ac0fd1c --number 7
        towpath reviews submit octo/repo $(git rev-parse HEAD) --ref main --id nightly-7
    """,
)
async def submit(
    session: Session,
    *,
    repository: RepositoryArgument,
    head: HeadArgument,
    number: Number = None,
    ref: Ref = None,
    base: Base = None,
    before: Before = None,
    title: Title = None,
    clone_url: CloneUrl = None,
    urgency: Priority = None,
    id: Id = None,
    database: DatabaseOption = None,
) -> None:
    """Request a review.

    Of a pull request (--number) or of a branch (--ref). Returns once the request is saved; the
    server queues it within seconds. With --id, repeating the command is safe.
    """
    if number is None and not ref:
        raise InvalidOption("ref", "", rule="pass --ref BRANCH, or --number for a pull request")
    task = ReviewTask(
        forge=Forge.API,
        kind=ReviewKind.PUSH if number is None else ReviewKind.PULL,
        action=Action.REQUESTED,
        repository=repository,
        head=head,
        number=number,
        ref=ref or "",
        base=base,
        before=before,
        title=title or "",
        clone_url=clone_url or "",
    )
    asked = None if urgency is None else priority(urgency)
    async with _reviews(session, database) as reviews:
        _print_taken(session, await reviews.submit(task, id=id, priority=asked))


@verb(
    app,
    "list",
    examples="""
        towpath reviews list --state DEAD
        towpath reviews list --repository octo/repo --number 7 --json
    """,
)
async def list_(
    session: Session,
    *,
    state: StateOption = None,
    repository: RepositoryOption = None,
    number: Number = None,
    forge: ForgeOption = None,
    limit: Limit = 50,
    after: After = None,
    database: DatabaseOption = None,
) -> None:
    """List reviews, newest first, page by page.

    Review texts are left out; `show` has them.

    \b
    States: PENDING, RUNNING, COMPLETED, FAILED, DEAD, SUPERSEDED, CANCELLED
    """
    async with _reviews(session, database) as reviews:
        page = await reviews.list(
            state=_one_of("state", state and state.upper(), ReviewState),
            forge=_one_of("forge", forge and forge.lower(), Forge),
            repository=repository,
            number=number,
            after=after,
            size=min(limit, _LARGEST_PAGE),
        )
    if session.out.as_json:
        for view in page.reviews:
            session.out.object(described(view))
    elif page.reviews:
        session.out.table(COLUMNS, [_row(view) for view in page.reviews])
        _note_missing_reviewer(session, page.reviews)
    else:
        session.out.note("no such reviews")
    if page.after is not None:
        named = {"state": state, "repository": repository, "number": number, "forge": forge}
        words = [f"--{name} {value}" for name, value in named.items() if value is not None]
        command = ["towpath reviews list", *words, f"--limit {limit}"]
        session.out.more(page.after, " ".join(command))


@verb(
    app,
    "show",
    examples="""
        towpath reviews show github-72d3162e-cc78-11e3-81ab-4c9367dc0958
        towpath reviews show api-nightly-7 --json
    """,
)
async def show(
    session: Session, *, review: ReviewArgument, database: DatabaseOption = None
) -> None:
    """Show everything about one review.

    Its task, its state and the reviewer's text.
    """
    async with _reviews(session, database) as reviews:
        view = await reviews.get(review)
    if session.out.as_json:
        session.out.object(described(view))
    else:
        _print_review(session, view)
        _note_missing_reviewer(session, [view])


@verb(app, "cancel", examples="towpath reviews cancel api-nightly-7")
async def cancel(
    session: Session, *, ids: ReviewsArgument, database: DatabaseOption = None
) -> None:
    """Cancel reviews that have not ended.

    A running review is asked to stop; its state stays RUNNING until it has.
    """
    await _run_each(session, database, ids, lambda reviews, id: reviews.cancel(id))


@verb(app, "retry", examples="towpath reviews retry api-nightly-7")
async def retry(session: Session, *, ids: ReviewsArgument, database: DatabaseOption = None) -> None:
    """Give DEAD or CANCELLED reviews new attempts.

    A FAILED review runs now instead of later. A COMPLETED review that could not be posted is
    posted again.
    """
    await _run_each(session, database, ids, lambda reviews, id: reviews.retry(id))


# ── how it is done ───────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def _reviews(session: Session, database: str | None) -> AsyncGenerator[Reviews]:
    async with open_ledger(session, database) as ledger:
        from towpath.apps.reviews.service import Reviews  # noqa: PLC0415 -- slow to import

        yield Reviews(ledger.jobs)


async def _run_each(
    session: Session,
    database: str | None,
    ids: list[str],
    do: Callable[[Reviews, str], Awaitable[ReviewView]],
) -> None:
    """Call *do* for one id after the other; print its new state, or why it was refused."""
    async with _reviews(session, database) as reviews:

        async def see_to(id: str) -> None:
            view = await do(reviews, id)
            session.out.answer(described(view), f"{view.id}  {_state_of(view)}")

        await each(session, ids, see_to)


def _one_of(option: str, text: str | None, kind: type[E]) -> E | None:
    if text is not None and text not in set(kind):
        raise InvalidOption(option, text, rule=f"must be one of {', '.join(kind)}")
    return None if text is None else kind(text)


# ── for people and for programs ──────────────────────────────────────────────────────────


def described(view: ReviewView) -> dict[str, Any]:
    """A review as JSON, with the names of the HTTP API. Fields without a value are left out."""
    facts: dict[str, Any] = msgspec.to_builtins(view)
    return {name: value for name, value in facts.items() if value is not None}


def _print_taken(session: Session, taken: TakenReview) -> None:
    if session.out.as_json:
        session.out.object(msgspec.to_builtins(taken))
        return
    session.out.line(taken.id)
    was = "existed before" if taken.existed else "saved"
    session.out.note(f"{was}: {taken.state}; see `towpath reviews show {taken.id}`")


def _note_missing_reviewer(session: Session, views: list[ReviewView]) -> None:
    """Note that reviews wait for a reviewer: without the note, the queue looks merely slow."""
    ways = ("reviewer_command", "reviewer_function", "reviewer_url")
    has_reviewer = any(session.settings.value(f"reviews.{way}") for way in ways)
    if not has_reviewer and any(view.state == "PENDING" for view in views):
        session.out.note(
            "no reviewer is set here: PENDING reviews wait until a server or a worker has one;"
            " see reviews.reviewer_command"
        )


def _about(view: ReviewView) -> str | None:
    return subject_of(view.task) if view.task else None


def _row(view: ReviewView) -> list[object]:
    head = view.task.head[:12] if view.task else None
    error = _shorten(view.last_error)
    return [view.id, _state_of(view), _about(view), head, view.attempts, view.created_at, error]


def _state_of(view: ReviewView) -> str:
    return f"{view.state} (asked to stop)" if view.cancel_requested else view.state


def _shorten(reason: str | None) -> str | None:
    """The beginning and end of a reason: the best of a traceback. `show` has all of it."""
    if reason is None or len(reason) <= _REASON_MOST:
        return reason
    half = _REASON_MOST // 2 - 1
    return f"{reason[:half]}…{reason[-half:]}"


def _posting(posting: PostingView | None) -> str | None:
    """The state of the posting, and why it failed."""
    if posting is None:
        return None
    why = None if posting.state == "COMPLETED" else posting.last_error
    return f"{posting.state}: {why}" if why else posting.state


def _print_review(session: Session, view: ReviewView) -> None:
    task, posting = view.task, view.posting
    session.out.facts(
        {
            "review": view.id,
            "state": _state_of(view),
            "about": _about(view),
            "head": task.head if task else None,
            "title": (task.title or None) if task else None,
            "url": (task.url or None) if task else None,
            "owner": view.owner,
            "priority": view.priority,
            "attempts": view.attempts,
            "error": view.last_error,
            "created": view.created_at,
            "due": view.due_at,
            "started": view.started_at,
            "finished": view.finished_at,
            "posting": _posting(posting),
            "posted": (posting.url or None) if posting else None,
            "verdict": view.review.verdict if view.review else None,
        }
    )
    if view.review is not None:
        session.out.line(f"\n{view.review.summary}")
        for comment in view.review.comments:
            place = comment.path if comment.line is None else f"{comment.path}:{comment.line}"
            session.out.line(f"\n{place}  {comment.severity}\n{comment.body}")
