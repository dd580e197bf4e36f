"""Background tasks: restarts a task that ends by itself after a pause, and reports it.

For tasks that no caller awaits: relays, couriers, readers of events, watchers of a private Redis.
Without this, an error of such a task would only be noticed by its missing work.
"""

from __future__ import annotations

import asyncio
import gc
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple, Self, TypeVar, cast
from weakref import WeakSet

from towpath.backoff import Backoff
from towpath.clock import Duration, seconds, steady
from towpath.errors import RetryAdvice, TowpathError
from towpath.telemetry.events import TASK_FAILED, TASK_INTERRUPTED, TASK_RECOVERED
from towpath.telemetry.logs import Log

T = TypeVar("T")

_NONE = seconds(0)
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 30.0
_LONGEST_INTERRUPTION = 1.0
"""Longest pause in seconds after an error of another system, so that a task goes on soon after the
system is back."""
_PROVEN = 1.0
"""Seconds (or its last pause, if that was longer) that a task must run to count as working."""
_STEADY = 60.0
"""Seconds that a task must run until earlier errors are forgotten: then pauses are short again."""


class TaskTrouble(NamedTuple):
    """Why a background task does not run, for readiness."""

    error: str
    """The class of the error that ended it."""
    remedy: str


_DEFECT = "It restarts by itself. The server's log says where it failed; report it."


class Background:
    """Runs *run* from `start` to `stop`. Runs it again, after a growing pause, if it ends before.

    Log lines and readiness use *name*. An end without an error counts as an error, too: call
    `retire` before an intended end. An error of another system (`TowpathError.external`) is no
    defect: it is logged once, and the task is tried again every second.
    """

    def __init__(
        self, name: str, run: Callable[[], Awaitable[object]], *, log: Log | None = None
    ) -> None:
        self.name, self._run, self._log = name, run, log or Log()
        self._task: asyncio.Task[None] | None = None
        self._backoff, self._ran = Backoff(FIRST_PAUSE, LONGEST_PAUSE), 0.0
        self._is_interrupted = False
        """Whether an error of another system ended it, and it has not run long enough since."""
        self.trouble: TaskTrouble | None = None
        """Why it ended, until it has run long enough again. None for an error of another system
        that passes by itself: readiness checks that system itself.
        """

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended for good. True while it pauses.

        A task also ends when its event loop is closed.
        """
        return self._task is not None and not (self._task.done() or self._loop.is_closed())

    def start(self) -> Self:
        """Start the task. Has no effect while it runs."""
        if not self.running:
            self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
            self._task = asyncio.create_task(self._run_until_stopped(), name=f"towpath {self.name}")
            _known.add(self)
        return self

    def retire(self) -> None:
        """Do not restart it when it ends."""
        self._over.set()
        self.trouble = None

    async def stop(self, *, grace: Duration = _NONE) -> None:
        """Wait until it has ended; cancels it if it does not end by itself within *grace*."""
        if self._task is not None and self.running:  # a closed loop can't be waited for
            self.retire()
            await asyncio.wait((self._task,), timeout=grace.total_seconds())
            self._task.cancel()
            await asyncio.wait((self._task,))
        self.trouble = None

    def in_trouble(self) -> bool:
        """Whether it ended by itself lately. False in another event loop than its own."""
        return self.trouble is not None and self._loop is asyncio.get_running_loop()

    async def _run_until_stopped(self) -> None:
        while not self._over.is_set():
            began = steady()
            error = await self._run_once()
            if self._over.is_set() and error is None:
                return
            self._ran = steady() - began
            if self._ran >= _STEADY:
                self._backoff.reset()
            external = find_external(error)
            longest = LONGEST_PAUSE if external is None else _LONGEST_INTERRUPTION
            pause = self._backoff.next_pause(longest=longest)
            self._report(error, external)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._over.wait()

    async def _run_once(self) -> BaseException | None:
        """Run it until it ends. Returns its error, or None."""
        proof = self._loop.call_later(self._proven_after(), self._prove)
        try:
            await self._run()
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return error  # it awaited something that was cancelled; the task itself was not
        except Exception as error:  # noqa: BLE001 -- there is no caller to raise it to
            return error
        finally:
            proof.cancel()
        return None

    def _proven_after(self) -> float:
        """Seconds that it must run to count as working again."""
        if self._is_interrupted and self.trouble is None:
            # The next run may wait as long as the last one for an answer that does not come.
            return max(_PROVEN, min(self._ran * 2, LONGEST_PAUSE))
        return max(_PROVEN, self._backoff.pause)

    def _report(self, error: BaseException | None, external: TowpathError | None) -> None:
        """Log why it ended, and set `trouble` for readiness."""
        name = _class_name(error)
        if external is None:
            _log_defect(self._log, self.name, error, self._backoff.pause)
            trouble = TaskTrouble(name, _DEFECT)
        else:
            if not self._is_interrupted:
                _log_interruption(self._log, self.name, external)
            self._is_interrupted = True
            passes = external.retry is not RetryAdvice.NEVER
            trouble = None if passes else TaskTrouble(_class_name(external), external.remedy)
        if not self._over.is_set():
            self.trouble = trouble

    def _prove(self) -> None:
        if self.trouble is not None or self._is_interrupted:
            self.trouble, self._is_interrupted = None, False
            self._log.emit(TASK_RECOVERED, task=self.name)


class LoopLock:
    """A lock for objects that outlive event loops. A lock of asyncio belongs to the first loop in
    which a task waited for it, so each loop gets a new one.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._lock = loop, asyncio.Lock()
        await self._lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()


