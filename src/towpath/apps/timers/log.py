"""The log of firings: which timer ran when, where, how late, and with what outcome.

Each type has a capped stream in Redis, bounded by age, entries and bytes. Firings are collected and
written a moment later: a process that is killed loses its last firings, but no timers.

Who logs the end of an attempt:

    end                                             logged by
    ----------------------------------------------  ------------------------------------------------
    the worker has settled it with an exchange, or  `add_worked` or `add_called`: `on_settled` of
    its settlement was refused (LOST)               the handler, called by `Execution.settled`
    service mode: the answer was 202                `add_called`, as HANDED_OVER; its end below
    the instance settles it by its token, after     `ServiceMode._settle`. Repeats are not logged
    the 202
    the lease ends after the 202                    `log_lost_leases`, in the process that made the
                                                    call; nobody if that process is gone
    the instance settles it by its token during     both: as the instance settled it, and as the
    the call, and then answers 200                  worker's own settlement ended
    no instance was called                          nobody: the attempt does not count
    the lease was lost while the handler ran        nobody
    the heartbeat's thread has settled it, because  nobody: the loop in which the log lives is
    the event loop was blocked                      blocked
    the process was killed                          nobody
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from towpath.apps.owners import ALL, Access
from towpath.apps.timers.measures import FIRED, LATE
from towpath.apps.timers.model import RECORDED, TimerPayload, TypeKey, due_of, task_id_of
from towpath.apps.timers.options import TimersOptions
from towpath.apps.timers.types import SCRIPTS, queue_of
from towpath.clock import duration_ms, instant, instant_ms, seconds, wall_ms
from towpath.engine.check import integer
from towpath.engine.engine import Engine
from towpath.engine.model import LEASE_ENDED, Bury, Fail, Failure, JobInfo, JobRef, Lease, Release
from towpath.engine.space import SpaceRecord
from towpath.engine.states import State
from towpath.errors import InvalidOption, JobNotFound, ServerError
from towpath.supervise import Background, LoopLock
from towpath.worker.attempt import SettledAttempt
from towpath.worker.recorded import SKIPPED
from towpath.worker.report import was_handed_over

if TYPE_CHECKING:
    from towpath.telemetry.metrics import Metrics

LARGEST_PAGE = 1000
_COLLECTED_FOR_S = 0.2
"""Seconds between the first firing that waits and the write of all that have come since."""
_BATCH = 200
_LAST_WRITE = seconds(2)
"""How long `close` waits for a write that is under way."""
_MOST_WAITING = 10_000
"""Maximum number of firings that wait to be written. Beyond it, all firings of the type that
waits longest are dropped."""
_MOST_HANDED_OVER = 10_000
"""Maximum number of handed-over attempts that are remembered; then the oldest are forgotten."""
_CHECK_AGAIN_MS = 1000
"""Time until the next check of a lease that has ended and was not reaped yet."""
_LONGEST_REASON = 200
_NEWEST = "+"
"""The end of a stream, for XREVRANGE."""


class FiringOutcome(StrEnum):
    """How an attempt ended."""

    DONE = "done"
    FAILED = "failed"
    """Another attempt follows."""
    DEAD = "dead"
    CANCELLED = "cancelled"
    LOST = "lost"
    """Its lease ended before it was settled: another attempt decides."""
    RELEASED = "released"
    """The timer was given back; the attempt does not count."""
    HANDED_OVER = "handed_over"
    """The called instance goes on, and settles the timer later with its fencing token."""


class Firing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt at a timer."""

    task_id: str
    outcome: FiringOutcome
    due: datetime
    started_at: datetime
    late: float
    """Seconds from the due time to the start."""
    ran: float = 0.0
    """Seconds from the start to the end."""
    attempt: int = 1
    worker: str = ""
    """The worker, or the instance that was called."""
    reason: str | None = None
    owner: str = ""
    """The owner of the timer."""


class FiringPage(msgspec.Struct, frozen=True):
    """Firings, the latest first; give *after* to get the next page. None = this was the last."""

    firings: list[Firing]
    after: str | None


class _HandedOver(NamedTuple):
    """An attempt that was handed over to an instance."""

    key: TypeKey
    firing: Firing
    job: JobRef
    token: int
    check_at_ms: int
    """When its lease ends, unless the instance has renewed it."""


