"""The service of messages: send, read, wait for the answer, cancel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from itertools import takewhile
from typing import TYPE_CHECKING, Self

from towpath.apps.application import Host
from towpath.apps.messages.callbacks import PromptDeliveries, check_callback_url, submit_sentry
from towpath.apps.messages.model import (
    KEEP_FOR_CALLBACK,
    MESSAGES,
    STATES,
    Message,
    MessageReceipt,
    MessagesLoad,
    MessageState,
    MessageView,
    UserQueue,
    message_ref,
)
from towpath.apps.messages.options import MessagesOptions
from towpath.apps.messages.queue import MessageQueue
from towpath.apps.owners import ALL, Access, access_of
from towpath.calls.guard import Guard
from towpath.clock import seconds
from towpath.engine.engine import Engine
from towpath.engine.events import Watch
from towpath.engine.model import JobInfo
from towpath.engine.states import State
from towpath.errors import (
    InvalidOption,
    JobNotFound,
    PayloadTooLarge,
    QueueHasNoEvents,
    ServerError,
)

if TYPE_CHECKING:
    from towpath.ledger.keys.key import KeyInfo

_READ_EVERY = seconds(20)
"""How often a watched message is read without an event: estimates change, leases end silently."""
_MOST_AHEAD = 100
"""Maximum number of messages ahead that are watched for changes of the position."""
_RETRY_EVERY_S = 1.0
"""Seconds between two tries while Redis is away."""


class Messages:
    """The messages on one Redis. Use it as a context manager: it watches messages with a callback
    until it is left.
    """

    def __init__(self, engine: Engine, options: MessagesOptions) -> None:
        self._engine, self._options = engine, options
        self._guard = Guard(options.allow)
        self._deliveries = PromptDeliveries(engine)
        self.queue = MessageQueue(engine)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._deliveries.close()

    # ── messages ─────────────────────────────────────────────────────────────────────────

    def access(self, key: KeyInfo) -> Access:
        """Returns the rights of *key*."""
        return access_of(key, shared=self._options.shared)

    async def send(self, message: Message, access: Access = ALL) -> MessageReceipt:
        """Add a message to its user's queue. The same client_message_id again adds nothing.

        Raises MessageDiffers for other content under the same id, InvalidOption for a callback
        that can't be made, PayloadTooLarge, QueueFull, and the errors of Redis.
        """
        data, id = message.packed(), message.id(access.owner)
        owner = access.owner or None
        if message.callback_url is None:
            return await self.queue.submit(message.user_id, id, data, owner=owner)
        self._check_callback(message.callback_url)
        await self.queue.prepare()
        limit = await self._engine.queues.largest_payload(MESSAGES, len(data))
        if len(data) > limit:
            raise PayloadTooLarge("message", len(data), limit=limit)
        # The sentry first, so that every message with a callback has one.
        await submit_sentry(self._engine, id)
        await self._deliveries.expect(id)
        return await self.queue.submit(
            message.user_id, id, data, keep=KEEP_FOR_CALLBACK, owner=owner
        )

    async def cancel(self, message_id: str, access: Access = ALL) -> MessageState:
        """Cancel a message. Returns CANCELLED, or PROCESSING if its consumer was asked to stop.

        Raises JobNotFound; JobDone and JobDead if it has ended.
        """
        job = await self._find(message_id, access)
        return STATES[await self._engine.cancel(job.ref)]

    # ── questions ────────────────────────────────────────────────────────────────────────

    async def user(self, user_id: str, access: Access = ALL) -> UserQueue:
        """Read a user's queue; that of an unknown user is empty. Messages of all owners count, but
        the id of the one that is being processed is left out if it has another owner.
        """
        found = await self.queue.user(user_id)
        if found.current_message_id is not None and access is not ALL:
            try:
                await self._find(found.current_message_id, access)
            except JobNotFound:
                return UserQueue(found.queue_length, found.is_processing, None)
        return found

    async def load(self) -> MessagesLoad:
        """Count the users with waiting messages, and the messages that are being processed."""
        return await self.queue.load()

    async def get(self, message_id: str, access: Access = ALL) -> MessageView:
        """Read a message. Answers are kept for an hour. Raises JobNotFound."""
        view = await self._view(await self._find(message_id, access))
        # State and position are two reads: without a position, it was claimed in between.
        if view.state is MessageState.QUEUED and not view.queue_position:
            return await self._view(await self._find(message_id, access))
        return view

    async def _find(self, message_id: str, access: Access) -> JobInfo:
        """Returns the job of a message. Raises JobNotFound if it is missing or another owner's."""
        job = await self._engine.inspect.job(message_ref(message_id))
        if not access.may_use(job.owner):
            raise JobNotFound(job.ref)
        return job

    async def watch(self, message_id: str) -> AsyncGenerator[MessageView]:
        """Yields the message now and after each change, until it has ended or is deleted.

        Follows events instead of polling. Waits while Redis is away.
        """
        last: MessageView | None = None
        await self.queue.prepare()
        async with self._engine.events.watch(MESSAGES) as watch:
            ahead = _MessagesAhead(self._engine, watch, message_id)
            while True:
                try:
                    await ahead.watch_from(last)
                    view = await self.get(message_id)
                except JobNotFound:
                    return
                except ServerError:
                    await asyncio.sleep(_RETRY_EVERY_S)
                    continue
                if view != last:
                    yield view
                if view.ended:
                    return
                last = view
                # Without events, a read every 20 s finds the answer.
                with suppress(QueueHasNoEvents):
                    await watch.change(within=_READ_EVERY)

    # ── how it is done ───────────────────────────────────────────────────────────────────

    def _check_callback(self, url: str) -> None:
        if not self._options.secrets:
            rule = "this server has no secret for signing callbacks; set calls.secrets"
            raise InvalidOption("callback_url", "…", rule=rule)
        check_callback_url(url, self._guard)

    async def _view(self, job: JobInfo) -> MessageView:
        state, place, position = STATES[job.state], 0, None
        if state is MessageState.QUEUED and job.lane is not None:
            place, position = await asyncio.gather(
                self.queue.place(job.lane, job.id),
                self._engine.inspect.position(job.ref),
            )
        return MessageView(
            message_id=job.id,
            user_id=job.lane,
            state=state,
            queue_position=place,
            estimate=position.wait if position else None,
            attempts=job.attempts,
            submitted_at=job.submitted_at,
            started_at=job.claimed_at,
            ended_at=job.ended_at,
            progress=job.progress,
            answer=job.result,
            reason=job.reason,
        )


