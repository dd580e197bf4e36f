"""Attempts at records: begun and ended in the row, guarded by the fencing token of the lease.

A worker that has claimed a job begins an attempt in the row, with the fencing token of its lease.
Only the lease whose token is in the row can end the attempt. So a job that Redis delivers twice is
completed once, and a worker that lost its lease changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from functools import cache, partial
from itertools import groupby
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Select,
    Update,
    bindparam,
    false,
    func,
    select,
    text,
    update,
)
from sqlalchemy.engine import Connection

from towpath.clock import ZERO, Duration, duration_ms, instant, milliseconds
from towpath.engine.check import shorten_reason, traceback_end
from towpath.engine.model import (
    FAILURE_BYTES,
    Bury,
    Complete,
    Fail,
    Failure,
    JobRef,
    Lease,
    Release,
    Settlement,
)
from towpath.engine.options import DEFAULTS, LanePolicy, QueueOptions
from towpath.errors import InvalidOption
from towpath.ids import QueueName
from towpath.ledger.database.bulk import arrays_of, given, has_arrays, named, rows_of
from towpath.ledger.database.schema import OPEN_IN_WORDS, jobs, now_ms
from towpath.ledger.database.writing import Overtaken, Write
from towpath.ledger.records.record import (
    OPEN,
    RESTING,
    RecordState,
    Row,
    Tell,
    check_counts,
    first_name,
    next_name,
    nobody,
    nothing,
    spoilt,
    with_failure,
)
from towpath.ledger.records.supersession import (
    Key,
    by_queue,
    histories,
    left_out,
    outdated,
    supersede,
)

_FIRST_MOST = 500
"""How many earlier records of a lane a relay looks for after a later one was delivered first."""


class Standing(StrEnum):
    """Whether a worker that has claimed a job may run it, by its row."""

    BEGUN = "begun"
    """The attempt has begun; run the job."""
    ENDED = "ended"
    """The record has ended; there is nothing to do."""
    STALE = "stale"
    """A later attempt has begun: this lease is lost."""
    EARLY = "early"
    """Other records of its lane come first. It is queued again behind them, under a new id."""
    NOT_DUE = "not_due"
    """It is not due by the database's clock. It goes back to the queue; no attempt is counted."""
    MISSING = "missing"
    """The job has no row."""


class Beginning(NamedTuple):
    """The answer of `begin` for one lease."""

    standing: Standing
    state: RecordState | None = None
    payload: bytes = b""
    attempt: int = 0
    max_attempts: int | None = None
    reason: str | None = None
    result: bytes | None = None
    due_in: Duration = ZERO
    due_ms: int = 0
    """The requested due time; 0 = none."""


class Ending(NamedTuple):
    """An attempt to end."""

    lease: Lease
    settlement: Settlement
    cancelled: bool
    """Whether the worker stopped the attempt because the job was cancelled."""


def begin(
    connection: Connection,
    leases: Sequence[Lease],
    tell: Tell = nobody,
    *,
    options: Mapping[QueueName, QueueOptions] = MappingProxyType({}),
    timely: bool = True,
) -> Write[list[Beginning]]:
    """Begin an attempt for each lease whose row allows it. A few statements in all.

    *options* are those of the queues, as far as they are known. If not *timely*, Redis alone
    decides what is due.
    """
    rows = _lock_rows(connection, [lease.job for lease in leases], _turns(options))
    over, now = _find_outdated(connection, rows)
    if over:
        again = partial(begin, leases=leases, tell=tell, options=options, timely=timely)
        return lambda writer: (supersede(writer, over, now, tell), again(writer)(writer))[1]
    renamed = _find_old_names(
        connection, {(lease.queue, lease.job.id) for lease in leases} - rows.keys()
    )
    changes, before = list[tuple[Row, Row]](), list[dict[str, Any]]()
    answers: list[Beginning] = []
    for lease in leases:
        if (lease.queue, lease.job.id) in renamed:
            answers.append(Beginning(Standing.ENDED))
            continue
        row = rows.get((lease.queue, lease.job.id))
        answer, change = _begun(row, lease, options.get(lease.queue, DEFAULTS), timely=timely)
        answers.append(answer)
        if row is not None and change:
            if answer.standing is Standing.EARLY:
                place = {"in_queue": row["queue"], "in_lane": row["lane"], "at": row["seq"]}
                before.append(place | {"now": row["now"]})
            changed = {**row, **change}
            changes.append((row, changed))
            # A later lease in the list may be of the same job.
            rows[lease.queue, lease.job.id] = changed
    write = rewrite(connection, changes, tell)

    def begin_all(connection: Connection) -> list[Beginning]:
        if before:
            connection.execute(_looked_for_anew, before)
        write(connection)
        return answers

    return begin_all


