"""Drafts of jobs, submissions of one or many jobs, and the middleware around a submission."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import msgspec

from towpath.engine.durability import Durability
from towpath.engine.model import OnConflict
from towpath.errors import HandlerInvalid, MiddlewareInvalid, SubmitsRefused, TowpathError
from towpath.worker.middleware import CallNext, InnerCall, middleware_name

if TYPE_CHECKING:
    from towpath.app.job import Job
    from towpath.app.submitting import AppHandler
    from towpath.ledger.records.record import RecordOptions

T = TypeVar("T")
R = TypeVar("R")
X = TypeVar("X")


class NotGiven:
    """Payload type of a handler whose payload parameter has a default; for type checkers only."""


NOTHING: Any = object()
"""Stands for a payload that the caller left out."""
Take = Callable[[], Awaitable["list[Job[Any]]"]]


class Draft(msgspec.Struct, Generic[T, R]):
    """A job that is not submitted yet; made by `handler.new(payload, **options)`."""

    handler: AppHandler[T, R, Any]
    payload: T
    options: RecordOptions


class Submission(msgspec.Struct):
    """The jobs of one `submit` or `submit_many`, as submit middleware sees them. Middleware may
    change *jobs* before it calls `call_next`.
    """

    handler: AppHandler[Any, Any, Any]
    jobs: list[Draft[Any, Any]]
    """One job for `submit`, any number for `submit_many`."""
    durability: Durability | None = None
    on_conflict: OnConflict = "refuse"
    transaction: Any = None
    """The session or connection given as `in_transaction`."""
    many: bool = False
    """Whether the submission comes from `submit_many`."""

    def answer(self, answers: Sequence[Job[Any] | TowpathError]) -> list[Job[Any]]:
        """Internal: returns the submitted jobs. Raises SubmitsRefused if some of many jobs were
        refused, and the error itself for a single job.
        """
        taken: dict[int, Job[Any]] = {}
        refused: dict[int, TowpathError] = {}
        for at, answer in enumerate(answers):
            if isinstance(answer, TowpathError):
                refused[at] = answer
            else:
                taken[at] = answer
        if not refused:
            return list(taken.values())
        if not self.many:
            raise refused[0]
        raise SubmitsRefused(self.handler.queue, taken, refused)


def drafts(
    handler: AppHandler[T, R, Any], jobs: Iterable[T | Draft[T, R]], options: RecordOptions
) -> list[Draft[T, R]]:
    """Returns *jobs* as drafts. *options* apply to payloads, and to drafts that do not set them."""
    made: list[Draft[T, R]] = []
    for job in jobs:
        if not isinstance(job, Draft):
            made.append(Draft(handler, job, options))
            continue
        draft = cast("Draft[T, R]", job)
        if draft.handler is not handler:
            rule = f"can't take a draft of {draft.handler.name}; make it with {handler.name}.new(…)"
            raise HandlerInvalid(handler.name, rule=rule)
        made.append(Draft(handler, draft.payload, {**options, **draft.options}))
    return made


SubmitMiddleware = Callable[[Submission, CallNext], Awaitable[object]]
"""An async function `(submission, call_next)` that runs around every submit of an app."""


async def submitted(
    middleware: Sequence[SubmitMiddleware], submission: Submission, take: Take
) -> list[Job[Any]]:
    """Returns the jobs of *take*, called inside *middleware*; the first one is the outermost.

    A middleware may change the jobs before they are submitted, raise, and read the result. Raises
    MiddlewareInvalid if it adds or removes jobs, does not call `call_next`, or swallows an error.
    """
    if not middleware:
        return await take()
    first, *rest = middleware
    count = len(submission.jobs)

    async def inside() -> list[Job[Any]]:
        if (left := len(submission.jobs)) != count:
            jobs = "1 job" if count == 1 else f"{count} jobs"
            rule = f"turned {jobs} into {left}; change the jobs themselves, or raise to refuse"
            raise MiddlewareInvalid(middleware_name(first), rule=rule)
        return await submitted(rest, submission, take)

    inner = InnerCall(first, inside)
    await first(submission, inner)
    if not inner.called:
        rule = "returned without calling call_next: nothing was submitted"
        raise MiddlewareInvalid(middleware_name(first), rule=rule)
    if inner.raised is not None:
        rule = "swallowed the error of a submit; raise it or another error"
        raise MiddlewareInvalid(middleware_name(first), rule=rule) from inner.raised
    return inner.value
