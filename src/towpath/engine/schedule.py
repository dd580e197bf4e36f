"""When schedules are due: cron expressions and intervals, and what happens to missed firings.

Values and pure functions: the time is an argument, so all processes with the same schedule and the
same last firing compute the same instants.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from functools import lru_cache
from itertools import count, islice, takewhile
from typing import cast
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from towpath.clock import DurationField, duration, instant, instant_ms, minutes, seconds
from towpath.engine.model import JobOptions, NewJob, new_job
from towpath.errors import InvalidOption
from towpath.ids import queue_name, schedule_name

MOST_AT_ONCE = 1000
"""Firings that are looked at in one round; if more are due, another round follows."""
PROMPT = minutes(1)
"""A firing counts as missed if it is later than this."""
SCHEDULED = "scheduled"
"""The job header that says which instant a job was fired for."""
_SET_BY_FIRINGS = ("id", "delay", "due")
_LONGEST_CRON = 256
_ZONE_RULE = "must be the name of a time zone, e.g. Europe/Berlin"
_MILLISECOND = timedelta(milliseconds=1)


class Missed(StrEnum):
    """What happens to firings that no process made in time."""

    SKIP = "skip"
    """They are skipped; the next firing is the next one of the schedule."""
    ONCE = "once"
    """One job for all of them, for the latest time."""
    ALL = "all"
    """One job for each, oldest first."""


class Cron(msgspec.Struct, frozen=True):
    """A cron expression in a time zone: `Cron("0 3 * * *", tz="Europe/Berlin")`.

    Five fields as in Vixie cron (minute, hour, day, month, weekday), or six with the seconds
    first; also `L`, `LW`, `5L` and `MON#1`. If both day and weekday are given, one of them must
    match: `0 0 13 * FRI` fires on every 13th and on every Friday. If one of them begins with `*`,
    both must match.

    Clock changes: a schedule with fixed hours (neither minute nor hour begins with `*`) fires once.
    A time that the clock skips in spring fires right after the gap; a time that comes twice in
    autumn fires the first time. Other schedules follow the wall clock. Raises InvalidOption for an
    expression that cannot be read or never fires, and for an unknown time zone.
    """

    expression: str
    tz: str = "UTC"

    def __post_init__(self) -> None:
        if not isinstance(self.tz, str):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
            raise InvalidOption("tz", self.tz, rule=_ZONE_RULE)
        _zone(self.tz)
        if not isinstance(self.expression, str) or len(self.expression) > _LONGEST_CRON:  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
            rule = f"must be text of at most {_LONGEST_CRON} characters"
            raise InvalidOption("cron", self.expression, rule=rule)
        try:
            first = next(self.after(instant(0)), None)
        except CronSimError as error:
            rule = f"must be five fields, or six with the seconds first: {error}"
            if self._has_no_such_day():
                rule = "never fires: none of its months has such a day"
            raise InvalidOption("cron", self.expression, rule=rule) from error
        if first is None:
            rule = "never fires within the next 50 years"
            raise InvalidOption("cron", self.expression, rule=rule)

    def _has_no_such_day(self) -> bool:
        """Whether the expression would be valid without its months: 30 February."""
        fields = self.expression.split()
        try:
            firings_of(" ".join([*fields[:-2], "*", *fields[-1:]]), instant(0))
        except CronSimError:
            return False
        return True

    def __str__(self) -> str:
        return f"{' '.join(self.expression.split())} {self.tz}"

    def after(self, last: datetime) -> Iterator[datetime]:
        """The times of the firings after *last*, in order."""
        for local in firings_of(self.expression, last.astimezone(_zone(self.tz))):
            # cronsim forgets in which of two repeated hours it began, and may return earlier times.
            if (at := local.astimezone(UTC)) > last:
                yield at


class Every(msgspec.Struct, frozen=True):
    """An interval of at least one second: `Every(minutes(5))`.

    It fires at *anchor* plus any number of intervals. Without an anchor it counts from 1970 in UTC,
    so that `Every(hours(1))` fires on the hour. For times by a wall clock, use `Cron`. Raises
    InvalidOption.
    """

    interval: DurationField
    anchor: datetime = instant(0)

    def __post_init__(self) -> None:
        interval = duration("every", self.interval, least=seconds(1))
        msgspec.structs.force_setattr(self, "interval", interval)
        instant_ms("anchor", self.anchor)
        if self.interval % _MILLISECOND or self.anchor.microsecond % 1000:
            raise InvalidOption("every", self, rule="must be whole milliseconds")

    def __str__(self) -> str:
        text = f"every {self.interval}"
        return text if self.anchor == instant(0) else f"{text} from {self.anchor.isoformat()}"

    def after(self, last: datetime) -> Iterator[datetime]:
        """The times of the firings after *last*, in order."""
        anchor = self.anchor.astimezone(UTC)
        first = (last - anchor) // self.interval + 1
        return (anchor + n * self.interval for n in count(first))


Schedule = Cron | Every


def schedule(when: str | Schedule, *, tz: str | None = None) -> Schedule:
    """*when* as a schedule; text is a cron expression, in UTC unless *tz* says otherwise."""
    if isinstance(when, str):
        return Cron(when) if tz is None else Cron(when, tz)
    if not isinstance(when, Schedule):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
        raise InvalidOption("when", when, rule="must be a cron expression, a Cron or an Every")
    if tz is not None:
        raise InvalidOption("tz", tz, rule="needs a cron expression given as text")
    return when


_EVERY = re.compile(
    r"every (?:(?P<days>\d+) days?, )?(?P<hours>\d+):(?P<minutes>\d+):(?P<seconds>[\d.]+)"
    r"(?: from (?P<anchor>\S+))?"
)


def parse_about(words: str) -> Schedule | None:
    """The schedule whose `str` is *words*; None if only another release can read them."""
    try:
        if found := _EVERY.fullmatch(words):
            parts = {
                name: float(text) for name, text in found.groupdict("0").items() if name != "anchor"
            }
            anchor = datetime.fromisoformat(found["anchor"]) if found["anchor"] else instant(0)
            return Every(timedelta(**parts), anchor)
        expression, _, tz = words.rpartition(" ")
        return Cron(expression, tz)
    except (InvalidOption, ValueError, OverflowError):
        return None


class ScheduleOptions(JobOptions, total=False):
    """The options of a schedule and of the jobs that it submits, for type checkers."""

    tz: str | None
    missed: Missed


class NamedSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A job to be submitted again and again: under a name, by a schedule, into a queue.

    All values are checked when it is created. Raises InvalidName, InvalidOption.
    """

    name: str
    """Identifies it among the schedules of its queue, also after a restart."""
    when: Schedule
    queue: str
    payload: bytes = b"null"
    options: JobOptions = msgspec.field(default_factory=JobOptions)
    """The options of its jobs, except id and due time: each firing sets those."""
    missed: Missed = Missed.ONCE

    def __post_init__(self) -> None:
        schedule_name(self.name)
        queue_name(self.queue)
        if not isinstance(self.when, Schedule):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
            raise InvalidOption("when", self.when, rule="must be a Cron or an Every")
        if not isinstance(self.missed, Missed):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
            raise InvalidOption("missed", self.missed, rule="must be a Missed: skip, once or all")
        for option in _SET_BY_FIRINGS:
            if option in self.options:
                rule = "is set by the schedule"
                raise InvalidOption(option, self.options.get(option), rule=rule)
        self.job(instant(0))

    def job(self, at: datetime, id: str | None = None) -> NewJob:
        """The job of the firing at that instant. By default, its id is the name and the instant."""
        text = at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        headers: Mapping[str, str] = self.options.get("headers") or {}
        own = {"id": id or f"{self.name}@{text}", "headers": {**headers, SCHEDULED: text}}
        return new_job(self.payload, **cast("JobOptions", {**self.options, **own}))


