"""Threads for what handlers give to `asyncio.to_thread`: they keep no stopped worker alive.

Not the executor that a loop makes for itself: its threads are joined when the loop closes and
again when the process ends, so that one call that never returns outlasts every grace time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
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
