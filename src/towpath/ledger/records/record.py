"""Records: jobs whose row in the database is the truth; their values and options."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple, Unpack, cast

import msgspec
from sqlalchemy.engine import Connection, RowMapping

from towpath.clock import duration_ms, instant, instant_ms
from towpath.engine.check import integer
from towpath.engine.model import (
    FIELDS,
    NO_HEADERS,
    NORMAL,
    Failure,
    JobOptions,
    NewJob,
    new_job,
    read_attributes,
)
from towpath.errors import InvalidName, InvalidOption
from towpath.ids import JobId, QueueName, job_id, lane_key, queue_name
from towpath.ledger.outbox.event import NewEvent

LONGEST_ID = 500
"""In bytes. The id in Redis of a record that is queued again is a few bytes longer."""
LONGEST_REVISION = 128
_LATEST_VERSION = 2**63 - 1
HIGHEST_FENCE = 2**52
"""The highest valid fencing token: Redis can still count up from it. By the clock, tokens reach it
in the year 2112."""
RECORD_MISSING = "RecordMissing"
"""Prefix of the reason of a job that is dead because it has no row."""
NOT_RUN = b"RecordNotRun: "
"""Prefix of the result of a job that was ended in Redis without running, because its row is
cancelled or superseded, or has another job by now. The state of the row follows."""
_AGAIN = re.compile(r"~\d+$")
"""The end of a record's id in Redis if it was queued again."""
_DELIVERIES = 1000
"""`max_attempts` of the job in Redis. The row counts attempts; the count in Redis, which starts
again after a loss of data, only ends jobs that never get as far as the row."""


class RecordState(StrEnum):
    """The state of a record. The row decides, whatever Redis says."""

    PENDING = "pending"
    """It waits for its turn."""
    RUNNING = "running"
    """A worker has begun an attempt."""
    COMPLETED = "completed"
    FAILED = "failed"
    """Its last attempt failed; it waits for the next."""
    DEAD = "dead"
    """No attempt is left; `retry` gives it new ones."""
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"
    """A newer record about the same subject was created before it ran."""


def record_state(value: str) -> RecordState:
    """Return *value* as a state. Raises InvalidOption."""
    if value not in set(RecordState):
        raise InvalidOption("state", value, rule=f"must be one of {', '.join(RecordState)}")
    return RecordState(value)


OPEN = (RecordState.PENDING, RecordState.RUNNING, RecordState.FAILED)
RESTING = (RecordState.PENDING, RecordState.FAILED)
"""Open states in which no worker has the record."""


