"""The options of a courier, and its backoff for a sink and for single keys."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from towpath.backoff import pause_after
from towpath.clock import Duration, milliseconds, seconds, steady
from towpath.engine.check import integer
from towpath.errors import InvalidOption

MOST_WAITING = 1000
"""Maximum number of keys with a backoff of their own. At this number nothing is sent to the sink
until some of them end: probably the sink itself fails."""


class CourierOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The limits and pauses of a courier."""

    batch: int = 100
    """Maximum number of events in memory, per sink."""
    lease: Duration = seconds(30)
    """How long a courier that died keeps others from sending."""
    look_every: Duration = seconds(1)
    """How often to look for events that another process put."""
    first_pause: Duration = milliseconds(500)
    """The pause after a sink was not reached; doubled after each further failure."""
    longest_pause: Duration = seconds(60)
    attempts: int = 20
    """How often an event may fail while others are accepted; then it counts as refused."""
    grace: Duration = seconds(5)
    """At the end, the time for finishing the current batch."""

    def __post_init__(self) -> None:
        integer("courier.batch", self.batch, 1, 500)
        integer("courier.attempts", self.attempts, 1, 1_000_000)
        for name in ("lease", "look_every", "first_pause", "grace"):
            if not milliseconds(1) <= getattr(self, name) <= seconds(3600):
                rule = "must be from a millisecond to an hour"
                raise InvalidOption(f"courier.{name}", getattr(self, name), rule=rule)
        if not self.first_pause <= self.longest_pause:
            rule = "must not be below first_pause"
            raise InvalidOption("courier.longest_pause", self.longest_pause, rule=rule)


class SinkBackoff:
    """The backoff of a courier, for its sink and for single keys. It is in memory only: a restarted
    courier tries everything at once, which does no harm.
    """

    def __init__(self, options: CourierOptions, *, ticks: Callable[[], float] = steady) -> None:
        self._first, self._longest = options.first_pause, options.longest_pause
        self._ticks = ticks
        self._failures, self._since = 0, 0.0
        self._keys: dict[str, float] = {}

    # ── the sink ─────────────────────────────────────────────────────────────────────────

    def failed(self) -> bool:
        """Count a failure to reach the sink. Returns whether it is the first in a row."""
        self._failures += 1
        if self._failures == 1:
            self._since = self._ticks()
        return self._failures == 1

    def reached(self) -> float | None:
        """Note that the sink was reached. Returns the seconds of its outage; None without one."""
        failures, self._failures = self._failures, 0
        return self._ticks() - self._since if failures else None

    def pause(self, asked_for: Duration) -> Duration:
        """Return the pause before the next send: doubled by each failure, at least *asked_for*."""
        return self._delay_after(self._failures - 1, asked_for)

    # ── one key ──────────────────────────────────────────────────────────────────────────

    def hold_back(self, key: str, attempts: int, asked_for: Duration) -> Duration:
        """Delay the events of *key*, longer with each of its *attempts*. Returns the delay."""
        delay = self._delay_after(attempts, asked_for)
        self._keys[key] = self._ticks() + delay.total_seconds()
        return delay

    def waiting(self) -> list[str]:
        """Return the keys that are still delayed."""
        now = self._ticks()
        self._keys = {key: until for key, until in self._keys.items() if until > now}
        return list(self._keys)

    def _delay_after(self, failures: int, asked_for: Duration) -> Duration:
        first, longest = self._first.total_seconds(), self._longest.total_seconds()
        return min(
            max(seconds(pause_after(failures + 1, first, longest)), asked_for), self._longest
        )
