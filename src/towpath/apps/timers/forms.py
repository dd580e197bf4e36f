"""Timers over HTTP: the models of requests and answers."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import (
    AliasChoices,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from towpath.apps.timers.listing import TypeView
from towpath.apps.timers.log import FiringOutcome
from towpath.apps.timers.model import NewTimer, Timer, TypeKey, When, new_timer, when
from towpath.engine.batcher import LARGEST_BATCH
from towpath.engine.spelling import POLICIES, read_retry
from towpath.engine.states import State
from towpath.errors import InvalidInput
from towpath.web.fields import Answer, Body, Json, alike, answer_from, example
from towpath.web.problems import misfits

_LONGEST = 512


# ── requests ─────────────────────────────────────────────────────────────────────────────


class _Times(Body):
    delay: Annotated[float, Field(strict=True)] | Annotated[str, Field(max_length=64)] | None = None
    """Seconds from now, or text with a unit such as `30m`."""
    delay_time: Annotated[
        Annotated[int, Field(strict=True)] | None,
        Field(validation_alias=AliasChoices("delay_time", "delayTime")),
    ] = None
    """The due time: 13 digits (ms since 1970) or 16 digits (µs)."""
    due: Annotated[str, Field(max_length=64)] | None = None
    """The due time: ISO 8601 with a time zone."""

    def when(self) -> When:
        """Returns the time of the request. Raises InvalidOption."""
        return when(delay=self.delay, delay_time=self.delay_time, due=self.due)


class MoveTimerIn(_Times):
    """A new time for a timer. Pass one of the three fields. A past time means now."""

    model_config = example(delay="10m")


class _Timer(_Times):
    params: Json = None
    """Any JSON value; workers get it unchanged."""
    retry: Annotated[str, Field(max_length=512)] | None = Field(
        None, description=f"How long to wait before the next attempt, as text: {POLICIES}."
    )
    record: Annotated[bool, Field(strict=True)] = False
    """Whether to keep the timer in the database, so that it survives the loss of Redis."""
    app: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """The app that the timer is for; null = the owner of the type."""
    task_id: Annotated[
        Annotated[str, Field(min_length=1, max_length=_LONGEST)] | None,
        Field(validation_alias=AliasChoices("task_id", "taskId")),
    ] = None
    """Your own id; the same id twice is one timer. A PUT takes it from the path."""

    def new(self, key: TypeKey, task_id: str | None, *, owner: str) -> NewTimer:
        """Returns the timer of the request. Raises InvalidOption, InvalidName."""
        return new_timer(
            key.task_type,
            self.params,
            task_id=task_id,
            app=key.app,
            delay=self.delay,
            delay_time=self.delay_time,
            due=self.due,
            retry=None if self.retry is None else read_retry(self.retry),
            record=self.record,
            owner=owner,
        )


class SetIn(_Timer):
    """A timer to set. Pass its time as one of `delay`, `delay_time` and `due`."""

    model_config = example(delay="30m", params={"order": 7})

    task_type: Annotated[
        Annotated[str, Field(min_length=1, max_length=128)] | None,
        Field(validation_alias=AliasChoices("task_type", "taskType")),
    ] = None
    """Optional. If given, it must equal the type in the path."""


class TimerIn(_Timer):
    """A timer to submit. Pass its time as one of `delay`, `delay_time` and `due`."""

    model_config = example(
        task_type="order.timeout", task_id="order-7", delay="30m", params={"order": 7}
    )

    task_type: Annotated[
        Annotated[str, Field(min_length=1, max_length=128)],
        Field(validation_alias=AliasChoices("task_type", "taskType")),
    ]
    """The type of the timer: any text up to 128 bytes."""


class TimerUnfit(InvalidInput):
    """A timer of a list that does not fit its description."""

    remedy = "Follow /openapi.json."


def _fit_or_not(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    try:
        return check(value)
    except ValidationError as error:
        return TimerUnfit(misfits(error.errors(include_url=False, include_input=False)).detail)


ListedTimerIn = Annotated[TimerIn, WrapValidator(_fit_or_not)]
"""A timer of a list. An invalid one becomes a TimerUnfit, so that the others are submitted."""
Timers = Annotated[list[ListedTimerIn], Field(max_length=LARGEST_BATCH, min_length=1)]
TimerOrTimers = Annotated[
    Annotated[TimerIn, Tag("timer")] | Annotated[Timers, Tag("list")],
    # Report validation errors for the matching variant only.
    Discriminator(lambda body: "list" if isinstance(body, list) else "timer"),
]


# ── answers ──────────────────────────────────────────────────────────────────────────────

# TimerOut and FiringOut declare their fields again: HTTP shows a timer in another order and with
# `delay_time`, and the defaults of a Firing are for Redis, which stores no field that has one.


class TimerOut(Answer):
    """A timer as it is now."""

    model_config = example(
        task_id="order-7",
        task_type="order.timeout",
        delay_time=1794789000000,
        due="2026-11-16T00:30:00Z",
        state="delayed",
        params={"order": 7},
    )

    task_id: str
    task_type: str
    app: str | None = None
    """The app that the type belongs to, if any."""
    delay_time: int
    """The due time, in ms since 1970."""
    due: datetime
    """The due time, in ISO 8601; a retry does not change it."""
    next_try_at: datetime | None = None
    """If it waits for another try: when that may begin."""
    state: State
    existed: bool = False
    """Whether the timer existed before; after a PUT, whether it replaced a waiting one."""
    params: Json = None
    """The params. Lists leave them out."""
    attempts: int = 0
    submitted_at: datetime | None = None
    started_at: datetime | None = None
    """When the latest attempt began."""
    ended_at: datetime | None = None
    worker: str | None = None
    """The worker that runs it."""
    reason: str | None = None
    """Why the last attempt failed, or why it is dead."""
    record: bool = False
    """Whether it is kept in the database."""

    @classmethod
    def of(cls, timer: Timer) -> TimerOut:
        return cls(**alike(cls, timer, but=()))


class RefusedTimerOut(Answer):
    """A timer of a list that was refused, or whose outcome is unknown."""

    task_id: str | None = None
    error: str
    """The error's code."""
    status: int
    """The HTTP status that the timer would have got alone."""
    detail: str
    """What is wrong."""
    remedy: str | None = None
    """What to do."""


