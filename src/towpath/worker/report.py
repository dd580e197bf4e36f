"""What a worker reports: outcomes of attempts as log lines and metrics, its slots and queues."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from towpath.clock import steady
from towpath.engine.explain import HANDLER_MISSING
from towpath.engine.inspect import Counts
from towpath.engine.model import Bury, Fail, Lease, Outcome, Release, Renew, Settlement
from towpath.engine.states import State
from towpath.errors import EngineClosed, JobError, LeaseLost, TowpathError
from towpath.telemetry import events
from towpath.telemetry.logs import Log
from towpath.telemetry.metrics import HandlerMetrics, Metrics, QueueReading, Reading
from towpath.worker.attempt import Attempt, StopReason
from towpath.worker.recorded import SKIPPED
from towpath.worker.settlements import server_now

if TYPE_CHECKING:
    from towpath.worker.execution import Execution
    from towpath.worker.feeder import Feeder

Ended = tuple[Attempt, Settlement]
"""An attempt that has ended, and its settlement."""
_WARN_EVERY, _WARNED_MOST = 60.0, 100
"""Seconds between two warnings about the same missing handler, and how many missing handlers are
warned of in this time."""
UNKNOWN_HANDLER = "unknown"
"""The metrics' label for missing handlers. Their names come from jobs, so there may be any number
of them."""


def was_handed_over(settlement: Settlement, outcome: Outcome) -> bool:
    """Whether the settlement handed the attempt over; the new holder may have ended it already."""
    if not isinstance(settlement, Renew):
        return False
    if isinstance(outcome, LeaseLost):
        return outcome.current <= outcome.held  # else another attempt has begun
    return isinstance(outcome, Lease | JobError)


class Report:
    """The worker's log and metrics."""

    def __init__(self, log: Log, metrics: Metrics) -> None:
        self.log, self.metrics = log, metrics
        self.completed = self.released = 0
        self._warned: dict[tuple[str, str], float] = {}

    def started(self, attempt: Attempt) -> None:
        """Count and log the start of *attempt*."""
        lease, metrics = attempt.lease, self._of(attempt)
        metrics.started.inc()
        if lease.due_ms:
            metrics.punctuality.observe(attempt.waited)
        if lease.was_silent:
            metrics.redelivered.inc()
            self.log.emit(events.JOB_REDELIVERED, **_job_fields(attempt))
        if self.log.wants(events.JOB_STARTED):
            self.log.emit(events.JOB_STARTED, **_job_fields(attempt), waited=attempt.waited)

    def settled(self, batch: Sequence[Ended], outcomes: Sequence[Outcome]) -> None:
        """Count and log the outcome of each settlement in *batch*."""
        done: dict[HandlerMetrics, list[Attempt]] = {}
        for (attempt, settlement), outcome in zip(batch, outcomes, strict=True):
            if outcome is State.DONE and attempt.error == SKIPPED:
                self.log.emit(events.JOB_SKIPPED, **_job_fields(attempt))
            elif outcome is State.DONE:
                done.setdefault(self._of(attempt), []).append(attempt)
            elif isinstance(outcome, TowpathError) and not was_handed_over(settlement, outcome):
                self._report_refused(attempt, settlement)
            else:
                self._report_end(attempt, settlement, outcome)
        for metrics, attempts in done.items():
            self._report_completed(metrics, attempts)

    def stopped(self, attempt: Attempt, why: StopReason) -> None:
        """Count and log that *attempt* has to end before its handler, once per reason. The worker's
        loop and the heartbeat may both report it.
        """
        if attempt.reported_stop is why:
            return
        attempt.reported_stop = why
        metrics = self._of(attempt)
        match why:
            case StopReason.LOST:
                metrics.lost.inc()
                self.log.emit(events.JOB_LOST, **_job_fields(attempt), ran=attempt.ran)
            case StopReason.TIMED_OUT:
                metrics.timed_out.inc()
                handler = attempt.handler
                self.log.emit(
                    events.JOB_TIMED_OUT,
                    **_job_fields(attempt),
                    ran=attempt.ran,
                    limit=handler.options.time_limit if handler else 0.0,
                    ended=_ENDED[handler.place] if handler else "",
                )
            case (
                StopReason.CANCELLED | StopReason.STOPPING | StopReason.REMOVED | StopReason.CROWDED
            ):
                pass

    # ── one kind of end each ─────────────────────────────────────────────────────────────

    def _report_completed(self, metrics: HandlerMetrics, attempts: list[Attempt]) -> None:
        self.completed += len(attempts)
        metrics.completed.inc(len(attempts))
        metrics.ran.observe_many([attempt.ran for attempt in attempts])
        metrics.waited.observe_many([attempt.waited for attempt in attempts])
        if self.log.wants(events.JOB_COMPLETED):
            self.log.emit_each(
                events.JOB_COMPLETED,
                [
                    _job_fields(attempt) | {"waited": attempt.waited, "ran": attempt.ran}
                    for attempt in attempts
                ],
            )

    def _report_refused(self, attempt: Attempt, settlement: Settlement) -> None:
        self._of(attempt).stale_refused.inc()
        verb = type(settlement).__name__.lower()
        self.log.emit(events.JOB_STALE_REFUSED, **_job_fields(attempt), verb=verb)

    def _report_end(self, attempt: Attempt, settlement: Settlement, outcome: Outcome) -> None:
        metrics, named = self._of(attempt), _job_fields(attempt)
        match settlement, outcome:
            case _, State.CANCELLED:
                metrics.cancelled.inc()
                self.log.emit(events.JOB_CANCELLED, **named, ran=attempt.ran)
            case Bury() | Fail(), State.DEAD:
                self._count_failed(metrics, attempt)
                metrics.dead.inc()
                self._report_dead(attempt, settlement.reason)
            case Fail(), _:
                self._count_failed(metrics, attempt)
                self._report_failed(attempt, settlement)
            case Release(), _ if attempt.error == "Snooze":
                metrics.snoozed.inc()
                until = server_now(attempt) + settlement.delay
                self.log.emit(events.JOB_SNOOZED, **named, ran=attempt.ran, until=until)
            case Release(unhandled=why), _ if why and attempt.error in _UNHANDLED:
                metrics.unhandled.inc()
                self._warn_unhandled(attempt, why)
            case Renew(), _:
                until = outcome.expires_at if isinstance(outcome, Lease) else server_now(attempt)
                metrics.handed_over.inc()
                self.log.emit(events.JOB_HANDED_OVER, **named, ran=attempt.ran, until=until)
            case Release(), _:
                self.released += 1
                metrics.released.inc()
                reason = _RELEASED.get(attempt.stop, "the worker stops")
                self.log.emit(events.JOB_RELEASED, **named, reason=reason)
            case _:
                pass

    def _warn_unhandled(self, attempt: Attempt, why: str) -> None:
        """Warn of a missing handler, but not for every job."""
        now, kind = steady(), (attempt.lease.queue, attempt.handler_name)
        if now - self._warned.get(kind, -inf) < _WARN_EVERY:
            return
        self._warned = {kind: at for kind, at in self._warned.items() if now - at < _WARN_EVERY}
        if len(self._warned) < _WARNED_MOST:  # bounded, as the names come from jobs
            self._warned[kind] = now
            self.log.emit(events.JOB_UNHANDLED, **_job_fields(attempt), reason=why)

    def _count_failed(self, metrics: HandlerMetrics, attempt: Attempt) -> None:
        metrics.failed.inc()
        if attempt.handler is not None:  # without one, nothing ran
            metrics.ran.observe(attempt.ran)
            metrics.waited.observe(attempt.waited)

    def _take_error(self, attempt: Attempt) -> BaseException | None:
        """Take the error from *attempt*: its frames refer to the attempt, so keeping it would be a
        reference cycle.
        """
        raised, attempt.raised = attempt.raised, None
        return raised

    def _report_dead(self, attempt: Attempt, reason: str) -> None:
        named, error = _job_fields(attempt), attempt.error
        if error == "Discard":
            self.log.emit(events.JOB_DISCARDED, **named, ran=attempt.ran, reason=reason)
        elif error in _UNFIT:
            self.log.emit(_UNFIT[error], **named, reason=reason)
        elif attempt.handler is None:
            self.log.emit(events.HANDLER_NOT_FOUND, **named)
        else:
            raised, ran = self._take_error(attempt), attempt.ran
            self.log.emit(events.JOB_DEAD, raised, **named, ran=ran, error=error, reason=reason)

    def _report_failed(self, attempt: Attempt, fail: Fail) -> None:
        self.log.emit(
            events.JOB_FAILED,
            self._take_error(attempt),
            **_job_fields(attempt),
            ran=attempt.ran,
            error=attempt.error,
            reason=fail.reason,
            max_attempts=attempt.most,
            delay="by the queue's policy" if fail.delay is None else fail.delay,
            next_try=None if fail.delay is None else server_now(attempt) + fail.delay,
        )

    def _of(self, attempt: Attempt) -> HandlerMetrics:
        handler = attempt.handler
        return self.metrics.of(attempt.lease.queue, handler.name if handler else UNKNOWN_HANDLER)


