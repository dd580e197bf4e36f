"""Clocks that a test advances: the time of day, and a steady clock."""

from towpath import Duration
from towpath.clock import ManualClock


class ManualTime:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self._ticks = 1000.0

    def wall(self) -> int:
        return int(self.clock.stamp())

    def ticks(self) -> float:
        return self._ticks

    def advance(self, duration: Duration) -> None:
        self.clock.advance(duration)
        self._ticks += duration.total_seconds()
