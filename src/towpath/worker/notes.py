"""Progress notes: the latest of each attempt goes to the server, in the background."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from towpath.engine.engine import Engine
from towpath.errors import TowpathError
from towpath.supervise import detached
from towpath.worker.attempt import Attempt


class Notes:
    """Sends what handlers say meanwhile; one note per attempt on its way, the last one wins."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()

    def send(self, attempt: Attempt, note: bytes) -> None:
        """Take *note* along. From any thread; returns at once."""
        self._loop.call_soon_threadsafe(self._post, attempt, note)

    async def sent(self, attempt: Attempt) -> None:
        """Return when nothing of *attempt* is on its way."""
        # A note from a thread or from the handler's last step is still in the loop's queue.
        await asyncio.sleep(0)
        if attempt.noting is not None:
            await asyncio.wait((attempt.noting,))

    def _post(self, attempt: Attempt, note: bytes) -> None:
        attempt.note = note
        if attempt.noting is None and not attempt.over:
            attempt.noting = detached("progress of a job", self._deliver(attempt))

    async def _deliver(self, attempt: Attempt) -> None:
        # A note that is refused or lost ends nothing: the lease's own fate decides.
        try:
            with suppress(TowpathError):
                while (note := attempt.note) is not None:
                    attempt.note = None
                    await self._engine.progress(attempt.lease, note)
        finally:
            attempt.noting = None
