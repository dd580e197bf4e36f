"""The values that go into the engine and come out of it. Frozen, validated where they enter."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, TypedDict, Unpack

import msgspec

from towpath.clock import ZERO, Duration, DurationLike, instant, milliseconds
from towpath.engine.check import integer
from towpath.engine.fields import Moment, Number, Pairs, Policy, Span, Text, declared
from towpath.engine.retry import RetryPolicy, own_attempts
from towpath.engine.states import State
from towpath.errors import InvalidOption, JobDiffers, TowpathError
from towpath.ids import (
    JobId,
    LaneKey,
    QueueName,
    Selector,
    Token,
    channel_name,
    job_id,
    lane_key,
    new_job_id,
    owner_name,
    queue_name,
    selector_name,
)

LOW, NORMAL, HIGH = 0, 50, 100
"""Priorities: 0 to 100, higher runs first."""


class JobRef(msgspec.Struct, frozen=True):
    """Which job: its queue and its id."""

    queue: QueueName
    id: JobId

    def __str__(self) -> str:
        return f"{self.queue}/{self.id}"


def job_ref(queue: str, id: str) -> JobRef:
    """A reference to a job, from text. Raises InvalidName."""
    return JobRef(queue_name(queue), job_id(id))


class NewJob(NamedTuple):
    """A job to submit. Make it with `new_job`, which checks every value.

    Its fields are in the order in which the script reads them.
    """

    id: JobId
    payload: bytes
    more: dict[str, Any] | None = None
    """All options but the id and the payload; None = the job is plain."""


class JobOptions(TypedDict, total=False):
    """The options of a job when it is submitted. The queue decides what is left out.

    Each field is declared only here: its type, its kind, a sentence. A new field that is only
    passed along needs no more than this and an attribute of `JobAttributes`; for handlers, also a
    property of `Context`.
    """

    id: Annotated[str | None, Text(job_id), "Your own id; the same id twice is one job."]
    priority: Annotated[int, Number(0, 100), "0 to 100; higher runs first."]
    delay: Annotated[
        DurationLike, Span(), "How long until the job may run; pass this or a due time."
    ]
    due: Annotated[datetime | None, Moment(), "The time from which the job may run."]
    lane: Annotated[
        str | None,
        Text(lane_key),
        "Jobs of one lane run one at a time, in the order they were submitted.",
    ]
    selector: Annotated[
        str | None,
        Text(selector_name),
        "The kind of the job, for workers that ask for some kinds only.",
    ]
    max_attempts: Annotated[int | None, Number(1, 1_000_000), "Attempts before the job is dead."]
    retry: Annotated[RetryPolicy | None, Policy(), "How long to wait before the next attempt."]
    lease: Annotated[
        DurationLike | None,
        Span(milliseconds(1)),
        "How long its worker may be silent; overrides the lease of the claim.",
    ]
    keep: Annotated[DurationLike | None, Span(), "How long the job is kept after it ends."]
    headers: Annotated[
        Mapping[str, str] | None,
        Pairs(),
        "Data beside the payload, such as a trace: names and texts, up to 4 KiB in total.",
    ]
    owner: Annotated[
        str | None,
        Text(owner_name),
        "Whose API keys may replace, move and cancel the job over HTTP without the scope `manage`.",
    ]


class JobAttributes(msgspec.Struct, frozen=True, kw_only=True):
    """The options that a job was submitted with, as its worker and its readers see them.

    An attribute has the name of its field, and the type that its kind reads.
    """

    priority: int = NORMAL
    lane: LaneKey | None = None
    selector: Selector | None = None
    max_attempts: int | None = None
    """Its own limit; None = that of its queue."""
    retry: RetryPolicy | None = None
    """Its own policy; None = that of its queue."""
    headers: Mapping[str, str] = MappingProxyType({})
    """Data beside the payload."""
    owner: str | None = None
    """The owner of the API key that submitted it; None = it was submitted without a key."""


FIELDS = declared(JobOptions)
NO_HEADERS = JobAttributes().headers
_UNSET_ATTRIBUTES = msgspec.structs.asdict(JobAttributes())
_UNREADABLE = "(headers that this release can't read)"
LEASE_FIELDS = (
    *JobAttributes.__struct_fields__, "due", "asked_due", "reason", "claimed", "record", "deaths",
    "excused", "unhandled", "unhandled_since",
)  # fmt: skip
"""The fields that a claim returns for a job that is not plain."""


def read_attributes(kept: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of `JobAttributes`, from the options that are stored with a job."""
    return {
        name: _read_attribute(name, kept[name])
        for name in JobAttributes.__struct_fields__
        if name in kept
    }


def _read_attribute(name: str, kept: Any) -> Any:
    """The value of one attribute. One that only a newer release can read counts as not set. But
    unreadable headers become the name of a handler that does not exist, so that the job is left to
    other workers.
    """
    try:
        return FIELDS[name].kind.read(kept)
    except (msgspec.MsgspecError, InvalidOption):
        return {"handler": _UNREADABLE} if name == "headers" else _UNSET_ATTRIBUTES[name]


