"""Firing schedules: when each was last fired, and one atomic step that submits its jobs once.

The caller decides when a firing is due (`schedule.py`). Any number of callers may find it due at
the same time: the jobs of the first are submitted, the others get FiringTaken.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from towpath.clock import instant, instant_ms
from towpath.engine import codec
from towpath.engine.batcher import LARGEST_BATCH
from towpath.engine.check import check_size
from towpath.engine.model import Call, NewJob, Submitted
from towpath.engine.options import QueueOptions
from towpath.engine.store import Store
from towpath.errors import (
    FiringTaken,
    InvalidOption,
    NotYet,
    PayloadTooLarge,
    QueueFull,
    ScheduleChanged,
    ScheduleNotFound,
    ScriptDefect,
    TowpathError,
)
from towpath.ids import QueueName, queue_name, schedule_name

LONGEST_ABOUT = 512
_NOT_YET_FIRED = ", not fired yet"
_FIRED_FOR = re.compile(", fired for ([0-9]+)$")
"""What is stored behind the text of a schedule that was seen but not fired yet, or of one whose
last firings were skipped. Older releases, which do not know these endings, show them as text."""


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


class ScheduleFirings:
    """The methods of `engine.schedules` for processes that fire schedules."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def of(self, queue: str, *, known: str = "") -> QueueSchedules:
        """Internal: the schedules of *queue* with their last firings, and the time of Redis. One
        round trip.

        Stored schedules are included, unless their last change is the *known* one.
        """
        answer = await self._store.read("schedules", queue_name(queue), known)
        flat, now, change, plans = answer
        last: dict[str, LastFiring] = {}
        unreadable: set[str] = set()
        for name, value in zip(flat[::2], flat[1::2], strict=True):
            try:
                last[name.decode()] = last_firing(value)
            except (ValueError, OverflowError):  # a foreign entry, or a newer release's
                unreadable.add(name.decode(errors="replace"))
        kept = {
            name.decode(errors="replace"): plan
            for name, plan in zip(plans[::2], plans[1::2], strict=True)
        }
        return QueueSchedules(instant(now), last, frozenset(unreadable), change.decode(), kept)

    async def fire_due(
        self,
        queue: str,
        name: str,
        jobs: Sequence[NewJob],
        *,
        after: datetime | None,
        upto: datetime,
        about: str = "",
        version: str = "",
        call: Call | None = None,
    ) -> list[Submitted]:
        """Internal: submit the jobs of all firings after *after* up to *upto*, unless another
        caller did.

        *after* is the last firing that the caller knows of; None for a schedule that was never
        seen: then *upto* is where it begins, and there are no jobs. Either all jobs are submitted
        and *upto* becomes the last firing, or nothing is done. Raises FiringTaken with the last
        firing, NotYet if *upto* is in the future by the clock of Redis, QueueFull, MemoryFull,
        PayloadTooLarge. *version* is that of the stored schedule of this name, if there is one: the
        jobs get its payload, and another version raises ScheduleChanged. At most LARGEST_BATCH
        jobs; one round trip.
        """
        last_ms, upto_ms = instant_ms("after", after) if after else 0, instant_ms("upto", upto)
        if upto_ms <= last_ms:
            raise InvalidOption("upto", upto, rule=f"must come after {after}")
        item = [schedule_name(name), last_ms, upto_ms, _check_about(about), list(jobs), version]
        return await self._fire(queue, item, call)

    async def fire_once(
        self, queue: str, name: str, job: NewJob, *, version: str, call: Call | None = None
    ) -> Submitted:
        """Internal: submit one more job of the schedule that *queue* stores under *name*; its last
        firing does not change. Raises ScheduleChanged, QueueFull, MemoryFull. One round trip.
        """
        [answer] = await self._fire(queue, [schedule_name(name), 0, 0, "", [job], version], call)
        return answer

    async def _fire(self, queue: str, item: list[Any], call: Call | None) -> list[Submitted]:
        target, name, upto_ms, jobs = queue_name(queue), item[0], item[2], item[4]
        if len(jobs) > LARGEST_BATCH:
            raise InvalidOption("jobs", len(jobs), rule=f"at most {LARGEST_BATCH} in one step")

        def body(options: QueueOptions) -> Any:
            for job in jobs:
                check_size("payload", job.payload, options.max_payload)
            return item

        answer = await self._store.write("fire", target, body, call)
        refusal = _decode_refusal(target, name, instant(upto_ms), answer)
        if refusal is not None:
            raise refusal
        return [
            _decode_submitted(target, job, reply) for job, reply in zip(jobs, answer, strict=True)
        ]

    async def delete_declared(self, queue: str, name: str, *, call: Call | None = None) -> None:
        """Delete what *queue* has stored about a schedule that code declares. Its jobs stay.

        A worker that still declares it creates it again, starting now. Raises ScheduleNotFound.
        """
        target, name = queue_name(queue), schedule_name(name)
        answer = await self._store.write("delete_declared", target, lambda _: [name], call)
        if answer not in (b"deleted", b"forgotten"):  # the latter by a release before this one
            raise ScheduleNotFound(target, name)


def last_firing(value: bytes) -> LastFiring:
    """Decodes the stored firing of a schedule. Raises ValueError, OverflowError if this release
    can't read it.
    """
    ms, _, about = value.partition(b" ")
    at, text = instant(int(ms)), about.decode(errors="replace")
    if found := _FIRED_FOR.search(text):
        return LastFiring(at, text[: found.start()], fired_for=instant(int(found[1])))
    words = text.removesuffix(_NOT_YET_FIRED)
    return LastFiring(at, words, fired=words == text)


def _check_about(text: str) -> str:
    if not isinstance(text, str) or len(text.encode(errors="replace")) > LONGEST_ABOUT:  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
        raise InvalidOption("about", text, rule=f"must be text of at most {LONGEST_ABOUT} bytes")
    return text


def _decode_refusal(
    queue: QueueName, name: str, upto: datetime, answer: list[Any]
) -> TowpathError | None:
    """The error for an answer that refuses the firing; None if the jobs were submitted."""
    match answer:
        case [b"SCHEDULE_CHANGED", _]:
            return ScheduleChanged(queue, name)
        case [b"FIRING_TAKEN", last]:
            return FiringTaken(queue, name, instant(last) if last else None)
        case [b"NOT_YET", now]:
            return NotYet(queue, name, upto=upto, now=instant(now))
        case [b"QUEUE_FULL", length]:
            return QueueFull(queue, length)
        case [b"PAYLOAD_TOO_LARGE", size, limit]:
            return PayloadTooLarge("payload", size, limit=limit)
        case _:
            return None


def _decode_submitted(queue: QueueName, job: NewJob, answer: Any) -> Submitted:
    outcome = codec.submitted(queue, job.id, answer)
    if isinstance(outcome, TowpathError):
        raise ScriptDefect(f"fire answered {answer!r} for one job")
    return outcome
