"""The heartbeat: renews every lease of the process, and ends what takes too long.

It has its own thread, event loop and connection, so that no lease is lost while a handler blocks
the worker's loop. For the same reason it keeps the worker in the list of live workers, and logs
which job blocks the loop.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

from towpath.clock import milliseconds, steady
from towpath.engine.engine import Engine
from towpath.engine.model import Lease, Outcome, Release, Renew, Settlement
from towpath.engine.worker_registry import BlockedLoop
from towpath.errors import ServerError, TowpathError
from towpath.ids import QueueName
from towpath.telemetry.events import HEARTBEAT_FAILED, LOOP_BLOCKED, WORKER_FROZEN
from towpath.worker.attempt import Attempt, StopReason, attempt_of
from towpath.worker.report import Ended
from towpath.worker.settlements import settlement_for_failure, time_limit_reason

if TYPE_CHECKING:
    from towpath.worker.execution import Execution
    from towpath.worker.feeder import Feeder, UnansweredExchange

_TICK = 0.25
_BLOCKED_AFTER = 1.0
_UNREAD_AFTER = 1.5 * _TICK
"""Seconds of silence of the worker's loop after which the heartbeat reads its answers for it."""
PATIENCE = 2.0
"""Seconds for an attempt to end after it was stopped."""

T = TypeVar("T")


class UnreadAnswer(NamedTuple):
    """The leases of an exchange whose answer the worker's loop has not read."""

    exchange: UnansweredExchange
    attempts: Sequence[Attempt]


