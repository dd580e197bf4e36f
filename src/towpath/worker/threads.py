"""Threads for plain handlers. A thread can't be ended from outside: one that does not return is
left behind, and whoever uses the pool is told that a slot is lost for as long as that lasts.

Not concurrent.futures: its threads are joined when the process ends, so that one handler that
never returns would keep a stopped worker alive.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
Work = Callable[[], None]


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
