"""Jobs that a worker cannot run: it lacks the handler, or has it for another payload type.

In a rolling deploy such a job belongs to workers of another release, so it is given back with a
delay. It is dead only after `unhandled_for`, and only if no live worker can run it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from random import randrange
from typing import Any

from towpath.clock import Duration, format_duration, milliseconds, seconds, steady
from towpath.engine.engine import Engine
from towpath.engine.explain import HANDLER_MISSING, spell_handler
from towpath.engine.model import Bury, Lease, Release, Settlement
from towpath.engine.worker_registry import WorkerSurvey
from towpath.errors import TowpathError
from towpath.ids import QueueName
from towpath.worker.attempt import Attempt
from towpath.worker.handler import Handler

SHORTEST, LONGEST = seconds(1), seconds(30)
"""The delay of such a job doubles with each release, between these two."""
SOON_PER_SECOND = 100
"""Jobs per queue and second that get this delay. Further ones get one from `_LATE_MS`, so that many
such jobs take little of a worker's time."""
_LATE_MS = 16_000, 30_000
_SURVEY_LASTS = 1.0
"""Seconds in which the list of live workers is not read again."""


class UnhandledJobs:
    """Decides what becomes of the jobs that the worker *worker* cannot run."""

    def __init__(self, engine: Engine, *, worker: str, unhandled_for: Duration) -> None:
        self._worker, self._unhandled_for = worker, unhandled_for
        self._live = _SurveyCache(engine)
        self._budgets: dict[QueueName, _Budget] = {}

    def forget(self, queue: QueueName) -> None:
        """Forget what was counted for a queue that is no longer served."""
        self._budgets.pop(queue, None)

    def is_due(self, lease: Lease) -> bool:
        """Whether no worker could run the job for `unhandled_for`, so that it may be dead."""
        return _age(lease) >= self._unhandled_for

    def give_back(self, lease: Lease, why: str = HANDLER_MISSING, *, anew: bool = False) -> Release:
        """Returns a Release that leaves the job to other workers. The attempt does not count."""
        if self._budgets.setdefault(lease.queue, _Budget()).spend():
            age = seconds(0) if anew else _age(lease)
            delay = min(
                age + SHORTEST, LONGEST
            )  # the age is the sum of the delays, so this doubles the delay
        else:
            # At a full second, as other such jobs: the exchanges in between are short then.
            late = lease.claimed_ms + randrange(*_LATE_MS)  # noqa: S311 -- jitter
            delay = milliseconds(late - late % 1000 - lease.claimed_ms)
        return Release(lease, delay, why, anew)

    async def settle_missing(
        self, attempt: Attempt, known: Iterable[Handler[Any, Any, Any]]
    ) -> Settlement:
        """Bury a job whose handler no live worker has; give it back if one may have it."""
        lease, wanted = attempt.lease, attempt.lease.headers.get("handler")
        survey = await self._live.read()
        if survey is None:
            return self.give_back(lease)
        if survey.may_handle(lease.queue, wanted, besides=self._worker):
            # With *anew*, a restart of the only worker that has the handler makes no job dead.
            return self.give_back(lease, anew=True)
        names = [handler.named or f"{handler.name} (without a name)" for handler in known]
        have = ", ".join(names) or "none"
        text = f"the job asks for {spell_handler(wanted)}; this worker has: {have}"
        ago = f"no live worker has it, for {format_duration(_age(lease))}"
        return Bury(lease, f"{HANDLER_MISSING}: {text}; {ago}")

    async def settle_unfit(self, attempt: Attempt, bury: Bury) -> Settlement:
        """*bury*, unless a live worker may have the handler for another payload type."""
        lease, handler = bury.lease, attempt.handler
        digest = handler.digest if handler else ""
        wanted = lease.headers.get("handler")
        survey = await self._live.read()
        if survey is None:
            return self.give_back(lease, bury.reason)
        if survey.may_handle(lease.queue, wanted, besides=self._worker, but=digest):
            return self.give_back(lease, bury.reason, anew=self.is_due(lease))
        if lease.unhandled and not self.is_due(lease):
            return self.give_back(lease, bury.reason)
        return bury


def _age(lease: Lease) -> Duration:
    """How long no worker could run the job, at its claim."""
    since = lease.unhandled_since_ms
    return milliseconds(max(lease.claimed_ms - since, 0)) if since else seconds(0)


class _Budget:
    """Counts the jobs of a queue that may come back soon, second by second."""

    __slots__ = ("_left", "_second")

    def __init__(self) -> None:
        self._second, self._left = -1, 0

    def spend(self) -> bool:
        """Whether one more job may come back soon."""
        if (second := int(steady())) != self._second:
            self._second, self._left = second, SOON_PER_SECOND
        self._left -= 1
        return self._left >= 0


class _SurveyCache:
    """The list of live workers, read at most once a second."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._read_at = float("-inf")
        self._survey: WorkerSurvey | None = None
        self._reading = asyncio.Lock()

    async def read(self) -> WorkerSurvey | None:
        """The list, at most a second old; None if Redis does not answer."""
        async with self._reading:
            if steady() - self._read_at >= _SURVEY_LASTS:
                try:
                    self._survey = await self._engine.workers.survey()
                except TowpathError:
                    self._survey = None
                self._read_at = steady()
            return self._survey
