"""The values that go into the engine and come out of it. Frozen, validated where they enter."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from towpath.clock import ZERO, Duration, duration_ms, instant, instant_ms, milliseconds
from towpath.engine.check import whole
from towpath.engine.retry import RetryPolicy, retry_policy
from towpath.engine.states import State
from towpath.errors import InvalidOption, TowpathError
from towpath.ids import (
    JobId,
    LaneKey,
    QueueName,
    Token,
    channel_name,
    job_id,
    lane_key,
    new_job_id,
    queue_name,
)

LOW, NORMAL, HIGH = 0, 50, 100
"""Priorities: 0 to 100, higher runs first."""


class JobRef(msgspec.Struct, frozen=True):
    """Which job: its queue and its id. What every read and every `cancel` takes."""

    queue: QueueName
    id: JobId

    def __str__(self) -> str:
        return f"{self.queue}/{self.id}"


def job_ref(queue: str, id: str) -> JobRef:
    """A reference from plain text, or InvalidName."""
    return JobRef(queue_name(queue), job_id(id))


class NewJob(NamedTuple):
    """A job to be submitted, made and checked by `new_job`: a wrong value never leaves the process.

    Its fields are in the order in which the script reads them.
    """

    id: JobId
    payload: bytes
    more: dict[str, Any] | None = None
    """What is not plain."""


def new_job(  # noqa: C901 -- one flat check per option
    payload: bytes,
    *,
    id: str | None = None,
    priority: int = NORMAL,
    delay: Duration = ZERO,
    due: datetime | None = None,
    lane: str | None = None,
    max_attempts: int | None = None,
    retry: RetryPolicy | None = None,
    lease: Duration | None = None,
    keep: Duration | None = None,
) -> NewJob:
    """A job to submit; every value is checked here.

    *priority* is 0 to 100, **higher runs first** (LOW, NORMAL, HIGH). *delay* counts from the
    moment the server takes the job in; *due* is an instant; give one of them. Jobs with the
    same *lane* run one at a time in the order they were submitted. What is left out comes from
    the queue's options. Raises InvalidName, InvalidOption.
    """
    if not isinstance(payload, bytes):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
        raise InvalidOption("payload", type(payload).__name__, rule="must be bytes")
    more: dict[str, Any] = {}
    if priority is not NORMAL:
        more["priority"] = whole("priority", priority, 0, 100)
    if delay is not ZERO:
        more["delay"] = duration_ms("delay", delay)
    if due is not None:
        if "delay" in more:
            raise InvalidOption("due", due, rule="give a delay or a due time, not both")
        more["due"] = instant_ms("due", due)
    if lane is not None:
        more["lane"] = lane_key(lane)
    if max_attempts is not None:
        more["max_attempts"] = whole("max_attempts", max_attempts, 1, 1_000_000)
    if retry is not None:
        more["retry"] = msgspec.json.encode(retry_policy(retry))
    if lease is not None:
        more["lease"] = duration_ms("lease", lease, least=milliseconds(1))
    if keep is not None:
        more["keep"] = duration_ms("keep", keep)
    if id is None:
        return NewJob(new_job_id(), payload, more or None)
    more["named"] = 1
    return NewJob(job_id(id), payload, more)


class Submitted(msgspec.Struct, frozen=True):
    """A job that exists: newly, or from an earlier submit under the same id."""

    job: JobRef
    state: State
    existed: bool = False
    same_payload: bool | None = None
    """For one that existed: whether its payload is this one; None if it is no longer known."""

    @property
    def id(self) -> JobId:
        return self.job.id


class Lease(msgspec.Struct, frozen=True):
    """A job in this worker's hands, until *expires_at* unless renewed."""

    job: JobRef
    payload: bytes
    token: Token
    """Grows with every delivery; give it to what the work changes, and refuse lower ones there."""
    attempt: int
    """1 at the first delivery; releases do not count."""
    worker: str
    expires_ms: int
    submitted_ms: int
    priority: int = NORMAL
    lane: LaneKey | None = None
    due_ms: int = 0
    max_attempts: int | None = None
    """The job's own limit, if it differs from its queue's."""
    retry: RetryPolicy | None = None
    """The job's own policy, if it differs from its queue's."""
    cancel_requested: bool = False

    @property
    def id(self) -> JobId:
        return self.job.id

    @property
    def queue(self) -> QueueName:
        return self.job.queue

    @property
    def expires_at(self) -> datetime:
        return instant(self.expires_ms)

    @property
    def submitted_at(self) -> datetime:
        return instant(self.submitted_ms)

    @property
    def due_at(self) -> datetime | None:
        return instant(self.due_ms) if self.due_ms else None


# ── settling ─────────────────────────────────────────────────────────────────────────────


class Complete(msgspec.Struct, frozen=True):
    """The work is done; *result* stays for the queue's `keep`."""

    lease: Lease
    result: bytes = b""


class Fail(msgspec.Struct, frozen=True):
    """The attempt did not work. Without a *delay* the retry policy decides."""

    lease: Lease
    reason: str
    delay: Duration | None = None


class Bury(msgspec.Struct, frozen=True):
    """The attempt did not work and no other will: dead, with the reason."""

    lease: Lease
    reason: str


class Release(msgspec.Struct, frozen=True):
    """Give the job back; the attempt does not count."""

    lease: Lease
    delay: Duration = ZERO


class Renew(msgspec.Struct, frozen=True):
    """Hold the job for another *ttl* from now."""

    lease: Lease
    ttl: Duration


Settlement = Complete | Fail | Bury | Release | Renew

Outcome = State | Lease | TowpathError
"""What became of a settlement: the job's new state, the renewed lease, or why it was refused."""


class Exchanged(msgspec.Struct, frozen=True):
    """What an exchange brought: the outcome of each settlement, in order, and new leases."""

    outcomes: list[Outcome]
    leases: list[Lease]


class Call(msgspec.Struct, frozen=True):
    """The name of a writing call: the same name again has no effect and the same answer.

    Numbers of a channel must grow. The engine names its own calls; give one where a repeat may
    come from elsewhere, e.g. from an HTTP client with an idempotency key.
    """

    channel: str
    number: int

    def __post_init__(self) -> None:
        channel_name(self.channel)
        whole("call.number", self.number, 1, 2**53 - 1)
