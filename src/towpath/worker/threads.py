"""Threads for plain handlers. A thread can't be ended from outside: one that does not return is
left behind, and whoever uses the pool is told that a slot is lost for as long as that lasts.

Not concurrent.futures: its threads are joined when the process ends, so that one handler that
never returns would keep a stopped worker alive.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
Work = Callable[[], None]


class Unjoined(ThreadPoolExecutor):
    """As many threads as asyncio would have, none of them waited for.

    A ThreadPoolExecutor in name only: event loops take nothing else.
    """

    def __init__(self) -> None:
        super().__init__()
        self._most = min(32, (os.cpu_count() or 1) + 4)
        self._inbox: SimpleQueue[Work | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started = 0

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        self._inbox.put(lambda: _run(future, lambda: fn(*args, **kwargs)))
        if not self._idle.acquire(blocking=False) and self._started < self._most:
            self._started += 1
            threading.Thread(target=self._work, name="towpath-executor", daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 -- its name in the standard library
        """Let the threads end that have nothing to do; wait for none."""
        for _ in range(self._started):
            self._inbox.put(None)

    def _work(self) -> None:
        while (work := self._inbox.get()) is not None:
            work()
            self._idle.release()


def _run(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 -- told to whoever waits for it
        future.set_exception(error)
    else:
        future.set_result(result)


class Threads:
    """As many threads as are in use at once; idle ones are used again."""

    def __init__(self, *, lost: Callable[[], None], regained: Callable[[], None]) -> None:
        self._lost, self._regained = lost, regained
        self._idle: list[_Thread] = []

    async def run(self, call: Callable[[], T]) -> T:
        """What *call* returns or raises, run in a thread.

        Cancelling leaves the thread behind: `lost` is told now, `regained` if it returns after all.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        thread = self._idle.pop() if self._idle else _Thread()
        context = contextvars.copy_context()

        def work() -> None:
            outcome = _outcome(context, call)
            # The loop may be closed by now: then nobody waits for the outcome.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._returned, thread, answer, outcome)

        thread.inbox.put(work)
        try:
            return await answer
        except asyncio.CancelledError:
            # Unless it has answered: what the handler raised may be a cancellation too.
            if answer.cancelled():
                self._lost()
            raise

    def close(self) -> None:
        """Let idle threads end."""
        while self._idle:
            self._idle.pop().inbox.put(None)

    def _returned(
        self,
        thread: _Thread,
        answer: asyncio.Future[Any],
        outcome: tuple[Any, BaseException | None],
    ) -> None:
        self._idle.append(thread)
        value, error = outcome
        if answer.cancelled():
            self._regained()
        elif error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(value)


class _Thread:
    def __init__(self) -> None:
        self.inbox: SimpleQueue[Work | None] = SimpleQueue()
        threading.Thread(target=self._work, name="towpath-handler", daemon=True).start()

    def _work(self) -> None:
        while (work := self.inbox.get()) is not None:
            work()


def _outcome(
    context: contextvars.Context, call: Callable[[], T]
) -> tuple[T | None, BaseException | None]:
    try:
        return context.run(call), None
    except (StopIteration, GeneratorExit) as error:
        # A future refuses the one, the other would end whoever waits without a word.
        return None, RuntimeError(f"the handler raised {error!r}")
    except BaseException as error:  # noqa: BLE001 -- whatever it is, the runner decides
        return None, error
