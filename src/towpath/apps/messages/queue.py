"""The queue of messages: first in, first out per user, one in process per user."""

from __future__ import annotations

import asyncio
import uuid
from itertools import islice
from typing import NamedTuple

from towpath.apps.messages.errors import MessageDiffers, MessageNotHeld
from towpath.apps.messages.model import (
    CALLBACK_OPTIONS,
    CALLBACKS,
    MESSAGE_OPTIONS,
    MESSAGES,
    PROCESSING_TTL,
    Load,
    Receipt,
    UserQueue,
    checked_name,
)
from towpath.clock import Duration, duration_ms
from towpath.engine.engine import Engine
from towpath.engine.inspect import Lane
from towpath.engine.model import Lease, Submitted
from towpath.engine.options import QueueOptions
from towpath.engine.states import State
from towpath.errors import QueueDiffers, ServerError

_WORKER = "dequeue"
_FORGET_MOST = 2
"""More than come in, so that leases nobody completed do not pile up: the oldest are first."""
_WAITS = {State.READY, State.DELAYED, State.WAITING}


class Dequeued(NamedTuple):
    """A message in the caller's hands, for PROCESSING_TTL."""

    message_id: str
    message_data: str


class MessageQueue:
    """A queue per user. Each answer is one round trip; nothing is scanned for.

    What is dequeued and not completed within PROCESSING_TTL comes back, at its old place.
    """

    PROCESSING_TTL = PROCESSING_TTL

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._held: dict[str, Lease] = {}
        self._preparing: asyncio.Task[None] | None = None
        self._is_prepared = False

    @staticmethod
    def generate_message_id() -> str:
        return str(uuid.uuid4())

    # ── a message's life ─────────────────────────────────────────────────────────────────

    async def enqueue(self, user_id: str, message_id: str, message_data: str) -> int:
        """Put a message behind the user's others; its position, 1 = the next.

        The same *message_id* again adds nothing. Raises MessageDiffers if it came with other
        data, InvalidName, and what `Engine.submit` raises.
        """
        receipt = await self.submit(user_id, message_id, message_data.encode())
        return receipt.queue_position

    async def submit(
        self, user_id: str, message_id: str, data: bytes, *, keep: Duration | None = None
    ) -> Receipt:
        """The same for bytes; *keep* says how long the answer stays."""
        lane = checked_name("user_id", user_id)
        await self.prepare()
        submitted = await self.engine.submit(MESSAGES, data, id=message_id, lane=lane, keep=keep)
        if submitted.same_payload is False:
            raise MessageDiffers(message_id)
        return Receipt(message_id, await self._position(submitted, lane))

    async def dequeue(self, user_id: str) -> Dequeued | None:
        """The user's next message; None if there is none, or one is in process."""
        lane = checked_name("user_id", user_id)
        await self.prepare()
        leases = await self.engine.claim(
            MESSAGES, worker=_WORKER, lease=self.PROCESSING_TTL, lane=lane
        )
        if not leases:
            return None
        self._hold(leases[0])
        return Dequeued(leases[0].id, leases[0].payload.decode())

    async def mark_complete(self, user_id: str, message_id: str, answer: str = "") -> None:
        """End a message that was dequeued here; the user's next one can be dequeued.

        Raises LeaseLost if it took too long and is in other hands, MessageNotHeld if it was never
        in these. Nothing is changed then.
        """
        lease = self._held.get(message_id)
        if lease is None or lease.lane != user_id:
            raise MessageNotHeld(message_id)
        await self.engine.complete(lease, answer.encode())
        self._held.pop(message_id, None)

    # ── questions ────────────────────────────────────────────────────────────────────────

    async def user(self, user_id: str) -> UserQueue:
        """One user's queue. A user that nobody knows has an empty one."""
        lane = await self.engine.lane(MESSAGES, checked_name("user_id", user_id))
        current = lane.head if lane.head_state is State.LEASED else None
        return UserQueue(lane.behind + _head_waits(lane), current)

    async def get_queue_length(self, user_id: str) -> int:
        """How many of the user's messages wait; the one in process does not."""
        return (await self.user(user_id)).queue_length

    async def is_processing(self, user_id: str) -> bool:
        return (await self.user(user_id)).is_processing

    async def get_current_message_id(self, user_id: str) -> str | None:
        """The user's message in process."""
        return (await self.user(user_id)).current_message_id

    async def load(self) -> Load:
        """All users' queues in two numbers."""
        counts = await self.engine.counts(MESSAGES)
        if counts.leased == 0 or counts.lanes == 0:
            return Load(counts.lanes, counts.leased)
        return Load(await self.engine.lanes_waiting(MESSAGES), counts.leased)

    async def get_active_queue_count(self) -> int:
        """Users with a message that waits."""
        return (await self.load()).active_queues

    async def get_processing_count(self) -> int:
        """Messages in process."""
        return (await self.load()).messages_processing

    async def ping(self) -> bool:
        """Whether the store answers."""
        try:
            await self.engine.counts(MESSAGES)
        except ServerError:
            return False
        return True

    async def place(self, user_id: str, message_id: str) -> int:
        """The position of a message behind its user's head; 0 if it is not there any more."""
        lane = await self.engine.lane(MESSAGES, user_id, job=message_id)
        if lane.head == message_id:
            return _head_waits(lane)
        return 0 if lane.before is None else lane.before + 1 + _head_waits(lane)

    # ── how it is done ───────────────────────────────────────────────────────────────────

    async def prepare(self) -> None:
        """Introduce the queues, once. Options that somebody chose before stay."""
        if self._is_prepared:
            return
        task = self._preparing
        if task is None or task.done():
            task = self._preparing = asyncio.create_task(self._introduce())
        await asyncio.shield(task)  # all who come at once share it; none of them may end it

    async def _introduce(self) -> None:
        for queue, options in ((MESSAGES, MESSAGE_OPTIONS), (CALLBACKS, CALLBACK_OPTIONS)):
            await _configure(self.engine, queue, options)
        self._is_prepared = True

    async def _position(self, submitted: Submitted, user_id: str) -> int:
        """Where a message is that was just submitted. Only one behind others costs a look."""
        if submitted.state is not State.WAITING:
            return int(submitted.state in _WAITS)
        place = await self.place(user_id, submitted.id)
        # A new one may have moved on before the look: it was the next at least.
        return place if submitted.existed else max(place, 1)

    def _hold(self, lease: Lease) -> None:
        """Remember a lease for its completion, and forget those that have ended meanwhile."""
        now_ms = lease.expires_ms - duration_ms("lease", self.PROCESSING_TTL)
        for held in list(islice(self._held.values(), _FORGET_MOST)):
            if held.expires_ms <= now_ms:
                del self._held[held.id]
        self._held.pop(lease.id, None)
        self._held[lease.id] = lease


def _head_waits(lane: Lane) -> int:
    """1 if the head of the lane is a message that waits, too."""
    return int(lane.head_state in _WAITS)


async def _configure(engine: Engine, queue: str, options: QueueOptions) -> None:
    try:
        await engine.configure(queue, options)
    except QueueDiffers:
        # Defaults are nobody's choice: somebody claimed before the first message came. Whoever
        # chose something else knows why.
        await engine.change_options(
            queue, lambda chosen: options if chosen == QueueOptions() else chosen
        )
