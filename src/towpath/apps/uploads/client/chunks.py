"""Which chunks of a file are still to be sent, for the threads that send them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable


class ChunksToSend:
    """Chunks that are to be sent, each by one thread at a time. A part has *per_part* of them."""

    def __init__(self, numbers: Iterable[int], per_part: int) -> None:
        self._per_part = per_part
        self._waiting = deque(numbers)
        self._left = set(self._waiting)
        self._held: set[int] = set()
        self._sent: set[int] = set()
        self._change = threading.Condition()

    def __len__(self) -> int:
        return len(self._waiting)

    def next(self, most: int) -> range | None:
        """Take up to *most* consecutive chunks of one part; None once all are sent."""
        with self._change:
            while self._left:
                if found := self._take(most):
                    return found
                self._change.wait(1.0)  # other threads send the rest, and may return some of it
            return None

    def _take(self, most: int) -> range:
        first = end = 0
        while self._waiting and end - first < most:
            number = self._waiting[0]
            if number in self._left and number not in self._held:
                if first < end and (number != end or number % self._per_part == 0):
                    break
                first, end = (first, end + 1) if first < end else (number, number + 1)
                self._held.add(number)
            self._waiting.popleft()
        return range(first, end)

    def back(self, numbers: range) -> None:
        """Return chunks that are to be sent again; those that are done are skipped."""
        with self._change:
            self._held.difference_update(numbers)
            self._waiting.extendleft(reversed(numbers))
            self._change.notify()

    def first(self, numbers: Iterable[int]) -> None:
        """Send these before all others."""
        with self._change:
            for number in reversed(list(numbers)):
                if number not in self._held and number not in self._sent:
                    self._left.add(number)
                    self._waiting.appendleft(number)

    def done(self, numbers: Iterable[int]) -> None:
        with self._change:
            for number in numbers:
                self._held.discard(number)
                self._left.discard(number)
                self._sent.add(number)
            if not self._left:
                self._change.notify_all()

    def end(self) -> None:
        """Send no more chunks."""
        with self._change:
            self._left.clear()
            self._change.notify_all()
