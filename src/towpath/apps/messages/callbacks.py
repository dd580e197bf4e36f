"""Callbacks: each answer is sent to the message's URL, by a job of its own.

Two jobs per message. The sentry is submitted before the message: it looks from time to time whether
the message has ended, and then submits the delivery. That alone is enough, after any crash. So that
nobody waits for the sentry, the process that took the message in also watches it, and submits the
same delivery (one id, one job) at once.
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
FIRST_LOOK = seconds(30)
WATCHED_MOST = 100_000
"""More messages than this are left to their sentries."""


class Callback(msgspec.Struct, frozen=True):
    """The payload of both jobs. Where to deliver and what is in the message itself."""

    message_id: str


def sentry_id(message_id: str) -> str:
    return f"{message_id}.{SENTRY}"


def check_callback_url(url: str, guard: Guard) -> None:
    """Raises InvalidOption, which does not repeat the URL, for one that could not be called."""
    try:
        guard.target(url)
    except CallRefused as refused:
        raise InvalidOption("callback_url", "…", rule=refused.reason) from None


async def submit_sentry(engine: Engine, message_id: str) -> None:
    await _submit(
        engine,
        msgspec.json.encode(Callback(message_id)),
        id=sentry_id(message_id),
        delay=FIRST_LOOK,
        headers={"handler": SENTRY},
    )


async def submit_delivery(engine: Engine, message_id: str) -> None:
    """Deliver the answer of a message that has ended; asked for twice it happens once."""
    await _submit(
        engine,
        msgspec.json.encode(Callback(message_id)),
        id=message_id,
        headers={"handler": DELIVERY},
        max_attempts=CALLBACK_OPTIONS.max_attempts,
        retry=CALLBACK_OPTIONS.retry,
    )


async def _submit(engine: Engine, payload: bytes, **options: Unpack[JobOptions]) -> None:
    """Submits the job. A job of other content under its id is somebody else's, and is replaced."""
    submitted = await engine.submit(CALLBACKS, payload, **options)
    if submitted.same_payload is False:
        with suppress(JobNotWaiting):
            await engine.set(CALLBACKS, payload, **options)


class Prompter:
    """Submits the delivery as soon as a message ends that this process took in."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._watch: Watch | None = None
        self._ready = asyncio.Event()
        """Whether it watches, or can't."""
        self._running = Background("prompter of callbacks", self._run)

    async def expect(self, message_id: str) -> None:
        """Watch a message that is about to be submitted."""
        if not self._running.running:
            self._ready.clear()
            self._running.start()
        await self._ready.wait()
        if self._watch is not None:
            self._watch.add(message_id)
            self._watch.keep_newest(WATCHED_MOST)

    async def close(self) -> None:
        await self._running.stop()

    async def _run(self) -> None:
        try:
            # What can't be watched is left to the sentries.
            with suppress(ServerError, QueueHasNoEvents):
                async with self._engine.events.watch(MESSAGES, ENDS - {"delete"}) as watch:
                    self._watch = watch
                    self._ready.set()
                    while True:
                        # After a loss all are named: a delivery of an open message would poll.
                        for id in await self._find_ended(await watch.change()):
                            watch.drop(id)
                            await self._prompt(id)
            self._running.retire()  # until the next message comes
        finally:
            self._watch = None
            self._ready.set()

    async def _find_ended(self, message_ids: set[str]) -> list[str]:
        """Those that have ended. While Redis is away, none: they are left to the sentries."""
        try:
            return await self._engine.events.find_ended(MESSAGES, message_ids)
        except ServerError:
            return []

    async def _prompt(self, message_id: str) -> None:
        # What does not work here, the sentry does later.
        with suppress(ServerError):
            await submit_delivery(self._engine, message_id)
            with suppress(JobError):
                await self._engine.cancel(job_ref(CALLBACKS, sentry_id(message_id)))
