"""Leases outside of a worker: kept where they were handed out, or known by their token alone."""

from __future__ import annotations

from itertools import islice

from towpath.clock import Duration, duration_ms
from towpath.engine.model import JobRef, Lease
from towpath.engine.retry import RetryPolicy
from towpath.ids import Token

_FORGET_MOST = 2
"""More than come in, so that leases nobody settled do not pile up: the oldest are first."""


def lease_by_token(
    job: JobRef, token: int, *, worker: str, attempt: int = 1, retry: RetryPolicy | None = None
) -> Lease:
    """A lease as far as its token names it: the store knows the rest."""
    return Lease(job, b"", Token(token), max(attempt, 1), worker, 0, 0, retry=retry)


class HeldLeases:
    """The leases of *ttl* that were handed out here, by job, until they are settled or over."""

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
        """The lease of a job; None if it was not handed out here, or ended long ago."""
        return self._held.get(id)

    def settled(self, id: str) -> None:
        """Forget the lease of a job that was completed, failed or released."""
        self._held.pop(id, None)