class Due(msgspec.Struct, frozen=True):
    """The firings of a schedule that are due now."""

    firings: tuple[datetime, ...]
    """The instants to submit a job for, in order."""
    last: datetime
    """The latest instant of those looked at: the next look begins after it."""
    missed: int
    """The number of firings that no process made in time, even if jobs are submitted for them now.
    """


def due(when: Schedule, last: datetime, now: datetime, missed: Missed) -> Due:
    """What is due at *now* after the firing at *last*.

    Looks at no more than MOST_AT_ONCE instants. If there are more, call again with the answer's
    `last`: no firing is left out, and `ONCE` still makes one job after a long absence.
    """
    found = list(islice(takewhile(lambda at: at <= now, when.after(last)), MOST_AT_ONCE + 1))
    instants = tuple(found[:MOST_AT_ONCE])
    if not instants:
        return Due((), last, 0)
    final = instants[-1:] if len(found) <= MOST_AT_ONCE else ()
    late = bool(final) and now - final[0] > PROMPT
    match missed:
        case Missed.ALL:
            firings = instants
        case Missed.ONCE:
            firings = final
        case Missed.SKIP:
            firings = () if late else final
    on_time = len(final) if not late else 0
    return Due(firings, instants[-1], len(instants) - on_time)


_SPAN_OF_ONE = re.compile(r"\b(\w+)-\1/\d+", re.IGNORECASE)


def firings_of(expression: str, after: datetime) -> CronSim:
    """The local times at which a cron expression fires. Raises CronSimError."""
    # cronsim takes `5-5/3` for `5/3`, which goes on to the end of the month.
    return CronSim(_SPAN_OF_ONE.sub(r"\1", expression), after)


@lru_cache(maxsize=256)
def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise InvalidOption("tz", name, rule=_ZONE_RULE) from error
