"""Keys in Redis that other programs read, written from the rows. They decide nothing.

`issue_lock_<id>` exists while an issue is held, and expires with the lease; `review_delay_<id>`
has the time since which a review waits. The id is that of the issue: `owner/name#12`.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC
from importlib.resources import files

from towpath.apps.issues.model import Issue
from towpath.clock import days, duration_ms
from towpath.engine.engine import Engine
from towpath.engine.space import SpaceRecord
from towpath.errors import ServerError

SCRIPTS = files("towpath.apps.issues") / "lua"
_DELAY_KEPT = duration_ms("expiry", days(1))


class PublishedKeys:
    """Writes the published keys. A method that raises no ServerError skips a key if Redis fails."""

    def __init__(self, engine: Engine) -> None:
        self._locks = engine.space("issues.locks", SCRIPTS / "locks")
        self._delays = engine.space("issues.delays", SCRIPTS / "delays")
        self._offers = engine.space("issues", SCRIPTS).at("all")

    def _lock(self, issue: Issue) -> SpaceRecord:
        return self._locks.published(f"issue_lock_{issue.id}")

    async def write_lock(self, issue: Issue) -> None:
        """Write the lock key of a held issue; it expires at `expires`."""
        with suppress(ServerError):
            await self._lock(issue).run("hold", expires=issue.expires)

    async def restore_lock(self, issue: Issue) -> bool:
        """Write the lock key of a held issue again if it is missing, and return whether it was.
        Raises ServerError.
        """
        return bool(await self._lock(issue).run("restore", expires=issue.expires))

    async def delete_lock(self, issue: Issue) -> None:
        """Delete the lock key of a hold that has ended. The key of a later hold stays."""
        with suppress(ServerError):
            await self._lock(issue).run("free", expires=issue.expires)

    async def write_delay(self, issue: Issue) -> None:
        """Write the key with the review delay, if the issue has one."""
        found, status = issue.found_at, issue.review_status
        if found is None or status is None:
            return
        with suppress(ServerError):
            await self._delays.published(f"review_delay_{issue.id}").run(
                "delay",
                found_at=found.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                pr_number=str(issue.pr_number or ""),
                review_status=str(status),
                expiry=_DELAY_KEPT,
            )

    async def offers_noted(self) -> bool:
        """Whether Redis still has what `note_offers` noted. Raises ServerError."""
        return bool(await self._offers.read("offers_noted"))

    async def note_offers(self) -> None:
        """Note in Redis that all offered issues are in the queue. Raises ServerError."""
        await self._offers.run("note_offers")
