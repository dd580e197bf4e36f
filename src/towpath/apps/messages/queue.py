"""The queue of messages: first in, first out per user, one at a time per user."""

from __future__ import annotations

import uuid
from typing import NamedTuple

from towpath.apps.messages.errors import MessageDiffers, MessageNotHeld
from towpath.apps.messages.model import (
    MESSAGES,
    PROCESSING_TTL,
    QUEUES,
    MessageReceipt,
    MessagesLoad,
    UserQueue,
    checked_name,
)
from towpath.clock import Duration
from towpath.engine.engine import Engine
from towpath.engine.inspect import Lane
from towpath.engine.leases import HeldLeases
from towpath.engine.model import Submitted
from towpath.engine.states import State
from towpath.errors import ServerError

_WORKER = "dequeue"
_WAITS = {State.READY, State.DELAYED, State.WAITING}


class Dequeued(NamedTuple):
    """A message that the caller holds, for PROCESSING_TTL."""

    message_id: str
    message_data: str


class MessageQueue:
    """A queue per user. Most calls are one round trip; none scans the keys of Redis.

    A message that is dequeued and not completed within PROCESSING_TTL comes back, at its old place.
    """

    PROCESSING_TTL = PROCESSING_TTL

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._held = HeldLeases(self.PROCESSING_TTL)

    @staticmethod
    def generate_message_id() -> str:
        return str(uuid.uuid4())

    # ── messages ─────────────────────────────────────────────────────────────────────────

    async def enqueue(self, user_id: str, message_id: str, message_data: str) -> int:
        """Add a message at the end of the user's queue. Returns its position, 1 = the next.

        The same *message_id* again adds nothing. Raises MessageDiffers if it came with other
        data, InvalidName, and what `Engine.submit` raises.
        """
        receipt = await self.submit(user_id, message_id, message_data.encode())
        return receipt.queue_position

    async def submit(
        self,
        user_id: str,
        message_id: str,
        data: bytes,
        *,
        keep: Duration | None = None,
        owner: str | None = None,
    ) -> MessageReceipt:
        """Add a message as bytes; *keep* is how long its answer can be read."""
        lane = checked_name("user_id", user_id)
        await self.prepare()
        submitted = await self.engine.submit(
            MESSAGES, data, id=message_id, lane=lane, keep=keep, owner=owner
        )
        submitted.checked(refusal=MessageDiffers)
        return MessageReceipt(message_id, await self._position(submitted, lane))

    async def dequeue(self, user_id: str) -> Dequeued | None:
        """Take the user's next message; None if there is none, or if one is being processed."""
        lane = checked_name("user_id", user_id)
        await self.prepare()
        leases = await self.engine.claim(
            MESSAGES, worker=_WORKER, lease=self.PROCESSING_TTL, lane=lane
        )
        if not leases:
            return None
        self._held.hold(leases[0])
        return Dequeued(leases[0].id, leases[0].payload.decode())

    async def mark_complete(self, user_id: str, message_id: str, answer: str = "") -> None:
        """Complete a message that was dequeued here; then the user's next one can be dequeued.

        Raises LeaseLost if the lease ended and another consumer has the message, MessageNotHeld if
        it was not dequeued here. Then nothing is changed.
        """
        lease = self._held.get(message_id)
        if lease is None or lease.lane != user_id:
            raise MessageNotHeld(message_id)
        await self.engine.complete(lease, answer.encode())
        self._held.settled(message_id)

    # ── questions ────────────────────────────────────────────────────────────────────────

    async def user(self, user_id: str) -> UserQueue:
        """Read a user's queue. An unknown user has an empty queue."""
        lane = await self.engine.inspect.lane(MESSAGES, checked_name("user_id", user_id))
        current = lane.head if lane.head_state is State.LEASED else None
        return UserQueue(lane.behind + _head_waits(lane), current is not None, current)

    async def get_queue_length(self, user_id: str) -> int:
        """Number of the user's waiting messages, without the one that is being processed."""
        return (await self.user(user_id)).queue_length

    async def is_processing(self, user_id: str) -> bool:
        return (await self.user(user_id)).is_processing

    async def get_current_message_id(self, user_id: str) -> str | None:
        """The user's message that is being processed, or None."""
        return (await self.user(user_id)).current_message_id

    async def load(self) -> MessagesLoad:
        """Count the users with waiting messages, and the messages that are being processed."""
        counts = await self.engine.inspect.counts(MESSAGES)
        if counts.leased == 0 or counts.lanes == 0:
            return MessagesLoad(counts.lanes, counts.leased)
        return MessagesLoad(await self.engine.inspect.lanes_waiting(MESSAGES), counts.leased)

    async def get_active_queue_count(self) -> int:
        """Number of users with a waiting message."""
        return (await self.load()).active_queues

    async def get_processing_count(self) -> int:
        """Number of messages that are being processed."""
        return (await self.load()).messages_processing

    async def ping(self) -> bool:
        """Whether Redis answers."""
        try:
            await self.engine.inspect.counts(MESSAGES)
        except ServerError:
            return False
        return True

    async def place(self, user_id: str, message_id: str) -> int:
        """Returns the position of a message in its user's queue; 0 if it does not wait."""
        lane = await self.engine.inspect.lane(MESSAGES, user_id, job=message_id)
        if lane.head == message_id:
            return _head_waits(lane)
        return 0 if lane.before is None else lane.before + 1 + _head_waits(lane)

    # ── internals ────────────────────────────────────────────────────────────────────────

    async def prepare(self) -> None:
        """Introduce the queues, once. Options that were set before stay."""
        for queue, options in QUEUES.items():
            await self.engine.queues.introduce(queue, options)

    async def _position(self, submitted: Submitted, user_id: str) -> int:
        """Returns the position of a submitted message. Takes a round trip only if it is behind
        others.
        """
        if submitted.state is not State.WAITING:
            return int(submitted.state in _WAITS)
        place = await self.place(user_id, submitted.id)
        # A new message may have been claimed meanwhile; then it was the next one.
        return place if submitted.existed else max(place, 1)


def _head_waits(lane: Lane) -> int:
    """Returns 1 if the head of the lane waits, too, else 0."""
    return int(lane.head_state in _WAITS)
