"""Middleware: the one place to put something around every handler of a worker."""

from __future__ import annotations

from typing import Any

from towpath.worker.context import Context


class Middleware:
    """Override what you need. Runs in the worker's event loop, in the order given; `after` and
    `error` in the reverse order. What it raises counts as if the handler had raised it.
    """

    async def before(self, ctx: Context) -> None:
        """The handler is about to be called."""

    async def after(self, ctx: Context, result: Any) -> None:
        """The handler has returned *result*."""

    async def error(self, ctx: Context, error: Exception) -> None:
        """The handler has raised *error*, Retry, Discard and Snooze included."""
