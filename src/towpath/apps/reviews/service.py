"""The service of reviews: request, read, list, cancel, retry."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext, suppress

from towpath.apps.application import Host
from towpath.apps.reviews.errors import (
    ReviewDiffers,
    ReviewEnded,
    ReviewNotDead,
    ReviewNotFound,
    ReviewOver,
)
from towpath.apps.reviews.hooks import Hook
from towpath.apps.reviews.model import (
    POSTS,
    REVIEWS,
    Forge,
    ReviewState,
    ReviewTask,
    priority_of,
    subject_of,
)
from towpath.apps.reviews.view import ReviewPage, ReviewView, TakenReview, as_view
from towpath.errors import InvalidOption
from towpath.forges.texts import is_repository
from towpath.ids import job_id, new_job_id
from towpath.ledger.errors import RecordEnded, RecordNotDead, RecordNotFound
from towpath.ledger.records.jobs import Jobs
from towpath.ledger.records.record import Record, Recorded, RecordState

LARGEST_PAGE = 200
_FINAL_STATES = {RecordState.COMPLETED, RecordState.SUPERSEDED}
RECORD_ID = "review"
"""The header with the record's id: a record that is queued again gets a job with another id."""


class Reviews:
    """The application, for a server and for the command line.

    All methods read and write records, so Redis may be away. Each raises LedgerError if the
    database is away.
    """

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    # ── a review's life ──────────────────────────────────────────────────────────────────

    async def take(self, hook: Hook) -> TakenReview:
        """Save the task of a webhook; it runs later. A delivery that comes twice is one review, and
        so is one event under several delivery ids, because no forge signs those ids.

        Of the tasks about one pull request or branch the latest counts, in whatever order they
        come: older ones that have not begun are superseded. The latest is decided by the forge's
        time and by the commit that the branch was at before; without these, it is the last to come.
        """
        task = hook.task
        return _taken_review(
            await self._jobs.submit(
                REVIEWS,
                task.packed(),
                id=hook.id,
                priority=hook.priority,
                subject=hook.subject,
                version=hook.version,
                revision=task.head,
                follows=task.before,
                headers={RECORD_ID: hook.id},
            )
        )

    async def submit(
        self,
        task: ReviewTask,
        *,
        id: str | None = None,
        priority: int | None = None,
        owner: str | None = None,
    ) -> TakenReview:
        """Save a task that somebody asks for. The same *id* again is the same review.

        It supersedes only older requests of the same *owner*. Raises ReviewDiffers for another
        task under the same id, InvalidName, InvalidOption.
        """
        own = f"{Forge.API}-{new_job_id() if id is None else job_id(id)}"
        # Unlike a webhook, each request means another review: it has no version and no revision.
        recorded = await self._jobs.submit(
            REVIEWS,
            task.packed(),
            id=own,
            priority=priority_of(task) if priority is None else priority,
            subject=subject_of(task),
            headers={RECORD_ID: own},
            owner=owner,
        )
        if recorded.existed and recorded.record.payload != task.packed():
            raise ReviewDiffers(f"{REVIEWS}/{own}")
        return _taken_review(recorded)

    async def cancel(self, id: str, *, for_owner: str | None = None) -> ReviewView:
        """Cancel a review that has not ended: at once, or once its reviewer has stopped.

        Safe to repeat. Raises ReviewNotFound, NotOwned if it has another owner than *for_owner*,
        and ReviewEnded for one that ended otherwise.
        """
        with _as_review_errors():
            return as_view(await self._jobs.cancel(REVIEWS, id, for_owner=for_owner))

    async def retry(self, id: str) -> ReviewView:
        """Give a dead or cancelled review new attempts, run a failed one now, or retry the posting
        of a completed one.

        Raises ReviewNotFound, and ReviewNotDead if there is nothing to retry.
        """
        with _as_review_errors():
            try:
                return as_view(await self._jobs.retry(REVIEWS, id))
            except RecordNotDead as refusal:
                if refusal.state != RecordState.COMPLETED:
                    raise
                with suppress(RecordNotFound, RecordNotDead):
                    posting = await self._jobs.retry(POSTS, id)
                    return as_view(await self._jobs.get(REVIEWS, id), posting)
                raise

    # ── reading ──────────────────────────────────────────────────────────────────────────

    async def get(self, id: str) -> ReviewView:
        """Read a review and the reviewer's text. Raises ReviewNotFound."""
        with _as_review_errors():
            record = await self._jobs.get(REVIEWS, id)
        return as_view(record, await self._find_posting(record))

    async def list(
        self,
        *,
        state: ReviewState | None = None,
        forge: Forge | None = None,
        repository: str | None = None,
        number: int | None = None,
        after: str | None = None,
        size: int = 50,
    ) -> ReviewPage:
        """A page of reviews, newest first, without the reviewers' texts.

        Raises InvalidOption.
        """
        if number is not None and repository is None:
            raise InvalidOption("number", number, rule="pass the repository too")
        if repository is not None and not is_repository(repository):
            raise InvalidOption("repository", repository, rule="must be owner/name")
        if size > LARGEST_PAGE:
            raise InvalidOption("size", size, rule=f"must be from 1 to {LARGEST_PAGE}")
        # A subject begins with a forge and a repository, whose name ends at one of the marks.
        forges = list(Forge) if forge is None else [forge]
        places = [f"{named}:{repository or ''}" for named in forges]
        marks = "#@" if repository else ("",)
        some = number is None and (forge or repository)
        page = await self._jobs.list(
            REVIEWS,
            state=None if state is None else RecordState(state.lower()),
            subject=[f"{place}#{number}" for place in places] if number is not None else None,
            prefix=[f"{place}{mark}" for place in places for mark in marks] if some else None,
            after=after,
            size=size,
        )
        return ReviewPage([as_view(record) for record in page.records], page.after)

    # ── how it is done ───────────────────────────────────────────────────────────────────

    async def _find_posting(self, record: Record) -> Record | None:
        if record.state is RecordState.COMPLETED:
            with suppress(RecordNotFound):
                return await self._jobs.get(POSTS, record.id)
        return None


def serving(host: Host) -> AbstractAsyncContextManager[Reviews]:
    """The application in a server."""
    return nullcontext(Reviews(host.ledger.jobs))


@contextmanager
def _as_review_errors() -> Generator[None]:
    """Turn refusals of the ledger into errors of reviews, with their states and remedies."""
    try:
        yield
    except RecordNotFound as error:
        raise ReviewNotFound(error.queue, error.id) from error
    except RecordEnded as error:
        raise ReviewEnded(error.queue, error.id, ReviewState.of(error.state)) from error
    except RecordNotDead as error:
        kind = ReviewOver if error.state in _FINAL_STATES else ReviewNotDead
        raise kind(error.queue, error.id, ReviewState.of(error.state)) from error


def _taken_review(recorded: Recorded) -> TakenReview:
    record = recorded.record
    state = ReviewState.of(record.state)
    return TakenReview(record.id, state, recorded.existed, recorded.superseded)
