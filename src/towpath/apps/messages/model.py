"""Messages: their values, and the options of their queues."""

from __future__ import annotations

import hashlib
import uuid
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from towpath.clock import Duration, days, hours, minutes, seconds
from towpath.engine.model import JobRef, job_ref
from towpath.engine.options import QueueOptions
from towpath.engine.retry import Exponential
from towpath.engine.states import State
from towpath.errors import InvalidName, InvalidOption
from towpath.ids import lane_key

MESSAGES = "messages"
CALLBACKS = "messages.callbacks"
PROCESSING_TTL = seconds(300)
"""The lease of a dequeued message."""
KEEP = hours(1)
"""How long an answer can be read."""
KEEP_FOR_CALLBACK = days(1)
"""How long the answer of a message with a callback can be read: its delivery may take long."""

MESSAGE_OPTIONS = QueueOptions(
    max_attempts=10,
    # About four minutes in all, so that no message is dead while its consumer is restarted.
    retry=Exponential(longest=minutes(1)),
    keep=KEEP,
    remember=days(1),
    events_most=10_000,
)
CALLBACK_OPTIONS = QueueOptions(
    max_attempts=10,
    # About three hours in all: a receiver may be away for a while.
    retry=Exponential(first=seconds(5), factor=3, longest=hours(1)),
    keep=KEEP,
    remember=days(1),
)

QUEUES = {MESSAGES: MESSAGE_OPTIONS, CALLBACKS: CALLBACK_OPTIONS}


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a user sent. Names have 1 to 512 bytes without control characters, else InvalidName."""

    user_id: str
    org_id: str
    message: str
    client_id: str
    client_message_id: str | None = None
    """The client's own id; the same id twice is one message."""
    callback_url: str | None = None
    """The URL to which its answer is delivered."""
    metadata: dict[str, Any] | None = None
    """Any data; it is returned with the answer."""

    def __post_init__(self) -> None:
        for field in ("user_id", "org_id", "client_id"):
            checked_name(field, getattr(self, field))
        if self.client_message_id is not None:
            checked_name("client_message_id", self.client_message_id)

    def id(self, owner: str = "") -> str:
        """Returns the id of the message: derived from the client's own id and *owner*, or new."""
        if self.client_message_id is None:
            return str(uuid.uuid4())
        return own_id(self.user_id, self.client_message_id, owner)

    def packed(self) -> bytes:
        """Returns the payload of its job; equal messages have equal ones. Raises InvalidOption."""
        try:
            return msgspec.json.encode(self)
        except (ValueError, RecursionError) as error:
            raise InvalidOption("metadata", "…", rule="must be plain JSON") from error


def checked_name(field: str, value: str) -> str:
    """Returns *value*. Raises InvalidName unless it can be the name of a user or a client."""
    try:
        return lane_key(value)
    except InvalidName as error:
        raise InvalidName(field, value, rule=error.rule) from error


def own_id(user_id: str, client_message_id: str, owner: str = "") -> str:
    """Returns the id of a message, derived from its client's own id.

    The ids of other users and owners never collide with it, so that a caller can't find out which
    ids they use. Names have no control characters, so a NUL separates them.
    """
    parts = (user_id, client_message_id, owner) if owner else (user_id, client_message_id)
    digest = hashlib.sha256("\0".join(parts).encode()).digest()
    # UUID version 8 is for custom formats.
    return str(uuid.UUID(int=int.from_bytes(digest[:16]) & ~(0xF << 76) | 8 << 76))


def message_ref(message_id: str) -> JobRef:
    """Returns the job of a message. Raises InvalidName."""
    return job_ref(MESSAGES, checked_name("message_id", message_id))


# ── messages as they are read ────────────────────────────────────────────────────────────


class MessageState(StrEnum):
    """The state of a message."""

    QUEUED = "queued"
    PROCESSING = "processing"
    ANSWERED = "answered"
    FAILED = "failed"
    CANCELLED = "cancelled"


STATES = {
    State.READY: MessageState.QUEUED,
    State.DELAYED: MessageState.QUEUED,
    State.WAITING: MessageState.QUEUED,
    State.LEASED: MessageState.PROCESSING,
    State.DONE: MessageState.ANSWERED,
    State.DEAD: MessageState.FAILED,
    State.CANCELLED: MessageState.CANCELLED,
}
ENDED = {MessageState.ANSWERED, MessageState.FAILED, MessageState.CANCELLED}


class MessageReceipt(msgspec.Struct, frozen=True):
    """The answer to a sent message."""

    message_id: str
    queue_position: int
    """1 = the next of its user; 0 = it was sent before, and no longer waits."""


class UserQueue(msgspec.Struct, frozen=True):
    """One user's messages at one moment."""

    queue_length: int
    """Number of waiting messages, without the one that is being processed."""
    is_processing: bool
    """Whether a message of the user is being processed."""
    current_message_id: str | None
    """The message that is being processed, if any. None also for a key that neither owns it nor has
    the scope `work`."""


class MessagesLoad(msgspec.Struct, frozen=True):
    """All users' messages at one moment."""

    active_queues: int
    """Number of users with a waiting message."""
    messages_processing: int
    """Number of messages that are being processed."""


class MessageView(msgspec.Struct, frozen=True, kw_only=True):
    """A message at one moment."""

    message_id: str
    user_id: str | None
    state: MessageState
    queue_position: int = 0
    estimate: Duration | None = None
    """How long it may still wait; None = not known."""
    attempts: int = 0
    submitted_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    progress: bytes | None = None
    answer: bytes | None = None
    reason: str | None = None
    """Why the message failed, or why its last attempt did."""

    @property
    def ended(self) -> bool:
        return self.state in ENDED