def with_own_attempts(options: JobOptions) -> JobOptions:
    """*options*, with the number of attempts that their retry policy needs if they set no limit."""
    if "retry" in options and options.get("max_attempts") is None:
        most = own_attempts(options["retry"])
        return {**options, "max_attempts": most} if most else options
    return options


def new_job(payload: bytes, **options: Unpack[JobOptions]) -> NewJob:
    """A job to submit, with every value checked. Raises InvalidName, InvalidOption."""
    if type(payload) is not bytes:
        raise InvalidOption("payload", type(payload).__name__, rule="must be bytes")
    if not options:
        return NewJob(new_job_id(), payload)
    more: dict[str, Any] = {}
    for name, value in options.items():
        field = FIELDS.get(name)
        if field is None:
            raise InvalidOption(name, value, rule=f"is not an option of a job: {', '.join(FIELDS)}")
        if value is not None or not field.may_be_none:
            more[name] = field.kind.kept(name, value)
    if "delay" in more and "due" in more:
        raise InvalidOption(
            "due", options.get("due"), rule="pass either a delay or a due time, not both"
        )
    if "id" not in more:
        return NewJob(new_job_id(), payload, more or None)
    id = more.pop("id")
    return NewJob(id, payload, more | {"named": 1})


LEASE_ENDED = "LEASE_ENDED"
"""The beginning of the reason for an attempt whose lease ended before it was settled."""


class Submitted(msgspec.Struct, frozen=True):
    """A job that exists: it is new, or an earlier submit under the same id made it."""

    job: JobRef
    state: State
    existed: bool = False
    same_payload: bool | None = None
    """If it existed: whether it has the same payload; None if that is no longer known."""

    @property
    def id(self) -> JobId:
        """The job's id."""
        return self.job.id

    def checked(
        self, on_conflict: OnConflict = "refuse", *, refusal: type[JobDiffers] = JobDiffers
    ) -> Submitted:
        """Returns itself. Raises *refusal* if the job has another payload and *on_conflict* is
        "refuse".
        """
        if self.same_payload is False and on_conflict == "refuse":
            raise refusal(self.job)
        return self


class Placed(msgspec.Struct, frozen=True):
    """A job that was set: it is new, or it replaced the one that waited under its id."""

    job: JobRef
    state: State
    replaced: bool

    @property
    def id(self) -> JobId:
        """The job's id."""
        return self.job.id


OnConflict = Literal["refuse", "keep"]
"""What to do if the id of a submit belongs to a job with another payload: refuse the submit, or
return the existing job."""


class Lease(JobAttributes, frozen=True):
    """A job that a worker holds until *expires_at*, unless it renews the lease."""

    job: JobRef
    """The job as Redis knows it; the id of one with a record may be another."""
    payload: bytes
    token: Token
    """Rises with every lease of the job. Pass it to the systems that the work changes, so that they
    can refuse changes with a lower one."""
    attempt: int
    """Number of the attempt, from 1; releases do not count."""
    worker: str
    expires_ms: int
    submitted_ms: int
    claimed_ms: int = 0
    """By the clock of Redis; 0 for a lease that is known only by its token."""
    due_ms: int = 0
    """The due time that was asked for, also in a later attempt; 0 = the job was not delayed."""
    next_try_ms: int = 0
    """If the job was to be tried again at a certain time: that time."""
    cancel_requested: bool = False
    reason: str | None = None
    """Why the last attempt failed, if there was one."""
    record: JobId | None = None
    """The id of the job's record in the database, if it has one."""
    deaths: int = 0
    """Deliveries of the job that ended with the death of the worker."""
    is_excused: bool = False
    """Whether the lease before this one ended while Redis could not be reached. Set only for jobs
    with a record, whose row then does not count that attempt."""
    unhandled_since_ms: int = 0
    """Since when no worker that got the job could run it; 0 = no worker has said so."""
    unhandled: str = ""
    """Why the last of these workers could not run it."""

    @property
    def id(self) -> JobId:
        """The id that the job was submitted under."""
        return self.record or self.job.id

    @property
    def queue(self) -> QueueName:
        """The queue of the job."""
        return self.job.queue

    @property
    def expires_at(self) -> datetime:
        """When the lease ends unless it is renewed, by the clock of Redis."""
        return instant(self.expires_ms)

    @property
    def submitted_at(self) -> datetime:
        """When the job was submitted, by the clock of Redis."""
        return instant(self.submitted_ms)

    @property
    def claimed_at(self) -> datetime:
        """When the job was claimed, by the clock of Redis."""
        return instant(self.claimed_ms)

    @property
    def due_at(self) -> datetime | None:
        """When the job was due, if it was submitted with a delay or a due time."""
        return instant(self.due_ms) if self.due_ms else None

    @property
    def was_silent(self) -> bool:
        """Whether the last attempt ended because its worker was silent."""
        return self.reason is not None and self.reason.startswith(LEASE_ENDED)


