"""Attempts at records: begun by token, ended once, whatever Redis forgot meanwhile.

A worker that has claimed a job begins an attempt in the row, with the token of its lease; only
the one whose token is the row's may end it. So a job that Redis handed out twice is completed
once, and a worker that was taken for dead changes nothing.
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
from towpath.engine.check import shortened, traceback_end
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
from towpath.ledger.records.subjects import Key, by_queue, histories, left_out, outdated, supersede

_FIRST_MOST = 500
"""Of those before one that came too early, so many are looked for at once."""


class Standing(StrEnum):
    """What the row says to a worker that has claimed its job."""

    BEGUN = "begun"
    """Go on: the attempt is this worker's."""
    ENDED = "ended"
    """There is nothing left to do."""
    STALE = "stale"
    """A later attempt has begun: this lease is none any more."""
    EARLY = "early"
    """Others of its lane come first: it is queued again behind them, under another name."""
    NOT_DUE = "not_due"
    """Its time has not come, by the database's clock: it goes back, and no attempt is counted."""
    MISSING = "missing"
    """There is no such row."""


class Beginning(NamedTuple):
    """What came of the wish to begin an attempt."""

    standing: Standing
    state: RecordState | None = None
    payload: bytes = b""
    attempt: int = 0
    max_attempts: int | None = None
    reason: str | None = None
    result: bytes | None = None
    due_in: Duration = ZERO
    due_ms: int = 0
    """The due time that was asked for; 0 = none."""


class Ending(NamedTuple):
    """An attempt to be ended."""

    lease: Lease
    settlement: Settlement
    cancelled: bool
    """The worker gave up because somebody cancelled the job."""


def begin(
    connection: Connection,
    leases: Sequence[Lease],
    tell: Tell = nobody,
    *,
    options: Mapping[QueueName, QueueOptions] = MappingProxyType({}),
    timely: bool = True,
) -> Write[list[Beginning]]:
    """Begin an attempt for each lease whose row allows it. A few statements in all.

    *options* are those of the queues, as far as they are known. Not *timely*: Redis says what is
    due.
    """
    rows = _locked(connection, [lease.job for lease in leases], _turns(options))
    over, now = _outdated(connection, rows)
    if over:
        again = partial(begin, leases=leases, tell=tell, options=options, timely=timely)
        return lambda writer: (supersede(writer, over, now, tell), again(writer)(writer))[1]
    renamed = _renamed(connection, {(lease.queue, lease.job.id) for lease in leases} - rows.keys())
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
            # The next one may be another lease of the same job.
            rows[lease.queue, lease.job.id] = changed
    write = rewrite(connection, changes, tell)

    def begin_all(connection: Connection) -> list[Beginning]:
        if before:
            connection.execute(_looked_for_anew, before)
        write(connection)
        return answers

    return begin_all


_ids = select(jobs.c.id).where(named(jobs.c.id))


def _renamed(connection: Connection, missing: Collection[Key]) -> set[Key]:
    """Those that are names which a record had before it was queued again: nobody's any more."""
    found: set[Key] = set()
    for queue, names in by_queue(missing):
        first = {first_name(name): name for name in names}
        known = connection.scalars(_ids, {"in_queue": queue, "names": list(first)})
        found |= {(queue, first[id]) for id in known}
    return found


def _outdated(connection: Connection, rows: dict[Key, Row]) -> tuple[dict[int, str], int]:
    """Those that come again though a newer one about their subject came meanwhile; and when."""
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
    again = running and row["fence"] == token  # the answer was lost
    lost = running and not again  # the attempt before this one never ended
    if lost and (dead := _given_up(row, lease, options)) is not None:
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


