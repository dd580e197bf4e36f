"""Schedules as they are stored in a queue, and as readers see them."""

from __future__ import annotations

import re
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple, cast

import msgspec

from towpath.clock import instant, milliseconds
from towpath.engine.model import FIELDS, JobOptions
from towpath.engine.schedule import Cron, Every, Missed, NamedSchedule, Schedule, parse_about
from towpath.errors import InvalidName, InvalidOption
from towpath.ids import QueueName

_NOT_YET_FIRED = ", not fired yet"
_FIRED_FOR = re.compile(", fired for ([0-9]+)$")
"""What is stored behind the text of a schedule that was seen but not fired yet, or of one whose
last firings were skipped. Older releases, which do not know these endings, show them as text."""


class ScheduleSource(StrEnum):
    """Where a schedule is defined."""

    CODE = "code"
    """In the code of an app."""
    STORED = "stored"
    """In Redis: it was created at run time."""


class ScheduleInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule at one moment."""

    queue: QueueName
    name: str
    source: ScheduleSource
    about: str
    """In words."""
    when: Schedule | None = None
    """None if this release can't read it."""
    missed: Missed | None = None
    paused: bool = False
    options: JobOptions = {}
    """The options of its jobs. If code declares it, only the code knows the options, the payload
    and `missed`."""
    payload: bytes | None = None
    """None in a list."""
    readable: bool = True
    """False for one that only a newer release can read: this process does not fire it."""
    last: datetime | None = None
    """The time of its last firing."""
    next: datetime | None = None
    """The time of its next firing; in the past if that is due and was not made yet."""
    version: str = ""


