"""Durations as people write them: `10m`, `250ms`, `1h30m`; and as they like to read them."""

from __future__ import annotations

import re
from datetime import timedelta

from towpath.clock import Duration, duration_ms
from towpath.errors import InvalidOption

_UNITS = {
    "w": timedelta(weeks=1),
    "d": timedelta(days=1),
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
}
_PART = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)(ms|[wdhms])", re.ASCII)
_WHOLE = re.compile(rf"(?:{_PART.pattern})+", re.ASCII)
_RULE = "must be a duration with its unit, such as 250ms, 10s, 1h30m or 7d"


def parse_duration(option: str, text: str) -> Duration:
    """The duration that *text* spells. Raises InvalidOption, naming *option*.

    A number without a unit is refused, but for 0: nobody can tell seconds from milliseconds.
    """
    if text == "0":
        return timedelta(0)
    if _WHOLE.fullmatch(text) is None:
        raise InvalidOption(option, text, rule=_RULE)
    try:
        total = sum((float(n) * _UNITS[unit] for n, unit in _PART.findall(text)), timedelta(0))
    except OverflowError as error:
        raise InvalidOption(option, text, rule="must be at most a century") from error
    duration_ms(option, total)
    return total


def spelled(duration: Duration) -> str:
    """The shortest text that `parse_duration` reads as this duration, to the millisecond."""
    left, parts = duration_ms("duration", duration), list[str]()
    for name, unit in _UNITS.items():
        if name == "w":
            continue  # 30 days are not read more easily as 4w2d
        count, left = divmod(left, unit // _UNITS["ms"])
        if count:
            parts.append(f"{count}{name}")
    return "".join(parts) or "0s"


def readable(duration: Duration) -> str:
    """The duration at a glance, in one unit: `1.8 s`, `3.5 min`."""
    seconds = duration.total_seconds()
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for unit, size in (("s", 60), ("min", 60), ("h", 48)):
        if seconds < size:
            return f"{seconds:.1f} {unit}"
        seconds /= size if unit != "h" else 24
    return f"{seconds:.1f} d"
