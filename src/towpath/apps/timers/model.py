"""Timers: their values, and when they are due."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, NamedTuple, TypedDict, cast

import msgspec

from towpath.clock import (
    Duration,
    days,
    duration_ms,
    hours,
    instant,
    instant_ms,
    milliseconds,
    minutes,
    parse_duration,
    seconds,
)
from towpath.engine.model import JobInfo, JobOptions, with_own_attempts
from towpath.engine.options import QueueOptions
from towpath.engine.retry import Exponential, RetryPolicy
from towpath.engine.states import State
from towpath.errors import InvalidOption
from towpath.ids import job_id, text_name

PREFIX = "timers."
"""The prefix of the queues of all types."""
LONGEST_NAME = 128
"""Maximum bytes of a type's name, and of an app's."""
RECORDED = "recorded"
"""The name of the handler for recorded timers: their record decides before each attempt."""

TIMER_OPTIONS = QueueOptions(
    max_attempts=10,
    # About an hour in all, so that a service loses no timers while it is deployed.
    retry=Exponential(first=seconds(1), longest=minutes(15)),
    keep=hours(1),
    remember=days(1),
)
QUEUES = {f"{PREFIX}*": TIMER_OPTIONS}


# ── when ─────────────────────────────────────────────────────────────────────────────────

_MS, _MICROSECONDS = range(10**12, 10**13), range(10**15, 10**16)
_DIGITS = "must have 13 digits (milliseconds since 1970) or 16 digits (microseconds)"


class JobTime(TypedDict, total=False):
    """The time of a job: one of the two."""

    delay: Duration
    due: datetime


class Times(TypedDict, total=False):
    """The time of a timer: one of the three."""

    delay: Duration | float | str | None
    delay_time: int | None
    due: datetime | str | None


class TimerFields(Times, total=False):
    """Optional fields of a timer, beside its type, id and params."""

    app: str | None
    retry: RetryPolicy | None
    record: bool


class When(NamedTuple):
    """A timer's time as it was asked for: after a delay, or at an instant. In milliseconds."""

    delay: int | None = None
    due: int | None = None

    def job_time(self) -> JobTime:
        """Returns the time as an option of a job. An instant in the past means now."""
        if self.delay is not None:
            return {"delay": milliseconds(self.delay)}
        return {"due": instant(cast("int", self.due))}


def when(
    *,
    delay: Duration | float | str | None = None,
    delay_time: int | None = None,
    due: datetime | str | None = None,
) -> When:
    """Returns when a timer has to run. Raises InvalidOption unless exactly one argument is given.

    *delay* is a duration, seconds as a number, or text with a unit; *delay_time* is an instant in
    13 digits (ms) or 16 digits (µs); *due* is an instant with a time zone, or ISO 8601 of one.
    """
    given = [name for name, value in _named(delay, delay_time, due) if value is not None]
    if len(given) != 1:
        rule = "give exactly one of delay, delay_time and due"
        raise InvalidOption("delay", ", ".join(given) or None, rule=rule)
    if delay is not None:
        return When(delay=_delay_ms(delay))
    if delay_time is not None:
        return When(due=_delay_time_ms(delay_time))
    return When(due=_due_ms(due))


def _named(*values: object) -> list[tuple[str, object]]:
    return list(zip(("delay", "delay_time", "due"), values, strict=True))


def _delay_ms(delay: object) -> int:
    if isinstance(delay, str):
        return duration_ms("delay", parse_duration("delay", delay))
    if isinstance(delay, int | float) and not isinstance(delay, bool):
        try:
            delay = seconds(delay)
        except OverflowError as error:
            raise InvalidOption("delay", "…", rule="must be at most a century") from error
        except ValueError as error:
            raise InvalidOption("delay", delay, rule="must be a number of seconds") from error
    return duration_ms("delay", cast("Duration", delay))


