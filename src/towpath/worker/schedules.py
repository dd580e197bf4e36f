"""Firing schedules: any worker fires them, each firing once; there is no scheduler process.

Schedules that code declares are known to its own workers. Schedules that were made at run time are
stored in Redis, and fired by the workers of their queue and by every server. Redis stores the last
firing of each schedule. A process that finds one due submits its job and stores the new last firing
in one step (`engine.schedules.fire_due`). If two processes do so, the second gets FiringTaken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from towpath.clock import Clock, ServerClock, instant, steady
from towpath.engine.engine import Engine
from towpath.engine.schedule import NamedSchedule
from towpath.engine.schedules import IndexEntry
from towpath.errors import EngineClosed, InvalidOption, ServerError
from towpath.ids import QueueName, queue_name
from towpath.telemetry.logs import Log
from towpath.worker.firing import FiringReport, QueueFiring

if TYPE_CHECKING:
    from towpath.telemetry.metrics import Metrics

HEAR_EVERY = 0.9
"""Seconds between two checks whether stored schedules were changed: one call for all queues."""
SEARCH_EVERY = 600.0
"""Seconds between two searches of all queues for schedules that the index does not know. Redis may
have lost the entry in the index and not the schedule."""
_LEFT_BEHIND = 5
"""Checks after which an unfinished change of a schedule counts as abandoned by its process."""
_JUMP_S = 1.0
"""Seconds by which Redis's clock has to jump before all schedules are looked at again."""


class _EveryQueue:
    def __contains__(self, _: object) -> bool:
        return True


EVERY_QUEUE: Container[str] = _EveryQueue()


class DeclaredSchedules:
    """The schedules that code declares, each name once per queue."""

    def __init__(self, schedules: Iterable[NamedSchedule] = ()) -> None:
        self._all: dict[tuple[str, str], NamedSchedule] = {}
        for schedule in schedules:
            self.add(schedule)

    def add(self, schedule: NamedSchedule) -> NamedSchedule:
        """Add *schedule*. Raises InvalidOption if its queue has a schedule of that name."""
        self.require_new(schedule)
        self._all[schedule.queue, schedule.name] = schedule
        return schedule

    def require_new(self, schedule: NamedSchedule) -> None:
        """Raises InvalidOption if its queue has a schedule of that name."""
        if (schedule.queue, schedule.name) in self._all:
            rule = f"is the name of another schedule of queue {schedule.queue}"
            raise InvalidOption("name", schedule.name, rule=rule)

    def remove(self, queue: str, handler: str | None) -> None:
        """Remove the schedules whose jobs are for *handler* of *queue*; None = without a name."""
        for key, schedule in list(self._all.items()):
            headers: Mapping[str, str] = schedule.options.get("headers") or {}
            if schedule.queue == queue and headers.get("handler") == handler:
                del self._all[key]

    def __iter__(self) -> Iterator[NamedSchedule]:
        return iter(self._all.values())

    def __len__(self) -> int:
        return len(self._all)

    def by_queue(self, queues: Container[str]) -> dict[QueueName, list[NamedSchedule]]:
        found: dict[QueueName, list[NamedSchedule]] = {}
        for schedule in self:
            if schedule.queue in queues:
                found.setdefault(queue_name(schedule.queue), []).append(schedule)
        return found


async def keep_firing(
    engine: Engine,
    schedules: DeclaredSchedules,
    *,
    queues: Container[str] = EVERY_QUEUE,
    clock: Clock | None = None,
    log: Log | None = None,
    metrics: Metrics | None = None,
) -> None:
    """Fire *schedules*, and those that are stored in Redis, when they are due by Redis's clock:
    those of *queues*, until cancelled.

    Any number of processes may fire the same schedules. A new schedule begins now: nothing is fired
    for the past. Additions to *schedules*, *queues* and Redis are noticed within a second. If Redis
    does not answer, the call is repeated. Raises EngineClosed. Takes two round trips per queue and
    firing; while nothing is due, one per second for all queues together, and one per queue every
    LOOK_EVERY or LOOK_AGAIN.
    """
    report = FiringReport(log or Log(), metrics)
    try:
        async with asyncio.TaskGroup() as group:
            watch = _Watch(
                engine,
                schedules,
                queues,
                group=group,
                clock=clock or ServerClock(),
                report=report,
            )
            group.create_task(watch.keep_searching())
            await watch.keep()
    except ExceptionGroup as failures:
        if failures.split(EngineClosed)[1] is None:
            raise EngineClosed("the engine is closed") from failures
        raise


