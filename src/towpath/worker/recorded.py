"""Attempts at jobs with a record: the record decides before each attempt, and stores its outcome.

An attempt is written to the record before its handler runs, and its outcome before it is settled in
Redis. So a loss of Redis loses no outcome, and a job whose record has ended is not run again.
`Registry` is what a worker needs of its app; the recorder is a part of it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, Self

from towpath.backoff import Backoff
from towpath.clock import seconds
from towpath.engine.channel import Limits
from towpath.engine.engine import Engine
from towpath.engine.model import Fail, Lease, Release, Renew, Settlement
from towpath.engine.options import ATTEMPTS
from towpath.errors import RetryAdvice, TowpathError
from towpath.ids import QueueName
from towpath.telemetry.events import RECORD_UNWRITTEN
from towpath.telemetry.logs import Log
from towpath.worker.attempt import Attempt, StopReason
from towpath.worker.handler import Handler
from towpath.worker.middleware import AttemptMiddleware
from towpath.worker.settlements import plan_next_try, reason_of, settlement_for_stop

if TYPE_CHECKING:
    from towpath.telemetry.metrics import Metrics

_AWAY = seconds(1)
"""How long a job is delayed if the database does not answer."""
SKIPPED = "RecordEnded"
"""The `error` of an attempt that the record did not let begin."""

Run = Callable[[Attempt], Awaitable[Settlement | None]]


class Recorder(Protocol):
    """Writes attempts to their records. Both methods raise a TowpathError if the database can't be
    reached.
    """

    async def begin(self, lease: Lease, *, most: int = ATTEMPTS) -> Lease | Settlement | None:
        """Begin an attempt in the record. Returns the lease with the record's payload and attempt,
        or how to settle it without running; None = there is nothing to settle.

        *most* is the limit of attempts if the record sets none.
        """
        ...

    async def end(
        self, lease: Lease, settlement: Settlement, *, cancelled: bool
    ) -> Settlement | None:
        """Store the outcome in the record. Returns how to settle the lease; None = another attempt
        has begun.
        """
        ...


class RecordedRuns:
    """Runs attempts, and writes their begin and outcome to their records."""

    def __init__(self, recorder: Recorder, engine: Engine, log: Log, run: Run) -> None:
        self._recorder, self._engine, self._log, self._run = recorder, engine, log, run

    async def run(self, attempt: Attempt) -> Settlement | None:
        """Run *attempt*. Returns its settlement by its record; None = nothing is left to settle."""
        attempt.deadline = math.inf  # the time limit is for the handler, not for the database
        try:
            most = await self._limit(attempt)
            begun = await self._recorder.begin(attempt.lease, most=most)
            if not isinstance(begun, Lease):
                attempt.error = SKIPPED
                return begun
            attempt.lease = begun
        except asyncio.CancelledError:
            return settlement_for_stop(attempt)
        except TowpathError as error:
            self._log_unwritten(attempt, error)
            return Release(attempt.lease, _AWAY)
        attempt.begin()
        settlement = await self._run(attempt)
        if settlement is None or isinstance(settlement, Renew):
            return settlement  # handed over: the attempt goes on under its fencing token
        attempt.deadline = math.inf  # the time limit is for the handler, not for the database
        try:
            return await self._store_outcome(attempt, await self._with_delay(attempt, settlement))
        except asyncio.CancelledError:
            # The record may have the outcome or not; it decides at the next delivery.
            return None if attempt.stop is StopReason.LOST else Release(attempt.lease)

    async def _limit(self, attempt: Attempt) -> int:
        """Returns the limit of attempts if the record sets none. The record counts the attempts."""
        if attempt.handler and attempt.handler.options.max_attempts is not None:
            return attempt.handler.options.max_attempts
        options = await self._engine.queues.known_options(attempt.lease.queue)
        return options.attempts_of(attempt.lease.lane)

    async def _with_delay(self, attempt: Attempt, settlement: Settlement) -> Settlement:
        """Returns *settlement* with an explicit delay before the next attempt. Redis would choose
        the delay by its own count of attempts.
        """
        options = await self._engine.queues.known_options(attempt.lease.queue)
        return plan_next_try(attempt, settlement, options)

    async def _store_outcome(self, attempt: Attempt, settlement: Settlement) -> Settlement | None:
        """Store the outcome in the record; repeat until the database answers or the attempt is
        cancelled.
        """
        cancelled, backoff = attempt.stop is StopReason.CANCELLED, Backoff(0.1, 5.0, jitter=0.5)
        while True:
            try:
                return await self._recorder.end(attempt.lease, settlement, cancelled=cancelled)
            except TowpathError as error:
                self._log_unwritten(attempt, error)
                if error.retry is not RetryAdvice.LATER:
                    return Fail(attempt.lease, reason_of(error), _AWAY)
            await asyncio.sleep(backoff.next_pause())

    def _log_unwritten(self, attempt: Attempt, error: TowpathError) -> None:
        lease = attempt.lease
        self._log.emit(
            RECORD_UNWRITTEN,
            job=lease.id,
            queue=lease.queue,
            attempt=lease.attempt,
            error=type(error).__qualname__,
            reason=str(error),
        )


class AtWork(Protocol):
    """A worker, as code that runs beside it sees it."""

    @property
    def name(self) -> str: ...

    @property
    def log(self) -> Log: ...

    @property
    def weights(self) -> Mapping[QueueName, int]:
        """The queues that it serves, with their weights."""
        ...


class Registry(Protocol):
    """An app, as its workers see it: handlers, engine and records."""

    version: str
    middleware: tuple[AttemptMiddleware, ...]

    @property
    def metrics(self) -> Metrics:
        """The metrics of the app's jobs in this process."""
        ...

    def followed(self, changed: Callable[[], None]) -> AbstractContextManager[None]:
        """Call *changed* after each change of the handlers, in the thread that made it, until the
        end of the block.
        """
        ...

    @property
    def handlers(self) -> Sequence[Handler[Any, Any, Any]]:
        """All handlers of the app."""
        ...

    @property
    def engine(self) -> Engine:
        """The app's engine, while the app is entered."""
        ...

    def new_engine(self, limits: Limits | None = None) -> Engine:
        """Returns another engine for the same Redis, for use in another thread."""
        ...

    @property
    def recorder(self) -> Recorder:
        """The recorder for handlers with `record=True`."""
        ...

    async def ledger_id(self) -> str | None:
        """The id of the database with the records; None if it has none. Raises TowpathError."""
        ...

    async def keep_firing(self, queues: Container[str], log: Log) -> None:
        """Fire the schedules of *queues*, which may change at any time, until cancelled."""
        ...

    async def fire_due(self, queues: Container[str], log: Log) -> None:
        """Fire the schedules of *queues* that are due now."""
        ...

    def living(self) -> AbstractAsyncContextManager[Any]:
        """Enter the app's lifespan while the body runs jobs. Raises LifespanFailed."""
        ...

    def around(self, worker: AtWork) -> AbstractAsyncContextManager[None]:
        """Run what applications add to *worker*, on the app's engine, while the body runs."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...
