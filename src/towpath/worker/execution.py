"""Execution: starts the attempts of a worker, watches them, ends them and reports them."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from towpath.clock import duration_ms, steady
from towpath.engine.channel import Limits
from towpath.engine.engine import Engine
from towpath.engine.explain import HANDLER_MISSING
from towpath.engine.model import Bury, Fail, Lease, Outcome, Release, Renew, Settlement
from towpath.engine.worker_registry import (
    HANDLERS_SHOWN,
    BlockedLoop,
    HandlerReport,
    RunningJob,
    WorkerReport,
)
from towpath.errors import ServerError, TowpathError
from towpath.ids import QueueName
from towpath.telemetry import events
from towpath.worker.attempt import (
    ATTEMPT_TASK,
    Attempt,
    ProgressNotes,
    SettledAttempt,
    StopReason,
)
from towpath.worker.executors import Processes, Threads
from towpath.worker.feeder import Feeder, Feeders
from towpath.worker.handler import Handler, OnSettled, Place
from towpath.worker.heartbeat import PATIENCE, Heartbeat
from towpath.worker.recorded import RecordedRuns
from towpath.worker.registration import WorkerRegistration
from towpath.worker.report import UNKNOWN_HANDLER, Ended, Readings, Report
from towpath.worker.runner import Runner
from towpath.worker.settlements import (
    ensure_sendable,
    keep_unhandled,
    plan_next_try,
    settlement_for_stop,
)
from towpath.worker.slots import Slots
from towpath.worker.unhandled import UnhandledJobs

if TYPE_CHECKING:
    from towpath.worker.worker import Worker

_TO_NOTICE = 5.0
"""Seconds for a handler in a process to end by itself after its job was cancelled."""
_CHANNELS = 100
"""Calls that the heartbeat makes at once to each Redis; the renewals of further queues wait."""


class Execution:
    """Starts attempts, watches them, ends them and reports them."""

    def __init__(self, worker: Worker, state: Any) -> None:
        self.worker, self.state = worker, state
        """The worker whose jobs it runs, and what its lifespan has yielded."""
        self._app = worker.app
        self.engine, self.name, self.lease = worker.app.engine, worker.name, worker.lease
        self.log, self._metrics = worker.log, worker.metrics
        self._handlers: dict[QueueName, dict[str | None, Handler[Any, Any, Any]]] = {}
        self.ledger_id: str | None = None
        """The id of the database with the records, once it is known."""
        self._gone: set[Handler[Any, Any, Any]] = set()
        """Handlers that were removed and still have attempts that run or are not settled."""
        self._held: dict[Attempt, Feeder] = {}
        self.started = 0
        """Attempts of handlers that were started."""
        self._limits: dict[Handler[Any, Any, Any] | None, asyncio.Semaphore] = {}
        self._runs: RecordedRuns | None = None
        self._away_since: dict[QueueName, float] = {}
        self._unhandled = UnhandledJobs(
            self.engine, worker=self.name, unhandled_for=worker.unhandled_for
        )
        self.report = Report(self.log, self._metrics)
        self.slots = Slots(worker.concurrency)
        self.feeders = Feeders(self)

    async def __aenter__(self) -> Self:
        self.notes = ProgressNotes(self.engine)
        self.threads = Threads(lost=self._lose_slot, regained=self.slots.regain)
        self.processes = Processes(self.notes, self.log)
        self._runner = Runner(self)
        self.registration = WorkerRegistration(self.name, self._describe)
        self._heartbeat = Heartbeat(self)
        self._heartbeat.start()
        self._readings = Readings(self)
        self._metrics.watch(self._readings.read)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._readings.close()
        await self._heartbeat.close()
        await self.registration.end(self.engine)
        for attempt in self.held:
            if attempt.task is not None:
                attempt.task.cancel()
        await self.processes.close()
        self.threads.close()

    async def raise_heartbeat_error(self) -> None:
        """Wait for the heartbeat to end, and raise the error that ended it."""
        await self._heartbeat.raise_error()

    @property
    def running(self) -> int:
        return len(self._held)

    @property
    def held(self) -> list[Attempt]:
        """The attempts that have started and not ended. From any thread."""
        return list(self._held)

    def connect_heartbeat(self) -> Engine:
        """Returns an engine for the heartbeat, not yet entered."""
        answer, give_up = self.lease / 5, self.lease / 2
        return self._app.new_engine(Limits(answer=answer, give_up=give_up, channels=_CHANNELS))

    def _describe(self, blocked: BlockedLoop | None) -> WorkerReport:
        """Returns the worker's entry for the list of workers. Called in the heartbeat's thread."""
        queues, held = list(self.worker.served.weights), self.held
        known = [handler for its in self.worker.served.handlers.values() for handler in its]
        return WorkerReport(
            host=socket.gethostname(), pid=os.getpid(), queues=queues, serving=len(queues),
            slots=self.worker.concurrency, running=len(held),
            jobs=[RunningJob(attempt.lease.job, attempt.taken_ms) for attempt in held],
            recorded=self.recorded_queues(), ledger=self.ledger_id, blocked=blocked,
            release=self._app.version, handlers=_report_handlers(known), handling=len(known),
            unhandled_for_ms=duration_ms("unhandled_for", self.worker.unhandled_for),
        )  # fmt: skip

    def report_handlers(self) -> None:
        """Report at once that the worker's handlers have changed."""
        self.registration.report_soon()

    def identify_ledger(self, id: str) -> None:
        """Set the id of the database with the records, and report it."""
        self.ledger_id = id
        self.registration.report_soon()

    def recorded_queues(self) -> list[str]:
        """The queues that this worker serves whose jobs have records."""
        return [
            queue
            for queue, handlers in list(self._handlers.items())
            if any(handler.options.record for handler in handlers.values())
        ]

    # ── the queues ───────────────────────────────────────────────────────────────────────

    def serve(
        self, queue: QueueName, handlers: Sequence[Handler[Any, Any, Any]], *, weight: int
    ) -> None:
        """Claim from *queue* for *handlers*, all that it has now; stop claiming if there are none.

        Running attempts go on to their end, even if their handler was removed.
        """
        known = self._handlers.pop(queue, {})
        self._gone.update(handler for handler in known.values() if handler not in handlers)
        if handlers:
            self._handlers[queue] = {handler.named: handler for handler in handlers}
            for handler in handlers:
                if handler.options.most:
                    self._limits.setdefault(handler, asyncio.Semaphore(handler.options.most))
            if self._runs is None and any(handler.options.record for handler in handlers):
                recorder, engine = self._app.recorder, self.engine
                self._runs = RecordedRuns(recorder, engine, self.log, self._perform)
            mosts = [handler.options.most for handler in handlers]
            most = None if None in mosts else sum(limit for limit in mosts if limit)
            self.feeders.claim(queue, weight=weight, most=most)
        else:
            self.feeders.stop(queue)
            self._unhandled.forget(queue)
        self._forget()

    def queue_left(self, queue: QueueName) -> None:
        """Forget *queue*: its claims have ended and all its attempts are settled."""
        self._away_since.pop(queue, None)
        self._forget()
        if queue not in self._handlers:
            self._metrics.forget(queue, UNKNOWN_HANDLER)

    def _forget(self) -> None:
        """Free processes, limits and metrics of removed handlers that have no attempts left."""
        if not self._gone:
            return
        left = {
            attempt.handler
            for attempt in [*self._held, *(ended for ended, _ in self.feeders.unsettled)]
        }
        for handler in [gone for gone in self._gone if gone not in left]:
            self._gone.discard(handler)
            self._limits.pop(handler, None)
            self.processes.end_idle(handler)
            others = self._handlers.get(handler.queue, {}).values()
            if handler.name not in [other.name for other in others]:
                self._metrics.forget(handler.queue, handler.name)

    def claim_no_more(self) -> None:
        """Take no more jobs from any queue."""
        self.feeders.claim_no_more()

    async def release_all(self) -> None:
        """End what still runs, and give the jobs of all attempts that do not end back to Redis."""
        for attempt in self.held:
            self.stop(attempt, StopReason.STOPPING)
        await self._wait_for_end(self._held)
        left = [
            attempt
            for attempt in self._held
            if attempt.handler and attempt.handler.place is Place.THREAD
        ]
        for attempt in left:
            if attempt.task is not None:
                attempt.task.cancel()
        await self._wait_for_end(left)
        for attempt in self.held:
            self._finish(attempt, Release(attempt.lease))

    async def _wait_for_end(self, attempts: Iterable[Attempt]) -> None:
        tasks = [attempt.task for attempt in attempts if attempt.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=PATIENCE)

    # ── an attempt's life ────────────────────────────────────────────────────────────────

    def start(self, feeder: Feeder, lease: Lease, now_ms: int) -> None:
        handlers = self._handlers.get(lease.queue, {})
        handler = handlers.get(lease.headers.get("handler"))
        attempt = Attempt(lease, handler, since=feeder.asked_at, now_ms=now_ms)
        self._held[attempt] = feeder
        if feeder.stopping:
            attempt.stop = None if self.feeders.ending else StopReason.REMOVED
            self._finish(attempt, Release(lease))
        elif handler is None and not self._unhandled.is_due(lease):
            attempt.error = HANDLER_MISSING
            self._finish(attempt, self._unhandled.give_back(lease))
        else:
            self.started += handler is not None
            attempt.task = asyncio.create_task(self._run(attempt))

    async def _run(self, attempt: Attempt) -> None:
        attempt.entered = True
        ATTEMPT_TASK.set(attempt.task)
        limit = self._limits.get(attempt.handler)
        if attempt.handler is None:
            settlement = await self._settle_missing(attempt)
        else:
            attended = (
                self._attend(attempt) if limit is None else self._attend_in_turn(attempt, limit)
            )
            settlement = await attended
        if attempt.ctx is not None and attempt.ctx.noted:
            # The outcome is final; ignore cancellation from here on.
            with suppress(asyncio.CancelledError):
                await self.notes.sent(attempt)
        if isinstance(settlement, Renew):
            with suppress(asyncio.CancelledError):
                await self._heartbeat.stop_renewing(attempt)
        if attempt in self._held:
            self._finish(attempt, settlement)
        else:
            # The attempt was abandoned, and has ended after all.
            self.slots.regain()
        # Break the reference cycles: only the garbage collector would free them, and it stops all
        # threads. The Context stays: `on_settled` reads what the handler has called.
        if attempt.ctx is not None:
            attempt.ctx.close()
        attempt.task = None
        ATTEMPT_TASK.set(None)

    async def _attend(self, attempt: Attempt) -> Settlement | None:
        if attempt.over or attempt.stop is not None:
            return settlement_for_stop(attempt)  # it was stopped before it could begin
        attempt.begin()
        self.report.started(attempt)
        if self._runs is not None and attempt.handler and attempt.handler.options.record:
            return await self._runs.run(attempt)
        settlement = await self._perform(attempt)
        if isinstance(settlement, Fail):
            with suppress(TowpathError):  # without an answer, Redis plans the next attempt itself
                options = await self.engine.queues.known_options(attempt.lease.queue)
                return plan_next_try(attempt, settlement, options)
        return settlement

    async def _perform(self, attempt: Attempt) -> Settlement | None:
        """Run the handler. A payload that does not fit may fit the handler of another worker."""
        settlement = await self._runner.run(attempt)
        if not attempt.is_unfit or not isinstance(settlement, Bury):
            return settlement
        try:
            return await self._unhandled.settle_unfit(attempt, settlement)
        except asyncio.CancelledError:
            return settlement_for_stop(attempt)

    async def _settle_missing(self, attempt: Attempt) -> Settlement | None:
        """Returns the settlement of a job whose handler has been missing for long."""
        attempt.error = HANDLER_MISSING
        known = self._handlers.get(attempt.lease.queue, {})
        try:
            return await self._unhandled.settle_missing(attempt, known.values())
        except asyncio.CancelledError:
            return settlement_for_stop(attempt)

    async def _attend_in_turn(
        self, attempt: Attempt, limit: asyncio.Semaphore
    ) -> Settlement | None:
        """Attend to *attempt* once its handler runs fewer jobs than its limit. The time limit
        begins then.
        """
        try:
            async with limit:
                return await self._attend(attempt)
        except asyncio.CancelledError:
            return settlement_for_stop(attempt)

    def _finish(self, attempt: Attempt, settlement: Settlement | None) -> None:
        feeder = self._held.pop(attempt)
        attempt.ended = steady()
        # If it is over already, the heartbeat has settled it.
        settlement = None if attempt.over or settlement is None else ensure_sendable(settlement)
        if attempt.lease.unhandled and isinstance(settlement, Release) and attempt.ctx is None:
            settlement = keep_unhandled(settlement)
        attempt.over = True
        feeder.hand_in(attempt, settlement)
        if self._gone:
            self._forget()

    def stop(self, attempt: Attempt, why: StopReason) -> None:
        """End an attempt before its handler does, as far as its place allows."""
        if attempt.stop is why or attempt not in self._held:
            return
        attempt.stop, attempt.stopped_at = why, steady()
        if attempt.ctx is not None:
            attempt.ctx.cancelled, attempt.ctx.stopped = True, why
        self.report.stopped(attempt, why)
        place = attempt.handler.place if attempt.handler else Place.LOOP
        if place is Place.PROCESS and why is StopReason.CANCELLED:
            self.processes.cancel(attempt)
            asyncio.get_running_loop().call_later(_TO_NOTICE, self._end_process, attempt)
        elif place is Place.THREAD and why is not StopReason.TIMED_OUT and attempt.ctx is not None:
            pass  # a thread can't be ended: the handler may read ctx.cancelled; it keeps its slot
        elif attempt.task is not None and attempt.entered:  # else `_attend` ends it when it begins
            if place is Place.THREAD and why is StopReason.TIMED_OUT:
                self._log_lost_slot(attempt)
            attempt.task.cancel()

    def _end_process(self, attempt: Attempt) -> None:
        """Kill the process of a handler that goes on although its job was cancelled."""
        if attempt in self._held and attempt.task is not None and not attempt.over:
            attempt.task.cancel()

    def abandon(self, attempt: Attempt) -> None:
        """Count the slot of *attempt* as lost until the attempt ends: it ignored its time limit.

        The heartbeat has settled the attempt; if it could not, the lease ends by itself.
        """
        if attempt not in self._held:
            return
        if (patience := attempt.stopped_at + PATIENCE - steady()) > 0:
            # This loop was blocked, so the attempt was stopped only now.
            asyncio.get_running_loop().call_later(patience, self.abandon, attempt)
            return
        self._log_lost_slot(attempt)
        self._finish(attempt, None)
        self._lose_slot()

    def check_tracing(self) -> None:
        """Check whether tracing is active by now."""
        self._runner.check_tracing()

    def settled(self, batch: Sequence[Ended], outcomes: Sequence[Outcome]) -> None:
        self.report.settled(batch, outcomes)
        self._notify_handlers(batch, outcomes)
        if self._gone:
            self._forget()

    def _notify_handlers(self, batch: Sequence[Ended], outcomes: Sequence[Outcome]) -> None:
        """Call `on_settled` of each handler with its own attempts. A batch may have attempts of
        several handlers, and attempts without a handler.
        """
        by_callback: dict[OnSettled, list[SettledAttempt]] = {}
        for (attempt, settlement), outcome in zip(batch, outcomes, strict=True):
            handler = attempt.handler
            if handler is not None and handler.on_settled is not None:
                settled = SettledAttempt(attempt, settlement, outcome)
                by_callback.setdefault(handler.on_settled, []).append(settled)
        for on_settled, attempts in by_callback.items():
            on_settled(attempts)

    # ── slots and errors of Redis ────────────────────────────────────────────────────────

    def _lose_slot(self) -> None:
        self.slots.lose()
        if self.slots.total <= 0 and not self.feeders.ending:
            self.worker.stop_without_slots()

    def _log_lost_slot(self, attempt: Attempt) -> None:
        self.log.emit(
            events.SLOT_LOST,
            job=attempt.lease.id,
            queue=attempt.lease.queue,
            handler=attempt.handler_name,
            ran=attempt.ran,
            slots=self.slots.total - 1,
        )

    def report_trouble(self, queue: QueueName, error: ServerError | None, sent: float) -> None:
        """Log once that calls for *queue* fail, and once that they succeed again (*error* = None).

        *sent* is when the call was sent.
        """
        since = self._away_since
        if error is None and queue not in since:
            return
        server = str(self.engine.url)
        if error is None:
            away = steady() - since.pop(queue)
            self.log.emit(events.QUEUE_RECOVERED, queue=queue, server=server, away=away)
        elif queue not in since:
            self.log.emit(
                events.QUEUE_FAILING,
                queue=queue,
                server=server,
                error=type(error).__qualname__,
                reason=str(error),
            )
            # Counted from when the call was sent: it may have been retried for long.
            since[queue] = sent


def _report_handlers(known: Iterable[Handler[Any, Any, Any]]) -> list[HandlerReport]:
    """Returns reports of the first handlers, by queue and name."""
    first = sorted(known, key=lambda handler: (handler.queue, handler.named or ""))
    return [
        HandlerReport(handler.queue, handler.named, handler.digest)
        for handler in first[:HANDLERS_SHOWN]
    ]
