"""The app: its handlers, its middleware, and the engine and ledger that they share.

app = Towpath("redis://localhost")

@app.handler("thumbnails")
async def thumbnail(path: str) -> str: ...

async with app:
    job = await thumbnail.submit("cat.png", priority=HIGH)
    print(await job.result(within=seconds(10)))
"""

from __future__ import annotations

import threading
from collections.abc import (
    AsyncGenerator,
    Callable,
    Container,
    Generator,
    Sequence,
)
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from typing import TYPE_CHECKING, Any, Self

from towpath import __version__
from towpath.app.backend import Backend
from towpath.app.blocking import Blocking
from towpath.app.handlers import Handlers
from towpath.app.submission import SubmitMiddleware
from towpath.app.submitting import AppHandler
from towpath.clock import Clock, DurationLike, seconds
from towpath.engine.channel import Limits, limits_within
from towpath.engine.durability import Durability
from towpath.engine.engine import Engine
from towpath.engine.schedules import Schedules
from towpath.engine.submit_timeout import check_submit_timeout
from towpath.errors import HandlerInvalid, InvalidOption
from towpath.ledger.errors import LedgerMissing
from towpath.telemetry.logs import Log, Silent
from towpath.worker.context import NO_STATE
from towpath.worker.lifespan import Lifespan, MakeState
from towpath.worker.middleware import AttemptMiddleware, require_callable
from towpath.worker.recorded import AtWork, Recorder
from towpath.worker.schedules import fire_due, keep_firing

if TYPE_CHECKING:
    from towpath.ledger.ledger import Ledger
    from towpath.settings import Settings
    from towpath.telemetry.metrics import Metrics

_LIFESPAN_LIMIT = seconds(60)
Around = Callable[[AtWork], AbstractAsyncContextManager[None]]