class SchedulePlan(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A schedule as it is stored, without its name and its payload."""

    cron: str = ""
    tz: str = "UTC"
    every: int = 0
    """Milliseconds, from *anchor* on."""
    anchor: int = 0
    missed: Missed = Missed.ONCE
    paused: bool = False
    options: dict[str, int | str] = {}
    """As they are stored with a job."""
    size: int = 0
    """The size of the payload, in bytes."""

    @classmethod
    def of(cls, work: NamedSchedule, *, paused: bool) -> SchedulePlan:
        options = {
            name: _text(FIELDS[name].kind.kept(name, value))
            for name, value in work.options.items()
            if value is not None
        }
        plan = cls(missed=work.missed, paused=paused, options=options, size=len(work.payload))
        if isinstance(work.when, Cron):
            return msgspec.structs.replace(plan, cron=work.when.expression, tz=work.when.tz)
        every, anchor = work.when.interval // _MS, (work.when.anchor - instant(0)) // _MS
        return msgspec.structs.replace(plan, every=every, anchor=anchor)

    def work(self, queue: str, name: str, payload: bytes = b"") -> NamedSchedule:
        """The schedule as it is fired. Raises InvalidOption, InvalidName."""
        every = Every(milliseconds(self.every), instant(self.anchor)) if self.every else None
        return NamedSchedule(
            name=name,
            queue=queue,
            when=every or Cron(self.cron, self.tz),
            payload=payload,
            options=cast(
                "JobOptions",
                {name: _read_option(name, value) for name, value in self.options.items()},
            ),
            missed=self.missed,
        )


_MS = milliseconds(1)


def _text(kept: Any) -> int | str:
    return kept.decode() if isinstance(kept, bytes) else kept


def _read_option(name: str, kept: int | str) -> Any:
    if name not in FIELDS:
        raise InvalidOption(
            name, kept, rule="is an option of a job that this release does not know"
        )
    return FIELDS[name].kind.read(kept.encode() if isinstance(kept, str) else kept)


class LastFiring(msgspec.Struct, frozen=True):
    """What a queue has stored about the firings of one schedule."""

    at: datetime
    """The instant up to which firings are done or skipped; at first, when it was first seen."""
    about: str
    """The schedule as text, as the last process that fired it declares it."""
    fired: bool = True
    """Whether it was ever fired."""
    fired_for: datetime | None = None
    """The time of its last firing, if firings were skipped after it."""

    @property
    def last(self) -> datetime | None:
        """The instant of its last firing; None if there was none."""
        return (self.fired_for or self.at) if self.fired else None


class QueueSchedules(msgspec.Struct, frozen=True):
    """The schedules of a queue at one moment."""

    now: datetime
    """The clock of Redis at that moment, which decides whether a firing is due."""
    last: dict[str, LastFiring]
    """The last firings, by the name of the schedule."""
    unreadable: frozenset[str] = frozenset()
    """Names whose entries this release can't read."""
    change: str = ""
    """The name of the last change of the schedules that are stored in the queue."""
    plans: dict[str, bytes] = {}
    """The stored schedules by name: version and definition. Empty if the caller knows the last
    change already."""


class StoredSchedule(NamedTuple):
    """A stored schedule, ready to be fired."""

    version: str
    work: NamedSchedule | None
    """Without its payload, which stays in Redis. None = this release can't read it."""
    paused: bool = False
    size: int = 0


def read_stored_schedule(
    queue: str, name: str, value: bytes, payload: bytes = b""
) -> StoredSchedule:
    """Read the schedule that is stored under *name*."""
    version, _, text = value.decode(errors="replace").partition(" ")
    try:
        plan = msgspec.json.decode(text, type=SchedulePlan)
        return StoredSchedule(version, plan.work(queue, name, payload), plan.paused, plan.size)
    except (msgspec.MsgspecError, ValueError, InvalidOption, InvalidName, OverflowError):
        return StoredSchedule(version, None)  # only a newer release can read it, or it is damaged


def decode_last_firing(value: bytes) -> LastFiring:
    """Decodes the stored firing of a schedule. Raises ValueError, OverflowError if this release
    can't read it.
    """
    ms, _, about = value.partition(b" ")
    at, text = instant(int(ms)), about.decode(errors="replace")
    if found := _FIRED_FOR.search(text):
        return LastFiring(at, text[: found.start()], fired_for=instant(int(found[1])))
    words = text.removesuffix(_NOT_YET_FIRED)
    return LastFiring(at, words, fired=words == text)


def read_last_firing(value: bytes | None) -> LastFiring | None:
    """The last firing of a schedule; None if there is none, or this release can't read it."""
    try:
        return decode_last_firing(value) if value else None
    except (ValueError, OverflowError):
        return None


def schedule_info(
    queue: QueueName,
    name: str,
    plan: bytes | None,
    seen: LastFiring | None,
    payload: bytes | None,
) -> tuple[ScheduleInfo, NamedSchedule | None]:
    """The schedule *name* as readers see it; and as it is fired, if it is stored and readable."""
    about = seen.about if seen else ""
    last, at = (seen.last, seen.at) if seen else (None, None)
    if plan is None:
        when = parse_about(about) if seen else None
        info = ScheduleInfo(
            queue=queue,
            name=name,
            source=ScheduleSource.CODE,
            about=about,
            when=when,
            readable=seen is not None,
            last=last,
            next=_next_firing(when, at),
        )
        return info, None
    kept = read_stored_schedule(queue, name, plan, payload or b"")
    work = kept.work
    info = ScheduleInfo(
        queue=queue,
        name=name,
        source=ScheduleSource.STORED,
        about=str(work.when) if work else about,
        when=work.when if work else None,
        missed=work.missed if work else None,
        paused=kept.paused,
        options=work.options if work else {},
        payload=payload,
        readable=work is not None,
        last=last,
        next=None if kept.paused else _next_firing(work.when if work else None, at),
        version=kept.version,
    )
    return info, work


def _next_firing(when: Schedule | None, at: datetime | None) -> datetime | None:
    return next(when.after(at), None) if when and at else None


def all_schedules(queue: QueueName, look: QueueSchedules) -> list[ScheduleInfo]:
    """All schedules that one read of a queue found, by name."""
    names = sorted({*look.last, *look.plans, *look.unreadable})
    return [
        schedule_info(queue, name, look.plans.get(name), look.last.get(name), None)[0]
        for name in names
    ]
