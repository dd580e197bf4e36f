"""One time limit for many short waits.

A timer per call costs more than all else the client does for it: each leaves a cancelled entry
in the event loop's heap. Here a single timer looks at all waits a few times per limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from towpath.clock import Duration, steady

T = TypeVar("T")

_LOOKS_PER_LIMIT = 4
_LOOK_EVERY = 1.0


class Watch:
    """Ends waits that take longer than *limit*; late by a quarter of it at most.

    Long before, and again and again, *silence* is called: somebody has waited from one look to
    the next, a second or less.
    """

    def __init__(self, limit: Duration, silence: Callable[[], None]) -> None:
        self._limit, self._silence = limit.total_seconds(), silence
        self._every = min(self._limit / _LOOKS_PER_LIMIT, _LOOK_EVERY)
        self._until: dict[asyncio.Task[object], float] = {}
        self._seen: dict[asyncio.Task[object], float] = {}
        self._over: set[asyncio.Task[object]] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def within(self, waiting: Awaitable[T], latest: float) -> T:
        """The result of *waiting*, or TimeoutError after the limit, or at *latest*.

        A task waits for one thing at a time.
        """
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a time limit needs a running task")
        self._until[task] = min(steady() + self._limit, latest)
        self._start()
        try:
            return await waiting
        except asyncio.CancelledError as error:
            # Ours, unless somebody else wants the task to end as well.
            if task in self._over and task.uncancel() == 0:
                raise TimeoutError(f"no answer within {self._limit} s") from error
            raise
        finally:
            del self._until[task]
            self._over.discard(task)

    def close(self) -> None:
        """Nobody waits any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._every, self._look)

    def _look(self) -> None:
        self._timer = None
        now = steady()
        for task, until in self._until.items():
            if now >= until and task not in self._over:
                self._over.add(task)
                task.cancel()
        if self._until.items() & self._seen.items():
            self._silence()
        self._seen = dict(self._until)
        if self._until:
            self._start()
