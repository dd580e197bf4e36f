"""What can go wrong with a message beyond what the engine says.

JobDiffers
└── MessageDiffers      the client's own id names another message
LeaseError
└── MessageNotHeld      nobody dequeued it here
"""

from __future__ import annotations

from towpath.errors import JobDiffers, LeaseError


class MessageDiffers(JobDiffers):
    """The client's own id was used for another message; nothing was changed."""

    code = "message_differs"
    remedy = "Use a new client_message_id for a new message, or resend the same one unchanged."
    what = "exists with other content"


class MessageNotHeld(LeaseError):
    """The message was not dequeued here, or so long ago that it is in other hands."""

    code = "message_not_held"
    remedy = "Complete a message where it was dequeued, or over HTTP with the token of its claim."

    def __init__(self, message_id: str) -> None:
        super().__init__(f"message {message_id} is not held here")
        self.message_id = message_id
