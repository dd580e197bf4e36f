"""The worker: claims jobs of its app's queues, runs their handlers, stops cleanly."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import IntEnum
from types import FrameType

from towpath.clock import DurationLike, duration_ms, milliseconds, seconds, steady
from towpath.engine.check import integer
from towpath.engine.worker_registry import REPORT_EVERY
from towpath.errors import ServerError, TowpathError
from towpath.ids import QueueName, worker_name
from towpath.supervise import exempt_from_collection, new_loop
from towpath.telemetry import events
from towpath.telemetry.logs import Log
from towpath.telemetry.metrics import Metrics
from towpath.worker.duties import configure_queues, keep_sweeping_others
from towpath.worker.execution import Execution
from towpath.worker.executors import UnjoinedExecutor
from towpath.worker.heartbeat import PATIENCE
from towpath.worker.middleware import AttemptMiddleware, require_callable
from towpath.worker.options import DEFAULTS
from towpath.worker.queues import QueueFollower, ServedQueues
from towpath.worker.recorded import Registry
from towpath.worker.report import Report

STOPPING = (signal.SIGTERM, signal.SIGINT)
_FLUSH = 5.0
"""Seconds to hand in the last settlements after everything has ended."""
_IDENTIFIED_S = 2.0
"""Seconds for the database to return its id before the query is repeated later."""


class ExitCode(IntEnum):
    """How a worker ended."""

    CLEAN = 0
    """Everything it held was settled or released."""
    SLOTS_LOST = 1
    """All its slots were lost to threads that do not end."""
    UNSETTLED = 75
    """It ended by force: Redis could not be reached to settle its jobs, whose leases end by
    themselves; or a handler blocked the event loop, and its jobs were released by the heartbeat."""


class Worker:
    """Runs the handlers of an app.

        await Worker(app, concurrency=50).run()

    *concurrency* is the number of jobs that run at once. *queues* names the queues to serve, with
    weights if it is a mapping; default: all queues of the app. Handlers may be added to the app and
    removed from it while the worker runs; with *handlers_later*, it starts even if there are none.

    *lease* is how long this process may be silent before its jobs are given to other workers.
    *grace* is how long running jobs may go on after the first SIGTERM or SIGINT; a second signal
    releases them at once. *unhandled_for* is how long a job whose handler is missing is left to
    other workers; then it is dead, unless a live one has the handler. *middleware* runs inside that
    of the app. Raises InvalidOption, InvalidName, MiddlewareInvalid.
    """

    def __init__(
        self,
        app: Registry,
        *,
        concurrency: int = DEFAULTS.concurrency,
        queues: Mapping[str, int] | Iterable[str] | None = None,
        lease: DurationLike = DEFAULTS.lease,
        grace: DurationLike = DEFAULTS.grace,
        unhandled_for: DurationLike = DEFAULTS.unhandled_for,
        middleware: Sequence[AttemptMiddleware] = (),
        name: str | None = None,
        metrics: Metrics | None = None,
        signals: Sequence[signal.Signals] = STOPPING,
        handlers_later: bool = False,
    ) -> None:
        self.app = app
        self.concurrency = integer("concurrency", concurrency, 1, 100_000)
        self.lease = milliseconds(duration_ms("lease", lease, least=seconds(1)))
        self.grace = milliseconds(duration_ms("grace", grace))
        self.unhandled_for = milliseconds(duration_ms("unhandled_for", unhandled_for))
        self.name = worker_name(name or _own_name())
        self.served = ServedQueues(app, queues, handlers_later=handlers_later)
        self.metrics = metrics or app.metrics
        require_callable(middleware)
        self.middleware = (*app.middleware, *middleware)
        self._signal_numbers = tuple(signals)
        self.log = Log(worker=self.name)
        self._reset()

    def _reset(self) -> None:
        """Reset the state, so that the worker can run again, also in another event loop."""
        self._stop, self._stop_now = asyncio.Event(), asyncio.Event()
        self._why = "no job was left to run"
        self._code = ExitCode.CLEAN
        self._signals = Signals(self._signal_numbers, self.stop)

    @property
    def weights(self) -> dict[QueueName, int]:
        """The queues that it serves, with their weights."""
        return self.served.weights

    def run_forever(self) -> int:
        """Run in a new event loop until a signal stops it. Returns the exit code.

        Call it only in a process that does nothing else: all objects that exist now are exempt from
        garbage collection for good.
        """
        exempt_from_collection()
        with asyncio.Runner(loop_factory=_new_loop) as runner:
            return runner.run(self.run())

    def run_until_drained(self) -> int:
        """Drain in a new event loop. Returns the exit code."""
        with asyncio.Runner(loop_factory=_new_loop) as runner:
            return runner.run(self.drain())

    async def run(self) -> int:
        """Run jobs until a signal or `stop` ends it. Returns the exit code for the process.

        Waits while Redis is unreachable. A queue with an error does not keep the others from being
        served.
        """
        try:
            return await self._run(leave_when_empty=False)
        finally:
            self._reset()

    async def drain(self) -> int:
        """Run jobs until none is left that could run now. Returns the exit code for the process.
        Raises ServerUnreachable.
        """
        try:
            return await self._run(leave_when_empty=True)
        finally:
            self._reset()

    def stop(self, why: str = "it was asked to stop") -> None:
        """Claim no more jobs and let running ones finish; a second call releases them at once."""
        if self._stop.is_set():
            self._stop_now.set()
        else:
            self._why = why
            self._stop.set()

    # ── its life ─────────────────────────────────────────────────────────────────────────

    async def _run(self, *, leave_when_empty: bool) -> int:
        self._began = steady()
        async with self.app, self.app.around(self), self.app.living() as state:
            if leave_when_empty:
                await self.app.engine.check()  # `drain` must not wait for an unreachable Redis
                await self.app.fire_due(self.weights, self.log)
            handlers = self.served.handlers
            late = await configure_queues(self.app, handlers, self.log)
            execution = Execution(self, state)
            with self._signals.handled():
                async with execution:
                    following = QueueFollower(self.app, self.served, execution, self.log)
                    following.begin(handlers, late)
                    self._log_started(handlers)
                    await self._live(execution, following, leave_when_empty=leave_when_empty)
        self._log_stopped(execution.report)
        return self._code

    async def _live(
        self, execution: Execution, following: QueueFollower, *, leave_when_empty: bool
    ) -> None:
        if self._stop.is_set():
            execution.claim_no_more()
        beside = asyncio.create_task(self._run_background_tasks(execution, following))
        feeding = asyncio.create_task(execution.feeders.run(leave_when_empty=leave_when_empty))
        stopping = asyncio.create_task(self._stop.wait())
        try:
            # *beside* ends only with an error, which `_end_tasks` raises below.
            await asyncio.wait((feeding, stopping, beside), return_when=asyncio.FIRST_COMPLETED)
            beside.cancel()
            if not feeding.done():
                await self._wind_down(execution, feeding)
            if self._code is not ExitCode.UNSETTLED:
                await feeding
        finally:
            await _end_tasks([beside, stopping, feeding])

    async def _run_background_tasks(self, execution: Execution, following: QueueFollower) -> None:
        """Do what a worker does beside running jobs, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(following.run())
            group.create_task(self.app.keep_firing(following.served, self.log))
            group.create_task(execution.raise_heartbeat_error())
            group.create_task(keep_sweeping_others(self.app.engine, following.served, self.log))
            group.create_task(self._identify_ledger(execution))

    async def _identify_ledger(self, execution: Execution) -> None:
        """Read the id of the database with the records, which the list of workers shows."""
        while True:
            if execution.ledger_id is None and execution.recorded_queues():
                with suppress(TowpathError, TimeoutError):
                    async with asyncio.timeout(_IDENTIFIED_S):
                        if (id := await self.app.ledger_id()) is not None:
                            execution.identify_ledger(id)
            await asyncio.sleep(REPORT_EVERY.total_seconds())

    async def _wind_down(self, execution: Execution, feeding: asyncio.Task[None]) -> None:
        self.log.emit(
            events.WORKER_STOPPING, reason=self._why, running=execution.running, grace=self.grace
        )
        execution.claim_no_more()
        now = asyncio.create_task(self._stop_now.wait())
        await asyncio.wait(
            (feeding, now),
            timeout=self.grace.total_seconds(),
            return_when=asyncio.FIRST_COMPLETED,
        )
        now.cancel()
        if not feeding.done():
            await execution.release_all()
            await asyncio.wait((feeding,), timeout=_FLUSH)
        if not feeding.done():
            self._code = ExitCode.UNSETTLED
            feeding.cancel()
            await asyncio.wait((feeding,))

    def stop_without_slots(self) -> None:
        """Internal: stop, because all slots are lost."""
        self.log.emit(events.SLOTS_EXHAUSTED, concurrency=self.concurrency)
        self._code = ExitCode.SLOTS_LOST
        self.stop("all slots are lost")

    def _log_started(self, queues: Iterable[QueueName]) -> None:
        self.log.emit(
            events.WORKER_STARTED,
            queues=sorted(queues),
            concurrency=self.concurrency,
            lease=self.lease,
            grace=self.grace,
            server=str(self.app.engine.url),
            version=self.app.version,
        )

    def _log_stopped(self, report: Report) -> None:
        self.log.emit(
            events.WORKER_STOPPED,
            reason=self._why,
            code=int(self._code),
            jobs=report.completed,
            released=report.released,
            uptime=steady() - self._began,
        )

    # ── in the heartbeat's thread ────────────────────────────────────────────────────────

    def is_overdue(self, now: float) -> bool:
        """Internal: whether it should have ended; a blocked loop has PATIENCE seconds more."""
        return self._signals.overdue(now, self.grace.total_seconds() + PATIENCE)

    def leave(self, report: Report) -> None:
        """Internal: end the process at once, because a handler blocks the event loop."""
        self._why = f"{self._signals.words}, and the event loop is blocked"
        self._code = ExitCode.UNSETTLED
        self._log_stopped(report)
        os._exit(self._code)


