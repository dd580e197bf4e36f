"""When to send a call so that it arrives as a job falls due: not before it, by the server's clock.

Each answer says what the server's clock was between two moments of ours. From these the clock is
known better with every answer, whatever the wall clock here says.
"""

from __future__ import annotations

from towpath.clock import ZERO, Duration, milliseconds, seconds
from towpath.ids import QueueName

_DRIFT = 5e-5
"""How much faster or slower the server's clock may go than ours: in a second, 50 µs."""
_LEAD = 0.75
"""Part of the shortest round trip that a call is sent ahead of its time. The estimate of the clock
is late by the way of an answer, and a call by the way to the server: together a whole round trip.
A call that comes early gets nothing and costs another one, so a quarter is kept as a reserve."""
_FORGET = 1.01
"""By how much the shortest round trip grows with each answer, if it is not reached any more."""
_LEAST = seconds(0.0001)


class _Estimate:
    """What is known of one server's clock."""

    __slots__ = ("ahead", "learned_at", "round_trip")

    def __init__(self, ahead: float, learned_at: float, round_trip: float) -> None:
        self.ahead, self.learned_at = ahead, learned_at
        """Seconds that the server's clock is ahead of the steady clock, at least."""
        self.round_trip = round_trip


class ServerTimes:
    """Estimates the clock of each queue's server, and how far away the server is.

    With *goes_by_clock* False, the times of scripts are those of a test, and nothing is known.
    """

    def __init__(self, *, goes_by_clock: bool) -> None:
        self._goes_by_clock = goes_by_clock
        self._known: dict[QueueName, _Estimate] = {}

    def learn(self, queue: QueueName, now_ms: int, *, sent_at: float, read_at: float) -> None:
        """Note that the server's clock said *now_ms* between these two times of the steady clock:
        the call was sent, its answer was read.
        """
        if not self._goes_by_clock:
            return
        known = self._known.get(queue)
        ahead, round_trip = now_ms / 1000 - read_at, read_at - sent_at
        if known is None:
            self._known[queue] = _Estimate(ahead, read_at, round_trip)
            return
        # The server's clock was below the next whole millisecond when the call arrived.
        at_most = (now_ms + 1) / 1000 - sent_at
        before = known.ahead - (read_at - known.learned_at) * _DRIFT
        # If the two contradict each other, the clock was set, or it is another server by now.
        known.ahead = max(ahead, before) if before < at_most else ahead
        known.learned_at = read_at
        known.round_trip = min(round_trip, known.round_trip * _FORGET)

    def ahead_ms(self, queue: QueueName) -> float | None:
        """How far the server's clock is ahead of the steady clock; None = not known."""
        known = self._known.get(queue)
        return None if known is None else known.ahead * 1000

    def until(self, queue: QueueName, due_ms: int, now_ms: int, *, at: float) -> Duration:
        """How long to wait from *at* on before a call is sent that is to arrive at *due_ms*;
        *now_ms* is what the server's clock said just now. Only what is due already has to wait for
        nothing.
        """
        if due_ms <= now_ms:
            return ZERO
        known = self._known.get(queue)
        if known is None:
            return milliseconds(due_ms - now_ms)
        send_at = due_ms / 1000 - known.ahead - known.round_trip * _LEAD
        return max(seconds(send_at - at), _LEAST)
