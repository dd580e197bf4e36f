"""Firing the schedules of one queue: each due firing once, by the first process that finds it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from random import sample, uniform
from typing import TYPE_CHECKING, NamedTuple

from towpath.clock import ZERO, Clock, Duration, minutes, seconds
from towpath.engine.batcher import LARGEST_BATCH
from towpath.engine.engine import Engine
from towpath.engine.schedule import NamedSchedule, due
from towpath.engine.stored_schedules import QueueSchedules, StoredSchedule, read_stored_schedule
from towpath.errors import (
    EngineClosed,
    FiringTaken,
    NotYet,
    QueueFull,
    ScheduleChanged,
    ServerError,
    TowpathError,
)
from towpath.ids import QueueName
from towpath.telemetry.events import DUTY_FAILED, SCHEDULE_FIRED, SCHEDULE_MISSED
from towpath.telemetry.logs import Log

if TYPE_CHECKING:
    from towpath.telemetry.metrics import Metrics

LOOK_EVERY = seconds(30)
"""Longest time between two looks at a queue with schedules from code: Redis's clock may have been
set, or Redis may have lost their last firings."""
LOOK_AGAIN = minutes(5)
"""The same if all schedules of the queue are stored in Redis, which reports their changes."""
TRY_AGAIN_AFTER = seconds(5)
"""The pause after a failure: the queue is full, or Redis does not answer."""
_LARGEST_CALL_BYTES = 8 * 1024 * 1024


class _Work(NamedTuple):
    """A schedule that may fall due, declared in code or stored in Redis."""

    what: NamedSchedule
    version: str = ""
    """The version of a stored schedule; empty = declared in code."""
    size: int = 0
    """The size of a stored schedule's payload, in bytes."""


class FiringReport:
    """Reports firings: log lines and counters."""

    def __init__(self, log: Log, metrics: Metrics | None) -> None:
        self._log, self._metrics = log, metrics

    def fired(self, work: NamedSchedule, firings: Sequence[datetime], now: datetime) -> None:
        if self._metrics is not None:
            self._metrics.schedules(work.queue).fired.inc(len(firings))
        for at in firings:
            self._log.emit(
                SCHEDULE_FIRED,
                schedule=work.name,
                queue=work.queue,
                job=work.job(at).id,
                due=at,
                late=now - at,
            )

    def missed(self, work: NamedSchedule, missed: int) -> None:
        if missed:
            if self._metrics is not None:
                self._metrics.schedules(work.queue).missed.inc(missed)
            self._log.emit(
                SCHEDULE_MISSED,
                schedule=work.name,
                queue=work.queue,
                missed=missed,
                policy=work.missed,
            )

    def failed(self, duty: str, queue: str, error: Exception) -> None:
        self.trouble(duty, queue, type(error).__name__, str(error))

    def trouble(self, duty: str, queue: str, error: str, reason: str) -> None:
        self._log.emit(DUTY_FAILED, duty=duty, queue=queue, error=error, reason=reason)