_RELEASED: dict[StopReason | None, str] = {
    StopReason.CROWDED: "its claim was answered too late",
    StopReason.REMOVED: "its handler was removed",
}
_UNFIT = {
    "PayloadInvalid": events.PAYLOAD_INVALID,
    "ResultInvalid": events.RESULT_INVALID,
    "ResultTooLarge": events.RESULT_INVALID,
}
_UNHANDLED = (HANDLER_MISSING, "PayloadInvalid")
_ENDED = {"loop": "cancelled", "thread": "abandoned", "process": "killed"}


def _job_fields(attempt: Attempt) -> dict[str, Any]:
    lease = attempt.lease
    return {
        "job": lease.id,
        "queue": lease.queue,
        "handler": attempt.handler_name,
        "attempt": lease.attempt,
    }


_WITHIN = 2.0
"""Seconds after which a scrape goes on without the readings of a worker."""


class Readings:
    """Reads slots and queues for a scrape of the metrics, in the scraper's thread."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._loop = asyncio.get_running_loop()
        self._closed = False

    def close(self) -> None:
        """Refuse further readings: the worker ends."""
        self._closed = True

    def read(self) -> Reading:
        """Returns counts of all queues and slots. Raises TowpathError, TimeoutError."""
        if self._closed:
            raise EngineClosed("the worker has ended")
        asked = asyncio.run_coroutine_threadsafe(self._read(), self._loop)
        return asked.result(_WITHIN)

    async def _read(self) -> Reading:
        slots = self._execution.slots
        return Reading(
            queues=[await self._queue(feeder) for feeder in self._execution.feeders.all],
            slots={"busy": slots.total - slots.free, "free": slots.free, "lost": slots.lost},
        )

    async def _queue(self, feeder: Feeder) -> QueueReading:
        counts = await self._execution.engine.inspect.counts(feeder.queue)
        return queue_reading(feeder.queue, counts, leases=feeder.held)


def queue_reading(queue: str, counts: Counts, *, leases: int = 0) -> QueueReading:
    """Returns the reading of a queue from its *counts*."""
    return QueueReading(
        queue=queue,
        depth={
            "ready": counts.ready,
            "delayed": counts.delayed,
            "waiting": counts.waiting,
            "leased": counts.leased,
            "dead": counts.dead,
        },
        oldest=counts.oldest.total_seconds() if counts.oldest else 0.0,
        leases=leases,
    )
