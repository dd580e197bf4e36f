"""Which queues a worker serves: those of its app's handlers, also while these change."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, cast

from towpath.engine.check import integer
from towpath.errors import HandlerInvalid, TowpathError
from towpath.ids import QueueName, queue_name
from towpath.telemetry import events
from towpath.telemetry.logs import Log
from towpath.worker.duties import keep_configuring, log_duty_failure
from towpath.worker.execution import Execution
from towpath.worker.handler import Handler
from towpath.worker.options import BY_HANDLERS
from towpath.worker.recorded import Registry

Handlers = list[Handler[Any, Any, Any]]


class ServedQueues:
    """The queues of an app's handlers, or only the *chosen* ones.

    Without *handlers_later*, raises HandlerInvalid if a chosen queue has no handler, or the app has
    none at all.
    """

    def __init__(
        self,
        app: Registry,
        chosen: Mapping[str, int] | Iterable[str] | None,
        *,
        handlers_later: bool,
    ) -> None:
        self._app = app
        self._chosen: dict[QueueName, int] | None = None
        if not app.handlers and not handlers_later:
            raise HandlerInvalid(
                "(none)",
                rule="the app has no handlers: decorate one with @app.handler, or pass "
                "handlers_later=True to the worker if they are added while it runs",
            )
        if chosen is not None:
            weights = cast("Mapping[str, int]", chosen) if isinstance(chosen, Mapping) else None
            self._chosen = {
                queue_name(queue): integer("weight", weights[queue], 1, 1_000)
                if weights
                else BY_HANDLERS
                for queue in chosen
            }
            if not handlers_later:
                self._require_handlers(self._chosen)

    def _require_handlers(self, chosen: Iterable[QueueName]) -> None:
        own = {handler.queue for handler in self._app.handlers}
        for name in chosen:
            if name not in own:
                known = ", ".join(sorted(own))
                rule = f"no handler for queue {name}; there are: {known}"
                raise HandlerInvalid("(none)", rule=rule)

    @property
    def handlers(self) -> dict[QueueName, Handlers]:
        """The handlers of each queue that has to be served now."""
        found: dict[QueueName, Handlers] = {}
        for handler in self._app.handlers:
            if self._chosen is None or handler.queue in self._chosen:
                found.setdefault(handler.queue, []).append(handler)
        return found

    @property
    def weights(self) -> dict[QueueName, int]:
        """The queues that have to be served now, with their weights."""
        return {queue: self.weight(queue, its) for queue, its in self.handlers.items()}

    def weight(self, queue: QueueName, handlers: Handlers) -> int:
        given = self._chosen[queue] if self._chosen else BY_HANDLERS
        return given or max(handler.options.weight for handler in handlers)


class QueueFollower:
    """Keeps an execution serving the queues of an app while its handlers are added and removed."""

    def __init__(self, app: Registry, queues: ServedQueues, execution: Execution, log: Log) -> None:
        self._app, self._queues, self._execution, self._log = app, queues, execution, log
        self.served: dict[QueueName, Handlers] = {}
        """The handlers of each served queue. Others hold this dict, so it is never replaced."""
        self._configuring: dict[QueueName, asyncio.Task[None]] = {}

    def begin(self, handlers: Mapping[QueueName, Handlers], late: Iterable[QueueName]) -> None:
        """Serve *handlers*, but the *late* queues only after they are configured."""
        for queue, its in handlers.items():
            self.served[queue] = its
            self._execution.serve(queue, its, weight=self._queues.weight(queue, its))
        self._late = list(late)
        for queue in self._late:
            self._execution.feeders.hold(queue)

    async def run(self) -> None:
        """Follow the app's handlers, until cancelled."""
        loop, here = asyncio.get_running_loop(), threading.get_ident()

        def changed() -> None:
            if threading.get_ident() == here:
                self.update()
                return
            with suppress(RuntimeError):  # the loop is closed: the worker has ended
                loop.call_soon_threadsafe(self.update)

        async with asyncio.TaskGroup() as self._group:
            with self._app.followed(changed):
                for queue in self._late:
                    self._configure(queue)
                self.update()
                await asyncio.Event().wait()

    def update(self) -> None:
        """Serve the queues of the app's current handlers. Removed queues come first."""
        wanted = self._queues.handlers
        if self.served == wanted:
            return
        for queue in [served for served in self.served if served not in wanted]:
            self._stop_serving(queue)
        for queue, handlers in wanted.items():
            if self.served.get(queue) != handlers:
                self._serve(queue, handlers)
        self._execution.report_handlers()

    def _serve(self, queue: QueueName, handlers: Handlers) -> None:
        is_new = queue not in self.served
        weight = self._queues.weight(queue, handlers)
        self.served[queue] = handlers
        self._execution.serve(queue, handlers, weight=weight)
        if is_new:
            self._execution.feeders.hold(queue)
            self._log.emit(events.QUEUE_ADDED, queue=queue, weight=weight)
        self._configure(queue)

    def _stop_serving(self, queue: QueueName) -> None:
        del self.served[queue]
        self._execution.serve(queue, [], weight=1)
        if queue in self._configuring:
            self._configuring.pop(queue).cancel()
        self._log.emit(events.QUEUE_REMOVED, queue=queue)

    def _configure(self, queue: QueueName) -> None:
        if queue in self._configuring:
            self._configuring.pop(queue).cancel()
        self._configuring[queue] = self._group.create_task(self._serve_configured(queue))

    async def _serve_configured(self, queue: QueueName) -> None:
        try:
            await keep_configuring(self._app, queue, self._log)
        except TowpathError as error:  # the queue keeps the options that it has
            log_duty_failure(self._log, "configure", queue, error)
        self._configuring.pop(queue, None)
        self._execution.feeders.go_on(queue)
