"""Attempts at jobs with a record: the row is asked before an attempt, and told after it.

Before its handler runs, an attempt begins in the row; before the server hears how it ended, the
row does. So what Redis forgets, the row knows, and what the row says has ended is not run again.
`Registry` is what a worker needs to know of its app, its records among that.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from random import uniform
from typing import TYPE_CHECKING, Any, Protocol, Self

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
from towpath.worker.settlements import plan_next_try, reason_of, stopped

if TYPE_CHECKING:
    from towpath.telemetry.metrics import Metrics

_AWAY = seconds(1)
"""How long a job waits for a database that does not answer."""
_LONGEST_BACKOFF = 5.0
SKIPPED = "RecordEnded"
"""Instead of what a handler raised: the row let none begin."""

Run = Callable[[Attempt], Awaitable[Settlement | None]]


class Recorder(Protocol):
    """Where records are kept. Both raise a TowpathError if that can't be reached."""

    async def begin(self, lease: Lease, *, most: int = ATTEMPTS) -> Lease | Settlement | None:
        """The lease with what the record says, or what to tell the server instead of running.

        *most* is the limit of attempts if the record sets none.
        """
        ...

    async def end(
        self, lease: Lease, settlement: Settlement, *, cancelled: bool
    ) -> Settlement | None:
        """What to tell the server, now that the record knows; None = another attempt has begun."""
        ...


class RecordedRuns:
    """Runs attempts with their records around them."""

    def __init__(self, recorder: Recorder, engine: Engine, log: Log, run: Run) -> None:
        self._recorder, self._engine, self._log, self._run = recorder, engine, log, run

    async def run(self, attempt: Attempt) -> Settlement | None:
        """What the attempt ended as, by its record; None if there is nothing left to settle."""
        attempt.deadline = math.inf  # the handler's time begins when the row has let it begin
        try:
            most = await self._limit(attempt)
            begun = await self._recorder.begin(attempt.lease, most=most)
            if not isinstance(begun, Lease):
                attempt.error = SKIPPED
                return begun
            attempt.lease = begun
        except asyncio.CancelledError:
            return stopped(attempt)
        except TowpathError as error:
            self._say(attempt, error)
            return Release(attempt.lease, _AWAY)
        attempt.begin()
        settlement = await self._run(attempt)
        if settlement is None or isinstance(settlement, Renew):
            return settlement  # handed over: the row runs on under its token
        attempt.deadline = math.inf  # the handler has ended: from here on only the row counts
        try:
            return await self._written(attempt, await self._explicit(attempt, settlement))
        except asyncio.CancelledError:
            # The row may know or not. Whoever gets the job next asks it.
            return None if attempt.stop is StopReason.LOST else Release(attempt.lease)

    async def _limit(self, attempt: Attempt) -> int:
        """The limit of attempts if the record sets none: the row counts them, not Redis."""
        if attempt.handler and attempt.handler.options.max_attempts is not None:
            return attempt.handler.options.max_attempts
        options = await self._engine.queues.known_options(attempt.lease.queue)
        return options.attempts_of(attempt.lease.lane)

    async def _explicit(self, attempt: Attempt, settlement: Settlement) -> Settlement:
        """The same with the wait before the next attempt, which the server would choose by its
        own count.
        """
        options = await self._engine.queues.known_options(attempt.lease.queue)
        return plan_next_try(attempt, settlement, options)

    async def _written(self, attempt: Attempt, settlement: Settlement) -> Settlement | None:
        """Tell the record, until it answers or somebody ends the attempt."""
        cancelled, tries = attempt.stop is StopReason.CANCELLED, 0
        while True:
            try:
                return await self._recorder.end(attempt.lease, settlement, cancelled=cancelled)
            except TowpathError as error:
                self._say(attempt, error)
                if error.retry is not RetryAdvice.LATER:
                    return Fail(attempt.lease, reason_of(error), _AWAY)
            wait = min(0.1 * 2 ** min(tries, 10), _LONGEST_BACKOFF)
            await asyncio.sleep(wait * uniform(0.5, 1))  # noqa: S311 -- jitter
            tries += 1

    def _say(self, attempt: Attempt, error: TowpathError) -> None:
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
    """What others see of a worker that they run something beside."""

    @property
    def name(self) -> str: ...

    @property
    def log(self) -> Log: ...

    @property
    def weights(self) -> Mapping[QueueName, int]:
        """The queues that it serves, with their weights."""
        ...


class Registry(Protocol):
    """An app: handlers, and the way to the server."""

    version: str
    middleware: tuple[AttemptMiddleware, ...]

    @property
    def metrics(self) -> Metrics:
        """What the process counts of the app's jobs."""
        ...

    def followed(self, changed: Callable[[], None]) -> AbstractContextManager[None]:
        """Call *changed* after each change of the handlers, in the thread that made it, until the
        end of the block.
        """
        ...

    @property
    def handlers(self) -> Sequence[Handler[Any, Any, Any]]:
        """All of them."""
        ...

    @property
    def engine(self) -> Engine:
        """The app's own, while it is entered."""
        ...

    def new_engine(self, limits: Limits | None = None) -> Engine:
        """Another way to the same server, for another thread."""
        ...

    @property
    def recorder(self) -> Recorder:
        """Where records are kept, for handlers that have them."""
        ...

    async def ledger_id(self) -> str | None:
        """The id of the database with the records; None if it has none. Raises TowpathError."""
        ...

    async def keep_firing(self, queues: Container[str], log: Log) -> None:
        """Fire the schedules of *queues*, as these are at the time, until cancelled."""
        ...

    async def fire_due(self, queues: Container[str], log: Log) -> None:
        """Fire those of them that are due now."""
        ...

    def living(self) -> AbstractAsyncContextManager[Any]:
        """What handlers share in this process, while it runs jobs. Raises LifespanFailed."""
        ...

    def around(self, worker: AtWork) -> AbstractAsyncContextManager[None]:
        """What runs while *worker* does, on the app's own connection."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...