_ids = select(jobs.c.id).where(named(jobs.c.id))


def _find_old_names(connection: Connection, missing: Collection[Key]) -> set[Key]:
    """Return those of *missing* that are old Redis ids of records that were queued again since."""
    found: set[Key] = set()
    for queue, names in by_queue(missing):
        first = {first_name(name): name for name in names}
        known = connection.scalars(_ids, {"in_queue": queue, "names": list(first)})
        found |= {(queue, first[id]) for id in known}
    return found


def _find_outdated(connection: Connection, rows: dict[Key, Row]) -> tuple[dict[int, str], int]:
    """Find records to supersede instead of trying them again, because a newer one about their
    subject exists. Returns what `supersede` needs, and the current time.
    """
    again = {
        (row["queue"], row["subject"]): row["now"]
        for row in rows.values()
        if row["attempts"] and row["subject"] is not None
    }
    if not again:
        return {}, 0
    known = histories(connection, again)
    return outdated(known, left_out(connection, known)), max(again.values())


def _begun(
    row: Row | None, lease: Lease, options: QueueOptions, *, timely: bool
) -> tuple[Beginning, dict[str, Any]]:
    if row is None:
        return Beginning(Standing.MISSING), {}
    if (over := _over(row)) is not None:
        return over
    state, token = RecordState(row["state"]), lease.token
    if row["fence"] > token:
        return Beginning(Standing.STALE, state), {}
    if row["cancel_requested"]:
        return Beginning(Standing.ENDED, RecordState.CANCELLED), _end(row, RecordState.CANCELLED)
    if (early := _early(row, timely=timely)) is not None:
        return early
    running = state is RecordState.RUNNING
    again = running and row["fence"] == token  # a repetition: the first answer was lost
    lost = running and not again  # the previous attempt never ended
    if lost and (dead := _end_lost_attempt(row, lease, options)) is not None:
        return dead
    attempt = row["attempts"] + (0 if again or (lost and lease.is_excused) else 1)
    begun = Beginning(
        Standing.BEGUN,
        RecordState.RUNNING,
        row["payload"],
        attempt,
        row["max_attempts"],
        due_ms=_due_ms(row),
    )
    change = {"state": RecordState.RUNNING, "fence": token, "attempts": attempt, "relay_at": None}
    return begun, change | {"started_at": row["now"]}


def _end_lost_attempt(
    row: Row, lease: Lease, options: QueueOptions
) -> tuple[Beginning, dict[str, Any]] | None:
    """End a record whose previous attempt never ended if no attempt is left; else None. The reason
    is that of a job without a record in the same case.
    """
    most = row["max_attempts"] or lease.max_attempts
    if lease.deaths >= options.max_deaths:
        reason = f"WORKERS_DIED: {lease.deaths} deliveries ended with the death of the worker"
    elif most is not None and row["attempts"] >= most and not lease.is_excused:
        reason = lease.reason or "LEASE_ENDED: its worker was silent until its lease ended"
    else:
        return None
    dead = _end(row, RecordState.DEAD) | {"last_error": _words(reason)}
    return Beginning(Standing.ENDED, RecordState.DEAD, reason=dead["last_error"]), dead


def _early(row: Row, *, timely: bool) -> tuple[Beginning, dict[str, Any]] | None:
    """Return the answer and the change for a job that was delivered before others of its lane, or
    before it is due; None if it may begin.
    """
    state = RecordState(row["state"])
    if row["ahead"] is not None and not row["attempts"]:
        behind = {"job": next_name(row["id"], row["job"]), "relay_at": row["now"]}
        return Beginning(Standing.EARLY, state), behind
    if timely and state in RESTING and (wait := _may_run_at(row) - row["now"]) > 0:
        return Beginning(Standing.NOT_DUE, state, due_in=milliseconds(wait)), {}
    return None


def _over(row: Row) -> tuple[Beginning, dict[str, Any]] | None:
    """Return the answer and the change for a record that has ended, or whose row is invalid; None
    for any other.
    """
    state = RecordState(row["state"])
    if state not in OPEN:
        return Beginning(Standing.ENDED, state, reason=row["last_error"], result=row["result"]), {}
    try:
        check_counts(row["attempts"], row["max_attempts"], row["fence"])
    except InvalidOption as error:
        dead = _end(row, RecordState.DEAD) | {"last_error": _words(spoilt(error))}
        return Beginning(Standing.ENDED, RecordState.DEAD, reason=dead["last_error"]), dead
    return None