class Towpath(Handlers):
    """An app: handlers for queues on one deployment of Redis or Valkey.

    *url* is the address of Redis. Without it, the settings decide at first use: `REDIS_URL`,
    `TOWPATH_URL` or `towpath.toml`. *ledger* is a `Ledger` or the URL of its database; handlers
    with `record=True` need it. Without *url* and *ledger*, they use the setting `database`.
    *clock* is for tests, and *declared* is the durability of a Redis that does not report it.

    *submit_timeout* says how long a submit, or another call, waits for a Redis that does not
    answer, before it raises ServerUnreachable. Without it, the setting `submit_timeout` decides in
    an app without *url*, and 15 s is the default. After one such wait, calls fail at once until
    Redis answers. `towpath worker` waits 15 s: its jobs would only be tried again. *limits* has
    further details, and replaces *submit_timeout*.

    Creating an app opens no connection; `async with app` does. It does not wait while Redis is
    unreachable: submits work once Redis is back. The app may be entered several times in one event
    loop; it is closed when the last block ends.

    *middleware* wraps attempts, *submit_middleware* wraps submits; the first one is the outermost.
    *lifespan* is an async function with one `yield`; handlers get the yielded value as `ctx.state`.
    It runs once per worker, and once per process of a handler with `processes=`, but not where jobs
    are only submitted. Its start and its end may take *lifespan_limit* each. Raises InvalidOption,
    MiddlewareInvalid, LifespanFailed.
    """

    version = __version__

    def __init__(
        self,
        url: str | None = None,
        *,
        clock: Clock | None = None,
        submit_timeout: DurationLike | None = None,
        limits: Limits | None = None,
        declared: Durability | None = None,
        middleware: Sequence[AttemptMiddleware] = (),
        submit_middleware: Sequence[SubmitMiddleware] = (),
        ledger: Ledger | str | None = None,
        lifespan: MakeState | None = None,
        lifespan_limit: DurationLike = _LIFESPAN_LIMIT,
    ) -> None:
        super().__init__()
        require_callable((*middleware, *submit_middleware))
        self._url, self._is_named = url, bool(url)
        self._settings: Settings | None = None
        self.middleware = tuple(middleware)
        self._lifespan = None if lifespan is None else Lifespan(lifespan, lifespan_limit)
        self._included: list[Handlers] = []
        self._clock: Clock | None = clock
        self._limits, self._declared = limits, declared
        self._submit_timeout = (
            None if submit_timeout is None else check_submit_timeout(submit_timeout)
        )
        self._runs_in_worker = False
        self._make_engine: Callable[..., Engine] = Engine
        self._around: list[Around] = []
        self._backend = Backend(
            self.new_engine,
            ledger=ledger,
            check=self._require_unnamed,
            metrics=lambda: self.metrics,
            submit_middleware=submit_middleware,
        )
        self._metrics: Metrics | None = None
        self._making_metrics = threading.Lock()

    @property
    def metrics(self) -> Metrics:
        """The counters of the app's jobs in this process."""
        if self._metrics is None:
            from towpath.telemetry.metrics import Metrics  # noqa: PLC0415 -- slow to import

            with self._making_metrics:  # threads may submit their first jobs at the same time
                self._metrics = self._metrics or Metrics()
        return self._metrics

    @metrics.setter
    def metrics(self, metrics: Metrics) -> None:
        self._metrics = metrics

    # ── handlers ─────────────────────────────────────────────────────────────────────────

    def include(self, *groups: Handlers) -> None:
        """Add the handlers and schedules of other modules to the app.

        Handlers that are declared in a group later are added as well. Including a group again has
        no effect. Raises HandlerInvalid for a handler whose name is taken and for a group of
        another app, and LedgerMissing for a handler with `record=True` in an app without a ledger;
        then nothing of that group is added.
        """
        for group in groups:
            if group.included_in is self:
                continue
            if group is self or group.included_in is not None or isinstance(group, Towpath):
                rule = "belongs to another app already: include each Handlers() in one app only"
                raise HandlerInvalid("handlers", rule=rule)
            for handler in group.handlers:
                self._require_new(handler)
            for schedule in group.declared_schedules:
                self.declared_schedules.require_new(schedule)
            for handler in group.handlers:
                self.keep(handler)
            for schedule in group.declared_schedules:
                self.declared_schedules.add(schedule)
            group.included_in = self
            self._included.append(group)

    def keep(self, handler: AppHandler[Any, Any, Any]) -> None:
        self._require_new(handler)
        handler.attach(self._backend, self._lifespan)
        super().keep(handler)

    def _require_new(self, handler: AppHandler[Any, Any, Any]) -> None:
        if handler.options.record and not self._backend.keeps_records:
            if self._is_named:
                raise LedgerMissing
            self._backend.find_ledger(self._find_database)
        super()._require_new(handler)

    def remove(self, handler: AppHandler[Any, Any, Any]) -> None:
        if not handler.belongs_to(self._backend):
            raise HandlerInvalid(handler.name, rule="belongs to another app")
        super().remove(handler)
        for group in self._included:
            group.forget(handler)

    remove.__doc__ = Handlers.remove.__doc__

    def around_workers(self, run: Around) -> None:
        """Internal: enter what *run* returns for a worker before it claims its first job, and leave
        it after its last job was settled.
        """
        self._around.append(run)

    @asynccontextmanager
    async def living(self) -> AsyncGenerator[Any]:
        """Internal: the state that handlers share in this process. Raises LifespanFailed."""
        if self._lifespan is None:
            yield NO_STATE
        else:
            async with self._lifespan.entered() as state:
                yield state

    @asynccontextmanager
    async def around(self, worker: AtWork) -> AsyncGenerator[None]:
        """Internal: enter what `around_workers` has added, until the block ends."""
        async with AsyncExitStack() as stack:
            for run in self._around:
                await stack.enter_async_context(run(worker))
            yield

    def _require_unnamed(self, queue: str) -> None:
        """Raises InvalidOption for a job that names no handler, in a queue whose handlers all have
        names.
        """
        names = [name for at, name in self._handlers if at == queue]
        if names and None not in names:
            listed = ", ".join(sorted(str(name) for name in names))
            rule = (
                f"every handler of this queue has a name ({listed}); submit with the handler's own"
                " `submit(payload, in_transaction=session)`, or name one: headers={'handler': …}"
            )
            raise InvalidOption("queue", queue, rule=rule)

    # ── schedules ────────────────────────────────────────────────────────────────────────

    @property
    def schedules(self) -> Schedules:
        """The schedules in Redis: list, create, change, pause, fire and delete them. Only while the
        app is entered.
        """
        return self.engine.schedules

    async def keep_firing(self, queues: Container[str], log: Log) -> None:
        """Internal: fire the schedules of *queues* that code declares, until cancelled."""
        await keep_firing(
            self.engine, self.declared_schedules, queues=queues, clock=self._clock, log=log
        )

    async def fire_due(self, queues: Container[str], log: Log) -> None:
        """Internal: fire the schedules of *queues* that code declares and that are due now."""
        await fire_due(self.engine, self.declared_schedules, queues=queues, log=log)

    # ── the connection to Redis ──────────────────────────────────────────────────────────

    @property
    def url(self) -> str:
        """The address of Redis, as given or from the settings. Raises InvalidOption."""
        if not self._url:
            settings = self._load_settings()
            self._url, self._declared = settings.server, self._declared or settings.declared
            self._submit_timeout = self._submit_timeout or settings.submit_timeout
        return self._url

    @url.setter
    def url(self, url: str) -> None:
        self._url = url

    def use(self, settings: Settings) -> None:
        """Internal: take what the constructor was not given from *settings*, not from the settings
        of this directory. The process is a worker: `submit_timeout` does not shorten its calls.
        """
        self._settings, self._runs_in_worker = settings, True

    def _load_settings(self) -> Settings:
        if self._settings is None:
            from towpath.settings import load_core  # noqa: PLC0415 -- only where no URL is given

            self._settings = load_core()
        return self._settings

    def _find_database(self) -> str:
        if (found := self._load_settings().database) is None:
            raise LedgerMissing
        return found

    async def __aenter__(self) -> Self:
        await self._backend.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._backend.__aexit__()

    @property
    def engine(self) -> Engine:
        """The engine of the app, for everything that handlers and jobs do not offer. Only while the
        app is entered.
        """
        return self._backend.engine

    @property
    def blocking(self) -> Blocking:
        """Calls the engine from code without an event loop; connects at first use."""
        return self._backend.blocking

    @property
    def ledger(self) -> Ledger:
        """The ledger of the app. Only while the app is entered. Raises LedgerMissing."""
        return self._backend.ledger

    @property
    def keeps_records(self) -> bool:
        """Whether the app has a ledger."""
        return self._backend.keeps_records

    @property
    def ledger_url(self) -> str | None:
        """Internal: the URL of the ledger, if it was given as one."""
        return self._backend.ledger_url

    @property
    def recorder(self) -> Recorder:
        """Internal: reads and writes the record of a job around its attempts in a worker."""
        return self._backend.recorder

    async def ledger_id(self) -> str | None:
        """Internal: the id of the database with the records."""
        return await self._backend.ledger.identity()

    def new_engine(self, limits: Limits | None = None) -> Engine:
        """Internal: another engine for the same Redis, not yet entered. An engine with its own
        *limits* logs nothing: its user reports its errors.
        """
        url = self.url  # first: it may load the settings, which also set the timeout
        timeout = None if self._runs_in_worker else self._submit_timeout
        return self._make_engine(
            url,
            clock=self._clock,
            limits=limits or self._limits or (None if timeout is None else limits_within(timeout)),
            declared=self._declared,
            log=None if limits is None else Silent(),
        )

    @contextmanager
    def pointed_at(
        self,
        url: str | None = None,
        *,
        clock: Clock | None = None,
        engine: Callable[..., Engine] = Engine,
        ledger: Ledger | str | None = None,
    ) -> Generator[Self]:
        """Internal: use another Redis, clock, kind of engine and ledger until the block ends; for
        tests.

        Code that connects inside the block, also through `.blocking`, reaches that Redis and must
        leave the app before the block ends. Connections from before stay open and are used again
        afterwards.
        """
        before = self._url, self._clock, self._make_engine, self._metrics
        self._url, self._clock, self._make_engine = url, clock, engine
        self._metrics = None
        try:
            if ledger is not None and not self._backend.keeps_records:
                raise LedgerMissing
            with self._backend.reconnected(ledger):
                yield self
        finally:
            self._url, self._clock, self._make_engine, self._metrics = before
