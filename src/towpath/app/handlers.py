"""Declaring handlers: `@app.handler(…)`, and `Handlers` for modules that do not have the app."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, overload

from towpath.app.decorator import Decorator
from towpath.app.submission import NOTHING, NotGiven, X
from towpath.app.submitting import AppHandler
from towpath.clock import DurationLike
from towpath.engine.model import JobOptions
from towpath.engine.retry import RetryPolicy
from towpath.engine.schedule import Missed, NamedSchedule, Schedule, ScheduleOptions, schedule
from towpath.errors import HandlerInvalid
from towpath.worker.handler import HandlerOptions, OnSettled
from towpath.worker.schedules import DeclaredSchedules

if TYPE_CHECKING:
    from towpath.app.app import Towpath

T = TypeVar("T")
Key = tuple[str, str | None]


class HandlerKeywords(TypedDict, total=False):
    """The options of a handler, as keywords; see HandlerOptions."""

    name: str | None
    retry: RetryPolicy | None
    max_attempts: int | None
    keep: DurationLike | None
    time_limit: DurationLike
    processes: int
    concurrency: int | None
    weight: int
    record: bool


class Handlers:
    """The handlers of a module whose app is in another module: `app.include(handlers)`.

        handlers = Handlers()

        @handlers.handler("mails")
        async def send(mail: Mail) -> None: ...

    Jobs can be submitted to the handlers once the group is included in an app. Handlers that are
    declared after that belong to the app at once.
    """

    def __init__(self) -> None:
        self._handlers: dict[Key, AppHandler[Any, Any, Any]] = {}
        self._followers: list[Callable[[], None]] = []
        self.included_in: Towpath | None = None
        """The app that includes the group; None before."""
        self.declared_schedules = DeclaredSchedules()

    @property
    def handlers(self) -> Sequence[AppHandler[Any, Any, Any]]:
        """All handlers, in the order in which they were declared."""
        return list(self._handlers.values())

    def handler(self, queue: str, **options: Unpack[HandlerKeywords]) -> Decorator:
        """Make a function the handler of *queue*: `@app.handler("reviews", time_limit=minutes(5))`.

        The function gets the payload, checked against its annotation, and a `Context` if a
        parameter is annotated so. Async functions run in the worker's event loop, plain ones in
        threads, or in processes with `processes=`. *options* are the fields of `HandlerOptions`.
        Raises HandlerInvalid for a function that cannot be called this way, and if the queue has a
        handler of the same name (or another one without a name).
        """
        if callable(queue):
            raise HandlerInvalid(
                repr(queue), rule='needs the name of its queue: @app.handler("mails")'
            )
        return Decorator(self.add, queue, HandlerOptions(**options))

    def add(
        self,
        queue: str,
        function: Callable[..., Any],
        options: HandlerOptions,
        *,
        on_settled: OnSettled | None = None,
    ) -> AppHandler[Any, Any, Any]:
        """Make *function* the handler of *queue*, as the decorator `handler` does. Workers call
        *on_settled* with its settled attempts (see `Handler`). Raises HandlerInvalid.
        """
        handler = AppHandler[Any, Any, Any](queue, function, options, on_settled=on_settled)
        self.keep(handler)
        return handler

    def keep(self, handler: AppHandler[Any, Any, Any]) -> None:
        """Internal: add *handler*, also to the app that includes this group."""
        self._require_new(handler)
        if self.included_in is not None:
            self.included_in.keep(handler)
        self._handlers[handler.queue, handler.named] = handler
        self._notify_followers()

    def _require_new(self, handler: AppHandler[Any, Any, Any]) -> None:
        other = self._handlers.get((handler.queue, handler.named))
        if other is not None:
            rule = f"queue {handler.queue} has a handler under that name, {other.name}"
            raise HandlerInvalid(handler.name, rule=f"{rule}: give one a `name=`")

    def remove(self, handler: AppHandler[Any, Any, Any]) -> None:
        """Remove *handler* and the schedules that code declares for it. Running workers stop
        claiming for it.

        Attempts that run are finished; jobs that a claim just brought are given back. The jobs of
        the queue wait for the next worker that serves it. If the queue has other handlers, a job
        for this one is dead as soon as it is claimed. Removing a handler again has no effect.
        Raises HandlerInvalid for a handler of another app.
        """
        if self.included_in is not None:
            self.included_in.remove(handler)
        key = (handler.queue, handler.named)
        if self._handlers.get(key) is handler:
            del self._handlers[key]
            self.declared_schedules.remove(*key)
            self._notify_followers()

    def forget(self, handler: AppHandler[Any, Any, Any]) -> None:
        """Internal: forget *handler*, which the app has removed."""
        self._handlers.pop((handler.queue, handler.named), None)

    @contextmanager
    def followed(self, changed: Callable[[], None]) -> Generator[None]:
        """Internal: call *changed* after each change of the handlers, in the thread that made it,
        until the block ends. Workers follow their app this way.
        """
        self._followers.append(changed)
        try:
            yield
        finally:
            self._followers.remove(changed)

    def _notify_followers(self) -> None:
        for changed in list(self._followers):
            changed()

    def recurring(
        self,
        when: str | Schedule,
        *,
        tz: str | None = None,
        missed: Missed = Missed.ONCE,
        queue: str = "recurring",
        **options: Unpack[HandlerKeywords],
    ) -> Decorator:
        """Make a function a handler that runs on a schedule: `@app.recurring("0 3 * * *")`.

        *when* is a cron expression in the time zone *tz* (default: UTC), or an `Every`. *missed*
        says what happens to firings that no worker made in time. The function gets no payload; its
        `Context` has the time of the firing in `headers["scheduled"]`. The schedule is known by the
        name of the function, or by `name=`: keep it over restarts. Raises InvalidOption,
        InvalidName, HandlerInvalid.
        """
        planned = schedule(when, tz=tz)

        def plan(handler: AppHandler[Any, Any, Any]) -> None:
            self.recur(handler, planned, missed=missed)

        return Decorator(self.add, queue, HandlerOptions(**options), plan)

    @overload
    def recur(
        self,
        handler: AppHandler[None, Any, Any],
        when: str | Schedule,
        payload: None = ...,
        *,
        name: str | None = ...,
        **options: Unpack[ScheduleOptions],
    ) -> NamedSchedule: ...
    @overload
    def recur(
        self,
        handler: AppHandler[X | NotGiven, Any, Any],
        when: str | Schedule,
        payload: X = ...,
        *,
        name: str | None = ...,
        **options: Unpack[ScheduleOptions],
    ) -> NamedSchedule: ...
    @overload
    def recur(
        self,
        handler: AppHandler[T, Any, Any],
        when: str | Schedule,
        payload: T,
        *,
        name: str | None = ...,
        **options: Unpack[ScheduleOptions],
    ) -> NamedSchedule: ...
    def recur(
        self,
        handler: AppHandler[Any, Any, Any],
        when: str | Schedule,
        payload: Any = NOTHING,
        *,
        name: str | None = None,
        tz: str | None = None,
        missed: Missed = Missed.ONCE,
        **options: Unpack[JobOptions],
    ) -> NamedSchedule:
        """Submit *payload* to *handler* on a schedule. Any worker fires it; each firing is one job.

        `app.recur(review, Every(hours(1)), Review(...), name="hourly")`. *when*, *tz* and *missed*
        are those of `recurring`; the default of *name* is the name of the handler; *options* are
        those of the jobs. Raises InvalidOption, InvalidName, PayloadInvalid.
        """
        called = handler.name if name is None else name
        named = handler.named_schedule(called, schedule(when, tz=tz), payload, missed, options)
        if self.included_in is not None:
            self.included_in.declared_schedules.add(named)
        return self.declared_schedules.add(named)