class Heartbeat:
    """Watches the attempts of a worker from its own thread."""

    def __init__(self, execution: Execution) -> None:
        self._execution, self._report, self._log = execution, execution.report, execution.log
        self._registration = execution.registration
        self._begun, self._over = threading.Event(), threading.Event()
        self._answered_at = 0.0
        self._warned = False
        self._error: Exception | None = None
        self._stopped_at: dict[Attempt, float] = {}
        self._renewing: dict[QueueName, float] = {}
        """When each queue's leases may be renewed again; infinite while a renewal is under way."""
        self._under_way: dict[QueueName, asyncio.Task[None]] = {}
        self._unread: dict[Feeder, UnreadAnswer] = {}
        """Leases that the worker has claimed and does not know of while its loop is blocked."""
        self._quiet_until: dict[QueueName, float] = {}
        """When failed renewals of each queue may be logged again."""

    def start(self) -> None:
        """Start the thread; the running loop is the one that is watched."""
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        self._answered_at = steady()
        self._thread = threading.Thread(target=self._run, name="towpath-heartbeat", daemon=True)
        self._thread.start()
        self._begun.wait()

    async def close(self) -> None:
        """End the heartbeat. When this returns, nothing is renewed any more."""
        self._over.set()
        # Cancelled, because it may wait for a Redis that does not answer.
        with suppress(RuntimeError):
            self._beating.get_loop().call_soon_threadsafe(self._beating.cancel)
        # Not joined in the loop's executor: handlers may have taken all its threads.
        await self._ended.wait()
        self._thread.join()

    async def raise_error(self) -> None:
        """Wait for the end of the heartbeat, and raise the error that ended it. Without renewals,
        the worker would lose one job after the other.
        """
        await self._ended.wait()
        if self._error is not None:
            raise self._error

    async def stop_renewing(self, attempt: Attempt) -> None:
        """Renew *attempt* no more, and return when no renewal of it is on its way. A renewal after
        the hand-over would shorten its lease.
        """
        done = asyncio.Event()
        attempt.deadline = math.inf

        def look(_: object = None) -> None:
            attempt.renew_at = math.inf
            renewing = self._under_way.get(attempt.lease.queue)
            if renewing is None:
                self._call_in_loop(done.set)
            else:
                renewing.add_done_callback(look)

        with suppress(RuntimeError):  # the heartbeat has ended: nothing is renewed any more
            self._beating.get_loop().call_soon_threadsafe(look)
            await done.wait()

    def _run(self) -> None:
        try:
            with suppress(asyncio.CancelledError):
                asyncio.run(self._beat())
        except Exception as error:  # noqa: BLE001 -- raised in the worker's own loop, see `raise_error`
            self._error = error
        finally:
            self._call_in_loop(self._ended.set)

    async def _beat(self) -> None:
        self._beating = cast("asyncio.Task[None]", asyncio.current_task())
        self._begun.set()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch_loop())
            while not self._over.is_set():
                try:
                    async with self._execution.connect_heartbeat() as engine:
                        await self._watch(engine)
                except ServerError as error:
                    self._log_failure(error, self._execution.held)
                    await self._pause()

    async def _watch(self, engine: Engine) -> None:
        self._engine, self._renewing, self._unread = engine, {}, {}
        async with asyncio.TaskGroup() as self._calls:
            registering = self._calls.create_task(self._registration.keep(engine))
            while not await self._pause():
                await self._check_attempts()
            registering.cancel()

    async def _pause(self) -> bool:
        """Wait for the next beat. Returns whether the heartbeat has to end instead."""
        await asyncio.sleep(_TICK)
        return self._over.is_set()

    async def _check_attempts(self) -> None:
        now = steady()
        held = [attempt for attempt in self._execution.held if not attempt.over]
        if now - self._answered_at >= PATIENCE and self._execution.worker.is_overdue(now):
            await self._settle_and_leave([*held, *self._unread_attempts()])
        self._stopped_at = {
            attempt: at for attempt, at in self._stopped_at.items() if not attempt.over
        }
        for attempt in held:
            if attempt.deadline <= now:
                self._enforce_time_limit(attempt, now)
        self._read_answers(now)
        self._renew_due(held, now)

    def _renew_due(self, held: Sequence[Attempt], now: float) -> None:
        due = [
            attempt
            for attempt in [*held, *self._unread_attempts()]
            if attempt.renew_at <= now < attempt.deadline and attempt.stop is not StopReason.LOST
        ]
        # Finished jobs keep their leases until a blocked loop can settle them; otherwise they would
        # run again.
        due += [
            attempt for attempt, _ in self._execution.feeders.unsettled if attempt.renew_at <= now
        ]
        # One call per queue, so that a slow or unreachable Redis costs other queues no lease.
        for queue, attempts in _by_queue(due, lambda attempt: attempt.lease).items():
            if self._renewing.get(queue, 0.0) <= now:
                self._renewing[queue] = math.inf
                task = self._calls.create_task(self._renew(queue, attempts, now))
                self._under_way[queue] = task

    # ── answers that a blocked loop does not read ────────────────────────────────────────

    def _unread_attempts(self) -> list[Attempt]:
        """The attempts of all answers that the worker's loop has not read."""
        return [attempt for unread in self._unread.values() for attempt in unread.attempts]

    def _read_answers(self, now: float) -> None:
        """While the loop is blocked, find out which jobs its exchanges on their way have claimed.
        Otherwise their leases could end before the loop reads the answers.
        """
        self._unread = {
            feeder: unread
            for feeder, unread in self._unread.items()
            if feeder.unanswered is not None and feeder.unanswered.call == unread.exchange.call
        }
        if now - self._answered_at < _UNREAD_AFTER:
            return
        for feeder in self._execution.feeders.all:
            exchange = feeder.unanswered
            if exchange is not None and feeder not in self._unread:
                self._unread[feeder] = UnreadAnswer(exchange, ())
                self._calls.create_task(self._read_answer(feeder, exchange))

    async def _read_answer(self, feeder: Feeder, exchange: UnansweredExchange) -> None:
        """Repeat *exchange* under its name with a count of 0. The answer has the jobs that it has
        claimed. If the exchange never reached Redis, it now settles and claims nothing.
        """
        feeder.read_ahead = exchange.call
        try:
            answer = await self._engine.exchange(
                feeder.queue,
                exchange.settlements,
                worker=self._execution.name,
                lease=self._execution.lease,
                count=0,
                call=exchange.call,
            )
        except TowpathError:
            # Repeated with the next look, if the loop is still blocked.
            self._unread.pop(feeder, None)
            return
        unanswered = feeder.unanswered
        if unanswered is None or unanswered.call != exchange.call:
            self._unread.pop(feeder, None)
            return  # the worker's loop has read the answer meanwhile, and renews the leases itself
        given = [
            Attempt(lease, None, since=exchange.sent_at, now_ms=answer.now_ms)
            for lease in answer.leases
        ]
        self._unread[feeder] = UnreadAnswer(exchange, given)
        self._renew_due((), steady())

    async def _renew(self, queue: QueueName, due: Sequence[Attempt], now: float) -> None:
        again = 0.0
        try:
            renewals = [Renew(attempt.lease, milliseconds(attempt.ttl * 1000)) for attempt in due]
            outcomes = await self._engine.settle(renewals)
        except ServerError as error:
            self._log_failure(error, due)
            again = steady() + min(attempt.beat for attempt in due) / 4
        else:
            self._quiet_until.pop(queue, None)
            for attempt, outcome in zip(due, outcomes, strict=True):
                self._apply_outcome(attempt, outcome, now)
        finally:
            self._under_way.pop(queue, None)
            self._renewing[queue] = again
            if not again:
                del self._renewing[queue]

    def _apply_outcome(self, attempt: Attempt, outcome: Outcome, now: float) -> None:
        if isinstance(outcome, Lease):
            attempt.renew_at = now + attempt.beat
            if outcome.cancel_requested:
                self._stop_attempt(attempt, StopReason.CANCELLED)
        elif not attempt.over:
            # Not settled meanwhile, so the refusal means that the lease is lost.
            attempt.renew_at = math.inf
            self._stop_attempt(attempt, StopReason.LOST)

    def _enforce_time_limit(self, attempt: Attempt, now: float) -> None:
        """Stop an attempt that has reached its time limit. If it has not ended PATIENCE seconds
        later, fail it from this thread: the worker's loop may be blocked.
        """
        stopped_at = self._stopped_at.setdefault(attempt, now)
        if stopped_at == now:
            self._stop_attempt(attempt, StopReason.TIMED_OUT)
        elif now - stopped_at >= PATIENCE and not attempt.over:
            attempt.over = True
            attempt.error = "TimeLimit"
            settlement = settlement_for_failure(attempt, time_limit_reason(attempt))
            # Reported here, because the attempt may block the worker's loop.
            self._report.stopped(attempt, StopReason.TIMED_OUT)
            self._calls.create_task(self._fail(attempt, settlement))

    async def _fail(self, attempt: Attempt, settlement: Settlement) -> None:
        await self._settle([(attempt, settlement)])
        self._call_in_loop(lambda: self._execution.abandon(attempt))

    async def _settle_and_leave(self, held: Sequence[Attempt]) -> None:
        """Settle all attempts and end the process: the blocked loop can't react to signals."""
        for attempt in held:
            attempt.over = True
        batch = [
            *self._execution.feeders.unsettled,
            *((attempt, Release(attempt.lease)) for attempt in held),
        ]
        queues = _by_queue(batch, lambda ended: ended[0].lease).values()
        await asyncio.gather(*map(self._settle, queues))
        await self._registration.end(self._engine)
        self._execution.worker.leave(self._report)

    async def _settle(self, batch: Sequence[Ended]) -> None:
        """Settle attempts of one queue. After an error, their leases end by themselves."""
        try:
            outcomes = await self._engine.settle([settlement for _, settlement in batch])
        except ServerError as error:
            self._log_failure(error, [attempt for attempt, _ in batch])
        else:
            self._report.settled(batch, outcomes)

    def _stop_attempt(self, attempt: Attempt, why: StopReason) -> None:
        self._call_in_loop(lambda: self._execution.stop(attempt, why))

    async def _watch_loop(self) -> None:
        """Log once per block which job blocks the worker's loop, and report it in the list of
        workers. If this loop was late too, the whole process stood still.

        This is a task of its own, because renewals may wait for a Redis that does not answer.
        """
        before = steady()
        while not await self._pause():
            now = steady()
            late, silent, before = now - before - _TICK, now - self._answered_at, now
            if late >= _BLOCKED_AFTER:
                self._answered_at = now
                self._log.emit(WORKER_FROZEN, frozen=late, running=self._running())
                self._registration.mark(None)
            elif silent >= _BLOCKED_AFTER:
                self._name_blocker(silent)
            else:
                self._registration.mark(None)
            self._call_in_loop(self._mark_answered)

    def _name_blocker(self, silent: float) -> None:
        """Find the attempt whose task the loop runs now: this one blocks it. Report and log it."""
        attempt = attempt_of(asyncio.current_task(self._loop), self._execution.held)
        name = attempt.handler_name if attempt else None
        lease = attempt.lease if attempt else None
        self._registration.mark(BlockedLoop(silent, name, lease.job if lease else None))
        if not self._warned:
            self._warned = True
            self._log.emit(
                LOOP_BLOCKED,
                blocked=silent,
                running=self._running(),
                job=lease.id if lease else None,
                queue=lease.queue if lease else None,
                handler=name,
            )

    def _running(self) -> int:
        return sum(not attempt.over for attempt in self._execution.held)

    def _mark_answered(self) -> None:
        self._answered_at, self._warned = steady(), False

    def _call_in_loop(self, act: Callable[[], None]) -> None:
        # A closed loop has ended its worker: nothing is left to do there.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(act)

    def _log_failure(self, error: ServerError, attempts: Sequence[Attempt]) -> None:
        """Log failed renewals, once per queue and lease time. The line has the time since the
        oldest renewal, because that lease is lost first.
        """
        now = steady()
        if attempts and all(
            self._quiet_until.get(each.lease.queue, 0.0) > now for each in attempts
        ):
            return
        self._quiet_until.update({each.lease.queue: now + each.ttl for each in attempts})
        self._log.emit(
            HEARTBEAT_FAILED,
            leases=len(attempts),
            silent=max((now - attempt.renewed_at for attempt in attempts), default=0.0),
            error=type(error).__qualname__,
            reason=str(error),
        )


def _by_queue(items: Iterable[T], lease: Callable[[T], Lease]) -> dict[QueueName, list[T]]:
    found: dict[QueueName, list[T]] = {}
    for item in items:
        found.setdefault(lease(item).queue, []).append(item)
    return found
