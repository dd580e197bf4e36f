"""When to send a call so that it arrives as a job falls due by the clock of Redis, not before.

Each answer contains the time of Redis at a moment between the sending of the call and the reading
of the answer. So the estimate of its clock gets better with every answer, whatever our wall clock
says.
"""

from __future__ import annotations

from towpath.clock import ZERO, Duration, milliseconds, seconds
from towpath.ids import QueueName

_DRIFT = 5e-5
"""How much faster or slower the clock of Redis may go than ours: in a second, 50 µs."""
_LEAD = 0.75
"""Part of the shortest round trip by which a call is sent early. The estimate of the clock is late
by the time that an answer takes, and the call by the time that it takes: together a whole round
trip. A call that arrives early gets nothing and must be repeated, so a quarter is the reserve."""
_FORGET = 1.01
"""Factor by which the shortest round trip grows with each answer, until one is as short again."""
_LEAST = seconds(0.0001)


class _Estimate:
    """The estimate of the clock of one Redis server."""

    __slots__ = ("ahead", "learned_at", "round_trip")

    def __init__(self, ahead: float, learned_at: float, round_trip: float) -> None:
        self.ahead, self.learned_at = ahead, learned_at
        """Seconds that the clock of Redis is ahead of the steady clock, at least."""
        self.round_trip = round_trip


class ServerTimes:
    """Estimates the clock of each queue's server, and how far away the server is.

    With *goes_by_clock* False, scripts get their times from a test, and nothing is estimated.
    """

    def __init__(self, *, goes_by_clock: bool) -> None:
        self._goes_by_clock = goes_by_clock
        self._known: dict[QueueName, _Estimate] = {}

    def learn(self, queue: QueueName, now_ms: int, *, sent_at: float, read_at: float) -> None:
        """Note that the clock of Redis said *now_ms* between these two times of the steady clock:
        the call was sent, its answer was read.
        """
        if not self._goes_by_clock:
            return
        known = self._known.get(queue)
        ahead, round_trip = now_ms / 1000 - read_at, read_at - sent_at
        if known is None:
            self._known[queue] = _Estimate(ahead, read_at, round_trip)
            return
        # The clock of Redis was below the next whole millisecond when the call arrived.
        at_most = (now_ms + 1) / 1000 - sent_at
        before = known.ahead - (read_at - known.learned_at) * _DRIFT
        # If the two contradict each other, the clock was set, or it is another server by now.
        known.ahead = max(ahead, before) if before < at_most else ahead
        known.learned_at = read_at
        known.round_trip = min(round_trip, known.round_trip * _FORGET)

    def ahead_ms(self, queue: QueueName) -> float | None:
        """How far the clock of Redis is ahead of the steady clock; None = not known."""
        known = self._known.get(queue)
        return None if known is None else known.ahead * 1000

    def until(self, queue: QueueName, due_ms: int, now_ms: int, *, at: float) -> Duration:
        """How long to wait from *at* on before sending a call that shall arrive at *due_ms*;
        *now_ms* is the server's time in its last answer. Zero only if *due_ms* is not after that.
        """
        if due_ms <= now_ms:
            return ZERO
        known = self._known.get(queue)
        if known is None:
            return milliseconds(due_ms - now_ms)
        send_at = due_ms / 1000 - known.ahead - known.round_trip * _LEAD
        return max(seconds(send_at - at), _LEAST)
