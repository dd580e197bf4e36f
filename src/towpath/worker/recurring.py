"""Recurring work: any worker fires it, each firing happens once, there is no scheduler process.

Every worker knows the schedules, the store knows the last firing of each. A worker that finds one
due submits its job in one step with the new last firing (`engine.fire`); who comes second is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from random import sample
from typing import cast

import msgspec

from towpath.clock import ZERO, Clock, Duration, ServerClock, instant, seconds
from towpath.engine.batcher import LARGEST_BATCH
from towpath.engine.engine import Engine
from towpath.engine.model import JobOptions, NewJob, new_job
from towpath.engine.recur import RecurringWork
from towpath.errors import (
    EngineClosed,
    FiringTaken,
    InvalidOption,
    NotYet,
    QueueFull,
    ServerError,
    TowpathError,
)
from towpath.ids import QueueName, queue_name, recurrence_name
from towpath.telemetry.events import DUTY_FAILED, RECURRING_FIRED, RECURRING_MISSED
from towpath.telemetry.logs import Log
from towpath.worker.schedule import Due, Missed, Schedule, due

SCHEDULED = "scheduled"
"""The job header that says which instant a job was fired for."""
LOOK_EVERY = seconds(30)
"""Nobody waits longer without asking the server: its clock may have been set, or work forgotten."""
TRY_AGAIN_AFTER = seconds(5)
"""When a queue has no room for a firing, or the server gives no answer."""
_LARGEST_CALL_BYTES = 8 * 1024 * 1024
_DECIDED = ("id", "delay", "due")
_FOLLOW_EVERY = 1.0


class Recurrence(msgspec.Struct, frozen=True, kw_only=True):
    """A job to be submitted again and again: under a name, by a schedule, into a queue.

    All is checked when it is made: raises InvalidName, InvalidOption.
    """

    name: str
    """Tells it from the other recurring work of its queue, also after a restart."""
    when: Schedule
    queue: str
    payload: bytes = b"null"
    options: JobOptions = msgspec.field(default_factory=JobOptions)
    """Those of a submit; id and due time are the firing's own."""
    missed: Missed = Missed.ONCE

    def __post_init__(self) -> None:
        recurrence_name(self.name)
        queue_name(self.queue)
        if not isinstance(self.when, Schedule):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
            raise InvalidOption("when", self.when, rule="must be a Cron or an Every")
        if not isinstance(self.missed, Missed):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
            raise InvalidOption("missed", self.missed, rule="must be a Missed: skip, once or all")
        for option in _DECIDED:
            if option in self.options:
                rule = "is decided by the schedule"
                raise InvalidOption(option, self.options.get(option), rule=rule)
        self.job(instant(0))

    def job(self, at: datetime) -> NewJob:
        """The job of the firing at that instant: its id says which."""
        text = at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        headers: Mapping[str, str] = self.options.get("headers") or {}
        own = {"id": f"{self.name}@{text}", "headers": {**headers, SCHEDULED: text}}
        return new_job(self.payload, **cast("JobOptions", {**self.options, **own}))


class Recurrences:
    """The recurring work of an application, each name once per queue."""

    def __init__(self, recurrences: Iterable[Recurrence] = ()) -> None:
        self._all: dict[tuple[str, str], Recurrence] = {}
        for it in recurrences:
            self.add(it)

    def add(self, recurrence: Recurrence) -> Recurrence:
        """Raises InvalidOption if its queue has recurring work of that name."""
        key = (recurrence.queue, recurrence.name)
        if key in self._all:
            rule = f"is the name of other recurring work of queue {recurrence.queue}"
            raise InvalidOption("name", recurrence.name, rule=rule)
        self._all[key] = recurrence
        return recurrence

    def remove(self, queue: str, handler: str | None) -> None:
        """Forget those that submit to that handler of *queue*."""
        for key, it in list(self._all.items()):
            headers: Mapping[str, str] = it.options.get("headers") or {}
            if it.queue == queue and headers.get("handler") == handler:
                del self._all[key]

    def of(self, queues: Iterable[str]) -> Recurrences:
        """Those of some queues only."""
        chosen = set(queues)
        return Recurrences(it for it in self if it.queue in chosen)

    def __iter__(self) -> Iterator[Recurrence]:
        return iter(self._all.values())

    def __len__(self) -> int:
        return len(self._all)

    def by_queue(self) -> dict[QueueName, list[Recurrence]]:
        found: dict[QueueName, list[Recurrence]] = {}
        for it in self:
            found.setdefault(queue_name(it.queue), []).append(it)
        return found


async def keep_firing(
    engine: Engine,
    recurrences: Recurrences,
    *,
    queues: Container[str] | None = None,
    clock: Clock | None = None,
    log: Log | None = None,
) -> None:
    """Fire *recurrences* when they fall due by the server's clock, until cancelled: those of
    *queues*, if these are given. What is added to either is fired within a second; without
    *queues* it returns at once if there are none.

    Any number of processes may do so with the same ones. Work that was never seen begins now:
    nothing is fired for the past. A server that gives no answer is asked again; raises
    EngineClosed. Two round trips per queue and firing, one every LOOK_EVERY while nothing is due.
    """
    if queues is None and not recurrences:
        return
    clock, log = clock or ServerClock(), log or Log()
    firing: dict[QueueName, tuple[list[Recurrence], asyncio.Task[None]]] = {}
    try:
        async with asyncio.TaskGroup() as group:
            while True:
                planned = recurrences.by_queue()
                wanted = {it for it in planned if queues is None or it in queues}
                for queue in {*firing, *wanted}:
                    its = planned[queue] if queue in wanted else []
                    if queue in firing and its != firing[queue][0]:
                        firing.pop(queue)[1].cancel()
                    if its and queue not in firing:
                        keeping = _Firing(engine, queue, its, log).keep(clock)
                        firing[queue] = its, group.create_task(keeping)
                await asyncio.sleep(_FOLLOW_EVERY)
    except ExceptionGroup as failures:
        if failures.split(EngineClosed)[1] is None:
            raise EngineClosed("the engine was left") from failures
        raise


