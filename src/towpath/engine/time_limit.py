"""Time limits of calls: one timer for all, and time when the loop stood still does not count."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from towpath.clock import Duration, steady

T = TypeVar("T")
_CHECKS_PER_LIMIT = 4
_CHECK_EVERY = 1.0


class TimeLimit(Protocol):
    """The limit for each reply of Redis."""

    def stood_still(self, now: float) -> float:
        """Total seconds in which no answer could be read: they do not count."""
        ...

    def until(self, deadline: Deadline) -> AbstractContextManager[None]:
        """A block that is ended with TimeoutError after the limit, or at *deadline*."""
        ...

    def close(self) -> None:
        """End the limit; no call waits any more."""
        ...


class SharedTimeLimit:
    """One time limit for many short waits: they end after *limit*, late by a quarter at most.

    A timer per call would leave a cancelled entry in the event loop's heap each time: with
    `asyncio.timeout`, the client needs 205,000 instructions for a lone submit, instead of 174,000
    (callgrind, CPython 3.11). Here a single timer checks all waits a few times per limit. *silence*
    is called at each check if a wait has lasted since the previous one, a second ago or less.

    Time in which the event loop stood still does not count: while code blocks it, or while the
    process is stopped, no answer can be read, so a missing answer says nothing about the server.
    """

    def __init__(self, limit: Duration, silence: Callable[[], None]) -> None:
        self._limit, self._silence = limit.total_seconds(), silence
        self._every = min(self._limit / _CHECKS_PER_LIMIT, _CHECK_EVERY)
        self.waiting: dict[asyncio.Task[object], float] = {}
        """Task -> when its wait ends."""
        self._seen: dict[asyncio.Task[object], float] = {}
        self.over: set[asyncio.Task[object]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._check_at = 0.0
        self._stood_still = 0.0

    def stood_still(self, now: float) -> float:
        """Total seconds for which the loop stood still while a task waited."""
        # The same as `_lateness`, without a call: this runs twice for each call to Redis.
        late = now - self._check_at
        if late > self._every and self._timer is not None:
            return self._stood_still + late
        return self._stood_still

    def until(self, deadline: Deadline) -> _Wait:
        """A block that is ended with TimeoutError after the limit, or at *deadline*.

        A task can be in one such block at a time.
        """
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a time limit needs a running task")
        now = steady()
        # A call that has just begun has more time left than this limit.
        is_far = now - deadline.made_at <= deadline.limit - self._limit
        self.waiting[task] = now + (self._limit if is_far else min(self._limit, deadline.left(now)))
        if self._timer is None:
            self._start_timer()
        return _Wait(self, task)

    def close(self) -> None:
        """Stop the timer; no task waits any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_timer(self) -> None:
        self._check_at = steady() + self._every
        self._timer = asyncio.get_running_loop().call_later(self._every, self._check_waits)

    def _lateness(self, now: float) -> float:
        """Seconds by which the current check is late; 0 for the usual lateness of timers."""
        late = now - self._check_at if self._timer is not None else 0.0
        return late if late > self._every else 0.0

    def _check_waits(self) -> None:
        now = steady()
        late, self._timer = self._lateness(now), None
        if late:
            self._stood_still += late
            self.waiting = {task: until + late for task, until in self.waiting.items()}
        for task, until in self.waiting.items():
            if now >= until and task not in self.over:
                self.over.add(task)
                task.cancel()
        if self.waiting.items() & self._seen.items():
            self._silence()
        self._seen = dict(self.waiting)
        if self.waiting:
            self._start_timer()


class Deadline:
    """The end of a call that begins now and may take *limit* seconds with all its repeats. Time in
    which the loop stood still is added.
    """

    __slots__ = ("_still", "_watch", "limit", "made_at")

    def __init__(self, watch: TimeLimit, limit: float) -> None:
        self._watch, self.limit = watch, limit
        self.made_at = now = steady()
        self._still = watch.stood_still(now)

    def began(self, now: float) -> float:
        """When the call began, as if the loop had stood still before that and not since."""
        return self.made_at + self._watch.stood_still(now) - self._still

    def left(self, now: float) -> float:
        """Seconds until the deadline; negative after it."""
        still = self._watch.stood_still(now) - self._still
        return self.made_at + still + self.limit - now


class _Wait:
    """One task that waits."""

    __slots__ = ("_task", "_watch")

    def __init__(self, watch: SharedTimeLimit, task: asyncio.Task[object]) -> None:
        self._watch, self._task = watch, task

    def __enter__(self) -> None:
        """Does nothing: the wait began when it was created."""

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        watch, task = self._watch, self._task
        del watch.waiting[task]
        if task in watch.over:
            watch.over.discard(task)
            # The cancellation is ours, unless the task was cancelled from elsewhere as well.
            if isinstance(error, asyncio.CancelledError) and task.uncancel() == 0:
                raise TimeoutError("no answer within the time limit") from error


async def wait_within(limit: float, wait: Callable[[], Awaitable[T]]) -> T:
    """Await what *wait* returns, for *limit* seconds; once more if the loop stood still meanwhile.

    Raises TimeoutError.
    """
    while True:
        until = steady() + limit
        try:
            async with asyncio.timeout(limit):
                return await wait()
        except TimeoutError:
            if steady() - until < _CHECK_EVERY:
                raise
