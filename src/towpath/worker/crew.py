"""The crew: everything of a worker that has to do with attempts, from their start to their end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Self

import msgspec

from towpath.clock import Duration, steady
from towpath.engine.channel import Limits
from towpath.engine.model import Lease, Outcome, Release, Settlement
from towpath.errors import ServerError
from towpath.ids import QueueName
from towpath.telemetry import events
from towpath.telemetry.logs import Log
from towpath.telemetry.metrics import Metrics
from towpath.worker.attempt import Attempt, Notes, Stop
from towpath.worker.context import Middleware
from towpath.worker.endings import handler_missing, sendable, stopped
from towpath.worker.fetch import LOOK_EVERY, Feeder, Readings
from towpath.worker.handler import Handler, Place
from towpath.worker.heartbeat import PATIENCE, Heartbeat
from towpath.worker.places import Processes, Threads
from towpath.worker.recorded import RecordedRuns, Registry
from towpath.worker.report import Ended, Report
from towpath.worker.runner import Runner
from towpath.worker.slots import Slots

_TO_NOTICE = 5.0
"""Seconds in which a handler in a process may end by itself once its job was cancelled."""


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker works."""

    name: str
    concurrency: int
    lease: Duration
    weights: dict[QueueName, int]
    middleware: tuple[Middleware, ...]
    leave_when_empty: bool


