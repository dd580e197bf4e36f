"""What a reviewer is to the application."""

from __future__ import annotations

from typing import Protocol

from towpath.apps.reviews.model import Review, ReviewTask
from towpath.worker.context import Context


class Reviewer(Protocol):
    """Reads a change and says what it thinks of it."""

    async def review(self, task: ReviewTask, ctx: Context) -> Review:
        """The review of *task*.

        Raises Retry for what another attempt may help, Discard for what none can. Cancelling it
        ends whatever it has begun, within two seconds.
        """
        ...
