"""Outages of Redis: scripts must know of them to judge leases that ended meanwhile."""

from __future__ import annotations

from towpath.clock import steady
from towpath.engine.calls import Calls
from towpath.engine.keys import keys_of
from towpath.engine.server_time import ServerTimes
from towpath.ids import QueueName

_REMEMBERED = 300.0
"""Seconds for which an outage is remembered after its end."""
_BEFORE_MS = 15_000
"""How long before the first unanswered call an outage may have begun: an idle engine seldom
calls."""


class Outages:
    """Tells scripts when this engine got no answers, in times of the clock of Redis.

    A lease that ended in an outage costs its job no attempt, because no worker could renew it. The
    server's clock is estimated from its answers, so no wall clock matters. Each call also names the
    time at which it was sent, in case the server stopped while it was under way.
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