def _delay_time_ms(delay_time: object) -> int:
    if not isinstance(delay_time, int) or isinstance(delay_time, bool):
        raise InvalidOption("delay_time", delay_time, rule=f"must be a whole number; {_DIGITS}")
    if delay_time in _MICROSECONDS:
        delay_time = -(-delay_time // 1000)  # rounded up: never before its time
    if delay_time not in _MS:
        rule = f"{_DIGITS}; {len(str(abs(delay_time)))} digits are neither"
        raise InvalidOption("delay_time", delay_time, rule=rule)
    return instant_ms("delay_time", instant(delay_time))


def _due_ms(due: object) -> int:
    if isinstance(due, str):
        try:
            due = datetime.fromisoformat(due)
        except ValueError as error:
            rule = "must be a time in ISO 8601 with a zone, such as 2030-01-31T08:00:00Z"
            raise InvalidOption("due", due, rule=rule) from error
    return instant_ms("due", cast("datetime", due))


# ── a timer ──────────────────────────────────────────────────────────────────────────────


class TypeKey(msgspec.Struct, frozen=True, order=True):
    """Identifies a type of timers: its name, and the app that it belongs to, if any."""

    task_type: str
    app: str | None = None

    def __post_init__(self) -> None:
        text_name("task_type", self.task_type, longest=LONGEST_NAME)
        if self.app is not None:
            text_name("app", self.app, longest=LONGEST_NAME)

    def __str__(self) -> str:
        return self.task_type if self.app is None else f"{self.task_type} of app {self.app}"


class NewTimer(msgspec.Struct, frozen=True, kw_only=True):
    """A timer to submit, created and checked by `new_timer`."""

    key: TypeKey
    task_id: str | None
    when: When
    params: Any = None
    retry: RetryPolicy | None = None
    record: bool = False
    owner: str = ""
    """Its owner; '' = made without a key."""

    def packed(self) -> bytes:
        """Returns the job's payload; equal timers have equal payloads. Raises InvalidOption."""
        asked = {"due": self.when.due} if self.when.delay is None else {"delay": self.when.delay}
        try:
            return msgspec.json.encode({"params": self.params, **asked}, order="sorted")
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidOption("params", "…", rule=f"can't be written as JSON: {error}") from error

    def options(self, task_id: str | None, *, recorded: bool = False) -> JobOptions:
        """Returns the options of its job."""
        options: JobOptions = {**self.when.job_time(), "id": task_id, "retry": self.retry}
        if self.owner:
            options["owner"] = self.owner
        if recorded:
            options["headers"] = {"handler": RECORDED}
        return with_own_attempts(options)


def new_timer(
    task_type: str,
    params: Any = None,
    *,
    task_id: str | None = None,
    app: str | None = None,
    delay: Duration | float | str | None = None,
    delay_time: int | None = None,
    due: datetime | str | None = None,
    retry: RetryPolicy | None = None,
    record: bool = False,
    owner: str = "",
) -> NewTimer:
    """Returns a timer to submit, with all values checked. Raises InvalidName, InvalidOption."""
    return NewTimer(
        key=TypeKey(task_type, app),
        task_id=None if task_id is None else job_id(task_id),
        when=when(delay=delay, delay_time=delay_time, due=due),
        params=params,
        retry=retry,
        record=record,
        owner=owner,
    )


class TimerPayload(msgspec.Struct, frozen=True):
    """The payload of a timer's job."""

    params: msgspec.Raw = msgspec.Raw(b"null")
    delay: int | None = None
    due: int | None = None

    @classmethod
    def read(cls, payload: bytes) -> TimerPayload:
        """Read *payload*. A job that was not submitted as a timer may have any payload; then all of
        it counts as params.
        """
        try:
            return msgspec.json.decode(payload, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return cls(params=msgspec.Raw(payload or b"null"))


_REQUEUED = re.compile(r"~\d+$")
ENDED = (State.DONE, State.DEAD, State.CANCELLED, State.GONE)


class Timer(msgspec.Struct, frozen=True, kw_only=True):
    """A timer as it is at one moment."""

    task_id: str
    task_type: str
    app: str | None = None
    state: State
    due: datetime
    """When it runs, or should have run; a retry does not change it."""
    next_try_at: datetime | None = None
    """If it waits for another attempt: when that may begin."""
    params: Any = None
    attempts: int = 0
    submitted_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    worker: str | None = None
    reason: str | None = None
    """Why the last attempt failed, or why it is dead."""
    record: bool = False
    existed: bool = False
    """Whether an earlier submit under the same id created it."""
    owner: str = ""
    """Its owner; '' = made without a key."""

    @property
    def delay_time(self) -> int:
        """`due` in milliseconds since 1970."""
        return instant_ms("due", self.due)


def timer_of(key: TypeKey, job: JobInfo, *, existed: bool = False) -> Timer:
    """Returns *job* as a timer."""
    packed = TimerPayload.read(job.payload) if job.payload else TimerPayload()
    recorded = job.headers.get("handler") == RECORDED
    return Timer(
        task_id=task_id_of(job.id, recorded=recorded),
        task_type=key.task_type,
        app=key.app,
        state=job.state,
        due=job.due_at or due_of(packed, job.submitted_at),
        next_try_at=job.next_try_at,
        params=decoded(packed.params),
        attempts=job.attempts,
        submitted_at=job.submitted_at,
        started_at=job.claimed_at,
        ended_at=job.ended_at,
        worker=job.worker,
        reason=job.reason,
        record=recorded,
        existed=existed,
        owner=job.owner or "",
    )


def task_id_of(id: str, *, recorded: bool) -> str:
    """Returns the id of a timer, from that of its job. The job of a recorded timer that was queued
    again has a number appended.
    """
    return _REQUEUED.sub("", id) if recorded else id


def due_of(packed: TimerPayload, submitted_at: datetime) -> datetime:
    """Returns the due time that the payload of a timer submitted at *submitted_at* asks for."""
    if packed.delay is not None:
        return submitted_at + milliseconds(packed.delay)
    return submitted_at if packed.due is None else instant(packed.due)


def decoded(params: msgspec.Raw) -> Any:
    """Returns *params* as a value; as text if they are not JSON."""
    try:
        return msgspec.json.decode(params)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return bytes(params).decode(errors="replace")
