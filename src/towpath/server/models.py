"""Bodies of requests and answers. Names are those of Python; times are seconds or ISO 8601."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from towpath.engine.claiming import HELD_MOST, SELECTORS_MOST
from towpath.engine.explain import Explanation, Position
from towpath.engine.inspect import Counts
from towpath.engine.model import Failure, JobInfo, Lease
from towpath.errors import InvalidInput, InvalidOption, TowpathError
from towpath.server.job_fields import with_job_attributes, with_job_options
from towpath.web.fields import (
    Answer,
    Body,
    InSeconds,
    Instant,
    Json,
    LeaseSeconds,
    Seconds,
    Text,
    Token,
    alike,
    answer_from,
    encode_json,
    example,
    from_base64,
    json_field,
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
            return encode_json(self.payload)
        if self.payload is not None:
            raise InvalidOption("payload_base64", "…", rule="pass this or a payload, not both")
        return from_base64("payload_base64", self.payload_base64)


class JobIn(with_job_options(PayloadIn, but=("owner",))):
    """A job to submit."""

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
"""A job of a list. One that is invalid becomes a JobUnfit, so that the others are submitted."""


class SubmittedOut(Answer):
    """A submitted job, new or not."""

    model_config = example(id="01M7GVED010SD2EKCZFPMACZNZ", state="ready", existed=False)

    id: str
    state: str
    existed: bool
    """Whether the job existed before, under the same id."""


class MoveIn(Body):
    """A new due time for a waiting job. Pass `delay` or `due`."""

    model_config = example(delay=600)

    delay: Seconds | None = None
    """Seconds from now."""
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
    """The answer to a list: one entry per job, in order."""

    model_config = example(
        jobs=[{"id": "01M7GVED010SD2EKCZFPMACZNZ", "state": "ready", "existed": False}]
    )

    jobs: list[SubmittedOut | RefusedOut]


class _JobHead(Answer):
    id: str
    queue: str
    state: str


_BYTES = {"payload", "result", "progress"}
_OWN_WORDS = {"queue", "content_hidden"} | _BYTES | {f"{name}_base64" for name in _BYTES}


class FailureOut(answer_from(Failure)):
    """A failed attempt."""


_HTTP_ONLY = ("ref", "token", "record", "redis_id", *_BYTES)


class JobOut(answer_from(JobInfo, base=with_job_attributes(_JobHead), but=_HTTP_ONLY)):
    """A job as it is now."""

    attempts: int
    """Number of attempts that have begun; released ones do not count."""
    failures: list[FailureOut] = Field(default_factory=list[FailureOut])
    """The last five failed attempts, newest last."""
    payload: Json = None
    """The payload, if it is JSON; else `payload_base64` has it."""
    payload_base64: str | None = None
    result: Json = None
    """What the worker returned, if it is JSON; else `result_base64` has it."""
    result_base64: str | None = None
    progress: Json = None
    """The last progress note, if it is JSON; else `progress_base64` has it."""
    progress_base64: str | None = None
    record: str | None = None
    """The id of the job's record in the database; null for a job without a record."""
    redis_id: str | None = None
    """The id of the job in Redis, if that is another: its record was retried, moved or replaced."""

    content_hidden: bool = False
    """Whether payload, result and progress are left out because the job belongs to an application
    and to another owner."""

    @classmethod
    def of(cls, job: JobInfo, *, content_hidden: bool = False) -> JobOut:
        return cls(
            queue=job.ref.queue,
            content_hidden=content_hidden,
            **alike(cls, job, but=_OWN_WORDS),
            **json_field("payload", job.payload),
            **json_field("result", job.result or b""),
            **json_field("progress", job.progress or b""),
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
    """The reason as one word: leased, behind_lane, lane_parked, not_due, paused, no_worker,
    no_handler, all_busy, behind_others, next, not_queued or ended."""
    text: str
    """The reason as a sentence."""
    ahead: int | None = None
    """Number of jobs that run before it."""
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
    """The worker's name, shown in lists."""
    count: Annotated[int, Field(ge=1, le=100, strict=True)] = 1
    """Maximum number of jobs."""
    wait: Annotated[float, Field(ge=0, le=60, allow_inf_nan=False, strict=True)] = 0
    """Seconds to wait for a job if there is none (long poll)."""
    lease: LeaseSeconds = 60
    """Seconds until the job is given to another worker, unless the lease is renewed."""
    lane: Text | None = None
    """Claim only the next job of this lane."""
    selectors: Annotated[list[Text], Field(max_length=SELECTORS_MOST)] | None = None
    """Claim only jobs that have one of these selectors; null = any job."""
    max_held: Annotated[int, Field(ge=1, le=HELD_MOST, strict=True)] | None = None
    """Maximum number of jobs that the worker may hold, of those claimed with this field."""


class _LeaseHead(Answer):
    id: str
    token: int
    """Proves that you hold the job: send it with every request about this job."""
    payload: Json = None
    """The payload, if it is JSON; else `payload_base64` has it."""
    payload_base64: str | None = None
    attempt: int
    """Number of this attempt, from 1."""
    expires_at: datetime
    """When the lease ends unless you renew it."""


class LeaseOut(with_job_attributes(_LeaseHead)):
    """A leased job."""

    @classmethod
    def of(cls, lease: Lease) -> LeaseOut:
        return cls(**alike(cls, lease, but=_OWN_WORDS), **json_field("payload", lease.payload))


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
    """Seconds until the lease ends, from now."""
    progress: Json = None
    """A progress note; it replaces the last one."""


class CompleteIn(Body):
    """The result of a completed job."""

    model_config = example(token=1794787200000123, result="cat.small.png")

    token: Token
    result: Json = None
    """Any JSON value; it is kept with the job."""


class FailIn(Body):
    """A failed attempt."""

    model_config = example(token=1794787200000123, reason="the disk is full", delay=30)

    token: Token
    reason: Annotated[str, Field(min_length=1, max_length=4096)]
    """Why the attempt failed."""
    traceback: Annotated[str, Field(max_length=65536)] = ""
    """Frames and message of the error; its last 4 KiB are kept."""
    delay: Seconds | None = None
    """Seconds until the next attempt. Default: the retry policy decides."""
    dead: Annotated[bool, Field(strict=True)] = False
    """Whether to end the job as dead now, without another attempt."""


class ReleaseIn(Body):
    """A job to give back."""

    model_config = example(token=1794787200000123, delay=5)

    token: Token
    delay: Seconds = 0
    """Seconds until the job may run again."""


class CancelOut(Answer):
    """A job that was cancelled, or whose worker is asked to stop."""

    model_config = example(
        id="01M7GVED010SD2EKCZFPMACZNZ", state="cancelled", cancel_requested=False
    )

    id: str
    state: str
    cancel_requested: bool
    """Whether a worker has the job and is asked to stop. The job is `leased` until it does."""


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
    """Whether the job was cancelled. If so, stop and release it."""


class _QueueHead(Answer):
    queue: str


class CountsOut(answer_from(Counts, base=_QueueHead, but=("remembered",))):
    """Number of jobs of a queue, by state."""

    oldest: InSeconds | None
    """Seconds that the oldest ready job has waited; null if none is ready."""

    @classmethod
    def of(cls, queue: str, counts: Counts) -> CountsOut:
        return cls(queue=queue, **alike(cls, counts, but={"queue"}))


class QueuesOut(Answer):
    """The queues, sorted by name."""

    queues: list[CountsOut]
    unreadable: list[str] = Field(default_factory=list[str])
    """Queues that are not in the list because their data in Redis cannot be read."""
