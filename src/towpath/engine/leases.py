"""Leases outside of a worker: held by the process that claimed them, or known by their token."""

from __future__ import annotations

from itertools import islice

from towpath.clock import Duration, duration_ms
from towpath.engine.model import JobRef, Lease
from towpath.engine.retry import RetryPolicy
from towpath.ids import Token

_FORGET_MOST = 2
"""Each `hold` adds one lease and drops up to two that have ended, so the dict cannot fill up."""


def lease_by_token(
    job: JobRef, token: int, *, worker: str, attempt: int = 1, retry: RetryPolicy | None = None
) -> Lease:
    """A lease with only what is needed to settle it by its token: Redis knows the rest."""
    return Lease(job, b"", Token(token), max(attempt, 1), worker, 0, 0, retry=retry)


class HeldLeases:
    """The leases of *ttl* that this process holds, by job id, until they are settled or end."""

    def __init__(self, ttl: Duration) -> None:
        self._ttl_ms = duration_ms("ttl", ttl)
        self._held: dict[str, Lease] = {}

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, lease: Lease) -> None:
        """Remember a lease that begins or was renewed now, and forget some that have ended."""
        now_ms = lease.expires_ms - self._ttl_ms
        for held in list(islice(self._held.values(), _FORGET_MOST)):
            if held.expires_ms <= now_ms:
                del self._held[held.id]
        self._held.pop(lease.id, None)
        self._held[lease.id] = lease

    def get(self, id: str) -> Lease | None:
        """The lease of a job; None if this process never held it, or it ended long ago."""
        return self._held.get(id)

    def settled(self, id: str) -> None:
        """Forget the lease of a job that was completed, failed or released."""
        self._held.pop(id, None)
