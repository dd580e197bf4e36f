"""Errors of messages.

TowpathError
├── JobError
│   └── MessageDiffers       the client's own id was used for another message
└── LeaseError
    └── MessageNotHeld       the message was not dequeued in this process
"""

from __future__ import annotations

from towpath.errors import JobDiffers, LeaseError


class MessageDiffers(JobDiffers):
    """The client's own id was used for another message; nothing was changed."""

    code = "message_differs"
    remedy = "Use a new client_message_id for a new message, or resend the same one unchanged."
    what = "exists with other content"


class MessageNotHeld(LeaseError):
    """The message was not dequeued in this process, or another consumer has it by now."""

    code = "message_not_held"
    remedy = "Complete a message in the process that dequeued it, or over HTTP with its token."

    def __init__(self, message_id: str) -> None:
        super().__init__(f"message {message_id} is not held by this process")
        self.message_id = message_id
