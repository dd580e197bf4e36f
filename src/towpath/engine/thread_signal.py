"""A signal for a waiting thread: like `threading.Event`, but safe against Ctrl-C at any step."""

from __future__ import annotations

import threading
from contextlib import suppress


class ThreadSignal:
    """One thread waits for the signal, which clears it; other threads set it.

    Ctrl-C may come between any two steps of Python code. In an Event it could leave the inner lock
    taken, and the next thread would wait for that lock forever. Here each method is one step.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """Wake the thread that waits, or the next one that does."""
        with suppress(RuntimeError):  # already set
            self._lock.release()

    def clear(self) -> None:
        """Forget that it was set."""
        self._lock.acquire(blocking=False)

    def wait(self, seconds: float) -> None:
        """Return when it is set, at the latest after so many seconds."""
        self._lock.acquire(timeout=max(seconds, 0))