class FiringLog:
    """The logs of all types.

    To be used in the engine's event loop. Adding firings takes no round trip: they are written
    together, later. Attempts that were handed over are remembered in this process only, like
    firings that are not written yet.
    """

    def __init__(
        self, engine: Engine, options: TimersOptions, metrics: Metrics | None = None
    ) -> None:
        self._engine, self._options, self._metrics = engine, options, metrics
        self._age = duration_ms("log_age", options.log_age)
        self._waiting: dict[TypeKey, list[bytes]] = {}
        self._count = 0
        self._handed_over: dict[int, _HandedOver] = {}
        """By fencing token."""
        self._flushing = LoopLock()
        self._writing = Background("log of timers", self._write)

    # ── adding entries ───────────────────────────────────────────────────────────────────

    def add_worked(self, key: TypeKey, attempts: Sequence[SettledAttempt]) -> None:
        """Log the settled attempts of a plug-in worker."""
        firings = [
            _firing_of_attempt(settled, settled.attempt.lease.worker) for settled in attempts
        ]
        self.add(key, [firing for firing in firings if firing is not None])

    def add_called(self, key: TypeKey, attempts: Sequence[SettledAttempt]) -> None:
        """Log the settled attempts of service mode. An attempt that called no instance, because
        none was available, gets no entry.
        """
        firings: list[Firing] = []
        for settled in attempts:
            address = settled.attempt.ctx.called if settled.attempt.ctx is not None else ""
            firing = _firing_of_attempt(settled, address) if address else None
            if firing is not None:
                firings.append(firing)
                if isinstance(settled.outcome, Lease):
                    self._remember_handed_over(key, firing, settled.outcome)
        self.add(key, firings)

    def add(self, key: TypeKey, firings: Sequence[Firing]) -> None:
        """Log attempts at timers of one type."""
        if not firings:
            return
        if self._metrics is not None:
            queue, metrics = queue_of(key), self._metrics
            late = metrics.own(LATE).labels(queue)
            fired = metrics.own(FIRED)
            for firing in firings:
                # a handed-over timer is observed when it ends
                if firing.outcome is not FiringOutcome.HANDED_OVER:
                    late.observe(max(firing.late, 0.0))
                fired.labels(queue, firing.outcome).inc()
        if self._options.log_entries:
            rows = self._waiting.setdefault(key, [])
            rows += [_packed(firing) for firing in firings]
            self._count += len(firings)
            self._drop_oldest()
            self._writing.start()

    def _remember_handed_over(self, key: TypeKey, firing: Firing, lease: Lease) -> None:
        self._handed_over[lease.token] = _HandedOver(
            key, firing, lease.job, lease.token, lease.expires_ms
        )
        if len(self._handed_over) > _MOST_HANDED_OVER:
            del self._handed_over[next(iter(self._handed_over))]

    async def log_lost_leases(self) -> None:
        """Log the handed-over attempts whose leases have ended: nothing reports them. Raises
        ServerError.
        """
        now = wall_ms()
        for attempt in [each for each in self._handed_over.values() if each.check_at_ms <= now]:
            try:
                job = await self._engine.inspect.job(attempt.job)
            except JobNotFound:
                job = None
            if job is not None and job.state is State.LEASED and job.token == attempt.token:
                expires_ms = 0 if job.expires_at is None else instant_ms("expires", job.expires_at)
                check_at = max(expires_ms, now + _CHECK_AGAIN_MS)
                self._handed_over[attempt.token] = attempt._replace(check_at_ms=check_at)
                continue
            del self._handed_over[attempt.token]
            if job is not None and (failure := _lost_lease_of(attempt.firing, job)) is not None:
                self.add(attempt.key, [_lost_firing(attempt.firing, failure, job)])

    # ── reading and writing ──────────────────────────────────────────────────────────────

    async def read(
        self,
        key: TypeKey,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        after: str | None = None,
        size: int = 100,
        access: Access = ALL,
    ) -> FiringPage:
        """Returns a page of a type's firings, latest first; *since* and *until* compare their ends.

        Firings of other owners are left out, so a page may have fewer than *size*.
        """
        size = integer("size", size, 1, LARGEST_PAGE)
        before = None if until is None else f"{instant_ms('until', until)}-0"
        if after is not None:
            if re.fullmatch(r"\d{1,15}-\d{1,15}", after) is None:
                raise InvalidOption(
                    "after", after, rule="must be the `after` value returned with the previous page"
                )
            before = after
        from_ms = 0 if since is None else instant_ms("since", since)
        if before is not None and not before.strip("0-"):
            return FiringPage([], None)  # Redis refuses a range that ends before its first id
        upto = _NEWEST if before is None else f"({before}"
        rows = await self._record(key).read(
            "firings", since=from_ms, upto=upto, log_age=self._age, size=size
        )
        firings = [msgspec.json.decode(row, type=Firing) for _, row in rows]
        firings = [firing for firing in firings if access.owns(firing.owner)]
        return FiringPage(firings, rows[-1][0].decode() if len(rows) == size else None)

    async def delete(self, key: TypeKey) -> None:
        """Delete the log of a type."""
        await self._record(key).run("delete_log")

    async def flush(self) -> None:
        """Write all firings that wait. Raises ServerError."""
        async with self._flushing:
            await self._flush()

    async def _flush(self) -> None:
        while self._waiting:
            key, rows = next(iter(self._waiting.items()))
            batch = rows[:_BATCH]
            await self._record(key).run(
                "append",
                entries=batch,
                log_age=self._age,
                log_entries=self._options.log_entries,
                log_bytes=self._options.log_bytes,
                limit=_BATCH * 2,
            )
            del rows[: len(batch)]
            if not rows:
                self._waiting.pop(key, None)
            self._count = sum(map(len, self._waiting.values()))

    async def close(self) -> None:
        """Write all firings that wait, unless Redis is away, and stop writing."""
        await self._writing.stop(grace=_LAST_WRITE)
        with suppress(ServerError):
            await self.flush()

    async def _write(self) -> None:
        while self._waiting:
            await asyncio.sleep(_COLLECTED_FOR_S)
            with suppress(ServerError):  # the engine logs it; they are written when Redis is back
                await self.flush()
        self._writing.retire()  # until `add` starts it again

    def _drop_oldest(self) -> None:
        while self._count > _MOST_WAITING:
            key = next(iter(self._waiting))
            self._count -= len(self._waiting.pop(key))

    def _record(self, key: TypeKey) -> SpaceRecord:
        return self._engine.space("timers", SCRIPTS).at(f"log/{queue_of(key)}")


