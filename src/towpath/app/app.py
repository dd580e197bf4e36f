"""What a Python user writes: an app, its handlers, and jobs for them.

app = Towpath("redis://localhost")

@app.handler("thumbnails")
async def thumbnail(path: str) -> str: ...

async with app:
    job = await thumbnail.submit("cat.png", priority=HIGH)
    print(await job.result(within=seconds(10)))
"""

from __future__ import annotations

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
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Self, TypedDict, TypeVar, Unpack

from towpath.app.blocking import BlockingEngine
from towpath.app.connection import Connection
from towpath.app.decorator import Decorator
from towpath.app.submission import NOTHING, SubmitMiddleware
from towpath.app.submitting import AppHandler
from towpath.clock import Clock, DurationLike
from towpath.engine.channel import Limits
from towpath.engine.durability import Durability
from towpath.engine.engine import Engine
from towpath.engine.model import JobOptions
from towpath.engine.retry import RetryPolicy
from towpath.engine.schedule import Missed, Recurrence, Schedule, schedule
from towpath.engine.schedules import Schedules
from towpath.errors import HandlerInvalid, InvalidOption
from towpath.ledger.errors import LedgerMissing
from towpath.telemetry.logs import Log, Silent
from towpath.telemetry.metrics import Metrics
from towpath.worker.context import Middleware
from towpath.worker.handler import HandlerOptions
from towpath.worker.recorded import AtWork, Recorder
from towpath.worker.recurring import Recurrences, fire_due, keep_firing

if TYPE_CHECKING:
    from towpath.ledger.ledger import Ledger

T = TypeVar("T")
R = TypeVar("R")
C = TypeVar("C")
Around = Callable[[AtWork], AbstractAsyncContextManager[None]]


class Options(TypedDict, total=False):
    """What may be said about a handler: see HandlerOptions."""

    name: str | None
    retry: RetryPolicy | None
    max_attempts: int | None
    keep: DurationLike | None
    time_limit: DurationLike
    processes: int
    concurrency: int | None
    weight: int
    record: bool


