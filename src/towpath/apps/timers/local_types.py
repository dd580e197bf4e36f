"""The types that plug-in workers of this process serve: their handlers, and their heartbeat."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypedDict

import msgspec

from towpath.app.app import Towpath
from towpath.app.submitting import AppHandler
from towpath.apps.timers.errors import TimerTypesFull, TimerTypeTaken
from towpath.apps.timers.model import RECORDED, TIMER_OPTIONS, TypeKey
from towpath.apps.timers.types import Types, queue_of
from towpath.apps.timers.workers import Dispatch, TaskWorker
from towpath.clock import Duration, seconds
from towpath.engine.retry import RetryPolicy
from towpath.errors import HandlerInvalid, ServerError
from towpath.supervise import Background
from towpath.telemetry.events import DUTY_FAILED
from towpath.worker.context import Context, Snooze
from towpath.worker.handler import HandlerOptions, OnSettled
from towpath.worker.recorded import AtWork

HEARTBEAT_S = 10.0
"""Seconds between two heartbeats of a worker: two in a row may be lost."""
_NO_LEDGER = seconds(5)
"""The delay of a recorded timer that was claimed by a worker without a ledger."""


HANDLER_OPTIONS = HandlerOptions(
    retry=TIMER_OPTIONS.retry, max_attempts=TIMER_OPTIONS.max_attempts, keep=TIMER_OPTIONS.keep
)
"""The options of all handlers of timers, so that every worker declares the same queue options."""


class TimerKeywords(TypedDict, total=False):
    """Options of the workers of a type: see HandlerOptions."""

    retry: RetryPolicy | None
    max_attempts: int | None
    time_limit: Duration
    concurrency: int | None
    weight: int


class LocalType:
    """A type with its workers: it has one handler for timers and one for recorded timers."""

    def __init__(self, app: Towpath, key: TypeKey, on_settled: OnSettled) -> None:
        self._app, self.key, self._on_settled = app, key, on_settled
        self.queue = queue_of(key)
        self._dispatch = Dispatch(app, self.queue)
        self._options: TimerKeywords = {}
        self._handlers: list[AppHandler[Any, Any, Any]] = []

    def add(self, worker: Callable[..., Any] | TaskWorker, options: TimerKeywords) -> None:
        """Add a worker. Raises HandlerInvalid."""
        if options and self._dispatch.workers and options != self._options:
            rule = f"all workers of type {self.key} must have the same options"
            raise HandlerInvalid(getattr(worker, "__name__", repr(worker)), rule=rule)
        self._dispatch.add(worker)
        self._options = options or self._options
        self.withdraw()
        self.offer()

    @property
    def offered(self) -> bool:
        """Whether workers of the app claim its timers."""
        return bool(self._handlers)

    def offer(self) -> None:
        """Add the handlers to the app, so that its workers claim the timers."""
        if self._handlers:
            return
        options = msgspec.structs.replace(HANDLER_OPTIONS, **self._options)
        function, kept = self._dispatch.function, self._app.keeps_records
        recorded = msgspec.structs.replace(options, name=RECORDED, record=kept)
        self._handlers = [
            self._app.add(self.queue, function, options, on_settled=self._on_settled),
            self._app.add(
                self.queue,
                function if kept else _without_ledger,
                recorded,
                on_settled=self._on_settled,
            ),
        ]

    def withdraw(self) -> None:
        """Remove the handlers, so that no more timers are claimed."""
        for handler in self._handlers:
            self._app.remove(handler)
        self._handlers = []


async def _without_ledger(payload: bytes, ctx: Context) -> None:
    """Delay a recorded timer: only a worker with a ledger can run it."""
    raise Snooze(_NO_LEDGER)


class Heartbeats:
    """Reports which types a worker serves, as long as it runs.

    A type that belongs to an app is not served: its handlers are removed until the type is free.
    """

    def __init__(
        self, app: Towpath, types: Types, local: Mapping[str, LocalType], worker: AtWork
    ) -> None:
        self._app, self._types, self._local, self._worker = app, types, local, worker
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def beating(self) -> AsyncGenerator[None]:
        """Send heartbeats while the body runs."""
        beats = Background("heartbeat of timers", self._keep, log=self._worker.log).start()
        try:
            yield
        finally:
            await beats.stop()
            with suppress(ServerError):  # without heartbeats, it counts as gone anyway
                await self._types.leave(None, self._names(), who=self._worker.name)

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()

        def changed() -> None:
            loop.call_soon_threadsafe(self._changed.set)

        with self._app.followed(changed):
            while True:
                self._changed.clear()
                with suppress(ServerError):  # the engine logs it
                    await self._beat()
                with suppress(TimeoutError):
                    async with asyncio.timeout(HEARTBEAT_S):
                        await self._changed.wait()

    async def _beat(self) -> None:
        names = self._names()
        if not names:
            return
        try:
            await self._serve(names)
        except (TimerTypeTaken, TimerTypesFull):
            for name in names:
                await self._serve_or_withdraw(name)

    async def _serve(self, names: Sequence[str]) -> None:
        await self._types.serve(None, names, who=self._worker.name)
        for name in names:
            self._local[name].offer()

    async def _serve_or_withdraw(self, name: str) -> None:
        local = self._local[name]
        try:
            await self._serve([name])
        except (TimerTypeTaken, TimerTypesFull) as error:
            if local.offered:
                local.withdraw()
                self._worker.log.emit(
                    DUTY_FAILED,
                    duty="serve",
                    queue=local.queue,
                    error=type(error).__qualname__,
                    reason=str(error),
                )

    def _names(self) -> list[str]:
        """Returns the types that this worker serves, or would serve if they were free."""
        queues = self._worker.weights
        return [
            name
            for name, local in self._local.items()
            if local.queue in queues or not local.offered
        ]