def serving(host: Host) -> Messages:
    """Returns the service for a server."""
    return Messages(host.engine, host.options)


class _MessagesAhead:
    """Watches the messages ahead of a waiting one: when one of them ends, the position changes."""

    def __init__(self, engine: Engine, watch: Watch, message_id: str) -> None:
        self._engine, self._watch, self._ref = engine, watch, message_ref(message_id)
        self._known_at: int | None = None
        """The position of the message when the messages ahead were last read."""

    async def watch_from(self, view: MessageView | None) -> None:
        """Watch the messages ahead. Read them again once half of the watched ones are gone."""
        place = view.queue_position if view else 0
        if view is not None and self._known_at is None:
            self._known_at = place
        known = self._known_at or 0
        if view is None or (known > _MOST_AHEAD and place < known - _MOST_AHEAD // 2):
            self._watch.only(await self._ids_ahead())
            self._known_at = place if view else None

    async def _ids_ahead(self) -> set[str]:
        user_id = (await self._engine.inspect.job(self._ref)).lane
        if user_id is None:
            return {self._ref.id}
        lane = await self._engine.inspect.lane(MESSAGES, user_id)
        page = await self._engine.inspect.list(
            MESSAGES, State.WAITING, lane=user_id, size=_MOST_AHEAD
        )
        ahead = takewhile(lambda id: id != self._ref.id, (job.id for job in page.jobs))
        return {self._ref.id, *ahead, *filter(None, (lane.head,))}
