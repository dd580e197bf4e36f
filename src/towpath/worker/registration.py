"""Keeps a worker in the list of live workers, also while a handler blocks its event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from towpath.clock import seconds
from towpath.engine.engine import Engine
from towpath.engine.worker_registry import REPORT_EVERY, SILENT_AFTER, BlockedLoop, WorkerReport
from towpath.errors import ServerError
from towpath.processes.age import process_age

BLOCKED_EVERY = seconds(1)
"""How often a worker reports while its loop is blocked, so that the reported time is current."""
_END_WITHIN = 0.5
"""Seconds to report the end. Without this report, the worker is listed until SILENT_AFTER."""


class WorkerRegistration:
    """Reports what a worker does, from the heartbeat's thread.

    *describe* returns the report; it is called in that thread.
    """

    def __init__(self, worker: str, describe: Callable[[BlockedLoop | None], WorkerReport]) -> None:
        self._worker, self._describe = worker, describe
        self._blocked: BlockedLoop | None = None
        self._changed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_over = False

    def mark(self, blocked: BlockedLoop | None) -> None:
        """Set which job blocks the loop; None = it is not blocked. A change is reported at once."""
        if (self._blocked is None) is not (blocked is None):
            self._changed.set()
        self._blocked = blocked

    def report_soon(self) -> None:
        """Report at once that something changed. Called in the worker's own thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the heartbeat's loop is closed: the worker ends
                self._loop.call_soon_threadsafe(self._changed.set)

    async def keep(self, engine: Engine) -> None:
        """Report again and again, until cancelled or ended."""
        self._loop = asyncio.get_running_loop()
        while not self._is_over:
            self._changed.clear()
            report = self._describe(self._blocked)
            with suppress(ServerError):  # the feeders log it
                await engine.workers.report(
                    self._worker, report, age=process_age(), lasts=SILENT_AFTER
                )
            every = BLOCKED_EVERY if self._blocked else REPORT_EVERY
            with suppress(TimeoutError):
                async with asyncio.timeout(every.total_seconds()):
                    await self._changed.wait()

    async def end(self, engine: Engine) -> None:
        """Report that the worker has ended. Gives up soon if Redis does not answer."""
        self._is_over = True
        with suppress(ServerError, TimeoutError):
            async with asyncio.timeout(_END_WITHIN):
                await engine.workers.remove(self._worker)
