"""Declaring handlers: `@app.handler(…)`, and the same for modules whose app is elsewhere."""

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
from towpath.engine.schedule import Missed, Recurrence, Schedule, ScheduleOptions, schedule
from towpath.errors import HandlerInvalid
from towpath.worker.handler import HandlerOptions
from towpath.worker.recurring import Recurrences

if TYPE_CHECKING:
    from towpath.app.app import Towpath

T = TypeVar("T")
Key = tuple[str, str | None]


class HandlerKeywords(TypedDict, total=False):
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


class Handlers:
    """Handlers of a module, for an app that is made elsewhere: `app.include(handlers)`.

        handlers = Handlers()

        @handlers.handler("mails")
        async def send(mail: Mail) -> None: ...

    Jobs can be submitted to them as soon as they are included; those that are declared later are
    the app's at once.
    """

    def __init__(self) -> None:
        self._handlers: dict[Key, AppHandler[Any, Any, Any]] = {}
        self._followers: list[Callable[[], None]] = []
        self.included_in: Towpath | None = None
        """The app that has them, once one has."""
        self.recurrences = Recurrences()

    @property
    def handlers(self) -> Sequence[AppHandler[Any, Any, Any]]:
        """All handlers, in the order they were declared."""
        return list(self._handlers.values())

    def handler(self, queue: str, **options: Unpack[HandlerKeywords]) -> Decorator:
        """Make a function the handler of *queue*: `@app.handler("reviews", time_limit=minutes(5))`.

        The function takes the payload, checked against its annotation, and a `Context` where one
        is annotated. Async functions run in the worker's loop, plain ones in threads, with
        `processes=` in processes. Raises HandlerInvalid for what nobody could call, and for a
        second handler of the queue under the same name (or the second without one).
        """
        if callable(queue):
            raise HandlerInvalid(
                repr(queue), rule='needs the name of its queue: @app.handler("mails")'
            )
        return Decorator(self.add, queue, HandlerOptions(**options))

    def add(
        self, queue: str, function: Callable[..., Any], options: HandlerOptions
    ) -> AppHandler[Any, Any, Any]:
        """What the decorator does."""
        handler = AppHandler[Any, Any, Any](queue, function, options)
        self.keep(handler)
        return handler

    def keep(self, handler: AppHandler[Any, Any, Any]) -> None:
        """Have *handler* among the others; in the app too, if these are included in one."""
        self._require_new(handler)
        if self.included_in is not None:
            self.included_in.keep(handler)
        self._handlers[handler.queue, handler.named] = handler
        self._tell_followers()

    def _require_new(self, handler: AppHandler[Any, Any, Any]) -> None:
        other = self._handlers.get((handler.queue, handler.named))
        if other is not None:
            rule = f"queue {handler.queue} has a handler under that name, {other.name}"
            raise HandlerInvalid(handler.name, rule=f"{rule}: give one a `name=`")

    def remove(self, handler: AppHandler[Any, Any, Any]) -> None:
        """Let *handler* go, with its recurring work: workers that run claim nothing more for it.

        What they run already goes on to its end; what a claim on its way brings is given back. Its
        jobs wait in the queue for whoever serves it next. In a queue that other handlers share, a
        job that asks for this one is dead as soon as it is claimed, as one for any handler that is
        not there. Without effect the second time. Raises HandlerInvalid for another app's.
        """
        if self.included_in is not None:
            self.included_in.remove(handler)
        key = (handler.queue, handler.named)
        if self._handlers.get(key) is handler:
            del self._handlers[key]
            self.recurrences.remove(*key)
            self._tell_followers()

    def forget(self, handler: AppHandler[Any, Any, Any]) -> None:
        """Have it no more: its app has let it go."""
        self._handlers.pop((handler.queue, handler.named), None)

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

        *when* is a cron expression, in the time zone *tz*, or an `Every`. The function is called
        with no payload; its `Context` has the instant in `headers["scheduled"]`. Its name, or
        `name=`, tells it from others over restarts. Raises InvalidOption, InvalidName,
        HandlerInvalid.
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
    ) -> Recurrence: ...
    @overload
    def recur(
        self,
        handler: AppHandler[X | NotGiven, Any, Any],
        when: str | Schedule,
        payload: X = ...,
        *,
        name: str | None = ...,
        **options: Unpack[ScheduleOptions],
    ) -> Recurrence: ...
    @overload
    def recur(
        self,
        handler: AppHandler[T, Any, Any],
        when: str | Schedule,
        payload: T,
        *,
        name: str | None = ...,
        **options: Unpack[ScheduleOptions],
    ) -> Recurrence: ...
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
    ) -> Recurrence:
        """Submit *payload* to *handler* again and again: fired by any worker, each firing once.

        `app.recur(review, Every(hours(1)), Review(...), name="hourly")`. The name is the
        handler's unless one is given. Raises InvalidOption, InvalidName, PayloadInvalid.
        """
        called = handler.name if name is None else name
        recurrence = handler.recurrence(called, schedule(when, tz=tz), payload, missed, options)
        if self.included_in is not None:
            self.included_in.recurrences.add(recurrence)
        return self.recurrences.add(recurrence)
