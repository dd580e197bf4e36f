"""Keys in Redis that other programs read, written from the rows. They decide nothing.

`issue_lock_<id>` is there while an issue is held, and goes by itself when the lease ends;
`review_delay_<id>` says since when a review waits. Ids are those of issues: `owner/name#12`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC
from importlib.resources import files

from towpath.apps.issues.model import Issue
from towpath.clock import days, duration_ms
from towpath.engine.engine import Engine
from towpath.engine.space import Space, SpaceRecord
from towpath.errors import ServerError

SCRIPTS = files("towpath.apps.issues") / "lua"
_DELAY_KEPT = duration_ms("expiry", days(1))


class Mirrors:
    """The keys for outsiders. A server that can't keep them now keeps nobody from working."""

    def __init__(self, engine: Callable[[], Engine]) -> None:
        self._engine = engine

    def _locks(self) -> Space:
        return self._engine().space("issues.locks", SCRIPTS / "locks")

    def _delays(self) -> Space:
        return self._engine().space("issues.delays", SCRIPTS / "delays")

    def _all(self) -> SpaceRecord:
        return self._engine().space("issues", SCRIPTS).at("all")

    async def held(self, issue: Issue) -> None:
        """The issue is held, until `expires` unless that is moved on."""
        with suppress(ServerError):
            await (
                self._locks().published(f"issue_lock_{issue.id}").run("hold", expires=issue.expires)
            )

    async def restored(self, issue: Issue) -> bool:
        """Whether the key of an issue that is held was missing; now it is there. Raises
        ServerError.
        """
        lock = self._locks().published(f"issue_lock_{issue.id}")
        return bool(await lock.run("restore", expires=issue.expires))

    async def freed(self, issue: Issue) -> None:
        """The hold that *issue* tells of has ended."""
        with suppress(ServerError):
            await (
                self._locks().published(f"issue_lock_{issue.id}").run("free", expires=issue.expires)
            )

    async def delayed(self, issue: Issue) -> None:
        """How long its review waits."""
        found, status = issue.found_at, issue.review_status
        if found is None or status is None:
            return
        with suppress(ServerError):
            await (
                self._delays()
                .published(f"review_delay_{issue.id}")
                .run(
                    "delay",
                    found_at=found.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                    pr_number=str(issue.pr_number or ""),
                    review_status=str(status),
                    expiry=_DELAY_KEPT,
                )
            )

    async def knows(self) -> bool:
        """Whether Redis still knows what it was told. Raises ServerError."""
        return bool(await self._all().read("epoch"))

    async def know(self) -> None:
        """Redis was told everything. Raises ServerError."""
        await self._all().run("begin")
