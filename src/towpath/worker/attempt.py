"""One attempt: a job that this process has leased, from its claim to its settlement."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from contextlib import suppress
from contextvars import ContextVar
from enum import StrEnum
from typing import Any, NamedTuple

from towpath.clock import steady
from towpath.engine.engine import Engine
from towpath.engine.model import Lease, Outcome, Settlement
from towpath.errors import TowpathError
from towpath.supervise import detached
from towpath.worker.context import Context
from towpath.worker.handler import Handler

LONGEST_BEAT = 5.0
"""Longest time between two renewals, in seconds. A renewal tells the worker that a job was
cancelled, so a long lease must not delay that."""


class StopReason(StrEnum):
    """Why an attempt has to end before its handler does."""

    CANCELLED = "cancelled"
    """The job was cancelled."""
    LOST = "lost"
    """Another worker has the job, or it is gone."""
    TIMED_OUT = "timed_out"
    """It exceeded the handler's time limit."""
    STOPPING = "stopping"
    """The worker stops."""
    REMOVED = "removed"
    """Its handler was removed before the claim was answered."""
    CROWDED = "crowded"
    """Its claim was answered late, when its slot had been lent to another queue."""


class Attempt:
    """What this process knows of a job that it runs."""

    __slots__ = (
        "ctx",
        "deadline",
        "ended",
        "entered",
        "error",
        "handler",
        "is_unfit",
        "lease",
        "most",
        "note",
        "noting",
        "over",
        "raised",
        "renew_at",
        "reported_stop",
        "started",
        "stop",
        "stopped_at",
        "taken",
        "taken_ms",
        "task",
        "ttl",
    )  # fmt: skip

    def __init__(
        self,
        lease: Lease,
        handler: Handler[Any, Any, Any] | None,
        *,
        since: float,
        now_ms: int,
    ) -> None:
        now = steady()
        self.lease, self.handler = lease, handler
        self.taken = self.started = now
        self.taken_ms = now_ms
        """Redis's clock at *taken*: later than *claimed_ms* if the claim was answered late."""
        self.ttl: float = (lease.expires_ms - lease.claimed_ms) / 1000
        """Seconds by which a renewal extends the lease: as long as the claim's own lease."""
        # Counted from when the claim was sent, because the answer may have taken long.
        self.renew_at = since + self.beat
        self.deadline = math.inf
        """When the time limit ends the attempt. There is no limit before the handler begins."""
        self.entered = False
        """Whether its task has run at all: another task may block the loop."""
        self.ctx: Context | None = None
        self.task: asyncio.Task[None] | None = None
        self.note: bytes | None = None
        """The latest progress note that is not sent yet."""
        self.noting: asyncio.Task[None] | None = None
        self.stop: StopReason | None = None
        self.stopped_at = 0.0
        self.most: int | None = None
        """Maximum number of attempts of the job; set when an attempt has failed."""
        self.ended = 0.0
        self.over = False
        """The settlement is decided; the lease is not renewed any more."""
        self.error = ""
        """The class name of the error that ended the attempt."""
        self.is_unfit = False
        """Whether the payload does not fit the handler. Then the handler was not called."""
        self.raised: BaseException | None = None
        """The error itself, if its message and traceback may be logged."""
        self.reported_stop: StopReason | None = None
        """The stop reason that was logged and counted already."""

    def begin(self) -> None:
        """Start the clock of the handler's time limit."""
        self.started = steady()
        self.deadline = self.started + (self.handler.time_limit_s if self.handler else self.ttl)

    @property
    def handler_name(self) -> str:
        return self.handler.name if self.handler else self.lease.headers.get("handler", "")

    @property
    def ran(self) -> float:
        """Seconds from its start to its end, or to now."""
        return (self.ended or steady()) - self.started

    @property
    def held(self) -> float:
        """Seconds from the moment it was taken to its end, or to now."""
        return (self.ended or steady()) - self.taken

    @property
    def beat(self) -> float:
        """Seconds between renewals, short enough that one renewal may be lost."""
        return min(self.ttl / 3, LONGEST_BEAT)

    @property
    def renewed_at(self) -> float:
        """When the claim, or the last renewal that succeeded, was sent."""
        return self.renew_at - self.beat

    @property
    def waited(self) -> float:
        """Seconds from the moment the job could run to its claim, by Redis's clock."""
        lease = self.lease
        could_run = lease.next_try_ms or lease.due_ms
        return (lease.claimed_ms - max(lease.submitted_ms, could_run)) / 1000

    @property
    def idled(self) -> float:
        """Seconds from its claim to its start, by Redis's clock."""
        return (self.taken_ms - self.lease.claimed_ms) / 1000 + self.started - self.taken


class SettledAttempt(NamedTuple):
    """An attempt whose settlement Redis has answered."""

    attempt: Attempt
    settlement: Settlement
    outcome: Outcome
    """The new state of the job, the renewed lease, or why Redis refused the settlement."""


ATTEMPT_TASK: ContextVar[asyncio.Task[None] | None] = ContextVar("towpath_attempt_task")
"""The task of the attempt that a task belongs to: tasks that a handler starts inherit it."""


def attempt_of(task: asyncio.Task[Any] | None, held: Sequence[Attempt]) -> Attempt | None:
    """The attempt of *held* that *task* belongs to, or None. From any thread.

    Before Python 3.12 a task does not show its context, so that tasks which a handler started are
    not recognised.
    """
    if task is None:
        return None
    context = getattr(task, "get_context", None)
    own = context().get(ATTEMPT_TASK) if context is not None else None
    return next((attempt for attempt in held if attempt.task in (task, own or task)), None)


class ProgressNotes:
    """Sends the progress notes of handlers: one at a time per attempt, always the latest."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()

    def send(self, attempt: Attempt, note: bytes) -> None:
        """Send *note* soon. From any thread; returns at once."""
        self._loop.call_soon_threadsafe(self._queue_note, attempt, note)

    async def sent(self, attempt: Attempt) -> None:
        """Return when all notes of *attempt* are sent."""
        # A note from a thread or from the handler's last step is still in the loop's queue.
        await asyncio.sleep(0)
        if attempt.noting is not None:
            await asyncio.wait((attempt.noting,))

    def _queue_note(self, attempt: Attempt, note: bytes) -> None:
        attempt.note = note
        if attempt.noting is None and not attempt.over:
            attempt.noting = detached("progress of a job", self._deliver(attempt))

    async def _deliver(self, attempt: Attempt) -> None:
        # A note that is refused or lost does not end the attempt; only its lease decides that.
        try:
            with suppress(TowpathError):
                while (note := attempt.note) is not None:
                    attempt.note = None
                    await self._engine.progress(attempt.lease, note)
        finally:
            attempt.noting = None
