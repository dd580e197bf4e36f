"""Leases that ended while Redis could not be reached: how scripts get to know of it."""

from __future__ import annotations

from towpath.clock import steady
from towpath.engine.channel import Channels
from towpath.engine.keys import keys_of
from towpath.ids import QueueName

_REMEMBERED = 300.0
"""Seconds for which an outage is remembered after its end."""
_BEFORE_MS = 15_000
"""An outage may have begun that long before the first call that was not answered: an engine with
little to do asks seldom."""


class Outages:
    """Tells scripts when this engine had no answer, by the clock of the server.

    Leases that ended in such a time are not counted against their jobs: no worker could renew them.
    The server's clock is known from the last answer, so no wall clock matters. A call that was
    under way when the server stopped names the time at which it was sent. With *goes_by_clock*
    False, the times of scripts are those of a test, and nothing is known.
    """

    def __init__(self, channels: Channels, *, goes_by_clock: bool) -> None:
        self._channels, self._goes_by_clock = channels, goes_by_clock
        self._offsets: dict[QueueName, float] = {}
        """The clock of each queue's server minus the steady clock, in ms."""

    def learn(self, queue: QueueName, now_ms: int) -> None:
        """Note that the clock of the server of *queue* said *now_ms* just now."""
        if self._goes_by_clock:
            self._offsets[queue] = now_ms - steady() * 1000

    def args(self, queue: QueueName) -> list[int]:
        """The arguments `away`, `back` and `sent` of a script that reaps."""
        offset = self._offsets.get(queue)
        if offset is None:
            return [0, 0, 0]
        now = steady()
        sent = int(offset + now * 1000)
        outage = self._channels.last_outage(keys_of(queue).meta)
        if outage is None or now - outage.back > _REMEMBERED:
            return [sent - _BEFORE_MS, 0, sent]
        away, back = int(offset + outage.away * 1000), int(offset + outage.back * 1000)
        return [away - _BEFORE_MS, back, sent]