async def fire_due(engine: Engine, recurrences: Recurrences, *, log: Log | None = None) -> None:
    """Fire what is due now by the server's clock, as `keep_firing` does. Raises ServerError, once
    all queues were seen to.
    """
    firing = [_Firing(engine, it, its, log or Log()) for it, its in recurrences.by_queue().items()]
    outcomes = await asyncio.gather(*(it.fire_due() for it in firing), return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome


class _Firing:
    """The recurring work of one queue."""

    def __init__(
        self, engine: Engine, queue: QueueName, recurrences: Sequence[Recurrence], log: Log
    ) -> None:
        self._engine, self._queue, self._log = engine, queue, log
        self._recurrences = recurrences
        self._next: dict[str, tuple[datetime, datetime | None]] = {}
        """The firing after a last one: finding it costs more than all the rest of a look."""

    async def keep(self, clock: Clock) -> None:
        while True:
            stamp = clock.stamp()
            try:
                pause = await self._look()
            except EngineClosed:
                raise
            except ServerError as error:
                self._tell_failure(type(error).__name__, str(error))
                pause = TRY_AGAIN_AFTER
            if clock.stamp() == stamp:  # a manual clock may have been moved since the answer
                await clock.sleep(pause)

    async def fire_due(self) -> None:
        while await self._look() == ZERO:
            pass

    async def _look(self) -> Duration:
        """Fire what is due; how long until the next look."""
        known = await self._engine.recurring(self._queue)
        # In any order: workers that look at the same time then share what is due, instead of
        # racing for each.
        each = sample(self._recurrences, len(self._recurrences))
        return min([LOOK_EVERY, *[await self._see_to(it, known) for it in each]])

    async def _see_to(self, it: Recurrence, known: RecurringWork) -> Duration:
        """How long until something is to be done about *it*, ZERO after something was."""
        last = known.last.get(it.name)
        if it.name in known.unreadable:
            reason = f"{it.name}: this release can't read when it was last fired; `forget` it"
            self._tell_failure("Unreadable", reason)
            return LOOK_EVERY
        try:
            if last is None:
                await self._fire(it, [], after=None, upto=known.now)
            elif pause := self._wait(it, last.at, known.now):
                return pause
            else:
                await self._fire_due(it, last.at, known.now)
        except (FiringTaken, NotYet):
            pass  # somebody was faster, or the server's clock was set: look again
        except ServerError:
            raise
        except TowpathError as error:  # a full queue, a payload too large: the others go on
            self._tell_failure(type(error).__name__, str(error))
            return TRY_AGAIN_AFTER
        return ZERO

    def _wait(self, it: Recurrence, last: datetime, now: datetime) -> Duration:
        cached = self._next.get(it.name)
        if cached is None or cached[0] != last:
            cached = self._next[it.name] = (last, next(it.when.after(last), None))
        return LOOK_EVERY if cached[1] is None else max(cached[1] - now, ZERO)

    async def _fire_due(self, it: Recurrence, last: datetime, now: datetime) -> None:
        found = due(it.when, last, now, it.missed)
        rest, most = found.firings, _most(it)
        while rest:
            part = rest[:most]
            try:
                await self._fire(it, part, after=last, upto=part[-1])
            except QueueFull:
                if len(part) == 1:
                    raise
                most = len(part) // 2  # there may be room for some of them
            else:
                self._tell_fired(it, part, now)
                last, rest = part[-1], rest[most:]
        if last != found.last:
            await self._fire(it, [], after=last, upto=found.last)
        self._tell_missed(it, found)

    async def _fire(
        self, it: Recurrence, firings: Sequence[datetime], *, after: datetime | None, upto: datetime
    ) -> None:
        jobs = [it.job(at) for at in firings]
        about = str(it.when)
        await self._engine.fire(self._queue, it.name, jobs, after=after, upto=upto, about=about)

    def _tell_fired(self, it: Recurrence, firings: Sequence[datetime], now: datetime) -> None:
        for at in firings:
            self._log.emit(
                RECURRING_FIRED,
                recurring=it.name,
                queue=it.queue,
                job=it.job(at).id,
                due=at,
                late=now - at,
            )

    def _tell_missed(self, it: Recurrence, found: Due) -> None:
        if found.missed:
            self._log.emit(
                RECURRING_MISSED,
                recurring=it.name,
                queue=it.queue,
                missed=found.missed,
                policy=it.missed,
            )

    def _tell_failure(self, error: str, reason: str) -> None:
        self._log.emit(DUTY_FAILED, duty="fire", queue=self._queue, error=error, reason=reason)


def _most(it: Recurrence) -> int:
    """Firings in one step: bounded in number and in bytes."""
    return max(1, min(LARGEST_BATCH, _LARGEST_CALL_BYTES // max(1, len(it.payload))))
