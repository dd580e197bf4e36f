"""Timers that were handed over with 202: what the log says of those whose lease ended."""

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
"""Handed over timers that are remembered; beyond, the oldest are forgotten."""
_LOOK_AGAIN_MS = 1000
"""Until the next look at a lease that has ended and that no worker has taken back yet."""


class _Attempt(NamedTuple):
    """An attempt that an instance goes on with."""

    key: TypeKey
    firing: Firing
    job: JobRef
    token: int
    look_at_ms: int
    """When its lease ends, as far as known."""


class HandedOverTimers:
    """The attempts that a scheduler handed over. An instance that completes or fails one makes its
    log entry by that. Of one whose lease ends nobody hears: the scheduler looks when it should end.

    They are remembered by this process alone, as the log's last entries are.
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
        """Log the attempts whose lease has ended. Raises ServerError."""
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
                self._log.add(attempt.key, [_ended(attempt.firing, failure, job)])


def _failure_of(firing: Firing, job: JobInfo) -> Failure | None:
    """How the attempt ended, if its lease did. Attempts follow each other, so its failure is the
    first one after its start.
    """
    first = next((one for one in job.failures if one.at > firing.started_at), None)
    return first if first is not None and first.reason.startswith(LEASE_ENDED) else None


def _ended(firing: Firing, failure: Failure, job: JobInfo) -> Firing:
    died = job.state is State.DEAD and job.failures[-1] == failure
    return msgspec.structs.replace(
        firing,
        outcome=FiringOutcome.DEAD if died else FiringOutcome.LOST,
        ran=max((failure.at - firing.started_at).total_seconds(), 0.0),
        reason=failure.reason,
    )


def _ms(at: datetime | None) -> int:
    return 0 if at is None else instant_ms("expires_at", at)