class Towpath:
    """An app: handlers for queues on one deployment of Redis or Valkey.

    Making one connects nothing. `async with app` connects, and does not wait for a server that is
    away: jobs can be submitted when it is back. Entered again by somebody else in the
    same loop, it is shared and closed when the last one leaves.
    """

    version = version("towpath")

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        limits: Limits | None = None,
        declared: Durability | None = None,
        middleware: Sequence[Middleware] = (),
        submit_middleware: Sequence[SubmitMiddleware] = (),
        ledger: Ledger | str | None = None,
    ) -> None:
        self.url = url
        self.middleware = tuple(middleware)
        self._clock: Clock | None = clock
        self._limits, self._declared = limits, declared
        self._make_engine: Callable[..., Engine] = Engine
        self._handlers: dict[tuple[str, str | None], AppHandler[Any, Any, Any]] = {}
        self._followers: list[Callable[[], None]] = []
        self._around: list[Around] = []
        self.recurrences = Recurrences()
        self._connection = Connection(
            self.new_engine,
            ledger=ledger,
            check=self._require_unnamed,
            metrics=lambda: self.metrics,
            submit_middleware=submit_middleware,
        )
        self.metrics = Metrics()

    # ── handlers ─────────────────────────────────────────────────────────────────────────

    @property
    def handlers(self) -> Sequence[AppHandler[Any, Any, Any]]:
        """All handlers, in the order they were declared."""
        return list(self._handlers.values())

    def handler(self, queue: str, **options: Unpack[Options]) -> Decorator:
        """Make a function the handler of *queue*: `@app.handler("reviews", time_limit=minutes(5))`.

        The function takes the payload, checked against its annotation, and a `Context` where one
        is annotated. Async functions run in the worker's loop, plain ones in threads, with
        `processes=` in processes. Raises HandlerInvalid for what nobody could call, and for a
        second handler of the queue under the same name (or the second without one).
        """
        if callable(queue):
            raise HandlerInvalid(repr(queue), rule='needs its queue: @app.handler("mails")')
        return Decorator(self.add, queue, HandlerOptions(**options))

    def add(
        self, queue: str, function: Callable[..., Any], options: HandlerOptions
    ) -> AppHandler[Any, Any, Any]:
        """What the decorator does."""
        if options.record and not self._connection.keeps_records:
            raise LedgerMissing
        handler = AppHandler[Any, Any, Any](queue, function, options, connection=self._connection)
        key = (handler.queue, handler.named)
        if key in self._handlers:
            other = self._handlers[key].name
            rule = f"queue {queue} has a handler under that name, {other}: give one a `name=`"
            raise HandlerInvalid(handler.name, rule=rule)
        self._handlers[key] = handler
        self._tell_followers()
        return handler

    def remove(self, handler: AppHandler[Any, Any, Any]) -> None:
        """Let *handler* go, with its recurring work: workers that run claim nothing more for it.

        What they run already goes on to its end; what a claim on its way brings is given back. Its
        jobs wait in the queue for whoever serves it next. In a queue that other handlers share, a
        job that asks for this one is dead as soon as it is claimed, as one for any handler that is
        not there. Without effect the second time. Raises HandlerInvalid for another app's.
        """
        if not handler.belongs_to(self._connection):
            raise HandlerInvalid(handler.name, rule="is the handler of another app")
        key = (handler.queue, handler.named)
        if self._handlers.get(key) is handler:
            del self._handlers[key]
            self.recurrences.remove(*key)
            self._tell_followers()

    @contextmanager
    def followed(self, changed: Callable[[], None]) -> Generator[None]:
        """Call *changed* after each change of the handlers, in the thread that made it, until the
        end of the block. Workers follow their app this way.
        """
        self._followers.append(changed)
        try:
            yield
        finally:
            self._followers.remove(changed)

    def _tell_followers(self) -> None:
        for changed in list(self._followers):
            changed()

    def around_workers(self, run: Around) -> None:
        """Enter what *run* makes of a worker before it claims its first job, and leave it after its
        last one was settled: for those who bring handlers and have to know of their workers.
        """
        self._around.append(run)

    @asynccontextmanager
    async def around(self, worker: AtWork) -> AsyncGenerator[None]:
        """All that runs around *worker*."""
        async with AsyncExitStack() as stack:
            for run in self._around:
                await stack.enter_async_context(run(worker))
            yield

    def _require_unnamed(self, queue: str) -> None:
        """Refuse a job for no handler in particular where there are only named ones."""
        names = [name for at, name in self._handlers if at == queue]
        if names and None not in names:
            listed = ", ".join(sorted(str(name) for name in names))
            rule = (
                f"every handler of this queue has a name ({listed}); submit with the handler's own"
                " `submit(payload, in_transaction=session)`, or name one: headers={'handler': …}"
            )
            raise InvalidOption("queue", queue, rule=rule)

    # ── recurring work ───────────────────────────────────────────────────────────────────

    def recurring(
        self,
        when: str | Schedule,
        *,
        tz: str | None = None,
        missed: Missed = Missed.ONCE,
        queue: str = "recurring",
        **options: Unpack[Options],
    ) -> Decorator:
        """Make a function a handler that runs on a schedule: `@app.recurring("0 3 * * *")`.

        *when* is a cron expression, in the time zone *tz*, or an `Every`. The function is called
        with no payload; its `Context` has the instant in `headers["scheduled"]`. Its name, or
        `name=`, tells it from others over restarts. Raises InvalidOption, InvalidName,
        HandlerInvalid.
        """
        planned = schedule(when, tz=tz)

        def plan(handler: AppHandler[Any, Any, Any]) -> None:
            self.recur(handler, planned, missed=missed)

        return Decorator(self.add, queue, HandlerOptions(**options), plan)

    def recur(
        self,
        handler: AppHandler[T, Any, Any],
        when: str | Schedule,
        payload: T = NOTHING,
        *,
        name: str | None = None,
        tz: str | None = None,
        missed: Missed = Missed.ONCE,
        **options: Unpack[JobOptions],
    ) -> Recurrence:
        """Submit *payload* to *handler* again and again: fired by any worker, each firing once.

        `app.recur(review, Every(hours(1)), Review(...), name="hourly")`. The name is the
        handler's unless one is given. Raises InvalidOption, InvalidName, PayloadInvalid.
        """
        called = handler.name if name is None else name
        return self.recurrences.add(
            handler.recurrence(called, schedule(when, tz=tz), payload, missed, options)
        )

    @property
    def schedules(self) -> Schedules:
        """The schedules that are kept in the store, while the app is entered."""
        return self.engine.schedules

    async def keep_firing(self, queues: Container[str], log: Log) -> None:
        """Fire the recurring work of *queues*, as these are at the time and whoever declared it."""
        await keep_firing(self.engine, self.recurrences, queues=queues, clock=self._clock, log=log)

    async def fire_due(self, queues: Container[str], log: Log) -> None:
        """Fire the recurring work of *queues* that is due now."""
        await fire_due(self.engine, self.recurrences, queues=queues, log=log)

    # ── the way to the server ────────────────────────────────────────────────────────────

    async def __aenter__(self) -> Self:
        await self._connection.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connection.__aexit__()

    @property
    def engine(self) -> Engine:
        """The engine behind it, for everything that has no shorter way."""
        return self._connection.engine

    @property
    def blocking(self) -> BlockingEngine:
        """The engine for code without an event loop: connected at first use, closed at exit."""
        return self._connection.blocking

    @property
    def ledger(self) -> Ledger:
        """The database that keeps the records, while the app is entered. Raises LedgerMissing."""
        return self._connection.ledger

    @property
    def keeps_records(self) -> bool:
        """Whether it has a ledger."""
        return self._connection.keeps_records

    @property
    def ledger_url(self) -> str | None:
        """Where its ledger is, if that was said as a URL."""
        return self._connection.ledger_url

    @property
    def recorder(self) -> Recorder:
        """What a worker asks before an attempt and tells after it."""
        return self._connection.recorder

    def new_engine(self, limits: Limits | None = None) -> Engine:
        """Another engine on the same server, not yet entered; one with *limits* of its own is for
        a part that tells of its trouble itself.
        """
        return self._make_engine(
            self.url,
            clock=self._clock,
            limits=limits or self._limits,
            declared=self._declared,
            log=None if limits is None else Silent(),
        )

    @contextmanager
    def pointed_at(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        engine: Callable[..., Engine] = Engine,
        ledger: Ledger | str | None = None,
    ) -> Generator[Self]:
        """Another server, clock, kind of engine and ledger until the end of the block: for tests.

        Whoever connects inside of it, `.blocking` too, reaches that server, and must leave the
        app before it ends. What was connected before stays so, and is back in use afterwards.
        """
        before = self.url, self._clock, self._make_engine, self.metrics
        self.url, self._clock, self._make_engine = url, clock, engine
        self.metrics = Metrics()
        try:
            if ledger is not None and not self._connection.keeps_records:
                raise LedgerMissing
            with self._connection.anew(ledger):
                yield self
        finally:
            self.url, self._clock, self._make_engine, self.metrics = before
