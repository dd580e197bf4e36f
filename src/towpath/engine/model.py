"""The values that go into the engine and come out of it. Frozen, validated where they enter."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypedDict, Unpack

import msgspec

from towpath.clock import ZERO, Duration, duration_ms, instant, instant_ms, milliseconds
from towpath.engine.check import whole
from towpath.engine.retry import RetryPolicy, retry_policy
from towpath.engine.states import State
from towpath.errors import InvalidOption, JobDiffers, TowpathError
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


class JobOptions(TypedDict, total=False):
    """What may be said about a job when it is submitted. What is left out, its queue decides."""

    id: str | None
    """The caller's own id: the same one twice is one job. None = one is made."""
    priority: int
    """0 to 100, **higher runs first** (LOW, NORMAL, HIGH)."""
    delay: Duration
    """Counted from the moment the server takes the job in."""
    due: datetime | None
    """An instant; give a delay or a due time, not both."""
    lane: str | None
    """Jobs of one lane run one at a time, in the order they were submitted."""
    max_attempts: int | None
    retry: RetryPolicy | None
    lease: Duration | None
    """How long a worker may be silent; decides over the lease time that a claim names."""
    keep: Duration | None
    """How long the finished job and its result can be looked at."""
    headers: Mapping[str, str] | None
    """What travels beside the payload, e.g. a trace: names and texts, 4 KiB in all."""


def new_job(payload: bytes, **options: Unpack[JobOptions]) -> NewJob:
    """A job to submit; every value is checked here. Raises InvalidName, InvalidOption."""
    if type(payload) is not bytes:
        raise InvalidOption("payload", type(payload).__name__, rule="must be bytes")
    if not options:
        return NewJob(new_job_id(), payload)
    more: dict[str, Any] = {}
    for name, value in options.items():
        if name not in _CHECKS:
            raise InvalidOption(name, value, rule=f"is no option of a job: {', '.join(_CHECKS)}")
        if value is not None or name in _NEVER_NONE:
            more[name] = _CHECKS[name](value)
    if "delay" in more and "due" in more:
        raise InvalidOption("due", options.get("due"), rule="give a delay or a due time, not both")
    if "id" not in more:
        return NewJob(new_job_id(), payload, more or None)
    id = more.pop("id")
    return NewJob(id, payload, more | {"named": 1})


LARGEST_HEADERS = 4096
_HEADER = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def header_bytes(headers: Mapping[str, str]) -> bytes:
    """Headers as the record keeps them. Raises InvalidOption."""
    if not isinstance(headers, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
        raise InvalidOption("headers", headers, rule="must map names to texts")
    for name, value in headers.items():
        if not isinstance(value, str) or not isinstance(name, str) or not _HEADER.fullmatch(name):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
            rule = "must be text under a name of a-z, 0-9, dot, dash and underscore"
            raise InvalidOption(f"headers[{name!r}]", value, rule=rule)
    packed = msgspec.json.encode(dict(headers))
    if len(packed) > LARGEST_HEADERS:
        raise InvalidOption("headers", f"{len(packed)} bytes", rule=f"at most {LARGEST_HEADERS}")
    return packed


_NEVER_NONE = {"priority", "delay"}

_CHECKS: dict[str, Callable[[Any], Any]] = {
    "id": job_id,
    "priority": lambda value: whole("priority", value, 0, 100),
    "delay": lambda value: duration_ms("delay", value),
    "due": lambda value: instant_ms("due", value),
    "lane": lane_key,
    "max_attempts": lambda value: whole("max_attempts", value, 1, 1_000_000),
    "retry": lambda value: msgspec.json.encode(retry_policy(value)),
    "lease": lambda value: duration_ms("lease", value, least=milliseconds(1)),
    "keep": lambda value: duration_ms("keep", value),
    "headers": header_bytes,
}


LEASE_ENDED = "LEASE_ENDED"
"""How the reason of an attempt begins that no worker ended."""
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


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

    def checked(
        self, on_conflict: OnConflict = "refuse", *, refusal: type[JobDiffers] = JobDiffers
    ) -> Submitted:
        """Itself. Raises *refusal* for another payload than this, unless that is to be kept."""
        if self.same_payload is False and on_conflict == "refuse":
            raise refusal(self.job)
        return self


OnConflict = Literal["refuse", "keep"]
"""What becomes of a submit whose id is that of a job with another payload: it is refused, or the
job that was there first is the answer."""


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
    claimed_ms: int = 0
    """By the server's clock; 0 for a lease that is only known by its token."""
    priority: int = NORMAL
    lane: LaneKey | None = None
    due_ms: int = 0
    max_attempts: int | None = None
    """The job's own limit, if it differs from its queue's."""
    retry: RetryPolicy | None = None
    """The job's own policy, if it differs from its queue's."""
    cancel_requested: bool = False
    headers: Mapping[str, str] = NO_HEADERS
    """What travelled beside the payload."""
    reason: str | None = None
    """Why the last attempt failed, if there was one."""

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
    def claimed_at(self) -> datetime:
        """When the job was claimed, by the server's clock."""
        return instant(self.claimed_ms)

    @property
    def due_at(self) -> datetime | None:
        return instant(self.due_ms) if self.due_ms else None

    @property
    def was_silent(self) -> bool:
        """Whether the last attempt ended because its worker was silent."""
        return self.reason is not None and self.reason.startswith(LEASE_ENDED)


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
    left: int = 0
    """Ready jobs that the claim left behind."""
    due_in: Duration | None = None
    """How long until a job falls due or a lease ends; None = neither is to come. 0 = there may be
    more to claim at once: an answer is bounded in bytes, whatever was asked for."""
    now_ms: int = 0
    """The server's clock when it answered."""


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
