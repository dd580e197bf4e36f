"""Leases that ended while Redis could not be reached: how scripts get to know of it."""

from __future__ import annotations

from towpath.clock import steady
from towpath.engine.calls import Calls
from towpath.engine.keys import keys_of
from towpath.engine.server_time import ServerTimes
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
    under way when the server stopped names the time at which it was sent.
    """

    def __init__(self, calls: Calls, times: ServerTimes) -> None:
        self._calls, self._times = calls, times

    def args(self, queue: QueueName) -> list[int]:
        """The arguments `away`, `back` and `sent` of a script that reaps."""
        offset = self._times.ahead_ms(queue)
        if offset is None:
            return [0, 0, 0]
        now = steady()
        sent = int(offset + now * 1000)
        outage = self._calls.last_outage(keys_of(queue).meta)
        if outage is None or now - outage.back > _REMEMBERED:
            return [sent - _BEFORE_MS, 0, sent]
        away, back = int(offset + outage.away * 1000), int(offset + outage.back * 1000)
        return [away - _BEFORE_MS, back, sent]
