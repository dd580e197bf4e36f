"""The applications' own handlers, run beside the HTTP server in its event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from towpath.app import Towpath
from towpath.apps.messages.adapters import Outgoing
from towpath.apps.messages.handlers import add_callbacks, add_push
from towpath.apps.messages.options import MessagesOptions
from towpath.clock import Duration
from towpath.errors import ServerError
from towpath.telemetry.logs import Log
from towpath.worker.worker import Worker

_TRY_EVERY = 1.0


@asynccontextmanager
async def working(
    app: Callable[[], Towpath] | None,
    messages: MessagesOptions,
    *,
    grace: Duration,
    log: Log,
) -> AsyncGenerator[None]:
    """Push messages and deliver answers while the body runs, if the options ask for it.

    A store that is away is tried again: the server answers meanwhile, and says so.
    """
    if app is None or not (messages.worker_url or messages.secrets):
        yield
        return
    made = app()
    async with Outgoing(messages) as out:
        if messages.worker_url:
            add_push(made, out.push, messages)
        if messages.secrets:
            add_callbacks(made, out.callback, messages)
        # The server hears the signals, and stops its workers when it is done itself.
        worker = Worker(made, grace=grace, signals=())
        running = asyncio.create_task(_keep_running(worker))
        try:
            yield
        finally:
            await _stop(worker, running)


async def _keep_running(worker: Worker) -> None:
    while True:
        try:
            await worker.run()
        except ServerError:
            # The gateway says it: one line for both.
            await asyncio.sleep(_TRY_EVERY)
        else:
            return


async def _stop(worker: Worker, running: asyncio.Task[None]) -> None:
    worker.stop("the server stops")
    await asyncio.wait((running,), timeout=worker.grace.total_seconds() + 10)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
