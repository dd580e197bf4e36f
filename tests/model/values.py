"""The arguments and answers of a queue's calls as plain values, for engine and oracle.

Nothing here comes from towpath. Times are ms.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

WAITS = ("ready", "delayed", "waiting")
OPEN = ("ready", "delayed", "waiting", "leased")
STATES = (*OPEN, "done", "cancelled", "dead")
NO_OTHER_ATTEMPT = -1


@dataclass(frozen=True)
class Options:
    """The options of a queue."""

    lanes: str = "block"
    max_attempts: int | None = None
    """None = 20, or 10 for a job that holds its lane meanwhile."""
    max_deaths: int = 5
    keep: int = 0
    keep_most: int = 100_000
    keep_dead: int = 30 * 86_400_000
    keep_dead_most: int = 100_000
    remember: int = 3_600_000
    remember_most: int = 1_000_000
    max_length: int = 0
    retry: int = 1000
    """The wait before every other attempt; NO_OTHER_ATTEMPT = dead at the first failure."""


@dataclass(frozen=True)
class JobSpec:
    """A job to submit."""

    id: str
    payload: bytes
    named: bool
    priority: int = 50
    delay: int = 0
    due: int = 0
    lane: str | None = None
    max_attempts: int | None = None
    lease: int | None = None
    keep: int | None = None
    retry: int | None = None
    selector: str | None = None


@dataclass
class Job:
    """The record of a job: what was asked for, and its state."""

    new: JobSpec
    submitted: int
    tick: int
    turn: int
    """Its place among the ready ones of its priority."""
    state: str = "new"
    due: int | None = None
    """When it may run, or be tried again."""
    asked: int | None = None
    """The due time that was asked for, once another try has a time of its own; 0 = none was."""
    keep_turn: bool = False
    """It comes back at its old place when it is tried again."""
    attempts: int = 0
    deaths: int = 0
    token: int = 0
    worker: str = ""
    expires: int = 0
    counted: bool = False
    """Claimed with a limit: it counts towards the worker's."""
    cancel: bool = False
    ended: int | None = None
    gone_at: int | None = None
    dead_since: int = 0
    reason: str | None = None
    failures: list[tuple[int, str, str]] = field(default_factory=list[tuple[int, str, str]])
    """The last five: when, whose, why."""
    unhandled_since: int | None = None
    progress: bytes | None = None
    result: bytes | None = None

    @property
    def id(self) -> str:
        return self.new.id

    @property
    def asked_due(self) -> int | None:
        """The due time that was asked for; a retry does not change it."""
        return self.due if self.asked is None else self.asked or None

    @property
    def next_try(self) -> int | None:
        """The time of its next attempt, if it was tried before."""
        return None if self.asked is None else self.due


# ── answers ──────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Refusal:
    """Why a call was refused."""

    code: str
    token: int = 0
    state: str = ""


@dataclass(frozen=True)
class SubmittedJob:
    """A submitted job, new or existing."""

    id: str
    state: str
    existed: bool = False
    same: bool | None = None


@dataclass(frozen=True)
class PlacedJob:
    """A job that was set, as a new one or in place of another."""

    id: str
    state: str
    replaced: bool


@dataclass(frozen=True)
class HeldLease:
    """A job that a worker holds."""

    id: str
    payload: bytes
    token: int
    attempt: int
    worker: str
    expires: int
    submitted: int
    priority: int
    lane: str | None
    due: int | None
    next_try: int | None
    max_attempts: int | None
    retry: int | None
    selector: str | None
    unhandled_since: int | None


@dataclass(frozen=True)
class Renewed:
    expires: int
    cancel_requested: bool


@dataclass(frozen=True)
class Exchanged:
    outcomes: list[Any]
    leases: list[HeldLease]


@dataclass(frozen=True)
class Settle:
    """One settlement of an exchange: the verb, the lease, and its arguments."""

    verb: str
    id: str
    token: int
    rest: tuple[Any, ...] = ()


def changes_nothing(answer: Any) -> bool:
    """Whether the answer is a refusal, or that of a submit of existing jobs."""
    if isinstance(answer, list):
        return answer != [] and all(map(changes_nothing, cast(list[Any], answer)))
    return isinstance(answer, Refusal) or (isinstance(answer, SubmittedJob) and answer.existed)


# ── inspections ──────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class JobSummary:
    """A job in a list."""

    id: str
    state: str
    priority: int
    lane: str | None
    selector: str | None
    attempts: int
    deaths: int
    max_attempts: int | None
    submitted: int
    due: int | None
    next_try: int | None
    ended: int | None
    worker: str | None
    token: int | None
    cancel: bool
    reason: str | None
    failures: list[tuple[int, str, str]]
    unhandled_since: int | None
    progress: bytes | None


@dataclass(frozen=True)
class JobDetails:
    """Everything about one job."""

    view: JobSummary
    payload: bytes
    result: bytes | None
    expires: int | None
    ahead: int | None
    why: str


@dataclass(frozen=True)
class Counts:
    states: dict[str, int]
    kept: int
    lanes: int
    paused: bool
    oldest: int | None
    totals: dict[str, int]
    groups: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """The dead by their errors: ids, those that died first first."""
    found: list[str] = field(default_factory=list[str])
    """The dead whose reason has a text in it, the newest first."""


@dataclass(frozen=True)
class IdsByTime:
    """What a call reads when it begins: ids by the time that decides."""

    leased: dict[str, int]
    kept: dict[str, int]
    dead: dict[str, int]
    seen: dict[str, int]
