"""Reviews over HTTP: request, read, list, cancel, retry; and webhooks that request them.

All requests are answered from the database, so Redis may be away.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query, Response
from pydantic import BeforeValidator, Field

from towpath.apps.reviews.errors import ReviewNotFound
from towpath.apps.reviews.hooks import Hook, reader_of
from towpath.apps.reviews.model import (
    REVIEWS,
    Action,
    Forge,
    ReviewKind,
    ReviewState,
    ReviewTask,
    Severity,
    Verdict,
)
from towpath.apps.reviews.service import LARGEST_PAGE, Reviews
from towpath.apps.reviews.view import ReviewPage, ReviewView, TakenReview
from towpath.forges.facts import ForgeEvent, Ignored
from towpath.forges.registry import FORGES
from towpath.forges.spec import ForgeSpec
from towpath.forges.texts import REF_MOST
from towpath.ledger.keys.key import KeyInfo, Scope
from towpath.web.application_routes import ApplicationRoutes, WebhookListener, forge_listener
from towpath.web.audit import audited
from towpath.web.auth import changes_only, hide_foreign, scoped
from towpath.web.bodies import BodyRoute
from towpath.web.dependencies import service
from towpath.web.fields import Answer, Body, Id, example
from towpath.web.problems import documented

router = APIRouter(prefix="/api/v1/reviews", tags=["reviews"], route_class=BodyRoute)
_HEAD = "0d1a26e67d8f5eaf1f6ba5c57fc3c7d91ac0fd1c"
_ID = "github-72d3162e-cc78-11e3-81ab-4c9367dc0958"


TheReviews = Annotated[Reviews, Depends(service("reviews"))]
CanSubmit = Annotated[KeyInfo, Depends(scoped(Scope.SUBMIT, queue=REVIEWS))]
CanRead = Annotated[KeyInfo, Depends(scoped(Scope.READ, queue=REVIEWS))]
CanAdmin = Annotated[KeyInfo, Depends(scoped(Scope.ADMIN, queue=REVIEWS))]
Words = Annotated[str, Field(max_length=2000)]
Branch = Annotated[str, Field(max_length=REF_MOST)]


# ── what requests and answers look like ──────────────────────────────────────────────────


class ReviewIn(Body):
    """A commit to review: of a pull request (`number`) or of a branch (`ref`)."""

    model_config = example(id="build-4711", repository="octo/repo", number=7, head=_HEAD)

    repository: Words
    """The repository, as `owner/name`."""
    head: Words
    """The full id of the commit."""
    number: Annotated[int, Field(ge=1, le=2**31 - 1, strict=True)] | None = None
    """Number of the pull request; without it, the commit is of the branch `ref`."""
    ref: Branch = ""
    """The branch, without `refs/heads/`."""
    target: Branch | None = None
    """The branch that the pull request targets."""
    base: Words | None = None
    """The commit of the target branch that the pull request starts from."""
    before: Words | None = None
    """The commit that the branch was at before the push."""
    title: Words = ""
    author: Words = ""
    url: Words = ""
    """URL of its web page."""
    clone_url: Words = ""
    """URL to clone the repository from: http or https, without user and password."""
    id: Annotated[str, Field(min_length=1, max_length=400)] | None = None
    """Your own id; the same id is the same review."""
    priority: Annotated[int, Field(ge=0, le=100, strict=True)] | None = None
    """0 to 100; higher runs first. Default: 100 for a pull request, 50 for a branch."""

    def task(self) -> ReviewTask:
        """What is to be reviewed. Raises TaskInvalid."""
        fields = self.model_dump(exclude={"id", "priority"})
        kind = ReviewKind.PUSH if self.number is None else ReviewKind.PULL
        return ReviewTask(forge=Forge.API, kind=kind, action=Action.REQUESTED, **fields)


def _capitals(value: object) -> object:
    return value.upper() if isinstance(value, str) else value


class ReviewQuery(Body):
    """Which reviews. An unknown parameter is refused, so that a typing error is seen."""

    state: Annotated[ReviewState, BeforeValidator(_capitals)] | None = None
    """Only reviews in this state; case does not matter."""
    forge: Forge | None = None
    """Only reviews from this forge."""
    repository: Annotated[str, Field(max_length=255)] | None = None
    """Only reviews of this repository: `owner/name`, as the forge writes it."""
    number: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    """Only reviews of this pull request."""
    after: Annotated[str, Field(max_length=2048)] | None = None
    """The `after` value returned with the previous page."""
    size: Annotated[int, Field(ge=1, le=LARGEST_PAGE)] = 50


class TakenOut(Answer):
    """A review that is saved and will run."""

    model_config = example(id=_ID, state="PENDING", existed=False, superseded=[])

    id: str
    state: ReviewState
    existed: bool
    """Whether the review existed before, under the same id."""
    superseded: list[str]
    """Older reviews of the same pull request or branch, which will not run."""


class ReviewTaskOut(Answer):
    """What is reviewed."""

    forge: Forge
    kind: ReviewKind
    repository: str
    head: str
    """The commit to review."""
    number: int | None
    """Number of the pull request; null for a push."""
    ref: str
    """The branch."""
    target: str | None
    """The branch that the pull request targets."""
    base: str | None
    """The commit of the target branch that the pull request starts from."""
    before: str | None
    """The commit that the branch was at before the push."""
    title: str
    author: str
    url: str
    clone_url: str
    action: Action
    """What happened on the forge."""
    host: str
    """Host name of the forge."""


class CommentOut(Answer):
    """A comment on a file or a line."""

    path: str
    line: int | None
    body: str
    severity: Severity


class SaidOut(Answer):
    """What the reviewer said."""

    summary: str
    verdict: Verdict
    comments: list[CommentOut]


class PostingOut(Answer):
    """How the review is posted to its forge."""

    state: ReviewState
    attempts: int
    last_error: str | None
    """Why the last attempt to post it failed."""
    url: str
    """URL of the posted review; empty if not known."""


class ReviewOut(Answer):
    """A review as it is now."""

    id: str
    state: ReviewState
    task: ReviewTaskOut | None
    """What is reviewed; null if the row in the database is damaged."""
    owner: str | None
    """The owner of the key that requested it; null = a webhook or the command line did."""
    priority: int
    attempts: int
    last_error: str | None
    """Why the last attempt failed, or `superseded by …`."""
    cancel_requested: bool
    """Whether it was cancelled while it ran."""
    created_at: datetime
    due_at: datetime | None
    """When the next attempt may run."""
    started_at: datetime | None
    """When the latest attempt began."""
    finished_at: datetime | None
    review: SaidOut | None
    """What the reviewer said, once the review is COMPLETED. Lists leave it out."""
    posting: PostingOut | None
    """How the review is posted to its forge; null if it is not."""


class ReviewsOut(Answer):
    """A page of reviews, newest first."""

    reviews: list[ReviewOut]
    after: str | None
    """Pass it as `after` to get the next page; null on the last page."""


# ── paths ────────────────────────────────────────────────────────────────────────────────

_LOCATION = {"Location": {"description": "URL of the review.", "schema": {"type": "string"}}}


@router.post(
    "",
    status_code=202,
    response_model=TakenOut,
    responses={202: {"headers": _LOCATION}, **documented(409)},
)
@audited("id", "repository", "priority", answer=("id",), only_people=True)
async def submit(
    body: ReviewIn, response: Response, reviews: TheReviews, key: CanSubmit
) -> TakenReview:
    """Request a review. It is saved before this answers and runs later, even if Redis is
    unreachable now.

    A repeated `id` is the same review; another task under the same id is refused with 409. The
    review belongs to the owner of the key. A new request for a pull request or branch supersedes
    older ones of the same owner that have not begun.
    """
    taken = await reviews.submit(body.task(), id=body.id, priority=body.priority, owner=key.owner)
    response.headers["Location"] = f"/api/v1/reviews/{quote(taken.id, safe='')}"
    return taken


@router.get("", response_model=ReviewsOut, responses=documented())
async def list_reviews(
    reviews: TheReviews, _: CanRead, wish: Annotated[ReviewQuery, Query()]
) -> ReviewPage:
    """List reviews, newest first, without their texts."""
    return await reviews.list(**wish.model_dump())


@router.get("/{id}", response_model=ReviewOut, responses=documented(404))
async def look(id: Id, reviews: TheReviews, _: CanRead) -> ReviewView:
    """Read a review and the reviewer's text."""
    return await reviews.get(id)