def detached(name: str, work: Coroutine[Any, Any, T], *, log: Log | None = None) -> asyncio.Task[T]:
    """Start a short task whose error is only logged, because something else does its work later.

    The caller must keep the task: the event loop has only a weak reference.
    """
    task = asyncio.create_task(work, name=f"towpath {name}")

    def look(done: asyncio.Task[T]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            if (external := find_external(error)) is not None:
                _log_interruption(log or Log(), name, external)
            else:
                _log_defect(log or Log(), name, error, 0.0)

    task.add_done_callback(look)
    return task


def retrieve_error(done: asyncio.Future[Any]) -> None:
    """A done callback for a future that several callers await, and that raises its error in them.
    If all of them have left, asyncio would report the error; this prevents it.
    """
    if not done.cancelled():
        done.exception()


def expect_loss(writer: asyncio.StreamWriter) -> None:
    """Keep asyncio from reporting that the connection of *writer* was lost: reads and writes raise
    that error.

    A stream keeps the error in a future for `wait_closed`, which is not called for a lost
    connection, and retrieves it when the stream is deleted. The garbage collector may delete the
    future first, and report the error.
    """
    closed: asyncio.Future[None] = cast("Any", writer.transport.get_protocol())._closed  # noqa: SLF001 -- there is no other way but a task per connection
    closed.add_done_callback(retrieve_error)


def find_external(error: BaseException | None) -> TowpathError | None:
    """Returns *error* if it is one of another system; of a group, the first if all of them are."""
    if isinstance(error, TowpathError) and error.external:
        return error
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        found = [find_external(part) for part in group.exceptions]
        return found[0] if all(found) else None
    return None


def _class_name(error: BaseException | None) -> str:
    return type(error).__qualname__ if error is not None else "it ended without an error"


# Both log the class and the place of the error, never its text, which may quote a secret.


def _log_defect(log: Log, task: str, error: BaseException | None, pause: float) -> None:
    place = _place_of(error)
    log.emit(TASK_FAILED, task=task, error=_class_name(error), place=place, pause=pause)


def _log_interruption(log: Log, task: str, error: TowpathError) -> None:
    name, place = _class_name(error), _place_of(error)
    log.emit(TASK_INTERRUPTED, task=task, error=name, code=error.code, place=place)


def _place_of(error: BaseException | None) -> str:
    frames = traceback.extract_tb(error.__traceback__ if error is not None else None)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


_known: WeakSet[Background] = WeakSet()


def troubles() -> dict[str, TaskTrouble]:
    """The background tasks of this event loop that ended by themselves lately, by name.

    Empty = all of them run.
    """
    return {
        task.name: task.trouble
        for task in list(_known)
        if task.trouble is not None and task.in_trouble()
    }


def exempt_from_collection() -> None:
    """Exempt all objects that exist now, mostly modules, from garbage collection.

    For a process of Towpath's own, once it has loaded everything. Objects that wait for Redis live
    long enough to cause full collections, and each of these stops the process for 10 to 140 ms.
    """
    gc.collect()
    gc.freeze()


def new_loop() -> asyncio.AbstractEventLoop:
    """A new event loop: uvloop's if it is installed (`towpath[fast]`)."""
    make: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    if find_spec("uvloop") is not None:
        make = cast("Any", import_module("uvloop")).new_event_loop
    return make()
