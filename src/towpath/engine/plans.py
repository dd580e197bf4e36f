"""Schedules as they are stored in a queue, and as readers see them."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple, cast

import msgspec

from towpath.clock import instant, milliseconds
from towpath.engine.firings import LastFiring, QueueSchedules, last_firing
from towpath.engine.model import FIELDS, JobOptions
from towpath.engine.schedule import Cron, Every, Missed, NamedSchedule, Schedule, described
from towpath.errors import InvalidName, InvalidOption
from towpath.ids import QueueName


class ScheduleSource(StrEnum):
    """Who says when a schedule falls due."""

    CODE = "code"
    """The app that declares it."""
    STORED = "stored"
    """The store: it was made at run time."""


class ScheduleInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule at one moment."""

    queue: QueueName
    name: str
    source: ScheduleSource
    about: str
    """In words."""
    when: Schedule | None = None
    """None if this release can't tell."""
    missed: Missed | None = None
    paused: bool = False
    options: JobOptions = {}
    """Of its jobs. Of what code declares, only the code knows them, the payload and `missed`."""
    payload: bytes | None = None
    """None in a list."""
    readable: bool = True
    """False for one that only a newer release can read: it is not fired here."""
    last: datetime | None = None
    """What it was last fired for."""
    next: datetime | None = None
    """What comes next; past, if that is due and nobody has come to fire it yet."""
    version: str = ""


class SchedulePlan(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A schedule as it is stored, but for its name and its payload."""

    cron: str = ""
    tz: str = "UTC"
    every: int = 0
    """Milliseconds, from *anchor* on."""
    anchor: int = 0
    missed: Missed = Missed.ONCE
    paused: bool = False
    options: dict[str, int | str] = {}
    """As a job's record keeps them."""
    size: int = 0
    """Of the payload, in bytes."""

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
        """What is to be fired. Raises InvalidOption, InvalidName."""
        every = Every(milliseconds(self.every), instant(self.anchor)) if self.every else None
        return NamedSchedule(
            name=name,
            queue=queue,
            when=every or Cron(self.cron, self.tz),
            payload=payload,
            options=cast(
                "JobOptions", {name: _said(name, value) for name, value in self.options.items()}
            ),
            missed=self.missed,
        )


_MS = milliseconds(1)


def _text(kept: Any) -> int | str:
    return kept.decode() if isinstance(kept, bytes) else kept


def _said(name: str, kept: int | str) -> Any:
    if name not in FIELDS:
        raise InvalidOption(
            name, kept, rule="is an option of a job that this release does not know"
        )
    return FIELDS[name].kind.read(kept.encode() if isinstance(kept, str) else kept)


class Stored(NamedTuple):
    """A schedule that is kept in its queue, ready to be fired."""

    version: str
    work: NamedSchedule | None
    """Without its payload: the store has that. None = this release can't read it."""
    paused: bool = False
    size: int = 0


def stored(queue: str, name: str, value: bytes, payload: bytes = b"") -> Stored:
    """What is stored under *name*."""
    version, _, text = value.decode(errors="replace").partition(" ")
    try:
        plan = msgspec.json.decode(text, type=SchedulePlan)
        return Stored(version, plan.work(queue, name, payload), plan.paused, plan.size)
    except (msgspec.MsgspecError, ValueError, InvalidOption, InvalidName, OverflowError):
        return Stored(version, None)  # a newer release's, or a foreign one


def seen_firing(value: bytes | None) -> LastFiring | None:
    """How far a schedule has got; None if this release can't read it, or nothing is known."""
    try:
        return last_firing(value) if value else None
    except (ValueError, OverflowError):
        return None


def schedule_info(
    queue: QueueName,
    name: str,
    plan: bytes | None,
    seen: LastFiring | None,
    payload: bytes | None,
) -> tuple[ScheduleInfo, NamedSchedule | None]:
    """What is known of one name, and what is to be fired if it is kept here and can be read."""
    about = seen.about if seen else ""
    last, at = (seen.last, seen.at) if seen else (None, None)
    if plan is None:
        when = described(about) if seen else None
        info = ScheduleInfo(
            queue=queue,
            name=name,
            source=ScheduleSource.CODE,
            about=about,
            when=when,
            readable=seen is not None,
            last=last,
            next=_next(when, at),
        )
        return info, None
    kept = stored(queue, name, plan, payload or b"")
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
        next=None if kept.paused else _next(work.when if work else None, at),
        version=kept.version,
    )
    return info, work


def _next(when: Schedule | None, at: datetime | None) -> datetime | None:
    return next(when.after(at), None) if when and at else None


def all_schedules(queue: QueueName, look: QueueSchedules) -> list[ScheduleInfo]:
    """All that one look at a queue gave, by name."""
    names = sorted({*look.last, *look.plans, *look.unreadable})
    return [
        schedule_info(queue, name, look.plans.get(name), look.last.get(name), None)[0]
        for name in names
    ]
