"""How long a courier leaves a sink alone, or one key of its events."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from towpath.clock import Duration, milliseconds, seconds, steady
from towpath.engine.check import whole
from towpath.errors import InvalidOption

MOST_WAITING = 1000
"""Keys that wait by themselves; with more, something else is wrong, and nothing is sent."""


class CourierOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a courier goes about it."""

    batch: int = 100
    """Events that are in memory at once, per sink."""
    lease: Duration = seconds(30)
    """How long a courier that died keeps others from sending."""
    look_every: Duration = seconds(1)
    """How often to look for events that another process put."""
    first_pause: Duration = milliseconds(500)
    """After a sink was not reached; doubled each time."""
    longest_pause: Duration = seconds(60)
    attempts: int = 20
    """How often an event may fail while others are taken; then it is refused."""
    grace: Duration = seconds(5)
    """At the end, for the batch that is under way."""

    def __post_init__(self) -> None:
        whole("courier.batch", self.batch, 1, 500)
        whole("courier.attempts", self.attempts, 1, 1_000_000)
        for name in ("lease", "look_every", "first_pause", "grace"):
            if not milliseconds(1) <= getattr(self, name) <= seconds(3600):
                rule = "must be from a millisecond to an hour"
                raise InvalidOption(f"courier.{name}", getattr(self, name), rule=rule)
        if not self.first_pause <= self.longest_pause:
            rule = "must not be below first_pause"
            raise InvalidOption("courier.longest_pause", self.longest_pause, rule=rule)


class Patience:
    """What a courier remembers of failures. A new one begins with none, which does no harm."""

    def __init__(self, options: CourierOptions, *, ticks: Callable[[], float] = steady) -> None:
        self._first, self._longest = options.first_pause, options.longest_pause
        self._ticks = ticks
        self._failures, self._since = 0, 0.0
        self._keys: dict[str, float] = {}

    # ── the sink ─────────────────────────────────────────────────────────────────────────

    def failed(self) -> bool:
        """The sink was not reached. Whether that is news."""
        self._failures += 1
        if self._failures == 1:
            self._since = self._ticks()
        return self._failures == 1

    def reached(self) -> float | None:
        """The sink was reached. For how many seconds it had not been; None = it was before."""
        failures, self._failures = self._failures, 0
        return self._ticks() - self._since if failures else None

    def pause(self, asked_for: Duration) -> Duration:
        """How long to leave the sink alone: what it asks for, or longer after each failure."""
        return self._bounded(self._failures - 1, asked_for)

    # ── one key ──────────────────────────────────────────────────────────────────────────

    def hold_back(self, key: str, attempts: int, asked_for: Duration) -> Duration:
        """Leave *key* alone, for longer with each of its *attempts*; how long."""
        delay = self._bounded(attempts, asked_for)
        self._keys[key] = self._ticks() + delay.total_seconds()
        return delay

    def waiting(self) -> list[str]:
        """The keys whose time has not come."""
        now = self._ticks()
        self._keys = {key: until for key, until in self._keys.items() if until > now}
        return list(self._keys)

    def _bounded(self, failures: int, asked_for: Duration) -> Duration:
        doubled = self._first * 2 ** min(max(failures, 0), 30)
        return min(max(doubled, asked_for), self._longest)
