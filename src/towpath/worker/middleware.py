"""Middleware: the one place to put something around every handler of a worker."""

from __future__ import annotations

from typing import Any

from towpath.worker.attempt import Stop
from towpath.worker.context import Context


class AttemptStopped(Exception):
    """The attempt had to end before its handler: *why* is its time limit, somebody who cancelled
    the job, a lost lease, or the worker's end.
    """

    def __init__(self, why: Stop) -> None:
        super().__init__(f"the attempt was stopped: {why}")
        self.why = why


class Middleware:
    """Override what you need. Runs in the worker's event loop, in the order given; `after` and
    `error` in the reverse order. What it raises counts as if the handler had raised it.

    Whoever was told `before` is told `after` or `error`, unless the whole process is killed.
    """

    async def before(self, ctx: Context) -> None:
        """The handler is about to be called."""

    async def after(self, ctx: Context, result: Any) -> None:
        """The handler has returned *result*."""

    async def error(self, ctx: Context, error: Exception) -> None:
        """The handler has raised *error*, Retry, Discard and Snooze included.

        Or it was ended from outside: then *error* is AttemptStopped; a RuntimeError stands for
        SystemExit and its like. In these cases how the attempt ends is decided: what is raised
        here is only logged, and all of the middleware together has a second.
        """
