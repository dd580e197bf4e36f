"""Messages for tests."""

from typing import Any

from towpath.apps.messages.model import Message, MessageReceipt, UserQueue
from towpath.apps.messages.service import Messages

SECRET = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYo="


def waiting(count: int) -> UserQueue:
    """The queue of a user with *count* waiting messages, none of which is being processed."""
    return UserQueue(count, is_processing=False, current_message_id=None)


def a_message(user_id: str = "ann", message: str = "hello", **more: Any) -> Message:
    plain: dict[str, Any] = {
        "user_id": user_id,
        "org_id": "acme",
        "message": message,
        "client_id": "web",
    }
    return Message(**{**plain, **more})


async def send(
    messages: Messages, user_id: str = "ann", message: str = "hello", **more: Any
) -> MessageReceipt:
    return await messages.send(a_message(user_id, message, **more))