@router.post("/{id}/cancel", response_model=ReviewOut, responses=documented(404, 409))
@audited()
async def cancel(id: Id, reviews: TheReviews, key: CanSubmit) -> ReviewView:
    """Cancel a review that has not ended: it is CANCELLED, or `cancel_requested` while it runs. A
    review of another owner, or of a webhook, needs the scope `manage`.
    """
    cancelling = reviews.cancel(id, for_owner=changes_only(key))
    return await hide_foreign(cancelling, key, ReviewNotFound(REVIEWS, id))


@router.post("/{id}/retry", response_model=ReviewOut, responses=documented(404, 409))
@audited()
async def retry(id: Id, reviews: TheReviews, _: CanAdmin) -> ReviewView:
    """Give a DEAD or CANCELLED review new attempts. A FAILED one runs now. A COMPLETED one whose
    posting is DEAD is posted again.
    """
    return await reviews.retry(id)


# ── webhooks ─────────────────────────────────────────────────────────────────────────────


class IgnoredOut(Answer):
    """A delivery that needs no review."""

    model_config = example(ignored="pull_request closed")

    ignored: str
    """What was delivered, and why it needs no review."""


async def _take(reviews: Reviews, found: Hook | Ignored) -> TakenReview | IgnoredOut:
    if isinstance(found, Ignored):
        return IgnoredOut(ignored=found.reason)
    return await reviews.take(found)  # it has the fields of TakenOut


def _listener(forge: ForgeSpec) -> WebhookListener:
    return forge_listener(
        forge,
        application="reviews",
        events=(ForgeEvent.PULL, ForgeEvent.PUSH),
        repeated="is the same review",
        read=reader_of(forge),
        take=_take,
        answer=TakenOut | IgnoredOut,
        about=f"Receives {forge.title}'s webhooks: a {forge.pull} or a push is saved and reviewed "
        "later.\n\nNeeds a valid signature or token instead of a key, or it is refused with 401. A "
        "delivery that comes\ntwice is one review. 404 if the server has no secret for it.",
    )


ROUTES = ApplicationRoutes(
    routers=(router,),
    tags={"reviews": "Request and read reviews; webhooks of forges."},
    listeners=tuple(map(_listener, FORGES)),
)
