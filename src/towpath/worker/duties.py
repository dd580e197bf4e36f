"""What a worker does for queues beside running their jobs: options, and duties for idle queues."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from random import uniform
from typing import Any

import msgspec

from towpath.clock import hours, seconds
from towpath.engine.duties import sweep
from towpath.engine.engine import Engine
from towpath.engine.options import QueueOptions
from towpath.engine.spelling import written
from towpath.errors import ServerError
from towpath.telemetry import events
from towpath.telemetry.logs import Log
from towpath.worker.handler import Handler
from towpath.worker.registry import Registry

KEEP = hours(1)
"""How long the runtime keeps finished jobs where nobody said anything."""
_SWEEP_EVERY = seconds(60)


async def configure_queues(app: Registry, queues: Iterable[str], log: Log) -> None:
    """Give each queue the options its handlers ask for; what they leave open stays as it is."""
    for queue in queues:
        await _configure(app, queue, log)


async def _configure(app: Registry, queue: str, log: Log) -> None:
    handlers = [it for it in app.handlers if it.queue == queue]
    stored: list[QueueOptions] = []

    def wanted(options: QueueOptions) -> QueueOptions:
        stored.append(options)
        return _wanted(options, handlers)

    now = await app.engine.change_options(queue, wanted)
    if now != stored[-1]:
        log.emit(events.QUEUE_CONFIGURED, queue=queue, reason=_changes(stored[-1], now))


def _wanted(stored: QueueOptions, handlers: list[Handler[Any, Any, Any]]) -> QueueOptions:
    """The handler without a name speaks for its queue; results are kept as long as any asks."""
    kept = [it.options.keep for it in handlers if it.options.keep is not None]
    changes: dict[str, Any] = {"keep": max(kept) if kept else stored.keep or KEEP}
    for handler in handlers:
        if handler.named is None and handler.options.retry is not None:
            changes["retry"] = handler.options.retry
        if handler.named is None and handler.options.max_attempts is not None:
            changes["max_attempts"] = handler.options.max_attempts
    return msgspec.structs.replace(stored, **changes)


def _changes(stored: QueueOptions, wanted: QueueOptions) -> str:
    return ", ".join(
        f"{name}: {written(getattr(stored, name))} before, {written(getattr(wanted, name))} now"
        for name in QueueOptions.__struct_fields__
        if getattr(stored, name) != getattr(wanted, name)
    )


async def keep_sweeping_others(engine: Engine, served: Iterable[str], log: Log) -> None:
    """Promote, reap and trim in queues that this worker does not claim from, until cancelled.

    A claim does it for its own queue; the rest is for queues whose workers are all gone.
    """
    own = set(served)
    while True:
        await asyncio.sleep(_SWEEP_EVERY.total_seconds() * uniform(0.5, 1.5))  # noqa: S311 -- jitter
        try:
            for queue in await engine.queues():
                if queue not in own:
                    await sweep(engine, queue)
        except ServerError as error:
            name = type(error).__qualname__
            log.emit(events.DUTY_FAILED, duty="sweep", queue="", error=name, reason=str(error))