def end(
    connection: Connection, endings: Sequence[Ending], tell: Tell = nobody
) -> Write[list[RecordState | None]]:
    """End each attempt whose token is still in the row. Returns the new states; None for a stale
    attempt.

    A repetition after a lost answer changes nothing and returns the same. Two statements in all.
    """
    rows = _lock_rows(connection, [ending.lease.job for ending in endings], lambda _: _held)
    changes: list[tuple[Row, Row]] = []
    answers: list[RecordState | None] = []
    for ending in endings:
        row = rows.get((ending.lease.queue, ending.lease.job.id))
        if row is None or row["fence"] != ending.lease.token:
            answers.append(None)
            continue
        if row["state"] != RecordState.RUNNING:
            answers.append(RecordState(row["state"]))
            continue
        change = _plan_end(row, ending)
        answers.append(change["state"])
        changes.append((row, {**row, **change}))
        rows[ending.lease.queue, ending.lease.job.id] = changes[-1][1]
    write = rewrite(connection, changes, tell)

    def end_all(connection: Connection) -> list[RecordState | None]:
        write(connection)
        return answers

    return end_all


def _plan_end(row: Row, ending: Ending) -> dict[str, Any]:
    cancelled = ending.cancelled or bool(row["cancel_requested"])
    match ending.settlement:
        case Complete(result=result):
            return _end(row, RecordState.COMPLETED) | {"result": result or None}
        case _ if cancelled:
            return _end(row, RecordState.CANCELLED)
        case Bury() as bury:
            return _end(row, RecordState.DEAD) | _error(row, ending.lease, bury)
        case Fail(delay=delay) as fail:
            rest = _error(row, ending.lease, fail) | {"next_try_at": _after(row, delay)}
            return {"state": RecordState.FAILED} | rest
        case Release(delay=delay):
            rest = {"attempts": max(row["attempts"] - 1, 0), "next_try_at": _after(row, delay)}
            return {"state": RecordState.PENDING} | rest
        case _:
            raise TypeError(f"not an end: {ending.settlement}")


def _end(row: Row, state: RecordState) -> dict[str, Any]:
    return {"state": state, "relay_at": None, "finished_at": row["now"]}


def _error(row: Row, lease: Lease, settlement: Fail | Bury) -> dict[str, Any]:
    """Return the columns that store why an attempt failed."""
    reason, traceback = _words(settlement.reason), _storable(traceback_end(settlement.traceback))
    first = reason.encode()[:FAILURE_BYTES].decode(errors="ignore")
    failure = Failure(instant(row["now"]), lease.worker, first, traceback)
    return {"last_error": reason, "failures": with_failure(row["failures"], failure)}


def _due_ms(row: Row) -> int:
    """Return the due time as Redis has it: 0 if it was past when the record was created."""
    due: int | None = row["due_at"]
    return due if due is not None and due > row["created_at"] else 0


def _may_run_at(row: Row) -> int:
    return row["next_try_at"] or row["due_at"] or 0


def _after(row: Row, delay: Duration | None) -> int | None:
    return row["now"] + duration_ms("delay", delay) if delay else None


def _words(reason: str) -> str:
    return _storable(shorten_reason(reason))


