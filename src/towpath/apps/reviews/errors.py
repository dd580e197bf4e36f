"""What can go wrong with a review beyond what the engine and the ledger say.

FieldInvalid
├── TaskInvalid             a task that nobody could review
└── ReviewInvalid           a reviewer's answer that is no review
JobDiffers
└── ReviewDiffers           the caller's own id names another task
RecordError
├── ReviewNotFound          there is no review of that id
├── ReviewEnded             it ended otherwise before it could be cancelled
└── ReviewNotDead           it runs by itself: there is nothing to retry
    └── ReviewOver          it has ended for good

What is wrong with a webhook itself is in `forges/errors.py`.
"""

from __future__ import annotations

from towpath.errors import JobDiffers
from towpath.forges.errors import FieldInvalid
from towpath.ledger.errors import RecordEnded, RecordNotDead, RecordNotFound


class TaskInvalid(FieldInvalid):
    """A task whose repository, commit or place can't be right; nothing was stored."""

    code = "task_invalid"


class ReviewInvalid(FieldInvalid):
    """What a reviewer gave back is no review."""

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
        "Ids begin with where they came from: api-…, github-…, gitlab-…; `towpath reviews list` has"
        " them. Reviews that have ended are deleted after a while."
    )


class ReviewEnded(RecordEnded):
    """The review ended before it could be cancelled. Its state is in the document's words."""


class ReviewNotDead(RecordNotDead):
    """The review waits or runs: it needs no retry. Its state is in the document's words."""

    remedy = "Leave it: it runs by itself. To begin it anew, cancel it first."


class ReviewOver(ReviewNotDead):
    """The review is COMPLETED or SUPERSEDED, which it stays."""

    remedy = "Ask for a new one: `towpath reviews submit`, or POST /api/v1/reviews."
