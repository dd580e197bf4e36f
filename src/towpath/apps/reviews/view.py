"""A review as people and programs see it, made from its record."""

from __future__ import annotations

from datetime import datetime

import msgspec

from towpath.apps.reviews.errors import ReviewInvalid, TaskInvalid
from towpath.apps.reviews.model import Review, ReviewState, ReviewTask
from towpath.ledger.records.record import Record


class PostingView(msgspec.Struct, frozen=True, kw_only=True):
    """The posting of a review to its forge."""

    state: ReviewState
    attempts: int
    last_error: str | None = None
    url: str = ""
    """The review's URL on the forge, if known."""


class ReviewView(msgspec.Struct, frozen=True, kw_only=True):
    """A review at one moment."""

    id: str
    state: ReviewState
    task: ReviewTask | None
    """None if the record is damaged."""
    owner: str | None = None
    """The owner of the API key that requested it; None = a webhook or the command line did."""
    priority: int
    attempts: int = 0
    last_error: str | None = None
    """Why the last attempt failed, or `superseded by …`."""
    cancel_requested: bool = False
    created_at: datetime
    due_at: datetime | None = None
    """When the next attempt may begin."""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    review: Review | None = None
    """What the reviewer said. Lists leave it out."""
    posting: PostingView | None = None
    """None if the review is not posted."""


class ReviewPage(msgspec.Struct, frozen=True):
    """Reviews, newest first; give *after* to get the next page. None = this was the last."""

    reviews: list[ReviewView]
    after: str | None


class TakenReview(msgspec.Struct, frozen=True):
    """A review that is saved, now or before."""

    id: str
    state: ReviewState
    existed: bool
    superseded: tuple[str, ...] = ()
    """Ids of older reviews with the same subject, which will not run."""


def as_view(record: Record, posting: Record | None = None) -> ReviewView:
    """The review in *record*. A damaged record is shown as far as it can be read."""
    open_ = record.open
    return ReviewView(
        id=record.id,
        state=ReviewState.of(record.state),
        task=_task(record.payload),
        owner=record.owner,
        priority=record.priority,
        attempts=record.attempts,
        last_error=record.last_error,
        cancel_requested=record.cancel_requested and open_,
        created_at=record.created_at,
        due_at=record.may_run_at if open_ else None,
        started_at=record.started_at,
        finished_at=record.finished_at,
        review=_review(record.result) if record.result else None,
        posting=_posting(posting) if posting else None,
    )


def _task(payload: bytes) -> ReviewTask | None:
    try:
        return ReviewTask.unpacked(payload)
    except TaskInvalid:
        return None


def _review(result: bytes) -> Review | None:
    try:
        return Review.unpacked(result)
    except ReviewInvalid:
        return None


class _Posted(msgspec.Struct):
    url: str = ""


def _posting(record: Record) -> PostingView:
    return PostingView(
        state=ReviewState.of(record.state),
        attempts=record.attempts,
        last_error=record.last_error,
        url=_url(record.result or b""),
    )


def _url(result: bytes) -> str:
    try:
        return msgspec.json.decode(result, type=_Posted).url if result else ""
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""