class RecordOptions(JobOptions, total=False):
    """The options of a record: those of a job, and the subject that it is about."""

    subject: str | None
    """What the record is about. Among the records of one owner about one subject the latest counts:
    older ones that have not begun are superseded."""
    version: int | None
    """The record with the highest version is the latest. None = the version of the latest record.
    Among equal versions, a record that follows another is later, otherwise the one created later.
    """
    revision: str | None
    """The revision of the subject, such as a commit. Two records of the same revision and version
    are one record, whatever their ids."""
    follows: str | None
    """The revision before it."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A record as it was when it was read."""

    seq: int
    queue: QueueName
    id: JobId
    job: JobId
    """Its id in Redis."""
    state: RecordState
    payload: bytes
    priority: int = NORMAL
    lane: str | None = None
    subject: str | None = None
    version: int | None = None
    attempts: int = 0
    max_attempts: int | None = None
    fence: int = 0
    last_error: str | None = None
    failures: tuple[Failure, ...] = ()
    """The last failed attempts, newest last."""
    result: bytes | None = None
    options: str | None = None
    """The options of the job that have no column (retry, lease, keep, headers), as JSON."""
    cancel_requested: bool = False
    created_at: datetime
    due_at: datetime | None = None
    """The requested due time."""
    next_try_at: datetime | None = None
    """When it may be tried again, after a failed attempt or a release."""
    started_at: datetime | None = None
    finished_at: datetime | None = None

    @property
    def attributes(self) -> dict[str, Any]:
        """The options of the job that have no column: headers, selector, retry, owner."""
        packed = _decode_options(self.options)
        return read_attributes(
            {
                name: value.encode() if isinstance(value, str) else value
                for name, value in packed.items()
            }
        )

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the job."""
        return self.attributes.get("headers", NO_HEADERS)

    @property
    def owner(self) -> str | None:
        """The owner of the API key that submitted it; None = it was submitted without a key."""
        return owner_in(self.options)

    @property
    def may_run_at(self) -> datetime | None:
        """The earliest time at which it may run; None = at once."""
        return self.next_try_at or self.due_at

    @property
    def open(self) -> bool:
        """Whether the record has not ended."""
        return self.state in OPEN


class RecordPage(msgspec.Struct, frozen=True):
    """Records, newest first; give *after* to get the next page. None = this was the last."""

    records: list[Record]
    after: str | None


class Recorded(NamedTuple):
    """The answer to a submit: the new record, or the one that existed."""

    record: Record
    existed: bool = False
    superseded: tuple[JobId, ...] = ()
    """The ids of records that this one superseded."""


class PlacedRecord(NamedTuple):
    """A record that was set."""

    record: Record
    replaced: bool
    """Whether it replaced a waiting record."""


class NewRecord(NamedTuple):
    """A record to create, checked by `new_record`."""

    queue: QueueName
    job: NewJob
    subject: str | None
    version: int | None
    revision: str | None
    follows: str | None


def new_record(queue: str, payload: bytes, **options: Unpack[RecordOptions]) -> NewRecord:
    """Check every value of a record to create. Raises InvalidName, InvalidOption."""
    given = cast("dict[str, Any]", dict(options))
    subject, version = given.pop("subject", None), given.pop("version", None)
    about = [given.pop("revision", None), given.pop("follows", None)]
    if subject is None and (version, *about) != (None, None, None):
        rule = "version, revision and follows need a subject"
        raise InvalidOption("subject", subject, rule=rule)
    if subject is not None:
        subject = job_id(subject)  # a subject follows the rules of job ids
        version = None if version is None else integer("version", version, 0, _LATEST_VERSION)
    revision, follows = (None if named is None else _revision(named) for named in about)
    job = new_job(payload, **cast("JobOptions", given))
    if _AGAIN.search(job.id):
        raise InvalidName("job id", job.id, rule="must not end with ~ and digits: records use that")
    if len(job.id.encode()) > LONGEST_ID:
        raise InvalidName("job id", job.id, rule=f"at most {LONGEST_ID} bytes for a record")
    return NewRecord(queue_name(queue), job, subject, version, revision, follows)


def _revision(value: str) -> str:
    if len(value) > LONGEST_REVISION:
        raise InvalidName("revision", value, rule=f"at most {LONGEST_REVISION} characters")
    return job_id(value)


# ── conversion to and from rows ──────────────────────────────────────────────────────────

_COLUMNS = ("priority", "lane", "max_attempts", "delay", "due", "named")
"""Options that have a column, or need none."""


def packed_options(more: Mapping[str, Any]) -> str | None:
    """Encode the options without a column of their own: retry, lease, keep, headers."""
    rest = {
        name: value.decode() if isinstance(value, bytes) else value
        for name, value in more.items()
        if name not in _COLUMNS
    }
    return msgspec.json.encode(rest).decode() if rest else None


def as_job(record: Record, *, now: datetime, timely: bool = True) -> NewJob:
    """Return the job to queue in Redis for a record, without the payload, which workers read from
    the row.

    If not *timely*, Redis goes by another clock than the database.

    Raises InvalidInput or MsgspecError for an invalid row: Redis must not get a job that no worker
    could read.
    """
    check_counts(record.attempts, record.max_attempts, record.fence)
    more = {
        name: _decode_option(name, value) for name, value in _decode_options(record.options).items()
    }
    priority = integer("priority", record.priority, 0, 100)
    more |= {"named": 1, "priority": priority, "max_attempts": _DELIVERIES, "record": record.id}
    if record.lane is not None:
        more["lane"] = lane_key(record.lane)
    may_run_at = record.may_run_at
    if may_run_at is not None and may_run_at > now:
        more["delay"] = duration_ms("delay", may_run_at - now)
    # A time that was past when the record was created means at once. Any other time orders the job
    # among the due jobs, even if it is queued late.
    if timely and may_run_at is not None and may_run_at > record.created_at:
        more["delay"] = more.get("delay", 0)
        more["due"] = instant_ms("due", may_run_at)
        if record.next_try_at is not None:
            more["asked_due"] = instant_ms("due", record.due_at) if record.due_at else 0
    return NewJob(job_id(record.job), b"", more)


def check_counts(attempts: int, most: int | None, fence: int) -> None:
    """Raise InvalidOption if these columns of a row are invalid, as after an edit by hand."""
    integer("attempts", attempts, 0, 2**31)
    integer("max_attempts", 1 if most is None else most, 1, 1_000_000)
    integer("fence", fence, 0, HIGHEST_FENCE)


def spoilt(error: Exception) -> str:
    """Return the reason of a record that is dead because its row can't be read."""
    return f"its row can't be read: {error}"


