"""The applications' own handlers, run beside the HTTP server in its event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial

import msgspec

from towpath.app.app import Towpath
from towpath.apps.messages.adapters import Outgoing as MessagesOutgoing
from towpath.apps.messages.handlers import add_callbacks, add_push
from towpath.apps.messages.options import MessagesOptions
from towpath.apps.reviews.adapters import Outgoing as ReviewsOutgoing
from towpath.apps.reviews.handlers import add_posting, add_reviews
from towpath.apps.reviews.options import ReviewsOptions
from towpath.clock import Duration, seconds
from towpath.errors import ServerError
from towpath.ledger.errors import LedgerError
from towpath.supervise import Background
from towpath.telemetry.logs import Log
from towpath.worker.worker import Worker

_TRY_EVERY = 1.0
_FLUSH = seconds(10)
"""What a worker may take beyond its grace to give back what it holds."""


class Consumers(msgspec.Struct, frozen=True):
    """What the options ask to be run here."""

    messages: MessagesOptions
    reviews: ReviewsOptions
    reviewing: ReviewsOutgoing

    @asynccontextmanager
    async def added(self, app: Towpath) -> AsyncGenerator[None]:
        """*app* with the handlers, and their connections while the body runs."""
        async with MessagesOutgoing(self.messages) as out, self.reviewing as reviewing:
            if self.messages.worker_url:
                add_push(app, out.push, self.messages)
            if self.messages.secrets:
                add_callbacks(app, out.callback, self.messages)
            if reviewing.reviewer is not None:
                add_reviews(app, reviewing.reviewer, self.reviews)
            if reviewing.posters:
                add_posting(app, reviewing.posters)
            yield


@asynccontextmanager
async def working(
    app: Callable[[], Towpath] | None, consumers: Consumers, *, grace: Duration, log: Log
) -> AsyncGenerator[None]:
    """Run what the options ask for while the body runs; again, if it ends before.

    A store or a database that is away is tried again: the server answers meanwhile, and says so.
    """
    if app is None:
        yield
        return
    made = app()
    async with consumers.added(made):
        if not made.handlers:
            yield
            return
        # The server hears the signals, and stops its workers when it is done itself.
        worker = Worker(made, grace=grace, signals=())
        running = Background("handlers", partial(_run, worker), log=log).start()
        try:
            yield
        finally:
            running.retire()
            worker.stop("the server stops")
            await running.stop(grace=grace + _FLUSH)


async def _run(worker: Worker) -> None:
    """Run it until it stops: because the server does, or because it lost its slots."""
    while True:
        try:
            await worker.run()
        except (ServerError, LedgerError):
            # Engine and relay say it: one line for all.
            await asyncio.sleep(_TRY_EVERY)
        else:
            return
