"""What a worker does for queues beside running jobs: set their options, sweep idle queues."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Sequence
from random import uniform
from typing import Any

from towpath.clock import days, hours, seconds, steady
from towpath.engine.engine import Engine
from towpath.engine.options import QueueOptions
from towpath.engine.spelling import written
from towpath.errors import MemoryFull, RetryAdvice, ServerError, ServerUnreachable
from towpath.ids import QueueName
from towpath.telemetry import events
from towpath.telemetry.logs import Log
from towpath.worker.handler import Handler
from towpath.worker.recorded import Registry

KEEP = hours(1)
"""How long finished jobs are kept if no handler of the queue says otherwise."""
_SWEEP_EVERY = seconds(60)
UNUSED_FOR = days(30)
"""How long an unused, empty queue stays in the list. The history of a queue covers the same time,
so no chart loses data."""
_UNUSED_DELETED_EVERY = hours(1)
_CONFIGURED_S = 2.0
"""Seconds that a worker waits at its start for the options of its queues to be stored."""
_PATIENCE = 1.0
"""Seconds to wait for the sweep of one queue before the sweep of the next one begins."""


async def configure_queues(app: Registry, queues: Iterable[QueueName], log: Log) -> list[QueueName]:
    """Store the options that handlers ask for with each queue; other options stay as they are.

    Returns the queues that could not be configured: Redis does not answer, or reports an error.
    Pass them to `keep_configuring`, and do not claim from them before it returns. If all queues
    have permanent errors, raises the first of these.
    """
    tasks = {asyncio.create_task(_try_to_configure(app, queue, log)): queue for queue in queues}
    if not tasks:
        return []
    done, slow = await asyncio.wait(tasks, timeout=_CONFIGURED_S)
    for task in slow:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)
    troubles = {tasks[task]: error for task in done if (error := task.result()) is not None}
    hopeless = [trouble for trouble in troubles.values() if trouble.retry is RetryAdvice.NEVER]
    if len(hopeless) == len(tasks):
        raise hopeless[0]
    return [*troubles, *(tasks[task] for task in slow)]


async def keep_configuring(app: Registry, queue: QueueName, log: Log) -> None:
    """Return once *queue* has the options its handlers ask for, or may be served without them."""
    while await _try_to_configure(app, queue, log) is not None:  # noqa: ASYNC110 -- Redis sends no event
        await asyncio.sleep(_CONFIGURED_S * uniform(0.5, 1.5))  # noqa: S311 -- jitter


async def _try_to_configure(app: Registry, queue: QueueName, log: Log) -> ServerError | None:
    """Configure *queue*. Returns the error that prevents it; None = it may be served."""
    try:
        await _configure(app, queue, log)
    except ServerUnreachable as error:
        return error  # the engine logs it
    except ServerError as error:
        log_duty_failure(log, "configure", queue, error)
        # With its memory full, Redis stores no options. Jobs must run all the same, to free memory.
        return None if isinstance(error, MemoryFull) else error
    return None


async def _configure(app: Registry, queue: str, log: Log) -> None:
    wanted = _wanted_options([handler for handler in app.handlers if handler.queue == queue])
    before, now = await app.engine.queues.declare(queue, **wanted)
    if now != before:
        log.emit(events.QUEUE_CONFIGURED, queue=queue, reason=_changes(before, now))


def _wanted_options(handlers: list[Handler[Any, Any, Any]]) -> dict[str, Any]:
    """The handler without a name decides for its queue; the longest `keep` of all counts."""
    kept = [handler.options.keep for handler in handlers if handler.options.keep is not None]
    wanted: dict[str, Any] = {"keep": max(kept, default=KEEP)}
    for handler in handlers:
        for name in ("retry", "max_attempts"):
            if handler.named is None and (value := getattr(handler.options, name)) is not None:
                wanted[name] = value
    return wanted


def _changes(stored: QueueOptions, wanted: QueueOptions) -> str:
    return ", ".join(
        f"{name}: {written(getattr(stored, name))} before, {written(getattr(wanted, name))} now"
        for name in QueueOptions.__struct_fields__
        if getattr(stored, name) != getattr(wanted, name)
    )


async def sweep(engine: Engine, queue: str, limit: int = 100) -> int:
    """Promote, reap and trim once, at most *limit* jobs each. Returns how many jobs it changed.

    Takes three round trips. Any number of processes may run it at any time.
    """
    promoted = await engine.queues.promote(queue, limit)
    reaped = await engine.queues.reap(queue, limit)
    return promoted + reaped + await engine.queues.trim(queue, limit)


async def keep_sweeping_others(engine: Engine, served: Container[str], log: Log) -> None:
    """Promote, reap and trim in the queues that are not in *served*, until cancelled. Empty queues
    that were not used for a month are deleted.

    Each claim does the same for its own queue, so this is for queues whose workers are all gone.
    *served* may change at any time.
    """
    others = _OtherQueues(engine, served, log)
    try:
        while True:
            await asyncio.sleep(_SWEEP_EVERY.total_seconds() * uniform(0.5, 1.5))  # noqa: S311 -- jitter
            await others.sweep()
    finally:
        others.close()


class _OtherQueues:
    """The queues that a worker does not serve."""

    def __init__(self, engine: Engine, own: Container[str], log: Log) -> None:
        self._engine, self._own, self._log = engine, own, log
        self._known: Sequence[QueueName] = ()
        self._under_way: dict[QueueName, asyncio.Task[None]] = {}
        self._delete_unused_at = 0.0

    async def sweep(self) -> None:
        """Sweep the queues one after the other. A slow sweep goes on beside the following ones."""
        try:
            self._known = await self._engine.queues.names()
        except ServerError as error:  # sweep the known queues: other cluster nodes may answer
            log_duty_failure(self._log, "sweep", "", error)
        deletes = steady() >= self._delete_unused_at
        if deletes:
            self._delete_unused_at = steady() + _UNUSED_DELETED_EVERY.total_seconds()
        for queue in self._known:
            if queue in self._own or queue in self._under_way:
                continue
            task = asyncio.create_task(self._sweep(queue, delete_unused=deletes))
            self._under_way[queue] = task
            await asyncio.wait((task,), timeout=_PATIENCE)

    def close(self) -> None:
        for task in self._under_way.values():
            task.cancel()

    async def _sweep(self, queue: QueueName, *, delete_unused: bool) -> None:
        try:
            await sweep(self._engine, queue)
            if delete_unused and await self._engine.queues.delete_unused(queue, UNUSED_FOR):
                self._log.emit(events.QUEUE_DELETED, queue=queue)
        except ServerError as error:
            log_duty_failure(self._log, "sweep", queue, error)
        finally:
            self._under_way.pop(queue, None)


def log_duty_failure(log: Log, duty: str, queue: str, error: Exception) -> None:
    """Log that a duty could not be done."""
    name = type(error).__qualname__
    log.emit(events.DUTY_FAILED, duty=duty, queue=queue, error=name, reason=str(error))
