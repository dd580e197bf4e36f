"""What can go wrong with a review beyond what the engine and the ledger say.

InvalidInput
└── FieldInvalid            a field that breaks its rule
    ├── TaskInvalid         a task that nobody could review
    ├── WebhookInvalid      a forge's message that is not what the forge documents
    └── ReviewInvalid       a reviewer's answer that is no review
SignatureRefused
└── SignatureInvalid        a forge's message that does not show who sent it
RecordError
├── ReviewDiffers           the caller's own id names another task
├── ReviewNotFound          there is no review of that id
├── ReviewEnded             it ended otherwise before it could be cancelled
└── ReviewNotDead           it runs by itself: there is nothing to retry
    └── ReviewOver          it has ended for good

No message repeats a value of a webhook, nor a secret or a signature: field and rule are enough.
"""

from __future__ import annotations

from towpath.calls.errors import SignatureRefused
from towpath.errors import InvalidInput
from towpath.ledger.errors import RecordEnded, RecordError, RecordNotDead, RecordNotFound


class FieldInvalid(InvalidInput):
    """A field that breaks its rule. Both are in the message, the value is not."""

    code = "field_invalid"
    remedy = "Send a value that follows the rule in the message."

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(f"{field}: {rule}")
        self.field, self.rule = field, rule


class TaskInvalid(FieldInvalid):
    """A task whose repository, commit or place can't be right; nothing was stored."""

    code = "task_invalid"


class WebhookInvalid(FieldInvalid):
    """A message with a good signature that lacks what its forge documents; nothing was stored."""

    code = "webhook_invalid"
    remedy = "Compare the webhook's settings with the how-to; the forge can send it again."


class ReviewInvalid(FieldInvalid):
    """What a reviewer gave back is no review."""

    code = "review_invalid"
    remedy = "Let the reviewer give plain text, or JSON with summary, verdict and comments."


class SignatureInvalid(SignatureRefused):
    """The header that shows who sent a webhook is missing, or fits none of the secrets."""

    code = "signature_invalid"
    remedy = "Give the forge's webhook the same secret as here; both may have several for a while."

    def __init__(self, header: str, problem: str) -> None:
        super().__init__(f"{header} {problem}")
        self.header = header


class ReviewDiffers(RecordError):
    """The caller's own id was used for another task; nothing was changed."""

    code = "review_differs"
    remedy = "Use a new id for a new task, or send the same one unchanged."

    def __init__(self, queue: str, id: str) -> None:
        super().__init__(queue, id, "exists with another task")


class ReviewNotFound(RecordNotFound):
    """There is no review of that id."""

    remedy = (
        "Ids begin with where they came from: api-…, github-…, gitlab-…; `towpath reviews list` has"
        " them. Reviews that have ended are removed after a while."
    )


class ReviewEnded(RecordEnded):
    """The review ended before it could be cancelled. Its state is in the document's words."""


class ReviewNotDead(RecordNotDead):
    """The review waits or runs: it needs no retry. Its state is in the document's words."""

    remedy = "Leave it: it runs by itself. To begin it anew, cancel it first."


class ReviewOver(ReviewNotDead):
    """The review is COMPLETED or SUPERSEDED, which it stays."""

    remedy = "Ask for a new one: `towpath reviews submit`, or POST /api/v1/reviews."
