"""Callbacks: each answer is sent to the message's URL, by a job of its own.

A message with a callback has two jobs. The sentry is submitted before the message. It checks from
time to time whether the message has ended, and then submits the delivery. That is enough, even
after a crash. To save the wait, the process that accepted the message watches it as well, and
submits the same delivery (under the same id, so it is one job) at once.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Unpack

import msgspec

from towpath.apps.messages.model import CALLBACK_OPTIONS, CALLBACKS, MESSAGES
from towpath.calls.errors import CallRefused
from towpath.calls.guard import Guard
from towpath.clock import seconds
from towpath.engine.engine import Engine
from towpath.engine.events import ENDS, Watch
from towpath.engine.model import JobOptions, job_ref
from towpath.errors import InvalidOption, JobError, JobNotWaiting, QueueHasNoEvents, ServerError
from towpath.supervise import Background

SENTRY, DELIVERY = "sentry", "delivery"
"""The handlers of the two jobs."""
FIRST_CHECK = seconds(30)
MOST_WATCHED = 100_000
"""Maximum number of messages that a process watches; further ones are left to their sentries."""


class Callback(msgspec.Struct, frozen=True):
    """The payload of both jobs. URL and answer are read from the message."""

    message_id: str


def sentry_id(message_id: str) -> str:
    return f"{message_id}.{SENTRY}"


def check_callback_url(url: str, guard: Guard) -> None:
    """Raises InvalidOption if *url* can't be called. The error does not repeat the URL."""
    try:
        guard.target(url)
    except CallRefused as refused:
        raise InvalidOption("callback_url", "…", rule=refused.reason) from None


async def submit_sentry(engine: Engine, message_id: str) -> None:
    await _submit(
        engine,
        msgspec.json.encode(Callback(message_id)),
        id=sentry_id(message_id),
        delay=FIRST_CHECK,
        headers={"handler": SENTRY},
    )


async def submit_delivery(engine: Engine, message_id: str) -> None:
    """Submit the delivery of a message that has ended. A repeat has no effect."""
    await _submit(
        engine,
        msgspec.json.encode(Callback(message_id)),
        id=message_id,
        headers={"handler": DELIVERY},
        max_attempts=CALLBACK_OPTIONS.max_attempts,
        retry=CALLBACK_OPTIONS.retry,
    )


async def _submit(engine: Engine, payload: bytes, **options: Unpack[JobOptions]) -> None:
    """Submit a job. A job with other content under its id is not ours, and is replaced."""
    submitted = await engine.submit(CALLBACKS, payload, **options)
    if submitted.same_payload is False:
        with suppress(JobNotWaiting):
            await engine.set(CALLBACKS, payload, **options)


class PromptDeliveries:
    """Watches the messages that this process accepted, and submits their deliveries as soon as they
    have ended.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._watch: Watch | None = None
        self._ready = asyncio.Event()
        """Set once messages are watched, or can't be watched."""
        self._running = Background("prompter of callbacks", self._run)

    async def expect(self, message_id: str) -> None:
        """Watch a message that is about to be submitted."""
        if not self._running.running:
            self._ready.clear()
            self._running.start()
        await self._ready.wait()
        if self._watch is not None:
            self._watch.add(message_id)
            self._watch.keep_newest(MOST_WATCHED)

    async def close(self) -> None:
        await self._running.stop()

    async def _run(self) -> None:
        try:
            # If the queue can't be watched, the sentries do the work.
            with suppress(ServerError, QueueHasNoEvents):
                async with self._engine.events.watch(MESSAGES, ENDS - {"delete"}) as watch:
                    self._watch = watch
                    self._ready.set()
                    while True:
                        # After a loss of events, `change` returns all messages, also open ones.
                        # Their deliveries would only poll.
                        for id in await self._find_ended(await watch.change()):
                            watch.drop(id)
                            await self._submit_delivery(id)
            self._running.retire()  # until `expect` starts it again
        finally:
            self._watch = None
            self._ready.set()

    async def _find_ended(self, message_ids: set[str]) -> list[str]:
        """Returns the messages that have ended; none while Redis is unreachable, as the sentries
        then submit the deliveries.
        """
        try:
            return await self._engine.events.find_ended(MESSAGES, message_ids)
        except ServerError:
            return []

    async def _submit_delivery(self, message_id: str) -> None:
        # If this fails, the sentry submits the delivery later.
        with suppress(ServerError):
            await submit_delivery(self._engine, message_id)
            with suppress(JobError):
                await self._engine.cancel(job_ref(CALLBACKS, sentry_id(message_id)))