async def _end_tasks(tasks: Sequence[asyncio.Task[object]]) -> None:
    """Cancel *tasks* and wait for them. Raises their errors, except those of an unreachable Redis:
    the worker stops all the same.
    """
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception) and not isinstance(outcome, ServerError):
            raise outcome


def _new_loop() -> asyncio.AbstractEventLoop:
    loop = new_loop()
    loop.set_default_executor(UnjoinedExecutor())
    return loop


def _own_name() -> str:
    return f"{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(2)}"


class Signals:
    """The signals received so far; read by the heartbeat's thread, too."""

    def __init__(self, numbers: Sequence[signal.Signals], stop: Callable[[str], None]) -> None:
        self._numbers, self._stop = numbers, stop
        self.words = ""
        self._first, self._times = 0.0, 0

    def overdue(self, now: float, grace: float) -> bool:
        """Whether a worker that still runs should have ended: after *grace*, or a second signal."""
        return self._times > 1 or (self._times == 1 and now - self._first >= grace)

    @contextmanager
    def handled(self) -> Generator[None]:
        """Handle signals while the body runs. Has no effect outside the main thread.

        Does not use the loop's add_signal_handler, which does nothing while the loop is blocked.
        A handler that blocks inside C code without checking for signals delays this one as well.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()

        def handle(number: int, _: FrameType | None) -> None:
            self._handle_signal(signal.Signals(number), loop)

        before = {number: signal.signal(number, handle) for number in self._numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle_signal(self, number: signal.Signals, loop: asyncio.AbstractEventLoop) -> None:
        if not self._times:
            self._first, self.words = steady(), f"received {number.name}"
        self._times += 1
        with suppress(RuntimeError):  # the loop is closed: there is nothing left to stop
            loop.call_soon_threadsafe(self._stop, f"received {number.name}")
