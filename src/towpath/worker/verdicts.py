"""What a handler may raise to say how its attempt ends. Anything else it raises is a failure."""

from __future__ import annotations

from datetime import datetime

from towpath.clock import Duration, duration_ms, instant_ms


class Verdict(Exception):
    """How the attempt ends, in the handler's own words."""


class Retry(Verdict):
    """Try again after *after*; without it the retry policy decides. The attempt counts.

    `raise Retry("the printer is out of paper", after=minutes(5))`
    """

    def __init__(
        self,
        reason: str = "the handler asked for another attempt",
        *,
        after: Duration | None = None,
    ) -> None:
        super().__init__(reason)
        if after is not None:
            duration_ms("after", after)
        self.reason, self.after = str(reason or ""), after


class Discard(Verdict):
    """No other attempt can help: the job is dead, with this reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = str(reason or "")


class Snooze(Verdict):
    """Not now: come back at this time, or after this long. The attempt does not count."""

    def __init__(self, until: datetime | Duration) -> None:
        super().__init__(f"until {until}")
        if isinstance(until, datetime):
            instant_ms("until", until)
        else:
            duration_ms("until", until)
        self.until = until