class TimersOut(Answer):
    """The answer to a list: one entry per timer, in order."""

    timers: list[TimerOut | RefusedTimerOut]


class TimerPageOut(Answer):
    """A page of timers, without their params."""

    timers: list[TimerOut]
    after: str | None
    """Pass it as `after` to get the next page; null on the last page."""


class ExplainedTimerOut(Answer):
    """Why a timer is not running."""

    model_config = example(why="no_worker", text="no worker is asking for jobs of this queue")

    why: str
    """The reason as one word."""
    text: str
    """The reason as a sentence."""


class TypeOut(answer_from(TypeView)):
    """A type of timers: who serves it, and how many timers it has."""

    @classmethod
    def of(cls, view: TypeView) -> TypeOut:
        return cls(**alike(cls, view, but=()))


class TypesOut(Answer):
    """The types, sorted by name."""

    types: list[TypeOut]


class FiringOut(Answer):
    """One attempt at a timer."""

    task_id: str
    outcome: FiringOutcome
    """How the attempt ended."""
    due: datetime
    started_at: datetime
    late: float
    """Seconds between the due time and the start."""
    ran: float
    """Seconds between the start and the end."""
    attempt: int
    """Number of the attempt, from 1."""
    worker: str
    """The worker, or the instance that was called."""
    reason: str | None
    """Why it failed, if it did."""


class FiringsOut(Answer):
    """A page of a type's log, latest first."""

    firings: list[FiringOut]
    after: str | None
    """Pass it as `after` to get the next page; null on the last page."""
