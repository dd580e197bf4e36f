"""Runs one attempt: decodes the payload, calls the handler, returns the settlement.

Here, exceptions of every class are caught: what a handler raises ends its attempt, not the worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, cast

from towpath.engine.model import Bury, Complete, Settlement
from towpath.errors import TowpathError
from towpath.telemetry import traces
from towpath.telemetry.events import MIDDLEWARE_FAILED
from towpath.telemetry.logs import JobLine, current_job
from towpath.worker.attempt import Attempt, StopReason
from towpath.worker.context import AttemptEnd, Context, HandOver, Snooze
from towpath.worker.handler import Handler, Place
from towpath.worker.middleware import MiddlewareRun, middleware_name
from towpath.worker.settlements import (
    only_leaf,
    own_limit,
    reason_of,
    settlement_for_error,
    settlement_for_failure,
    settlement_for_stop,
)

if TYPE_CHECKING:
    from towpath.worker.execution import Execution


class Runner:
    """Runs attempts in the event loop, in threads or in processes, as their handlers need."""

    def __init__(self, execution: Execution) -> None:
        self._execution, self._middleware = execution, execution.worker.middleware
        self._threads, self._processes = execution.threads, execution.processes
        self._tracing = traces.active()

    def check_tracing(self) -> None:
        """Check whether tracing is active. Done once per batch, as it costs as much as a job."""
        self._tracing = traces.active()

    async def run(self, attempt: Attempt) -> Settlement | None:
        """Run *attempt*. Returns its settlement; None = nothing is left to settle. Never raises."""
        lease = attempt.lease
        # Each attempt has its own task, and so its own context: the value needs no reset.
        current_job.set(JobLine(lease.id, lease.queue, attempt.handler_name, lease.attempt))
        try:
            if self._tracing:
                return await self._run_in_span(attempt)
            return await self._perform(attempt)
        except asyncio.CancelledError:
            return settlement_for_stop(attempt)
        except BaseException as error:  # noqa: BLE001 -- user code: see above
            return _settlement_for(attempt, error)

    async def _run_in_span(self, attempt: Attempt) -> Settlement | None:
        """Run *attempt* inside a span, which Snooze, HandOver and stops do not mark as failed."""
        lease = attempt.lease
        with traces.consumer_span(
            lease.headers,
            queue=lease.queue,
            handler=attempt.handler_name,
            job=lease.id,
            attempt=lease.attempt,
        ):
            try:
                return await self._perform(attempt)
            except Exception as error:
                if isinstance(only_leaf(error), Snooze | HandOver):
                    return _settlement_for(attempt, error)
                raise
            except asyncio.CancelledError:
                if attempt.stop in (None, StopReason.TIMED_OUT):
                    raise
                return settlement_for_stop(attempt)

    async def _perform(self, attempt: Attempt) -> Settlement:
        lease, handler = attempt.lease, cast("Handler[Any, Any, Any]", attempt.handler)
        most = own_limit(attempt)
        if most is not None and lease.attempt > most:
            return Bury(lease, f"gave up after {most} deliveries; no attempt finished")
        if handler.place is Place.PROCESS:
            return await self._in_process(attempt, handler)
        payload = handler.payload.decode(lease.payload) if handler.takes_payload else None
        ctx = self._context(attempt, handler)
        if self._middleware:
            value = await self._run_in_middleware(attempt, payload, ctx)
        elif handler.place is Place.LOOP:
            value = await handler.invoke(payload, ctx)
        else:
            value = await self._threads.run(lambda: handler.invoke(payload, ctx))
        if not self._middleware:
            _require_uncancelled(attempt, ctx)
        if value is None:
            return Complete(attempt.lease)
        return await self._encode_result(attempt, handler, value)

    async def _in_process(self, attempt: Attempt, handler: Handler[Any, Any, Any]) -> Settlement:
        ctx = self._context(attempt, handler)
        if not self._middleware:
            result = await self._processes.run(handler, attempt)
            _require_uncancelled(attempt, ctx)
            return await self._complete(attempt, result)
        value = await self._run_in_middleware(attempt, None, ctx)
        return (
            Complete(attempt.lease)
            if value is None
            else await self._encode_result(attempt, handler, value)
        )

    async def _run_in_middleware(self, attempt: Attempt, payload: Any, ctx: Context) -> Any:
        """Run the handler inside its middleware. Returns the value of the outermost middleware."""
        handler = cast("Handler[Any, Any, Any]", attempt.handler)

        async def call() -> Any:
            value = await self._call_handler(attempt, handler, payload, ctx)
            _require_uncancelled(attempt, ctx)
            if handler.place is not Place.PROCESS:
                return value
            return handler.result.decode(value) if value else None  # middleware gets no JSON

        def log_failure(middleware: object, error: Exception) -> None:
            lease = attempt.lease
            self._execution.log.emit(
                MIDDLEWARE_FAILED,
                middleware=middleware_name(middleware),
                job=lease.id,
                queue=lease.queue,
                handler=attempt.handler_name,
                attempt=lease.attempt,
                error=type(error).__qualname__,
                reason=reason_of(error),
            )

        return await MiddlewareRun(
            self._middleware, attempt, ctx, call=call, failed=log_failure
        ).run()

    def _call_handler(
        self, attempt: Attempt, handler: Handler[Any, Any, Any], payload: Any, ctx: Context
    ) -> Coroutine[Any, Any, Any]:
        match handler.place:
            case Place.LOOP:
                return cast("Coroutine[Any, Any, Any]", handler.invoke(payload, ctx))
            case Place.THREAD:
                return self._threads.run(lambda: handler.invoke(payload, ctx))
            case Place.PROCESS:
                return self._processes.run(handler, attempt)

    def _context(self, attempt: Attempt, handler: Handler[Any, Any, Any]) -> Context:
        ctx = Context(
            attempt.lease,
            handler=handler.name,
            time_limit=handler.options.time_limit,
            waited=attempt.idled,
            send_note=lambda note: self._execution.notes.send(attempt, note),
            state=self._execution.state,
        )
        attempt.ctx = ctx
        return ctx

    async def _encode_result(
        self, attempt: Attempt, handler: Handler[Any, Any, Any], value: Any
    ) -> Settlement:
        """Returns Complete with *value* as JSON. Returns Bury if it can't be encoded: that is a
        defect of the handler, and another attempt can't help.
        """
        try:
            result = handler.result.encode(value)
        except TowpathError as error:
            attempt.error = "ResultInvalid"
            return Bury(attempt.lease, f"ResultInvalid: {error}")
        return await self._complete(attempt, result)

    async def _complete(self, attempt: Attempt, result: bytes) -> Settlement:
        largest = self._execution.engine.queues.largest_payload
        limit = await largest(attempt.lease.queue, len(result)) if result else 0
        if len(result) <= limit:
            return Complete(attempt.lease, result)
        attempt.error = "ResultTooLarge"
        return Bury(
            attempt.lease,
            f"ResultTooLarge: the handler returned {len(result)} bytes, at most {limit} are kept; "
            "store the data elsewhere and return a reference, or raise the queue's max_payload",
        )


def _require_uncancelled(attempt: Attempt, ctx: Context) -> None:
    """Raise CancelledError if the handler saw that its job was cancelled, and returned.

    Then the attempt ends as if it was cancelled at an await: its result may be incomplete.
    """
    if ctx.noticed and attempt.stop is StopReason.CANCELLED:
        raise asyncio.CancelledError


def _settlement_for(attempt: Attempt, error: BaseException) -> Settlement | None:
    if attempt.stop is StopReason.LOST:
        return None
    if attempt.stop is StopReason.STOPPING and not isinstance(only_leaf(error), AttemptEnd):
        return settlement_for_stop(attempt)  # the error is a consequence of the stop
    try:
        return settlement_for_error(attempt, error)
    except BaseException as defect:  # noqa: BLE001 -- user code: an AttemptEnd with invalid values
        return settlement_for_failure(attempt, reason_of(defect))