class QueueFiring:
    """Fires the schedules of one queue."""

    def __init__(
        self,
        engine: Engine,
        queue: QueueName,
        schedules: Sequence[NamedSchedule],
        report: FiringReport,
    ) -> None:
        self._engine, self._queue, self._report = engine, queue, report
        self._declared: Sequence[NamedSchedule] = schedules
        self._stored: dict[str, StoredSchedule] = {}
        self._change = ""
        self._refused = ""
        """The version of the schedule whose firing was last refused."""
        self._next: dict[str, tuple[str, datetime, datetime | None]] = {}
        """By name: version, last firing and next firing. Computing the next firing is the most
        expensive part of a look."""
        self._nap: asyncio.Timeout | None = None
        self._woken = False

    def declare(self, schedules: Sequence[NamedSchedule]) -> None:
        """Set the schedules that code declares for this queue."""
        if self._declared != schedules:
            self._declared = schedules
            self.wake()

    def wake(self) -> None:
        """Look again now."""
        self._woken = True
        if self._nap is not None:
            self._nap.reschedule(asyncio.get_running_loop().time())

    async def keep(self, clock: Clock) -> None:
        while True:
            stamp, self._woken = clock.stamp(), False
            try:
                pause = await self._look()
            except EngineClosed:
                raise
            except ServerError as error:
                self._report.failed("fire", self._queue, error)
                pause = TRY_AGAIN_AFTER
            # A test may have moved its clock since the answer.
            if clock.stamp() == stamp and not self._woken:
                await self._sleep(clock, pause)

    async def _sleep(self, clock: Clock, pause: Duration) -> None:
        try:
            async with asyncio.timeout(None) as self._nap:
                await clock.sleep(pause)
        except TimeoutError:
            pass  # woken
        finally:
            self._nap = None

    async def fire_due(self) -> None:
        while await self._look() == ZERO:
            pass

    async def _look(self) -> Duration:
        """Fire what is due. Returns how long to wait until the next look."""
        known = await self._engine.schedules.of(self._queue, known=self._change)
        if known.change != self._change:
            self._change = known.change
            self._stored = {
                name: read_stored_schedule(self._queue, name, plan)
                for name, plan in known.plans.items()
            }
        # In random order, so that workers that look at the same time share the due schedules
        # instead of racing for each.
        work = self._work()
        pauses = [await self._fire_if_due(planned, known) for planned in sample(work, len(work))]
        # With jitter, so that queues that began together are not all looked at together.
        longest = LOOK_EVERY if self._declared else LOOK_AGAIN * uniform(0.8, 1.2)  # noqa: S311 -- no secret
        return min([longest, *pauses])

    def _work(self) -> list[_Work]:
        found: list[_Work] = []
        for declared in self._declared:
            if declared.name in self._stored:
                name = declared.name
                reason = f"{name}: a stored schedule has that name; rename one of them"
                self._report.trouble("fire", self._queue, "NameTaken", reason)
            else:
                found.append(_Work(declared))
        for name, schedule in self._stored.items():
            if schedule.work is None:
                reason = f"{name}: this release can't read its schedule"
                self._report.trouble("fire", self._queue, "Unreadable", reason)
            elif not schedule.paused:
                found.append(_Work(schedule.work, schedule.version, schedule.size))
        return found

    async def _fire_if_due(self, work: _Work, known: QueueSchedules) -> Duration:
        """Fire *work* if it is due. Returns how long to wait; ZERO = look again now."""
        name = work.what.name
        last = known.last.get(name)
        if name in known.unreadable:
            remedy = "`towpath schedules delete --declared` frees the name"
            reason = f"{name}: its last firing can't be read; {remedy}"
            self._report.trouble("fire", self._queue, "Unreadable", reason)
            return LOOK_EVERY
        try:
            if last is None:
                await self._fire(work, [], after=None, upto=known.now)
            elif pause := self._wait(work, last.at, known.now):
                return pause
            else:
                await self._fire_due(work, last.at, known.now)
        except ScheduleChanged:
            again, self._refused = self._refused == work.version, work.version
            self._change = ""  # read the stored schedules again
            return TRY_AGAIN_AFTER if again else ZERO
        except (FiringTaken, NotYet):
            pass  # another process fired it, or Redis's clock was set: look again
        except ServerError:
            raise
        except TowpathError as error:  # e.g. QueueFull: does not concern the other schedules
            self._report.failed("fire", self._queue, error)
            return TRY_AGAIN_AFTER
        return ZERO

    def _wait(self, work: _Work, last: datetime, now: datetime) -> Duration:
        schedule, version = work.what, work.version
        cached = self._next.get(schedule.name)
        if cached is None or cached[:2] != (version, last):
            coming = next(schedule.when.after(last), None)
            cached = self._next[schedule.name] = (version, last, coming)
        return LOOK_EVERY if cached[2] is None else max(cached[2] - now, ZERO)

    async def _fire_due(self, work: _Work, last: datetime, now: datetime) -> None:
        schedule = work.what
        found = due(schedule.when, last, now, schedule.missed)
        rest, most = found.firings, _firings_per_call(work)
        while rest:
            part = rest[:most]
            try:
                await self._fire(work, part, after=last, upto=part[-1])
            except QueueFull:
                if len(part) == 1:
                    raise
                most = len(part) // 2  # there may be room for some of them
            else:
                self._report.fired(schedule, part, now)
                last, rest = part[-1], rest[most:]
        if last != found.last:
            await self._fire(work, [], after=last, upto=found.last)
        self._report.missed(schedule, found.missed)

    async def _fire(
        self, work: _Work, firings: Sequence[datetime], *, after: datetime | None, upto: datetime
    ) -> None:
        schedule = work.what
        await self._engine.schedules.fire_due(
            self._queue,
            schedule.name,
            [schedule.job(at) for at in firings],
            after=after,
            upto=upto,
            about=str(schedule.when),
            version=work.version,
        )


def _firings_per_call(work: _Work) -> int:
    """Returns how many firings one call may submit, bounded by number and by bytes."""
    size = len(work.what.payload) or work.size
    return max(1, min(LARGEST_BATCH, _LARGEST_CALL_BYTES // max(1, size)))
