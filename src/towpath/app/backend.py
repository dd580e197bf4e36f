"""The engine and the ledger, if any, that the handlers of an app and a server share."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self, TypeVar
from weakref import WeakSet

from towpath.app.blocking import Blocking
from towpath.app.jobs import AllJobs, no_ledger
from towpath.app.running_loop import refuse_in_running_loop
from towpath.engine.blocking import run_to_end
from towpath.engine.engine import Engine
from towpath.engine.model import Submitted
from towpath.errors import EngineClosed
from towpath.ledger.errors import LedgerMissing
from towpath.supervise import LoopLock
from towpath.telemetry.events import JOB_SUBMITTED
from towpath.telemetry.logs import Log

if TYPE_CHECKING:
    from towpath.app.submission import SubmitMiddleware
    from towpath.ledger.ledger import Ledger
    from towpath.ledger.records.transactions import Transactions
    from towpath.telemetry.metrics import Metrics
    from towpath.worker.recorded import Recorder

T = TypeVar("T")


class Backend:
    """One engine, and one ledger with the relay that keeps Redis filled from it.

    The first `async with` opens both, and the end of the last one closes them. Entering succeeds
    while Redis or the database is unreachable. A ledger that is given by its URL, or not entered
    yet, is opened and closed with the backend; the user closes a ledger that the user has entered.
    *check* is called with the queue of each record that names no handler; *submit_middleware* runs
    around the submits of handlers.
    """

    def __init__(
        self,
        connect: Callable[[], Engine],
        *,
        ledger: Ledger | str | None = None,
        check: Callable[[str], None] | None = None,
        metrics: Callable[[], Metrics] | None = None,
        log: Log | None = None,
        submit_middleware: Sequence[SubmitMiddleware] = (),
    ) -> None:
        self._connect, self._ledger_source, self._check = connect, ledger, check
        self._find_ledger: Callable[[], str] | None = None
        self.submit_middleware = tuple(submit_middleware)
        self._ledger_later = False
        self._metrics, self._log = metrics or _new_metrics, log or Log()
        self._closed: tuple[str, Ledger] | None = None
        self._forget()
        self._blocking: Blocking | None = None
        self._twin: Backend | None = None
        """The backend that runs in the loop of `blocking`."""
        self._here: Backend | None = None
        """The backend for threads without an event loop; see `run_here`."""
        self._connecting = threading.RLock()
        _all.add(self)

    def _forget(self) -> None:
        """Reset to the state before the first enter."""
        self.connected: Engine | None = None
        """The engine, while the backend is entered."""
        self._ledger: Ledger | None = None
        self._life: AsyncExitStack | None = None
        self._entered, self._entering = 0, LoopLock()

    def restart(self) -> None:
        """Forget all connections after a fork: their threads run in the parent, which uses them."""
        # Without a reference, the old objects would close the parent's connections.
        before = self._life, self.connected, self._ledger, self._blocking, self._twin, self._here
        self._inherited = before
        self._forget()
        self._blocking = self._twin = self._here = None
        self._connecting = threading.RLock()

    @contextmanager
    def reconnected(self, ledger: Ledger | str | None = None) -> Generator[None]:
        """Use new connections, and *ledger* if it is given, until the block ends; then the old ones
        again.
        """
        before = self._life, self.connected, self._ledger, self._ledger_source
        counted = self._entered, self._entering, self._blocking, self._twin, self._here
        self._forget()
        self._blocking = self._twin = self._here = None
        self._ledger_source = self._ledger_source if ledger is None else ledger
        try:
            yield
        finally:
            self.leave_blocking()
            self._life, self.connected, self._ledger, self._ledger_source = before
            self._entered, self._entering, self._blocking, self._twin, self._here = counted

    # ── entering and leaving ─────────────────────────────────────────────────────────────

    async def __aenter__(self) -> Self:
        """Raises errors that waiting does not resolve: EvictionUnsafe, DurabilityUnknown,
        ServerRefused, LedgerNotInstalled, LedgerOutdated, InvalidOption.
        """
        async with self._entering:
            if self._entered == 0:
                async with AsyncExitStack() as life:
                    life.callback(self._leave)
                    self.connected = await life.enter_async_context(self._connect())
                    if self._given is not None and not self._ledger_later:
                        await self._open_ledger(self._given, life)
                    self._life = life.pop_all()
            self._entered += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self._entered = max(0, self._entered - 1)
        if self._entered == 0:
            life, self._life = self._life, None
            if life is not None:
                await life.aclose()

    def _leave(self) -> None:
        self.connected = self._ledger = None

    async def _open_ledger(self, given: Ledger | str, life: AsyncExitStack) -> None:
        from towpath.ledger.errors import LedgerUnreachable  # noqa: PLC0415 -- beside the ledger
        from towpath.ledger.ledger import Ledger  # noqa: PLC0415 -- needs the libraries of an extra

        ledger = Ledger(given) if isinstance(given, str) else given
        if not ledger.entered:
            await life.enter_async_context(ledger)
        with suppress(LedgerUnreachable):
            await ledger.read(lambda _: None)  # the first use checks the version of the tables
        if self._check is not None:
            ledger.jobs.checks.append(self._check)
            life.callback(ledger.jobs.checks.remove, self._check)
        if ledger.jobs.relay is None:  # a server that the app runs in has a relay already
            await life.enter_async_context(ledger.relayed(self.engine, log=self._log))
        self._ledger = ledger

    # ── what is shared ───────────────────────────────────────────────────────────────────

    @property
    def engine(self) -> Engine:
        """The engine. Raises EngineClosed while the backend is not entered."""
        if self.connected is None:
            raise EngineClosed("the app is not connected: use `async with app`, or `.blocking`")
        return self.connected

    @property
    def blocking(self) -> Blocking:
        """Runs calls in an event loop of its own. Connects at first use, also in a forked child;
        closed when the program ends.
        """
        with self._connecting:
            if self._blocking is None or not self._blocking.here:
                engine = self._connect()
                twin = self._make_twin(engine)
                blocking = Blocking(engine, life=twin)
                blocking.__enter__()
                atexit.register(blocking.__exit__)
                self._blocking, self._twin = blocking, twin
            return self._blocking

    def leave_blocking(self) -> None:
        """Close what `blocking` and `run_here` connected, now instead of when the program ends."""
        here, self._here = self._here, None
        if here is not None and here.connected is not None:
            atexit.unregister(here.connected.close_at_exit)
            here.connected.close_here()
        blocking, self._blocking, self._twin = self._blocking, None, None
        if blocking is not None:
            atexit.unregister(blocking.__exit__)
            blocking.__exit__()

    def _make_twin(self, engine: Engine) -> Backend:
        given = self._given
        if given is not None and not isinstance(given, str):
            given = given.another()  # a ledger belongs to the event loop in which it was entered
        twin = Backend(
            lambda: engine,
            ledger=given,
            check=self._check,
            metrics=self._metrics,
            log=self._log,
            submit_middleware=self.submit_middleware,
        )
        twin._ledger_later = True
        return twin

    def run_blocking(self, ask: Callable[[Backend], Coroutine[Any, Any, T]]) -> T:
        """Returns the result of *ask*, called with a backend in the loop of `blocking`."""
        refuse_in_running_loop()
        blocking, twin = self.blocking, self._twin
        assert twin is not None  # noqa: S101 -- made together
        return blocking.run(lambda _: ask(twin))

    def run_here(self, ask: Callable[[Backend], Coroutine[Any, Any, T]]) -> T:
        """Returns the result of *ask*, run in this thread: it may use neither tasks nor the ledger.
        Connects at first use, and again in a forked child; closed when the program ends.
        """
        refuse_in_running_loop()
        return run_to_end(ask(self._here or self._connect_here()))

    def _connect_here(self) -> Backend:
        with self._connecting:
            if self._here is None:
                engine = self._connect().in_threads()
                run_to_end(engine.__aenter__())
                if self._here is not None:  # set by a signal handler of this thread
                    engine.close_here()
                    return self._here
                here = self._make_twin(engine)
                here.connected = engine
                atexit.register(engine.close_at_exit)
                self._here = here
            return self._here

    async def open_ledger(self) -> Ledger:
        """Returns the ledger, and opens it first if that was put off until its first use."""
        if self._ledger_later and self._given is not None:
            async with self._entering:
                if self._ledger is None and self._life is not None:
                    await self._open_ledger(self._given, self._life)
        return self.ledger

    @property
    def keeps_records(self) -> bool:
        """Whether there is a ledger, or a function that finds its URL when it is needed."""
        return self._ledger_source is not None or self._find_ledger is not None

    def find_ledger(self, find: Callable[[], str]) -> None:
        """Keep records in the database whose URL *find* returns when it is first needed."""
        self._find_ledger = find

    @property
    def _given(self) -> Ledger | str | None:
        if self._ledger_source is None and self._find_ledger is not None:
            self._ledger_source = self._find_ledger()
        return self._ledger_source

    @property
    def ledger_url(self) -> str | None:
        """The URL of the ledger; None if it was not given by its URL."""
        return self._given if isinstance(self._given, str) else None

    @property
    def ledger(self) -> Ledger:
        """The ledger. Raises LedgerMissing, and EngineClosed while the backend is not entered."""
        if self._given is None:
            raise LedgerMissing
        if self._ledger is None:
            raise EngineClosed("the app is not connected: use `async with app`")
        return self._ledger

    @property
    def transactions(self) -> Transactions:
        """Creates records in callers' transactions, also before entering. Raises LedgerMissing."""
        from towpath.ledger.ledger import Ledger  # noqa: PLC0415 -- as above

        if self._given is None:
            raise LedgerMissing
        if self._ledger is not None:
            return self._ledger.transactions
        if not isinstance(self._given, str):
            return self._given.transactions
        if self._closed is None or self._closed[0] != self._given:
            self._closed = self._given, Ledger(self._given)
        return self._closed[1].transactions

    @property
    def recorder(self) -> Recorder:
        """Reads and writes the record of a job around its attempts in a worker."""
        from towpath.ledger.records.recorder import LedgerRecorder  # noqa: PLC0415 -- as above

        return LedgerRecorder(self.ledger.jobs)

    def jobs(self, *, recorded: bool) -> AllJobs:
        """The facade for the jobs of handlers with a record, or for those of the other handlers."""
        find_ledger = self.open_ledger if recorded else no_ledger
        return AllJobs(self.engine, find_ledger, recorded=recorded)

    def report_submitted(self, submitted: Submitted, handler: str) -> None:
        """Count and log a job, if it is new."""
        if not submitted.existed:
            job = submitted.job
            self._metrics().of(job.queue, handler).submitted.inc()
            self._log.emit(JOB_SUBMITTED, job=job.id, queue=job.queue, handler=handler)


def _new_metrics() -> Metrics:
    from towpath.telemetry.metrics import Metrics  # noqa: PLC0415 -- slow to import

    return Metrics()


_all: WeakSet[Backend] = WeakSet()


def _restart_all() -> None:
    for backend in list(_all):
        backend.restart()


os.register_at_fork(after_in_child=_restart_all)