FAILURE_BYTES = 200
"""Bytes of a reason in the list of failed attempts; as in lib/moves.lua."""


class Failure(msgspec.Struct, frozen=True):
    """A failed attempt."""

    at: datetime
    worker: str
    reason: str
    """The first 200 bytes of the reason."""
    traceback: str = ""
    """Frames and message of the error, at most 4 KiB. Kept for the three newest attempts; empty for
    others, and in lists of jobs."""


class JobInfo(JobAttributes, frozen=True, kw_only=True):
    """A job at one moment."""

    ref: JobRef
    state: State
    payload: bytes
    attempts: int = 0
    """Number of attempts that have begun; released ones do not count."""
    deaths: int = 0
    """Number of deliveries that ended with the death of the worker."""
    submitted_at: datetime
    due_at: datetime | None = None
    """The due time that was asked for, if any; a retry does not change it."""
    next_try_at: datetime | None = None
    """If the job waits for another try: when that may begin."""
    claimed_at: datetime | None = None
    """When a worker last claimed it."""
    expires_at: datetime | None = None
    """While it is leased: when the lease ends unless the worker renews it."""
    ended_at: datetime | None = None
    """When the job ended: done, cancelled or dead."""
    worker: str | None = None
    """The worker that holds it, while it is leased."""
    token: Token | None = None
    cancel_requested: bool = False
    """Whether the job was cancelled while it ran; its worker is asked to stop."""
    reason: str | None = None
    """Why the last attempt failed, or why the job is dead."""
    failures: tuple[Failure, ...] = ()
    """The last five failed attempts, newest last."""
    unhandled_since: datetime | None = None
    """Since when no worker that got the job could run it, if it waits for one that can."""
    unhandled: str | None = None
    """Why: `HandlerNotFound`, or how the payload does not fit the handler."""
    progress: bytes | None = None
    result: bytes | None = None
    record: JobId | None = None
    """The id of the job's record in the database, if it has one."""
    redis_id: JobId | None = None
    """The id of the job in Redis, if that is another: its record was retried, moved or replaced."""

    @property
    def id(self) -> JobId:
        """The id that the job was submitted under."""
        return self.record or self.ref.id


# ── settling ─────────────────────────────────────────────────────────────────────────────


class Complete(msgspec.Struct, frozen=True):
    """The job is done; *result* is kept as long as the job."""

    lease: Lease
    result: bytes = b""


class Fail(msgspec.Struct, frozen=True):
    """The attempt failed. Without *delay*, the retry policy decides when to try again.

    With *keep_turn*, the job then comes back at the place that it had among the ready jobs, not
    behind them.
    """

    lease: Lease
    reason: str
    delay: Duration | None = None
    traceback: str = ""
    keep_turn: bool = False


class Bury(msgspec.Struct, frozen=True):
    """The attempt failed and no other can help: the job is dead, with this reason."""

    lease: Lease
    reason: str
    traceback: str = ""


class Release(msgspec.Struct, frozen=True):
    """Give the job back; the attempt does not count.

    *unhandled* says why the worker cannot run it. The job keeps the time of the first such release
    until it is settled otherwise; with *anew*, the time of this one takes its place.
    """

    lease: Lease
    delay: Duration = ZERO
    unhandled: str = ""
    anew: bool = False


class Renew(msgspec.Struct, frozen=True):
    """Extend the lease to *ttl* from now."""

    lease: Lease
    ttl: Duration


Settlement = Complete | Fail | Bury | Release | Renew
"""How to settle a lease."""
Outcome = State | Lease | TowpathError
"""The outcome of a settlement: the new state of the job, the renewed lease, or an error."""


class Exchanged(msgspec.Struct, frozen=True):
    """What an exchange returned: one outcome per settlement, in order, and new leases."""

    outcomes: list[Outcome]
    leases: list[Lease]
    left: int = 0
    """Ready jobs that the claim left behind."""
    due_in: Duration | None = None
    """How long until a call should be sent for a job that falls due or a lease that ends; None =
    neither is to come. 0 = there may be more to claim at once: an answer is bounded in bytes,
    whatever was asked for."""
    now_ms: int = 0
    """The clock of Redis when it answered."""


class Call(msgspec.Struct, frozen=True):
    """The name of a change: repeating a change under the same name has no effect and returns the
    same answer.

    The numbers of a channel must rise. The engine names its own calls; pass one where a repeat may
    come from elsewhere, such as an HTTP client with an idempotency key.
    """

    channel: str
    number: int

    def __post_init__(self) -> None:
        channel_name(self.channel)
        integer("call.number", self.number, 1, 2**53 - 1)
