"""The handlers that run in a worker: reviews, and the posting of completed ones.

A review that is to be posted makes a second record, in the queue `reviews.post`, just before it
ends. That posting waits until the review's own record is completed, and posts the review in it. So
a crash at any point loses neither: before the second record, the review runs again; after it, the
posting waits until another attempt has completed the review.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from towpath.app.app import Towpath
from towpath.apps.reviews.errors import ReviewInvalid, TaskInvalid
from towpath.apps.reviews.model import POSTS, REVIEWS, Forge, Review, ReviewState, ReviewTask
from towpath.apps.reviews.options import ReviewsOptions
from towpath.apps.reviews.posting.port import Posted, Poster
from towpath.apps.reviews.reviewers.command import CommandReviewer
from towpath.apps.reviews.reviewers.port import Reviewer
from towpath.apps.reviews.service import RECORD_ID
from towpath.clock import ZERO, hours, minutes, seconds
from towpath.engine.retry import Exponential
from towpath.ledger.errors import RecordNotDead, RecordNotFound
from towpath.ledger.records.record import Record, RecordState
from towpath.worker.context import Context, Discard, Snooze

_SLACK = seconds(10)
REVIEW_RETRY = Exponential(first=seconds(10), factor=3, longest=minutes(30))
POST_RETRY = Exponential(first=seconds(5), factor=3, longest=hours(1))
POST_ATTEMPTS = 10
"""About three hours in all: a forge may be away for a while."""
_FIRST_SNOOZE, _LONGEST_SNOOZE = seconds(1), minutes(5)
"""How long a posting waits before it checks its review. Most are completed a moment later."""


def add_reviews(app: Towpath, reviewer: Reviewer, options: ReviewsOptions) -> None:
    """Let *app*, which must have a ledger, review what is in the queue `reviews`.

    A review gets a posting if the options have a token for its forge and host; `add_posting`
    handles it, in this app or in another worker. Raises ReviewerUnavailable if the command is
    missing: else every task would fail, one by one.
    """
    if isinstance(reviewer, CommandReviewer):
        reviewer.require_program()
    handler = _ReviewHandler(app, reviewer, options)
    app.handler(
        REVIEWS,
        record=True,
        time_limit=options.within + _SLACK,
        max_attempts=options.attempts,
        retry=REVIEW_RETRY,
        concurrency=options.concurrency,
        keep=ZERO,  # the record keeps the review
    )(handler.review)


def add_posting(app: Towpath, posters: Mapping[Forge, Poster]) -> None:
    """Let *app*, which must have a ledger, post completed reviews to their forges."""
    handler = _PostingHandler(app, posters)
    app.handler(
        POSTS,
        record=True,
        time_limit=minutes(5),
        max_attempts=POST_ATTEMPTS,
        retry=POST_RETRY,
        keep=ZERO,
    )(handler.post)


class Posting(msgspec.Struct, frozen=True):
    """The payload of a posting: the id of the review."""

    review: str


class _ReviewHandler:
    def __init__(self, app: Towpath, reviewer: Reviewer, options: ReviewsOptions) -> None:
        self._app, self._reviewer, self._options = app, reviewer, options

    async def review(self, payload: bytes, ctx: Context) -> bytes:
        """Review the task. Discards a payload that is no valid task."""
        try:
            task = ReviewTask.unpacked(payload)
        except TaskInvalid as error:
            raise Discard(f"TaskInvalid: {error}") from error
        review = await self._reviewer.review(task, ctx)
        packed = review.packed()
        if self._options.posts(task):
            await self._submit_posting(ctx.headers.get(RECORD_ID, ctx.id))
        return packed

    async def _submit_posting(self, id: str) -> None:
        jobs = self._app.ledger.jobs
        posting = msgspec.json.encode(Posting(id))
        made = await jobs.submit(POSTS, posting, id=id, delay=_FIRST_SNOOZE)
        if made.existed and not made.record.open:
            # The posting is from before the review died and was retried: it gets new attempts.
            # It needs none if another attempt of the review has had it completed meanwhile.
            try:
                await jobs.retry(POSTS, id)
            except RecordNotDead:
                return


class _PostingHandler:
    def __init__(self, app: Towpath, posters: Mapping[Forge, Poster]) -> None:
        self._app, self._posters = app, posters

    async def post(self, posting: Posting, ctx: Context) -> Posted:
        """Post the review in the record once that is completed; until then, snooze."""
        record = await self._read_record(posting.review)
        if record.open:
            age = ctx.claimed_at - ctx.submitted_at
            raise Snooze(min(max(age, _FIRST_SNOOZE), _LONGEST_SNOOZE))
        if record.state is not RecordState.COMPLETED:
            raise Discard(f"its review is {ReviewState.of(record.state)}")
        task, review = _unpack(record)
        poster = self._posters.get(task.forge)
        if poster is None:
            raise Discard(f"there is no token for {task.forge}")
        return await poster.post(task, review, key=record.id)

    async def _read_record(self, id: str) -> Record:
        try:
            return await self._app.ledger.jobs.get(REVIEWS, id)
        except RecordNotFound as error:
            raise Discard("its review is no longer kept") from error


def _unpack(record: Record) -> tuple[ReviewTask, Review]:
    try:
        return ReviewTask.unpacked(record.payload), Review.unpacked(record.result or b"")
    except (TaskInvalid, ReviewInvalid) as error:
        raise Discard(f"{type(error).__name__}: {error}") from error
