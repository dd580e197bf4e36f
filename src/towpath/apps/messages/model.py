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
"""How long a message that was dequeued counts as being processed: the lease."""
KEEP = hours(1)
"""How long an answer can be read."""
KEEP_FOR_CALLBACK = days(1)
"""The same for a message whose answer still has to be delivered."""

MESSAGE_OPTIONS = QueueOptions(
    max_attempts=10,
    # About four minutes in all: a consumer that is restarted loses no message.
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
    """The client's own id: the same one again is the same message."""
    callback_url: str | None = None
    """Where its answer is delivered."""
    metadata: dict[str, Any] | None = None
    """Anything; it comes back with the answer."""

    def __post_init__(self) -> None:
        for field in ("user_id", "org_id", "client_id"):
            checked_name(field, getattr(self, field))
        if self.client_message_id is not None:
            checked_name("client_message_id", self.client_message_id)

    def id(self, owner: str = "") -> str:
        """A new id, or the one that goes with the client's own, of a message of *owner*."""
        if self.client_message_id is None:
            return str(uuid.uuid4())
        return own_id(self.user_id, self.client_message_id, owner)

    def packed(self) -> bytes:
        """Its bytes in the store: the same message always has the same. Raises InvalidOption."""
        try:
            return msgspec.json.encode(self)
        except (ValueError, RecursionError) as error:
            raise InvalidOption("metadata", "…", rule="must be plain JSON") from error


def checked_name(field: str, value: str) -> str:
    """*value* if it can be a user's or client's name, else InvalidName."""
    try:
        return lane_key(value)
    except InvalidName as error:
        raise InvalidName(field, value, rule=error.rule) from error


def own_id(user_id: str, client_message_id: str, owner: str = "") -> str:
    """The id of a message by its client's own id. The same id of another user, or sent by another
    owner, is another message: so nobody learns which ids others use.

    Names have no control characters, so the parts can't be cut differently.
    """
    parts = (user_id, client_message_id, owner) if owner else (user_id, client_message_id)
    digest = hashlib.sha256("\0".join(parts).encode()).digest()
    # Version 8: a UUID made in the maker's own way.
    return str(uuid.UUID(int=int.from_bytes(digest[:16]) & ~(0xF << 76) | 8 << 76))


def message_ref(message_id: str) -> JobRef:
    """The job behind a message. Raises InvalidName."""
    return job_ref(MESSAGES, checked_name("message_id", message_id))


# ── what can be known ────────────────────────────────────────────────────────────────────


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
    """A message that is in the queue."""

    message_id: str
    queue_position: int
    """1 = the next of its user; 0 = it no longer waits, which only a resend can find."""


class UserQueue(msgspec.Struct, frozen=True):
    """One user's messages at one moment."""

    queue_length: int
    """Those that wait; the one in process does not."""
    is_processing: bool = False
    current_message_id: str | None = None
    """None also for a caller who may not see it."""


class MessagesLoad(msgspec.Struct, frozen=True):
    """All users' messages at one moment."""

    active_queues: int
    messages_processing: int


class MessageView(msgspec.Struct, frozen=True, kw_only=True):
    """A message at one moment."""

    message_id: str
    user_id: str | None
    state: MessageState
    queue_position: int = 0
    estimate: Duration | None = None
    """How long it may still wait; None while nobody knows."""
    attempts: int = 0
    submitted_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    progress: bytes | None = None
    answer: bytes | None = None
    reason: str | None = None
    """Why it failed, or why its last attempt did."""

    @property
    def ended(self) -> bool:
        return self.state in ENDED
