"""Time: durations with their unit in the name, the clock of Redis, and a manual clock for tests.

No other module reads the time. The clock of Redis decides about jobs: scripts read it. A worker's
own clock is only used to wait.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Protocol,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from towpath.errors import InvalidOption

Duration = timedelta
DurationLike = timedelta | float | str
"""A duration as callers may pass it: `timedelta(seconds=10)`, `10` (seconds) or `"10s"`."""

if TYPE_CHECKING:
    Read = TypeVar("Read")
    Said = TypeVar("Said")

    class Converted(Generic[Read, Said]):
        """A field that accepts several types, and is read as one."""

        @overload
        def __get__(self, instance: None, owner: type) -> Self: ...
        @overload
        def __get__(self, instance: object, owner: type) -> Read: ...
        def __get__(self, instance: object, owner: type) -> Any: ...
        def __set__(self, instance: object, value: Said) -> None: ...

    DurationField = Converted[Duration, DurationLike]
    OptionalDuration = Converted[Duration | None, DurationLike | None]

    def default_duration(value: Read) -> Converted[Read, Any]: ...  # pyright: ignore[reportUnusedParameter] -- only its type is used

else:
    DurationField, OptionalDuration = timedelta, timedelta | None

    def default_duration(value: Duration | None) -> Duration | None:
        """The default of such a field, for type checkers."""
        return value


ZERO = timedelta(0)
_MILLISECOND = timedelta(milliseconds=1)
_LONGEST = timedelta(days=36_525)
"""A century. A longer duration is probably a mistake in the unit; the limit keeps scores exact."""


def milliseconds(n: float) -> Duration:
    """A duration of *n* milliseconds."""
    return timedelta(milliseconds=n)


def seconds(n: float) -> Duration:
    """A duration of *n* seconds."""
    return timedelta(seconds=n)


def minutes(n: float) -> Duration:
    """A duration of *n* minutes."""
    return timedelta(minutes=n)


def hours(n: float) -> Duration:
    """A duration of *n* hours."""
    return timedelta(hours=n)


def days(n: float) -> Duration:
    """A duration of *n* days."""
    return timedelta(days=n)


def duration(option: str, value: DurationLike, *, least: Duration = ZERO) -> Duration:
    """*value* as a timedelta. Raises InvalidOption, naming *option*, if it is no duration, is below
    *least*, or is over a century.
    """
    if type(value) is timedelta:
        span = value
    elif isinstance(value, str):
        span = parse_duration(option, value)
    else:
        span = _span(option, value)
    if not least <= span <= _LONGEST:
        raise InvalidOption(option, value, rule=_bounds(least))
    return span


def _span(option: str, value: timedelta | float) -> Duration:
    if isinstance(value, timedelta):
        return value
    if not isinstance(value, int | float) or isinstance(value, bool):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
        raise InvalidOption(option, value, rule=_KINDS)
    try:
        return timedelta(seconds=value)
    except ValueError as error:  # NaN
        raise InvalidOption(option, value, rule=_KINDS) from error
    except OverflowError as error:
        raise InvalidOption(option, value, rule=_bounds(ZERO)) from error


_KINDS = 'must be a timedelta, a number of seconds, or text with a unit: seconds(30), 30 or "30s"'


def _bounds(least: Duration) -> str:
    longest = f"at most {_LONGEST.days} days"
    return (
        f"must be at least {format_duration(least)} and {longest}"
        if least
        else f"must be 0 or more, {longest}"
    )


def duration_ms(option: str, value: DurationLike, *, least: Duration = ZERO) -> int:
    """The duration in whole milliseconds, rounded up, so that nothing happens too early.

    Raises what `duration` raises.
    """
    if type(value) is not timedelta or not least <= value <= _LONGEST:
        value = duration(option, value, least=least)
    return -(-value // _MILLISECOND)


def instant_ms(option: str, value: datetime) -> int:
    """The instant in ms since 1970, rounded up. Raises InvalidOption unless it has a time zone."""
    if not isinstance(value, datetime) or value.tzinfo is None:  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
        raise InvalidOption(option, value, rule="must be a datetime with a time zone")
    since = value - _EPOCH
    if not ZERO <= since <= 2 * _LONGEST:
        raise InvalidOption(option, value, rule="must be between 1970 and 2169")
    return -(-since // _MILLISECOND)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def instant(ms: int) -> datetime:
    """The instant *ms* milliseconds after 1970, in UTC."""
    return _EPOCH + timedelta(milliseconds=ms)


_MOMENT = re.compile(r"(?:T| )(\d\d:\d\d:\d\d)(?:\.\d+)?\+00:00")


def trim_timestamps(text: str) -> str:
    """*text* with its timestamps shortened to the second, for people."""
    return _MOMENT.sub(r" \1 UTC", text)


def wall_ms() -> int:
    """This machine's clock in ms: for the order of ids, never for a decision about a job."""
    return time.time_ns() // 1_000_000


