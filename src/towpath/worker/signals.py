"""The signals that stop a worker, heard by more than its event loop: that may be blocked."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from towpath.clock import steady


class Signals:
    """What was heard so far; read by the heartbeat's thread too."""

    def __init__(self, numbers: Sequence[signal.Signals], stop: Callable[[str], None]) -> None:
        self._numbers, self._stop = numbers, stop
        self.words = ""
        self._first, self._times = 0.0, 0

    def overdue(self, now: float, grace: float) -> bool:
        """Whether a worker that goes on by now does so against a signal."""
        return self._times > 1 or (self._times == 1 and now - self._first >= grace)

    @contextmanager
    def heard(self) -> Generator[None]:
        """Listen while the body runs. Only a program's main thread may; in others, without effect.

        Not with the loop's own add_signal_handler: that tells nobody before the loop runs again.
        A handler that blocks inside of C code and never looks up keeps this from hearing as well.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()

        def hear(number: int, _: FrameType | None) -> None:
            self._hear(signal.Signals(number), loop)

        before = {number: signal.signal(number, hear) for number in self._numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _hear(self, number: signal.Signals, loop: asyncio.AbstractEventLoop) -> None:
        if not self._times:
            self._first, self.words = steady(), f"{number.name} came"
        self._times += 1
        with suppress(RuntimeError):  # a closed loop has nothing left to stop
            loop.call_soon_threadsafe(self._stop, f"{number.name} came")
