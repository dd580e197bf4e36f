"""Timers that were handed over with a 202: a log entry for each one whose lease ended."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

import msgspec

from towpath.apps.timers.log import Firing, FiringLog, FiringOutcome
from towpath.apps.timers.model import TypeKey
from towpath.clock import instant_ms, wall_ms
from towpath.engine.engine import Engine
from towpath.engine.model import LEASE_ENDED, Failure, JobInfo, JobRef, Lease
from towpath.engine.states import State
from towpath.errors import JobNotFound

_MOST = 10_000
"""Maximum number of handed-over timers that are remembered; then the oldest are forgotten."""
_LOOK_AGAIN_MS = 1000
"""Time until the next check of a lease that has ended and was not reaped yet."""


class _Attempt(NamedTuple):
    """An attempt that was handed over to an instance."""

    key: TypeKey
    firing: Firing
    job: JobRef
    token: int
    look_at_ms: int
    """When its lease ends, unless the instance has renewed it."""


class HandedOverTimers:
    """The attempts that a scheduler handed over to instances.

    An instance that completes or fails an attempt causes its log entry. If the lease ends instead,
    nothing reports it, so the scheduler checks each attempt when its lease should end. Attempts are
    remembered in this process only, like entries of the log that are not written yet.
    """

    def __init__(self, log: FiringLog) -> None:
        self._log = log
        self._attempts: dict[int, _Attempt] = {}

    def add(self, key: TypeKey, firing: Firing, lease: Lease) -> None:
        """Remember an attempt that was handed over with *lease*."""
        self._attempts[lease.token] = _Attempt(
            key, firing, lease.job, lease.token, lease.expires_ms
        )
        if len(self._attempts) > _MOST:
            del self._attempts[next(iter(self._attempts))]

    async def log_ended(self, engine: Engine) -> None:
        """Log the attempts whose leases have ended. Raises ServerError."""
        now = wall_ms()
        for attempt in [one for one in self._attempts.values() if one.look_at_ms <= now]:
            try:
                job = await engine.inspect.job(attempt.job)
            except JobNotFound:
                job = None
            if job is not None and job.state is State.LEASED and job.token == attempt.token:
                look_at = max(_ms(job.expires_at), now + _LOOK_AGAIN_MS)
                self._attempts[attempt.token] = attempt._replace(look_at_ms=look_at)
                continue
            del self._attempts[attempt.token]
            if job is not None and (failure := _failure_of(attempt.firing, job)) is not None:
                self._log.add(attempt.key, [_lost_firing(attempt.firing, failure, job)])


def _failure_of(firing: Firing, job: JobInfo) -> Failure | None:
    """Returns the failure of the attempt if its lease ended, else None. Attempts never overlap, so
    its failure is the first one after its start.
    """
    first = next((one for one in job.failures if one.at > firing.started_at), None)
    return first if first is not None and first.reason.startswith(LEASE_ENDED) else None


def _lost_firing(firing: Firing, failure: Failure, job: JobInfo) -> Firing:
    died = job.state is State.DEAD and job.failures[-1] == failure
    return msgspec.structs.replace(
        firing,
        outcome=FiringOutcome.DEAD if died else FiringOutcome.LOST,
        ran=max((failure.at - firing.started_at).total_seconds(), 0.0),
        reason=failure.reason,
    )


def _ms(at: datetime | None) -> int:
    return 0 if at is None else instant_ms("expires_at", at)
