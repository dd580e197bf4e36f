"""Timers in Python: submitted from anywhere, and worked on in processes of your own.

    timers = Timers("redis://localhost")

    @timers.worker("order.timeout")
    async def cancel_order(order: Order) -> None: ...

    async with timers:
        await timers.submit("order.timeout", Order(7), delay="30m", task_id="order-7")

Run the workers with `towpath worker module:app`, where `app = timers.app`; or in this process, with
`timers.register("order.timeout", 1)`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from typing import Any, Self, TypeVar, Unpack, cast, overload

from towpath.app.app import Towpath
from towpath.apps.timers.blocking import BackgroundWorker, BlockingTimers
from towpath.apps.timers.listing import TimerPage, TimerQuery, TypeView
from towpath.apps.timers.local_types import Heartbeats, LocalType, TimerKeywords
from towpath.apps.timers.log import FiringLog, FiringPage
from towpath.apps.timers.model import Timer, TimerFields, Times, TypeKey, new_timer, when
from towpath.apps.timers.options import TimersOptions
from towpath.apps.timers.service import TimerExplanation, TimerService
from towpath.apps.timers.workers import TaskWorker, is_task_worker
from towpath.clock import duration_ms, seconds
from towpath.engine.check import integer
from towpath.engine.engine import Engine
from towpath.engine.states import State
from towpath.errors import HandlerInvalid
from towpath.worker.attempt import SettledAttempt
from towpath.worker.options import DEFAULTS
from towpath.worker.recorded import AtWork
from towpath.worker.worker import Worker

W = TypeVar("W", bound=Callable[..., Any])


class Timers:
    """Timers on one server: submit them, and run them in your own processes.

    *app* is a Towpath, or the URL of a server. Creating one opens no connection; `async with
    timers` does. `timers.blocking` is for code without an event loop.
    """

    def __init__(self, app: Towpath | str, *, options: TimersOptions | None = None) -> None:
        self.app = Towpath(app) if isinstance(app, str) else app
        self._options = options or TimersOptions()
        self._local_types: dict[str, LocalType] = {}
        self._threads = DEFAULTS.concurrency
        self._running: BackgroundWorker | None = None
        self.blocking = BlockingTimers(self.app, self._options)
        self._service_of_engine: tuple[Engine, TimerService] | None = None
        self.app.around_workers(self._around)

    async def __aenter__(self) -> Self:
        await self.app.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._service.log.close()
        await self.app.__aexit__()

    @property
    def _service(self) -> TimerService:
        """The service on the app's engine, which is another one each time the app is entered."""
        engine = self.app.engine
        if self._service_of_engine is None or self._service_of_engine[0] is not engine:
            jobs = self.app.ledger.jobs if self.app.keeps_records else None
            log = FiringLog(engine, self._options, self.app.metrics)
            service = TimerService(engine, self._options, jobs=jobs, log=log)
            self._service_of_engine = engine, service
        return self._service_of_engine[1]

    # ── timers ───────────────────────────────────────────────────────────────────────────

    async def submit(
        self,
        task_type: str,
        params: Any = None,
        *,
        task_id: str | None = None,
        **fields: Unpack[TimerFields],
    ) -> Timer:
        """Submit a timer. Returns once it is stored.

        Its time is one of `delay` (seconds, a timedelta, or text such as "30m"), `delay_time` (13
        digits = ms since 1970, 16 digits = µs) and `due`; a past time means now. *task_id* is your
        own id: the same id with the same content is one timer. Raises TimerDiffers, TimerEnded,
        TimerTypesFull, TimerTypeAmbiguous and, before anything is sent, InvalidName, InvalidOption.
        """
        return await self._service.submit(new_timer(task_type, params, task_id=task_id, **fields))

    async def set(
        self, task_type: str, task_id: str, params: Any = None, **fields: Unpack[TimerFields]
    ) -> Timer:
        """Create a timer under its id, or replace the one that waits there.

        An ended timer is created again. Raises TimerRunning if a worker runs it.
        """
        return await self._service.set(new_timer(task_type, params, task_id=task_id, **fields))

    async def move(
        self, task_type: str, task_id: str, *, app: str | None = None, **times: Unpack[Times]
    ) -> Timer:
        """Give a waiting timer another time. Raises TimerNotFound, TimerRunning, TimerEnded."""
        return await self._service.move(TypeKey(task_type, app), task_id, when(**times))

    async def cancel(self, task_type: str, task_id: str, *, app: str | None = None) -> Timer:
        """Cancel a timer; a running one is asked to stop. Raises TimerNotFound, TimerEnded."""
        return await self._service.cancel(TypeKey(task_type, app), task_id)

    async def get(self, task_type: str, task_id: str, *, app: str | None = None) -> Timer:
        """Read a timer. Raises TimerNotFound."""
        return await self._service.get(TypeKey(task_type, app), task_id)

    async def explain(
        self, task_type: str, task_id: str, *, app: str | None = None
    ) -> TimerExplanation:
        """Why a timer is not running, as a word and a sentence. Raises TimerNotFound."""
        return await self._service.explain(TypeKey(task_type, app), task_id)

    async def list(
        self,
        *,
        app: str | None = None,
        task_type: str | None = None,
        state: State | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        after: str | None = None,
        size: int = 100,
    ) -> TimerPage:
        """A page of timers by type and state; *since* and *until* select by due time."""
        wanted = TimerQuery(app=app, task_type=task_type, state=state, since=since, until=until)
        return await self._service.list(wanted, after=after, size=size)

    async def types(self) -> list[TypeView]:
        """All types: who owns and serves them, and how many timers they have."""
        return await self._service.all_types()

    async def log(
        self, task_type: str, *, app: str | None = None, after: str | None = None, size: int = 100
    ) -> FiringPage:
        """A page of the firings of a type, latest first."""
        return await self._service.log.read(TypeKey(task_type, app), after=after, size=size)

    # ── workers ──────────────────────────────────────────────────────────────────────────

    @overload
    def worker(self, worker: W, /) -> W: ...
    @overload
    def worker(self, task_type: str, /, **options: Unpack[TimerKeywords]) -> Callable[[W], W]: ...
    def worker(self, worker: Any, /, **options: Unpack[TimerKeywords]) -> Any:
        """Make a function the worker of a type: `@timers.worker("order.timeout")`.

        The function gets the params, checked against its annotation, and a `Context` if a parameter
        is annotated so. Async functions run in the event loop, plain ones in threads.
        `@timers.worker` alone is for a class with `type()`, `clazz()` and `invoke(message)`; the
        message is the params as text. If a type has several workers, all are called, one after the
        other. Raises HandlerInvalid.
        """
        if not isinstance(worker, str):
            self.add(worker)
            return worker

        def decorate(function: Any) -> Any:
            self.add(function, task_type=worker, **options)
            return function

        return decorate

    def add(
        self,
        worker: Callable[..., Any] | TaskWorker | type,
        *,
        task_type: str | None = None,
        **options: Unpack[TimerKeywords],
    ) -> None:
        """Add a worker, as the decorator `worker` does. A class is called without arguments."""
        made = worker() if isinstance(worker, type) else worker
        name = cast("TaskWorker", made).type() if is_task_worker(made) else task_type
        if name is None or task_type not in (None, name):
            rule = 'needs its task type: @timers.worker("order.timeout"), or a method type()'
            raise HandlerInvalid(repr(worker), rule=rule)
        key = TypeKey(name)
        local = self._local_types.get(name) or LocalType(
            self.app, key, partial(self._log_settled, key)
        )
        local.add(cast("Any", made), options)
        self._local_types[name] = local

    def set_threads(self, size: int) -> None:
        """Set how many timers run at once in this process; applies from the next `register` on."""
        if self._running is not None:
            raise HandlerInvalid("set_threads", rule="must be called before the first register")
        self._threads = integer("threads", size, 1, 100_000)

    def register(self, task_type: str, sec: float = 1) -> None:
        """Run the timers of a type in this process from now on, in a thread or in the running event
        loop.

        *sec* is accepted for programs that were written for polling, and has no effect: timers run
        when they are due. Raises HandlerInvalid for a type without a worker.
        """
        duration_ms("sec", seconds(sec))
        if task_type not in self._local_types:
            raise HandlerInvalid(task_type, rule="no worker serves this type: add one first")
        if self._running is None:
            worker = Worker(self.app, concurrency=self._threads, signals=())
            self._running = BackgroundWorker(worker)
            self._running.start()

    def stop(self) -> None:
        """Run no more timers; running ones may finish. For programs without an event loop."""
        running, self._running = self._running, None
        if running is not None:
            running.stop()

    async def stopped(self) -> None:
        """Run no more timers, and return when running ones have ended. For an event loop."""
        running, self._running = self._running, None
        if running is not None:
            await running.stopped()

    @asynccontextmanager
    async def working(self) -> AsyncGenerator[Self]:
        """Connect, and run the timers of all types that have workers here, until the block ends."""
        async with self:
            worker = Worker(self.app, concurrency=self._threads, signals=())
            task = asyncio.create_task(worker.run())
            try:
                yield self
            finally:
                worker.stop("the block has ended")
                await task

    # ── around each worker ───────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def _around(self, worker: AtWork) -> AsyncGenerator[None]:
        """Send heartbeats for the worker's types while it runs, then write the log."""
        service = self._service
        beats = Heartbeats(self.app, service.types, self._local_types, worker)
        try:
            async with beats.beating():
                yield
        finally:
            await service.log.close()

    def _log_settled(self, key: TypeKey, attempts: Sequence[SettledAttempt]) -> None:
        self._service.log.add_worked(key, attempts)
