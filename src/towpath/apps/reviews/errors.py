"""Errors of reviews.

FieldInvalid
├── TaskInvalid             a task with a field that is not valid
└── ReviewInvalid           a reviewer's answer that is no review
JobDiffers
└── ReviewDiffers           the caller's own id names another task
RecordError
├── ReviewNotFound          there is no review of that id
├── ReviewEnded             it ended otherwise before it could be cancelled
└── ReviewNotDead           it runs by itself: there is nothing to retry
    └── ReviewOver          it has ended for good

The errors of webhooks are in `forges/errors.py`.
"""

from __future__ import annotations

from towpath.errors import JobDiffers
from towpath.forges.errors import FieldInvalid
from towpath.forges.registry import FORGES
from towpath.ledger.errors import RecordEnded, RecordNotDead, RecordNotFound


class TaskInvalid(FieldInvalid):
    """The task's repository, commit or branch is not valid; nothing was stored."""

    code = "task_invalid"


class ReviewInvalid(FieldInvalid):
    """What the reviewer returned is not a review."""

    code = "review_invalid"
    remedy = "Make the reviewer return plain text, or JSON with summary, verdict and comments."


class ReviewDiffers(JobDiffers):
    """The caller's own id was used for another task; nothing was changed."""

    code = "review_differs"
    remedy = "Use a new id for a new task, or send the same one unchanged."
    what = "exists with another task"


class ReviewNotFound(RecordNotFound):
    """There is no review of that id."""

    remedy = (
        "Check the id: it begins with its source,"
        f" {', '.join(f'{forge.name}-' for forge in FORGES)} or api-."
        " `towpath reviews list` shows all reviews. Ended reviews are deleted after a while."
    )


class ReviewEnded(RecordEnded):
    """The review has already ended; it can't be cancelled."""


class ReviewNotDead(RecordNotDead):
    """The review waits or runs: it needs no retry."""

    remedy = "No action needed: it runs by itself. To start it over, cancel it first."


class ReviewOver(ReviewNotDead):
    """The review is COMPLETED or SUPERSEDED, and can't be run again."""

    remedy = "Request a new one: `towpath reviews submit`, or POST /api/v1/reviews."
