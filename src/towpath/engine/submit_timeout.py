"""How long the calls of an app wait for a Redis that does not answer.

A module of its own, so that settings import little.
"""

from __future__ import annotations

from towpath.clock import Duration, DurationLike, duration, minutes, seconds
from towpath.errors import InvalidOption

GIVE_UP_AFTER = seconds(15)
_LONGEST = minutes(10)


def check_submit_timeout(value: DurationLike) -> Duration:
    """The setting `submit_timeout`. Raises InvalidOption."""
    timeout = duration("submit_timeout", value)
    if not seconds(0) < timeout <= _LONGEST:
        raise InvalidOption("submit_timeout", timeout, rule="must be above 0, up to 10 minutes")
    return timeout