def _decode_option(name: str, value: Any) -> Any:
    """Decode the value of an option that `packed_options` encoded. Raises InvalidInput."""
    if name not in FIELDS:
        raise InvalidOption(name, value, rule="is not an option of a record")
    kind = FIELDS[name].kind
    try:
        return kind.kept(name, kind.read(value.encode() if isinstance(value, str) else value))
    except (TypeError, AttributeError, OverflowError) as error:
        raise InvalidOption(name, value, rule=str(error)) from error


class _Owned(msgspec.Struct):
    owner: str | None = None


_decode_owner = msgspec.json.Decoder(_Owned).decode


def owner_in(options: str | None) -> str | None:
    """Return the owner in the options of a row; None if there is none, or they can't be read."""
    try:
        return _decode_owner(options).owner if options else None
    except msgspec.MsgspecError:
        return None


def _decode_options(options: str | None) -> dict[str, Any]:
    return msgspec.json.decode(options, type=dict[str, Any]) if options else {}


_FAILURES, _TRACEBACKS = 5, 3
_decode_failures = msgspec.json.Decoder(list[Failure]).decode


def _failures(text: str | None) -> tuple[Failure, ...]:
    """Return the failed attempts of a row; none if they can't be read."""
    if text is None:
        return ()
    try:
        return tuple(_decode_failures(text))
    except msgspec.MsgspecError:
        return ()


def with_failure(text: str | None, failure: Failure) -> str:
    """Add *failure* to the failed attempts of a row. Only the newest keep their tracebacks."""
    failures = [*_failures(text), failure][-_FAILURES:]
    older = [msgspec.structs.replace(failure, traceback="") for failure in failures[:-_TRACEBACKS]]
    return msgspec.json.encode([*older, *failures[-_TRACEBACKS:]]).decode()


def as_record(row: RowMapping | dict[str, Any]) -> Record:
    """Convert a row to a Record, even an invalid one, so that users can see what is wrong."""
    return Record(
        seq=row["seq"],
        queue=row["queue"],
        id=row["id"],
        job=row["job"],
        state=RecordState(row["state"]),
        payload=row["payload"],
        priority=row["priority"],
        lane=row["lane"],
        subject=row["subject"],
        version=row["version"],
        attempts=row["attempts"],
        max_attempts=row["max_attempts"],
        fence=row["fence"],
        last_error=row["last_error"],
        failures=_failures(row["failures"]),
        result=row["result"],
        options=row["options"],
        cancel_requested=row["cancel_requested"],
        created_at=_instant(row["created_at"]) or _NEVER,
        due_at=_instant(row["due_at"]),
        next_try_at=_instant(row["next_try_at"]),
        started_at=_instant(row["started_at"]),
        finished_at=_instant(row["finished_at"]),
    )


_NEVER = datetime.max.replace(tzinfo=UTC)


def _instant(ms: int | None) -> datetime | None:
    """Convert *ms* to a datetime; the latest possible one if it is out of range."""
    try:
        return None if ms is None else instant(ms)
    except (OverflowError, TypeError):
        return _NEVER


def first_name(job: str) -> str:
    """Return the id of the record whose id in Redis is or was *job*."""
    return _AGAIN.sub("", job)


def next_name(id: str, job: str) -> str:
    """Return the next id in Redis of a record that is queued again: `id`, then `id~2`, `id~3`, …

    Redis remembers the ids of jobs that are gone, so that a repeated submit has no effect. So a
    record that is queued again needs a new id.
    """
    number = job.removeprefix(f"{id}~")
    return f"{id}~{int(number) + 1 if number.isdecimal() and number != job else 2}"


# ── events of the outbox: the end of each record, in the transaction that ends it ────────

Row = RowMapping | dict[str, Any]
Tell = Callable[[Sequence[Row]], Callable[[Connection], None]]
"""Given changed rows, returns a function that puts events for those that have ended."""
_EVENT_FIELDS = ("queue", "id", "state", "subject", "attempts")


def nobody(_: Sequence[Row]) -> Callable[[Connection], None]:
    """The `Tell` of ledgers without sinks."""
    return nothing


def nothing(_: Connection) -> None:
    """Put no events."""


def ends(rows: Sequence[Row]) -> list[NewEvent]:
    """Make an event for each of *rows* that has ended: `towpath.job.completed` and the like.

    Events contain neither payload nor result: receivers that may see them read the record.
    """
    return [_event(row) for row in rows if row["state"] not in OPEN]


def _event(row: Row) -> NewEvent:
    data = {name: row[name] for name in _EVENT_FIELDS} | {"reason": row["last_error"]}
    return NewEvent(
        type=f"towpath.job.{row['state']}",
        key=f"{row['queue']}/{row['id']}",
        data=msgspec.json.encode(data),
        # A record ends at most once per id in Redis, so a repeated event has the same id.
        id=f"{row['queue']}/{row['job']}/{row['state']}",
        at=row["finished_at"],
    )