def _given_up(
    row: Row, lease: Lease, options: QueueOptions
) -> tuple[Beginning, dict[str, Any]] | None:
    """The last attempt never ended, and there is no other: the row ends as a job without one does
    when its lease ends.
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
    """It comes before others of its lane, or before its time."""
    state = RecordState(row["state"])
    if row["ahead"] is not None and not row["attempts"]:
        behind = {"job": next_name(row["id"], row["job"]), "relay_at": row["now"]}
        return Beginning(Standing.EARLY, state), behind
    if timely and state in RESTING and (wait := _may_run_at(row) - row["now"]) > 0:
        return Beginning(Standing.NOT_DUE, state, due_in=milliseconds(wait)), {}
    return None


def _over(row: Row) -> tuple[Beginning, dict[str, Any]] | None:
    """There is nothing to begin: it has ended, or somebody has spoilt its row."""
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
    """End each attempt whose token is still the row's; the state it led to, None for a stale one.

    Repeated after a lost answer it changes nothing and answers the same. Two statements in all.
    """
    rows = _locked(connection, [ending.lease.job for ending in endings], lambda _: _held)
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
        change = _ended(row, ending)
        answers.append(change["state"])
        changes.append((row, {**row, **change}))
        rows[ending.lease.queue, ending.lease.job.id] = changes[-1][1]
    write = rewrite(connection, changes, tell)

    def end_all(connection: Connection) -> list[RecordState | None]:
        write(connection)
        return answers

    return end_all


def _ended(row: Row, ending: Ending) -> dict[str, Any]:
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
    """The columns that tell why an attempt failed."""
    reason, traceback = _words(settlement.reason), _storable(traceback_end(settlement.traceback))
    first = reason.encode()[:FAILURE_BYTES].decode(errors="ignore")
    failure = Failure(instant(row["now"]), lease.worker, first, traceback)
    return {"last_error": reason, "failures": with_failure(row["failures"], failure)}


def _due_ms(row: Row) -> int:
    """As Redis has it: a time that was past when the record was made meant at once."""
    due: int | None = row["due_at"]
    return due if due is not None and due > row["created_at"] else 0


def _may_run_at(row: Row) -> int:
    return row["next_try_at"] or row["due_at"] or 0


def _after(row: Row, delay: Duration | None) -> int | None:
    return row["now"] + duration_ms("delay", delay) if delay else None


def _words(reason: str) -> str:
    return _storable(shortened(reason))


def _storable(text: str) -> str:
    """*text* without NUL, which PostgreSQL can't store."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


# ── rows ─────────────────────────────────────────────────────────────────────────────────

_held = (
    select(jobs, now_ms().label("now"))
    .where(named(jobs.c.job))
    .order_by(jobs.c.seq)
    .with_for_update(of=jobs)
)
_before = jobs.alias("before")
# In the words of the index: SQLite uses it only for those.
_still_to_end = text(f"before.{OPEN_IN_WORDS}")


def _ahead(*others: ColumnElement[bool]) -> Select[Any]:
    """The same, each with the first of its lane that was made before it and has still to end."""
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
"""Redis gave out a later one: it may have lost those before it."""


def _turns(options: Mapping[QueueName, QueueOptions]) -> Callable[[str], Select[Any]]:
    """By queue, the query for its rows. Lanes wait for a failed head, except under `skip`."""
    waiting = {queue for queue, own in options.items() if own.lanes is not LanePolicy.SKIP}
    return lambda queue: _after_all if queue in waiting else _after_all_but_failed


def _locked(
    connection: Connection, refs: Sequence[JobRef], query: Callable[[str], Select[Any]]
) -> dict[Key, Row]:
    """The rows of these jobs, held until the transaction ends; in one order for everybody."""
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
    # As it is read: what is not 0 is true, also in a row that somebody has spoilt.
    (jobs.c.cancel_requested != false()) == bindparam("was_cancel_requested", type_=Boolean),
)


@cache
def _change(names: tuple[str, ...]) -> Update:
    """One row, if it is as it was: nobody holds it on SQLite."""
    columns: dict[str, Any] = {name: bindparam(name) for name in names}
    return update(jobs).where(*_as_it_was).values(columns)


@cache
def _changes(names: tuple[str, ...]) -> Update:
    """All rows that are given."""
    rows = given(jobs, "seq", *names)
    return (
        update(jobs).where(jobs.c.seq == rows.c.seq).values({name: rows.c[name] for name in names})
    )


def _differing(change: tuple[Row, Row]) -> tuple[str, ...]:
    before, after = change
    return tuple(name for name in _CHANGED if after[name] != before[name])


def rewrite(connection: Connection, changes: list[tuple[Row, Row]], tell: Tell) -> Write[None]:
    """What writes rows as they are to be, given as they were: only what differs, for each column
    that is set costs its indexes. What changes in the same way, one after the other, is one
    statement. Raises Overtaken.
    """
    statements: list[tuple[Update, Any]] = []
    for names, group in groupby(changes, key=_differing):
        several = list(group)
        if names and has_arrays(connection):
            rows = {after["seq"]: dict(after) for _, after in several}.values()  # the later of two
            statements.append((_changes(names), arrays_of(rows, "seq", *names)))
        elif names:
            statements.append((_change(names), [_place(names, *each) for each in several]))
    told = tell([after for _, after in changes]) if changes else nothing

    def write(connection: Connection) -> None:
        for statement, rows in statements:
            done = connection.execute(statement, rows)
            if isinstance(rows, list) and done.rowcount != len(cast("list[Any]", rows)):
                raise Overtaken
        told(connection)

    return write


def _place(names: tuple[str, ...], before: Row, after: Row) -> dict[str, Any]:
    was = {f"was_{name}": before[name] for name in _DECIDED_ON}
    return {name: after[name] for name in names} | was | {"at": before["seq"]}
