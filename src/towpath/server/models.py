"""What requests and answers look like. The same words as in Python, seconds and ISO times."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from towpath.engine.claiming import HELD_MOST, SELECTORS_MOST
from towpath.engine.explain import Explanation, Position
from towpath.engine.inspect import Counts
from towpath.engine.model import JobInfo, Lease
from towpath.errors import InvalidInput, InvalidOption, TowpathError
from towpath.server.job_fields import asking, telling
from towpath.web.fields import (
    Answer,
    Body,
    Instant,
    Json,
    LeaseSeconds,
    Seconds,
    Text,
    Token,
    alike,
    example,
    from_base64,
    note,
    shown,
)
from towpath.web.problems import misfits


class PayloadIn(Body):
    """What has a payload."""

    payload: Json = None
    """Any JSON value; workers get it unchanged."""
    payload_base64: str | None = None
    """A payload of bytes in base64, instead of `payload`."""

    def data(self) -> bytes:
        """The payload's bytes. Raises InvalidOption."""
        if self.payload_base64 is None:
            return note(self.payload)
        if self.payload is not None:
            raise InvalidOption("payload_base64", "…", rule="pass this or a payload, not both")
        return from_base64("payload_base64", self.payload_base64)


class JobIn(asking(PayloadIn)):
    """A job to be submitted."""

    model_config = example(payload={"path": "cat.png"}, priority=100, lane="ann")


class JobUnfit(InvalidInput):
    """A job of a list that does not fit its description."""

    remedy = "Follow /openapi.json."