class Crew:
    """Starts attempts, watches them, ends them, hands them in."""

    def __init__(
        self,
        app: Registry,
        terms: Terms,
        *,
        log: Log,
        metrics: Metrics,
        exhausted: Callable[[], None],
        overdue: Callable[[float], bool],
        leave: Callable[[], None],
    ) -> None:
        self._app, self._terms, self._exhausted = app, terms, exhausted
        self._overdue, self._leave = overdue, leave
        self._log, self._metrics = log, metrics
        self._handlers = {(it.queue, it.named): it for it in app.handlers}
        self._held: dict[Attempt, Feeder] = {}
        self._draining = False
        self._started = 0
        self._rested = asyncio.Event()
        self._limits = _limits(app)
        self._away_since: dict[QueueName, float] = {}
        self.report = Report(log, metrics)
        self.slots = Slots(terms.concurrency)

    async def __aenter__(self) -> Self:
        terms, engine = self._terms, self._app.engine
        self._notes = Notes(engine)
        self._threads = Threads(lost=self._slot_lost, regained=self.slots.regain)
        self._processes = Processes(note=self._notes.send, log=self._log)
        self._runner = Runner(
            threads=self._threads,
            processes=self._processes,
            middleware=terms.middleware,
            note=self._notes.send,
            largest=engine.largest_payload,
            log=self._log,
        )
        self._runs: RecordedRuns | None = None
        if any(it.options.record for it in self._app.handlers):
            recorder = self._app.recorder
            self._runs = RecordedRuns(recorder, engine, self._log, self._runner.run)
        self._feeders = [self._feeder(queue, weight) for queue, weight in terms.weights.items()]
        limits = Limits(
            answer=terms.lease / 5,
            give_up=terms.lease / 2,
            # One for each queue, and some for what has to be failed: none waits for another.
            channels=min(len(terms.weights) + 4, 1000),
        )
        self._heartbeat = Heartbeat(
            lambda: self._app.new_engine(limits),
            held=lambda: list(self._held),
            unsettled=lambda: [it for feeder in self._feeders for it in feeder.unsettled],
            stop=self.stop,
            give_up=self._abandon,
            report=self.report,
            overdue=self._overdue,
            leave=self._leave,
        )
        self._heartbeat.start()
        self._readings = Readings(engine, self._feeders, self.slots)
        self._metrics.watch(self._readings.read)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._readings.close()
        await self._heartbeat.close()
        for attempt in list(self._held):
            if attempt.task is not None:
                attempt.task.cancel()
        await self._processes.close()
        self._threads.close()

    async def heart_fails(self) -> None:
        """Raise what ended the heartbeat, if something does."""
        await self._heartbeat.died()

    @property
    def running(self) -> int:
        return len(self._held)

    async def feed(self) -> None:
        """Keep every queue's share of the slots full, until all have ended."""
        async with asyncio.TaskGroup() as group:
            feeding = [group.create_task(feeder.run()) for feeder in self._feeders]
            lending = group.create_task(self._lend_slots())
            if self._terms.leave_when_empty:
                group.create_task(self._leave_when_empty())
            await asyncio.wait(feeding)
            lending.cancel()

    async def _lend_slots(self) -> None:
        """Let no queue whose server is silent keep slots from the others, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            for feeder in self._feeders:
                feeder.lend_if_late()

    async def _leave_when_empty(self) -> None:
        """Claim no more once a look into every queue, begun while nothing ran, found nothing."""
        started = -1
        while not self._draining:
            await self._rested.wait()
            self._rested.clear()
            if not all(feeder.idle for feeder in self._feeders):
                continue
            if started == self._started:
                self.claim_no_more()
            started = self._started
            for feeder in self._feeders:
                feeder.look()

    def hold(self, queue: QueueName) -> None:
        """Claim nothing from *queue* until `serve`."""
        for feeder in self._feeders:
            if feeder.queue == queue:
                feeder.hold()

    def serve(self, queue: QueueName) -> None:
        for feeder in self._feeders:
            if feeder.queue == queue:
                feeder.serve()

    def claim_no_more(self) -> None:
        self._draining = True
        self._rested.set()
        for feeder in self._feeders:
            feeder.stop()

    async def release_all(self) -> None:
        """Give back what still runs, whether or not it can be ended."""
        for attempt in list(self._held):
            self.stop(attempt, Stop.DRAINED)
        await self._have_ended(self._held)
        left = [it for it in self._held if it.handler and it.handler.place is Place.THREAD]
        for attempt in left:
            if attempt.task is not None:
                attempt.task.cancel()
        await self._have_ended(left)
        for attempt in list(self._held):
            self._finish(attempt, Release(attempt.lease))

    async def _have_ended(self, attempts: Iterable[Attempt]) -> None:
        tasks = [it.task for it in attempts if it.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=PATIENCE)

    # ── an attempt's life ────────────────────────────────────────────────────────────────

    def _start(self, feeder: Feeder, lease: Lease, now_ms: int) -> None:
        handler = self._handlers.get((lease.queue, lease.headers.get("handler")))
        attempt = Attempt(lease, handler, since=feeder.asked_at, now_ms=now_ms)
        self._held[attempt] = feeder
        if self._draining:
            self._finish(attempt, Release(lease))
        elif handler is None:
            self._finish(attempt, handler_missing(lease, self._known(lease.queue)))
        else:
            self._started += 1
            attempt.task = asyncio.create_task(self._run(attempt))

    async def _run(self, attempt: Attempt) -> None:
        attempt.entered = True
        limit = self._limits.get(attempt.handler)
        settlement = await (self._attend(attempt) if limit is None else self._queue(attempt, limit))
        if attempt.ctx is not None and attempt.ctx.noted:
            # Its end is decided: whoever wants to end it now comes too late.
            with suppress(asyncio.CancelledError):
                await self._notes.sent(attempt)
        if attempt in self._held:
            self._finish(attempt, settlement)
        else:
            # It was given up, and has ended after all.
            self.slots.regain()

    async def _attend(self, attempt: Attempt) -> Settlement | None:
        if attempt.over or attempt.stop is not None:
            return stopped(attempt)  # it ended while it could not begin
        attempt.begin()
        self.report.started(attempt)
        if self._runs is not None and attempt.handler and attempt.handler.options.record:
            return await self._runs.run(attempt)
        return await self._runner.run(attempt)

    async def _queue(self, attempt: Attempt, limit: asyncio.Semaphore) -> Settlement | None:
        """The same behind those of its handler that run already; its time begins with its turn."""
        try:
            async with limit:
                return await self._attend(attempt)
        except asyncio.CancelledError:
            return stopped(attempt)

    def _finish(self, attempt: Attempt, settlement: Settlement | None) -> None:
        feeder = self._held.pop(attempt)
        attempt.ended = steady()
        # Over before: the heartbeat has failed it already.
        settlement = None if attempt.over or settlement is None else sendable(settlement)
        attempt.over = True
        feeder.hand_in(attempt, settlement)

    def stop(self, attempt: Attempt, why: Stop) -> None:
        """End an attempt before its handler does, as far as its place allows."""
        if attempt.stop is why or attempt not in self._held:
            return
        attempt.stop, attempt.stopped_at = why, steady()
        if attempt.ctx is not None:
            attempt.ctx.cancelled = True
        self.report.stopped(attempt, why)
        place = attempt.handler.place if attempt.handler else Place.LOOP
        if place is Place.PROCESS and why is Stop.CANCELLED:
            self._processes.cancel(attempt)
            asyncio.get_running_loop().call_later(_TO_NOTICE, self._end_process, attempt)
        elif place is Place.THREAD and why is not Stop.TIMED_OUT and attempt.ctx is not None:
            pass  # it can't be ended: it sees its Context, and its slot stays taken
        elif attempt.task is not None and attempt.entered:  # else it sees it when it begins
            if place is Place.THREAD and why is Stop.TIMED_OUT:
                self._say_lost(attempt)
            attempt.task.cancel()

    def _end_process(self, attempt: Attempt) -> None:
        """It was told of its cancel and goes on: its process is killed, its job let go of."""
        if attempt in self._held and attempt.task is not None and not attempt.over:
            attempt.task.cancel()

    def _abandon(self, attempt: Attempt) -> None:
        """It did not end though it was told to: its slot is lost until it does.

        The heartbeat has settled it; if it could not, the lease ends by itself.
        """
        if attempt not in self._held:
            return
        if (patience := attempt.stopped_at + PATIENCE - steady()) > 0:
            # This loop was blocked, so that the attempt was told only now.
            asyncio.get_running_loop().call_later(patience, self._abandon, attempt)
            return
        self._say_lost(attempt)
        self._finish(attempt, None)
        self._slot_lost()

    def _settled(self, batch: Sequence[Ended], outcomes: Sequence[Outcome]) -> None:
        self.report.settled(batch, outcomes)
        self._runner.look()

    # ── slots and the server ─────────────────────────────────────────────────────────────

    def _slot_lost(self) -> None:
        self.slots.lose()
        if self.slots.total <= 0 and not self._draining:
            self._exhausted()

    def _say_lost(self, attempt: Attempt) -> None:
        self._log.emit(
            events.SLOT_LOST,
            job=attempt.lease.id,
            queue=attempt.lease.queue,
            handler=attempt.handler_name,
            ran=attempt.ran,
            slots=self.slots.total - 1,
        )

    def _trouble(self, queue: QueueName, error: ServerError | None, sent: float) -> None:
        """What was sent then for *queue* has no good answer, or has one again: said once each."""
        server, since = str(self._app.engine.url), self._away_since
        if error is None and queue in since:
            away = steady() - since.pop(queue)
            self._log.emit(events.QUEUE_RECOVERED, queue=queue, server=server, away=away)
        elif error is not None and queue not in since:
            self._log.emit(
                events.QUEUE_FAILING,
                queue=queue,
                server=server,
                error=type(error).__qualname__,
                reason=str(error),
            )
            # Not from now: the call has waited for long before it was given up.
            since[queue] = sent

    def _feeder(self, queue: QueueName, weight: int) -> Feeder:
        mosts = [it.options.most for it in self._app.handlers if it.queue == queue]
        return Feeder(
            queue,
            self._app.engine,
            self.slots,
            worker=self._terms.name,
            lease=self._terms.lease,
            weight=weight,
            most=None if None in mosts else sum(it for it in mosts if it),
            start=self._start,
            settled=self._settled,
            trouble=self._trouble,
            rested=self._rested.set,
        )

    def _known(self, queue: str) -> list[str]:
        return [it.named or f"{it.name} (without a name)" for it in self._app.handlers
                if it.queue == queue]  # fmt: skip


def _limits(app: Registry) -> dict[Handler[Any, Any, Any] | None, asyncio.Semaphore]:
    """For handlers that share their queue: a queue's own share of the slots can't hold these."""
    queues = [it.queue for it in app.handlers]
    return {
        it: asyncio.Semaphore(it.options.most)
        for it in app.handlers
        if it.options.most and queues.count(it.queue) > 1
    }