def _storable(text: str) -> str:
    """Replace NUL in *text*, which PostgreSQL can't store."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


# ── rows ─────────────────────────────────────────────────────────────────────────────────

_held = (
    select(jobs, now_ms().label("now"))
    .where(named(jobs.c.job))
    .order_by(jobs.c.seq)
    .with_for_update(of=jobs)
)
_before = jobs.alias("before")
# In the same words as the index, or SQLite does not use it.
_still_to_end = text(f"before.{OPEN_IN_WORDS}")


def _ahead(*others: ColumnElement[bool]) -> Select[Any]:
    """Extend `_held` by `ahead`: the first open record of the lane from before each row."""
    first = select(func.min(_before.c.seq)).where(
        _before.c.queue == jobs.c.queue,
        _before.c.lane == jobs.c.lane,
        _before.c.seq < jobs.c.seq,
        _still_to_end,
        *others,
    )
    return _held.add_columns(first.scalar_subquery().label("ahead"))


_after_all = _ahead()
_after_all_but_failed = _ahead(_before.c.state != RecordState.FAILED)
_first_of_lane = (
    select(_before.c.seq)
    .where(
        _before.c.queue == bindparam("in_queue"),
        _before.c.lane == bindparam("in_lane"),
        _before.c.seq < bindparam("at"),
        _still_to_end,
    )
    .order_by(_before.c.seq)
    .limit(_FIRST_MOST)
)
_looked_for_anew = (
    update(jobs).where(jobs.c.seq.in_(_first_of_lane)).values(relay_at=bindparam("now"))
)
"""Sets the records at the front of a lane to be checked by a relay: Redis delivered a later record
first, and may have lost them."""


def _turns(options: Mapping[QueueName, QueueOptions]) -> Callable[[str], Select[Any]]:
    """Return a function that gives the query for the rows of a queue. Lanes wait for a failed head,
    except with the policy `skip`.
    """
    waiting = {queue for queue, own in options.items() if own.lanes is not LanePolicy.SKIP}
    return lambda queue: _after_all if queue in waiting else _after_all_but_failed


def _lock_rows(
    connection: Connection, refs: Sequence[JobRef], query: Callable[[str], Select[Any]]
) -> dict[Key, Row]:
    """Read and lock the rows of these jobs. All callers lock in the same order."""
    found: dict[Key, Row] = {}
    for queue, names in by_queue({(ref.queue, ref.id) for ref in refs}):
        rows = rows_of(connection.execute(query(queue), {"in_queue": queue, "names": names}))
        found |= {(queue, row["job"]): row for row in rows}
    return found


_CHANGED = (
    "job", "state", "fence", "attempts", "last_error", "failures", "result", "next_try_at",
    "started_at", "finished_at", "relay_at",
)  # fmt: skip


_DECIDED_ON = ("job", "state", "fence", "attempts", "cancel_requested")
_as_it_was = (
    jobs.c.seq == bindparam("at"),
    jobs.c.job == bindparam("was_job"),
    jobs.c.state == bindparam("was_state"),
    jobs.c.fence == bindparam("was_fence"),
    jobs.c.attempts == bindparam("was_attempts"),
    # Compared as it is read: any value except 0 is true, also in a row that was edited by hand.
    (jobs.c.cancel_requested != false()) == bindparam("was_cancel_requested", type_=Boolean),
)


@cache
def _change(names: tuple[str, ...]) -> Update:
    """Return the update of one row, if it is unchanged: on SQLite, rows are not locked."""
    columns: dict[str, Any] = {name: bindparam(name) for name in names}
    return update(jobs).where(*_as_it_was).values(columns)


@cache
def _changes(names: tuple[str, ...]) -> Update:
    """Return the update of all rows in the parameters."""
    rows = given(jobs, "seq", *names)
    return (
        update(jobs).where(jobs.c.seq == rows.c.seq).values({name: rows.c[name] for name in names})
    )


def _differing(change: tuple[Row, Row]) -> tuple[str, ...]:
    before, after = change
    return tuple(name for name in _CHANGED if after[name] != before[name])


def rewrite(connection: Connection, changes: list[tuple[Row, Row]], tell: Tell) -> Write[None]:
    """Prepare the update of rows, given before and after their change. Returns the function that
    writes, and raises Overtaken.

    Sets only columns that differ, because each column that is set costs updates of its indexes.
    Consecutive rows in which the same columns change share a statement.
    """
    statements: list[tuple[Update, Any]] = []
    for names, group in groupby(changes, key=_differing):
        several = list(group)
        if names and has_arrays(connection):
            # If a row is changed twice, the last change counts.
            rows = {after["seq"]: dict(after) for _, after in several}.values()
            statements.append((_changes(names), arrays_of(rows, "seq", *names)))
        elif names:
            statements.append((_change(names), [_place(names, *each) for each in several]))
    put_events = tell([after for _, after in changes]) if changes else nothing

    def write(connection: Connection) -> None:
        for statement, rows in statements:
            done = connection.execute(statement, rows)
            if isinstance(rows, list) and done.rowcount != len(cast("list[Any]", rows)):
                raise Overtaken
        put_events(connection)

    return write


def _place(names: tuple[str, ...], before: Row, after: Row) -> dict[str, Any]:
    was = {f"was_{name}": before[name] for name in _DECIDED_ON}
    return {name: after[name] for name in names} | was | {"at": before["seq"]}