def _fit_or_not(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    try:
        return check(value)
    except ValidationError as error:
        return JobUnfit(misfits(error.errors(include_url=False, include_input=False)).detail)


ListedJobIn = Annotated[JobIn, WrapValidator(_fit_or_not)]
"""A job of a list: one that does not fit is its own trouble, not that of the others."""


class SubmittedOut(Answer):
    """A job that exists."""

    model_config = example(id="01M7GVED010SD2EKCZFPMACZNZ", state="ready", existed=False)

    id: str
    state: str
    existed: bool


class MoveIn(Body):
    """Another due time for a waiting job: pass one of the two."""

    model_config = example(delay=600)

    delay: Seconds | None = None
    """From now, in seconds."""
    due: Instant | None = None
    """The time, with a time zone; a past time means now."""


class PlacedOut(Answer):
    """A job that was set."""

    model_config = example(id="reminder-7", state="delayed", replaced=True)

    id: str
    state: str
    replaced: bool
    """Whether it replaced a waiting job."""


class RefusedOut(Answer):
    """A job of a list that was refused."""

    error: str
    """The error's code."""
    detail: str
    remedy: str

    @classmethod
    def of(cls, error: TowpathError) -> RefusedOut:
        return cls(error=error.code, detail=str(error), remedy=error.remedy)


class ManyOut(Answer):
    """The answer to a list: one per job, in order."""

    model_config = example(
        jobs=[{"id": "01M7GVED010SD2EKCZFPMACZNZ", "state": "ready", "existed": False}]
    )

    jobs: list[SubmittedOut | RefusedOut]


class _JobHead(Answer):
    id: str
    queue: str
    state: str


_BYTES = {"payload", "result", "progress"}
_OWN_WORDS = {"queue"} | _BYTES | {f"{name}_base64" for name in _BYTES}


class FailureOut(Answer):
    """An attempt that failed."""

    at: datetime
    worker: str
    reason: str


class JobOut(telling(_JobHead)):
    """A job as it is now."""

    attempts: int
    submitted_at: datetime
    due_at: datetime | None = None
    claimed_at: datetime | None = None
    expires_at: datetime | None = None
    ended_at: datetime | None = None
    worker: str | None = None
    cancel_requested: bool = False
    reason: str | None = None
    failures: list[FailureOut] = Field(default_factory=list[FailureOut])
    """The last five attempts that failed, the newest last; 200 bytes of each reason."""
    payload: Json = None
    payload_base64: str | None = None
    """For a payload that is not JSON."""
    result: Json = None
    result_base64: str | None = None
    progress: Json = None
    progress_base64: str | None = None

    @classmethod
    def of(cls, job: JobInfo) -> JobOut:
        return cls(
            queue=job.ref.queue,
            **alike(cls, job, but=_OWN_WORDS),
            **shown("payload", job.payload),
            **shown("result", job.result or b""),
            **shown("progress", job.progress or b""),
        )


class PageOut(Answer):
    """A page of jobs; payloads are left out."""

    jobs: list[JobOut]
    after: str | None
    """Pass it as `after` to get the next page; null on the last page."""


class ExplanationOut(Answer):
    """Why a job is not running."""

    model_config = example(
        why="no_worker",
        text="no worker is asking for jobs of this queue; none has ever asked",
        ahead=0,
    )

    why: str
    text: str
    ahead: int | None = None
    """Jobs ahead of it."""
    wait: float | None = None
    """Estimated wait, in seconds."""

    @classmethod
    def of(cls, explanation: Explanation, position: Position | None) -> ExplanationOut:
        wait = position.wait if position else None
        return cls(
            why=explanation.why,
            text=explanation.text,
            ahead=position.ahead if position else None,
            wait=wait.total_seconds() if wait is not None else None,
        )


class ClaimIn(Body):
    """A request for jobs."""

    model_config = example(worker="w1", count=1, wait=20, lease=60)

    worker: Text
    """The worker's name, for listings."""
    count: Annotated[int, Field(ge=1, le=100, strict=True)] = 1
    wait: Annotated[float, Field(ge=0, le=60, allow_inf_nan=False, strict=True)] = 0
    """Seconds to wait if there is nothing (long poll)."""
    lease: LeaseSeconds = 60
    """Seconds until the job is given to another worker, unless the lease is renewed."""
    lane: Text | None = None
    """Only that lane's next job."""
    selectors: Annotated[list[Text], Field(max_length=SELECTORS_MOST)] | None = None
    """Only jobs that have one of these selectors; none = any job."""
    max_held: Annotated[int, Field(ge=1, le=HELD_MOST, strict=True)] | None = None
    """The most jobs that the worker may hold, counting all that it claimed with a limit."""


class _LeaseHead(Answer):
    id: str
    token: int
    """Send it with every request about this job."""
    payload: Json = None
    payload_base64: str | None = None
    attempt: int
    expires_at: datetime


class LeaseOut(telling(_LeaseHead)):
    """A leased job."""

    @classmethod
    def of(cls, lease: Lease) -> LeaseOut:
        return cls(**alike(cls, lease, but=_OWN_WORDS), **shown("payload", lease.payload))


class ClaimedOut(Answer):
    """The jobs that the worker has leased."""

    model_config = example(
        jobs=[
            {
                "id": "01M7GVED010SD2EKCZFPMACZNZ",
                "token": 1794787200000123,
                "payload": {"path": "cat.png"},
                "attempt": 1,
                "expires_at": "2026-11-16T00:01:00Z",
                "priority": 50,
            }
        ]
    )

    jobs: list[LeaseOut]


class RenewIn(Body):
    """A lease to be renewed."""

    model_config = example(token=1794787200000123, lease=60, progress={"done": 0.5})

    token: Token
    lease: LeaseSeconds = 60
    """Seconds from now."""
    progress: Json = None
    """Progress to store with the job."""


class CompleteIn(Body):
    """A job that is done."""

    model_config = example(token=1794787200000123, result="cat.small.png")

    token: Token
    result: Json = None


class FailIn(Body):
    """A failed attempt."""

    model_config = example(token=1794787200000123, reason="the disk is full", delay=30)

    token: Token
    reason: Annotated[str, Field(min_length=1, max_length=4096)]
    delay: Seconds | None = None
    """Seconds until the next attempt; without it the retry policy decides."""
    dead: Annotated[bool, Field(strict=True)] = False
    """Whether to end the job as dead, without another attempt."""


class ReleaseIn(Body):
    """A job to be given back."""

    model_config = example(token=1794787200000123, delay=5)

    token: Token
    delay: Seconds = 0


class StateOut(Answer):
    """A job's state."""

    model_config = example(id="01M7GVED010SD2EKCZFPMACZNZ", state="done")

    id: str
    state: str


class RenewedOut(Answer):
    """A lease that was renewed."""

    model_config = example(
        id="01M7GVED010SD2EKCZFPMACZNZ", expires_at="2026-11-16T00:02:00Z", cancel_requested=False
    )

    id: str
    expires_at: datetime
    cancel_requested: bool
    """Whether the job was cancelled: stop and release it."""


class CountsOut(Answer):
    """The jobs of a queue, counted by state."""

    queue: str
    ready: int
    delayed: int
    waiting: int
    leased: int
    dead: int
    kept: int
    lanes: int
    paused: bool
    oldest: float | None
    """Seconds that the oldest ready job has waited."""
    totals: dict[str, int]

    @classmethod
    def of(cls, queue: str, counts: Counts) -> CountsOut:
        return cls(
            queue=queue,
            oldest=counts.oldest.total_seconds() if counts.oldest is not None else None,
            **alike(cls, counts, but={"queue", "oldest"}),
        )


class QueuesOut(Answer):
    """Every queue, by name."""

    queues: list[CountsOut]


class DeletedOut(Answer):
    """How many dead jobs were deleted."""

    model_config = example(deleted=12, left=0)

    deleted: int
    left: int
