"""Background tasks: one that ends by itself is started again after a pause, and says so meanwhile.

Whatever runs beside a process's callers and is awaited by nobody runs here: relays, couriers,
readers of events, watchers of a private server. It has no caller who would see its error: without
this it would be missed only when its work is.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Self, TypeVar, cast
from weakref import WeakSet

from towpath.clock import Duration, seconds, steady
from towpath.telemetry.events import TASK_FAILED, TASK_RECOVERED
from towpath.telemetry.logs import Log

T = TypeVar("T")

_NONE = seconds(0)
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 30.0
_PROVEN = 1.0
"""Seconds (or its last pause, if that was longer) that a task must run to count as working."""
_STEADY = 60.0
"""Seconds after which what went wrong before is forgotten: pauses are short again."""


class Background:
    """Runs *run* from `start` to `stop`; again, after a pause that grows, if it ends before.

    *name* is what log lines and readiness call it. An end without an error is one, too: whoever
    ends on purpose calls `retire` first.
    """

    def __init__(
        self, name: str, run: Callable[[], Awaitable[object]], *, log: Log | None = None
    ) -> None:
        self.name, self._run, self._log = name, run, log or Log()
        self._task: asyncio.Task[None] | None = None
        self._pause = 0.0
        self.trouble = ""
        """The type of the error that ended it, until it has proven that it runs again."""

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended for good; also while it pauses."""
        return self._task is not None and not self._task.done()

    def start(self) -> Self:
        """Begin; without effect if it runs."""
        if not self.running:
            self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
            self._task = asyncio.create_task(self._keep(), name=f"towpath {self.name}")
            _known.add(self)
        return self

    def retire(self) -> None:
        """It is not started again; what runs may end as it likes."""
        self._over.set()
        self.trouble = ""

    async def stop(self, *, grace: Duration = _NONE) -> None:
        """Return when it has ended; it is cancelled if it does not end by itself within *grace*."""
        if self._task is not None:
            self.retire()
            await asyncio.wait((self._task,), timeout=grace.total_seconds())
            self._task.cancel()
            await asyncio.wait((self._task,))

    def in_trouble(self) -> bool:
        """Whether it ended by itself a moment ago; asked in the event loop that it runs in."""
        return bool(self.trouble) and self._loop is asyncio.get_running_loop()

    async def _keep(self) -> None:
        while not self._over.is_set():
            began = steady()
            error = await self._once()
            if self._over.is_set() and error is None:
                return
            self._pause = 0.0 if steady() - began >= _STEADY else self._pause
            self._pause = min(self._pause * 2 or FIRST_PAUSE, LONGEST_PAUSE)
            self._say(error)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause):
                    await self._over.wait()

    async def _once(self) -> BaseException | None:
        """Run until it ends; with what, if that was an error."""
        proof = self._loop.call_later(max(_PROVEN, self._pause), self._prove)
        try:
            await self._run()
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return error  # something that it waited for was cancelled, not this
        except Exception as error:  # noqa: BLE001 -- whatever it is: there is no caller to raise it to
            return error
        finally:
            proof.cancel()
        return None

    def _say(self, error: BaseException | None) -> None:
        name = _say(self._log, self.name, error, self._pause)
        if not self._over.is_set():
            self.trouble = name

    def _prove(self) -> None:
        if self.trouble:
            self.trouble = ""
            self._log.emit(TASK_RECOVERED, task=self.name)


def detached(name: str, work: Coroutine[Any, Any, T], *, log: Log | None = None) -> asyncio.Task[T]:
    """A task of limited length whose error is logged: something else makes up for what it left.

    Its maker keeps it: the event loop alone does not.
    """
    task = asyncio.create_task(work, name=f"towpath {name}")

    def look(done: asyncio.Task[T]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            _say(log or Log(), name, error, 0.0)

    task.add_done_callback(look)
    return task


def _say(log: Log, task: str, error: BaseException | None, pause: float) -> str:
    """Log the end of a task; the name of its error."""
    name = type(error).__qualname__ if error is not None else "it ended without an error"
    frames = traceback.extract_tb(error.__traceback__ if error is not None else None)
    # Where and what, never the error's own words: they may quote what is secret.
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    log.emit(TASK_FAILED, task=task, error=name, place=place, pause=pause)
    return name


_known: WeakSet[Background] = WeakSet()


def troubles() -> dict[str, str]:
    """The background tasks of this event loop that ended by themselves a moment ago: name, error.

    Empty = all of them run.
    """
    return {task.name: task.trouble for task in list(_known) if task.in_trouble()}


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's, where it is installed (`towpath[fast]`)."""
    make: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    if find_spec("uvloop") is not None:
        make = cast("Any", import_module("uvloop")).new_event_loop
    return make()