async def fire_due(
    engine: Engine,
    schedules: DeclaredSchedules,
    *,
    queues: Container[str] = EVERY_QUEUE,
    log: Log | None = None,
) -> None:
    """Fire what is due now by Redis's clock, as `keep_firing` does. An error of one queue is raised
    after all queues were tried.
    """
    declared = schedules.by_queue(queues)
    kept = (await engine.schedules.changes()).queues or {}
    names = declared.keys() | {queue for queue in kept if queue in queues}
    report = FiringReport(log or Log(), None)
    firing = [QueueFiring(engine, queue, declared.get(queue, ()), report) for queue in names]
    outcomes = await asyncio.gather(
        *(of_queue.fire_due() for of_queue in firing), return_exceptions=True
    )
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome


class _Watch:
    """Runs a task for each queue that has schedules, and notices when these change."""

    def __init__(
        self,
        engine: Engine,
        schedules: DeclaredSchedules,
        queues: Container[str],
        *,
        group: asyncio.TaskGroup,
        clock: Clock,
        report: FiringReport,
    ) -> None:
        self._engine, self._schedules, self._queues = engine, schedules, queues
        self._group, self._clock, self._report = group, clock, report
        self._firing: dict[QueueName, tuple[QueueFiring, asyncio.Task[None]]] = {}
        self._last, self._kept = "", dict[QueueName, IndexEntry]()
        self._unfinished: dict[QueueName, tuple[str, int]] = {}
        """Queues with an unfinished change: its id, and how many checks have seen it."""
        self._ahead: float | None = None
        """Seconds by which Redis's clock is ahead of the steady clock."""
        self._away = False

    async def keep(self) -> None:
        while True:
            self._serve()
            try:
                await self._read_changes()
            except EngineClosed:
                raise
            except ServerError as error:
                if not self._away:
                    self._report.failed("hear", "", error)
                self._away = True
            else:
                self._away = False
            self._serve()
            await asyncio.sleep(HEAR_EVERY)

    async def keep_searching(self) -> None:
        """Find schedules that the index does not know, again and again."""
        while True:
            try:
                for queue in await self._engine.queues.names():
                    if queue in self._queues and queue not in self._kept:
                        await self._engine.schedules.mend(queue)
            except EngineClosed:
                raise
            except ServerError as error:
                self._report.failed("search", "", error)
            await asyncio.sleep(SEARCH_EVERY)

    def _serve(self) -> None:
        """Start a task for each queue that has schedules, and cancel the others."""
        declared = self._schedules.by_queue(self._queues)
        wanted = declared.keys() | {queue for queue in self._kept if queue in self._queues}
        for queue in self._firing.keys() - wanted:
            self._firing.pop(queue)[1].cancel()
        for queue in wanted:
            if queue not in self._firing:
                firing = QueueFiring(self._engine, queue, (), self._report)
                task = self._group.create_task(firing.keep(self._clock))
                self._firing[queue] = (firing, task)
            self._firing[queue][0].declare(declared.get(queue, ()))

    async def _read_changes(self) -> None:
        changes = await self._engine.schedules.changes(self._last)
        self._check_clock(changes.now)
        if changes.queues is not None:
            lost = [
                queue
                for queue in self._kept
                if queue not in changes.queues and queue in self._queues
            ]
            for queue in lost:  # all its schedules were removed, or the index was lost
                await self._engine.schedules.mend(queue)
            for queue, entry in changes.queues.items():
                if self._kept.get(queue) != entry:
                    self._wake(queue)
            self._last, self._kept = changes.last, changes.queues
            begun = {queue: entry.change for queue, entry in changes.queues.items() if entry.begun}
            known = {
                queue: unfinished
                for queue, unfinished in self._unfinished.items()
                if unfinished[0] == begun.get(queue)
            }
            self._unfinished = {
                queue: known.get(queue, (change, 0))
                for queue, change in begun.items()
                if queue in self._queues
            }
        for queue, (change, looks) in list(self._unfinished.items()):
            self._wake(queue)
            self._unfinished[queue] = (change, looks + 1)
            if looks >= _LEFT_BEHIND:
                await self._engine.schedules.mend(queue, change)

    def _check_clock(self, now: datetime) -> None:
        """Wake all queues if Redis's clock was set."""
        ahead = (now - instant(0)).total_seconds() - steady()
        if self._ahead is not None and abs(ahead - self._ahead) > _JUMP_S:
            for firing, _ in self._firing.values():
                firing.wake()
        self._ahead = ahead

    def _wake(self, queue: QueueName) -> None:
        if queue in self._firing:
            self._firing[queue][0].wake()
