"""Previewing a schedule: its next firings, and the effects of clock changes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum
from itertools import islice
from zoneinfo import ZoneInfo

import msgspec

from towpath.clock import ZERO, Duration, days, seconds
from towpath.engine.check import integer
from towpath.engine.schedule import Cron, Schedule, firings_of

MOST_FIRINGS = 100
_AHEAD = days(366)
_SECOND = seconds(1)


class Effect(StrEnum):
    """What a change of the clock does to a schedule."""

    SKIPPED = "skipped"
    """No firing for local times that do not exist that day."""
    MOVED = "moved"
    """One firing, right after the gap, for local times that do not exist that day."""
    DOUBLED = "doubled"
    """Two firings for local times that come twice that day."""
    ONCE = "once"
    """One firing, at the first of the two, for local times that come twice that day."""


class ClockChange(msgspec.Struct, frozen=True):
    """A change of the clock that a schedule meets within a year."""

    at: datetime
    effect: Effect
    text: str
    """The effect as a sentence."""


class Preview(msgspec.Struct, frozen=True):
    """What a schedule will do."""

    firings: list[datetime]
    """With the offset of the schedule's own time zone."""
    clock_changes: list[ClockChange]
    """The changes within a year that affect the schedule."""


def preview(when: Schedule, after: datetime, count: int = 5) -> Preview:
    """The next *count* firings after that instant, and the changes of the clock within a year."""
    integer("count", count, 1, MOST_FIRINGS)
    firings = list(islice(when.after(after), count))
    if not isinstance(when, Cron):
        return Preview(firings, [])
    zone = ZoneInfo(when.tz)
    changes = list(_find_changes(when, after, zone))
    return Preview([firing.astimezone(zone) for firing in firings], changes)


def _find_changes(when: Cron, after: datetime, zone: ZoneInfo) -> Iterator[ClockChange]:
    fields = when.expression.split()
    fixed = len(fields) == 5 and not any(field.startswith("*") for field in fields[:2])
    for at in _transitions(after, zone):
        before, since = _offset(at - _SECOND, zone), _offset(at, zone)
        local = at.astimezone(UTC).replace(tzinfo=None)
        first, last = local + min(before, since), local + max(before, since)
        hit = next(iter(firings_of(when.expression, first - _SECOND)), None)
        if hit is None or hit >= last:
            continue
        forward = since > before
        effect = (
            (Effect.MOVED if fixed else Effect.SKIPPED)
            if forward
            else (Effect.ONCE if fixed else Effect.DOUBLED)
        )
        yield ClockChange(at, effect, _describe_effect(effect, first, last, hit))


def _describe_effect(effect: Effect, first: datetime, last: datetime, hit: datetime) -> str:
    span = f"{first:%Y-%m-%d %H:%M} to {last:%H:%M}"
    match effect:
        case Effect.SKIPPED:
            return f"clocks go forward, {span} does not exist: no firing for {hit:%H:%M:%S}"
        case Effect.MOVED:
            return f"clocks go forward, {span} does not exist: {hit:%H:%M} fires at {last:%H:%M}"
        case Effect.DOUBLED:
            return f"clocks go back, {span} comes twice: fires both times"
        case Effect.ONCE:
            return f"clocks go back, {span} comes twice: {hit:%H:%M} fires once, the first time"


def _offset(at: datetime, zone: ZoneInfo) -> Duration:
    return at.astimezone(zone).utcoffset() or ZERO


def _transitions(after: datetime, zone: ZoneInfo) -> Iterator[datetime]:
    """The instants within a year at which the zone's offset changes."""
    low = after.astimezone(UTC).replace(microsecond=0)
    end = low + _AHEAD
    while low < end:
        high = low + days(1)
        if _offset(low, zone) != _offset(high, zone):
            left, right = low, high
            while right - left > _SECOND:
                middle = left + seconds((right - left).total_seconds() // 2)
                if _offset(middle, zone) == _offset(low, zone):
                    left = middle
                else:
                    right = middle
            yield right
        low = high