wall_ns = time.time_ns
"""The same in nanoseconds."""
steady = time.monotonic
"""Seconds of the monotonic clock, for time limits."""


class Clock(Protocol):
    """The clock that scripts use, and how to wait on it."""

    def stamp(self) -> str:
        """The argument of scripts: the time in ms, or '' for the clock of Redis."""
        ...

    async def sleep(self, duration: Duration) -> None:
        """Return when *duration* has passed on this clock."""
        ...


class ServerClock:
    """The clock of Redis, used everywhere but in tests."""

    stamp = staticmethod(str)  # returns ''

    async def sleep(self, duration: Duration) -> None:
        await asyncio.sleep(duration.total_seconds())


class Units(TypedDict, total=False):
    """The units of a duration, as keywords."""

    days: float
    hours: float
    minutes: float
    seconds: float
    milliseconds: float


class ManualClock:
    """A clock that moves only when told: `advance(hours=3)` makes delayed jobs due.

    It may be advanced in any thread, and waited on in any event loop.
    """

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._now = instant_ms("start", start)
        self._watchers: list[Callable[[], None]] = []

    def stamp(self) -> str:
        """Internal: the time that a script gets, in ms."""
        return str(self._now)

    @property
    def now(self) -> datetime:
        """The time on this clock."""
        return instant(self._now)

    def advance(self, duration: DurationLike = ZERO, **units: Unpack[Units]) -> None:
        """Let time pass: `advance(hours(3))` or `advance(hours=3)`. Sleepers whose time is over
        wake up.
        """
        self._now += duration_ms("advance", duration) + duration_ms("advance", timedelta(**units))
        for tell in list(self._watchers):
            tell()

    async def sleep(self, duration: Duration) -> None:
        """Return when *duration* has passed on this clock."""
        until = self._now + duration_ms("sleep", duration)
        loop, moved = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop may be closed
                loop.call_soon_threadsafe(moved.set)

        with self.watched(wake):
            while self._now < until:
                await moved.wait()
                moved.clear()

    @contextmanager
    def watched(self, moved: Callable[[], None]) -> Generator[None]:
        """Internal: call *moved* after every advance, in the thread that advances."""
        self._watchers.append(moved)
        try:
            yield
        finally:
            self._watchers.remove(moved)


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

    A number without a unit is refused, except 0: it could mean seconds or milliseconds.
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


def format_duration(duration: Duration) -> str:
    """The shortest text that `parse_duration` reads as this duration, to the millisecond."""
    left, parts = duration_ms("duration", duration), list[str]()
    for name, unit in _UNITS.items():
        if name == "w":
            continue  # 30d is easier to read than 4w2d
        count, left = divmod(left, unit // _UNITS["ms"])
        if count:
            parts.append(f"{count}{name}")
    return "".join(parts) or "0s"


def readable(duration: Duration) -> str:
    """The duration rounded to one unit, for people: `1.8 s`, `3.5 min`."""
    seconds = duration.total_seconds()
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for unit, size in (("s", 60), ("min", 60), ("h", 48)):
        if seconds < size:
            return f"{seconds:.1f} {unit}"
        seconds /= size if unit != "h" else 24
    return f"{seconds:.1f} d"