def _packed(firing: Firing) -> bytes:
    if firing.reason is not None and len(firing.reason) > _LONGEST_REASON:
        short = firing.reason[: _LONGEST_REASON - 1] + "…"
        firing = msgspec.structs.replace(firing, reason=short)
    return msgspec.json.encode(firing)


def firing_of(
    task_id: str,
    outcome: FiringOutcome,
    *,
    due_ms: int,
    started_ms: int,
    ran: float,
    attempt: int,
    worker: str,
    reason: str | None = None,
    owner: str = "",
) -> Firing:
    """Returns a firing, from times in milliseconds by Redis's clock."""
    return Firing(
        task_id=task_id,
        outcome=outcome,
        due=instant(due_ms),
        started_at=instant(started_ms),
        late=(started_ms - due_ms) / 1000,
        ran=round(ran, 6),
        attempt=attempt,
        worker=worker,
        reason=reason,
        owner=owner,
    )


def _firing_of_attempt(settled: SettledAttempt, worker: str) -> Firing | None:
    """Returns the log entry of an attempt by *worker*; None if no handler ran."""
    attempt, settlement, _ = settled
    lease = attempt.lease
    if attempt.error == SKIPPED or attempt.handler is None:
        return None
    return firing_of(
        task_id_of(lease.id, recorded=lease.headers.get("handler") == RECORDED),
        _outcome_of(settled),
        due_ms=lease.due_ms or _asked_due_ms(lease),
        started_ms=lease.claimed_ms + round(attempt.idled * 1000),
        ran=attempt.ran,
        attempt=lease.attempt,
        worker=worker,
        reason=settlement.reason if isinstance(settlement, Fail | Bury) else None,
        owner=lease.owner or "",
    )


def _asked_due_ms(lease: Lease) -> int:
    """Returns the due time that was asked for, where it had passed when the timer was submitted."""
    return instant_ms("due", due_of(TimerPayload.read(lease.payload), instant(lease.submitted_ms)))


_ENDS = {
    State.DONE: FiringOutcome.DONE,
    State.DEAD: FiringOutcome.DEAD,
    State.CANCELLED: FiringOutcome.CANCELLED,
}


def _outcome_of(settled: SettledAttempt) -> FiringOutcome:
    if was_handed_over(settled.settlement, settled.outcome):
        return FiringOutcome.HANDED_OVER
    if not isinstance(settled.outcome, State):
        return FiringOutcome.LOST
    if isinstance(settled.settlement, Release):
        return FiringOutcome.RELEASED
    return _ENDS.get(settled.outcome, FiringOutcome.FAILED)


def _lost_lease_of(firing: Firing, job: JobInfo) -> Failure | None:
    """Returns the failure of the attempt if its lease ended, else None. Attempts never overlap, so
    its failure is the first one after its start.
    """
    first = next((failure for failure in job.failures if failure.at > firing.started_at), None)
    return first if first is not None and first.reason.startswith(LEASE_ENDED) else None


def _lost_firing(firing: Firing, failure: Failure, job: JobInfo) -> Firing:
    is_dead = job.state is State.DEAD and job.failures[-1] == failure
    return msgspec.structs.replace(
        firing,
        outcome=FiringOutcome.DEAD if is_dead else FiringOutcome.LOST,
        ran=max((failure.at - firing.started_at).total_seconds(), 0.0),
        reason=failure.reason,
    )
