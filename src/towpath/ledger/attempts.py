"""Attempts at records: begun by token, ended once, whatever Redis forgot meanwhile.

A worker that has claimed a job begins an attempt in the row, with the token of its lease; only
the one whose token is the row's may end it. So a job that Redis handed out twice is completed
once, and a worker that was taken for dead changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum
from functools import cache
from itertools import groupby
from typing import Any, NamedTuple

from sqlalchemy import Update, bindparam, select, tuple_, update
from sqlalchemy.engine import Connection

from towpath.clock import Duration, duration_ms
from towpath.engine.check import shortened
from towpath.engine.model import Bury, Complete, Fail, JobRef, Lease, Release, Settlement
from towpath.errors import InvalidOption
from towpath.ledger.announcing import Row, Tell, nobody
from towpath.ledger.record import OPEN, RecordState, check_counts, first_name, spoilt
from towpath.ledger.schema import jobs, now_ms
from towpath.ledger.several import arrays_of, given, has_arrays, named, rows_of
from towpath.ledger.subjects import Key, by_queue, supersede


class Standing(StrEnum):
    """What the row says to a worker that has claimed its job."""

    BEGUN = "begun"
    """Go on: the attempt is this worker's."""
    ENDED = "ended"
    """There is nothing left to do."""
    STALE = "stale"
    """A later attempt has begun: this lease is none any more."""
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


class Ending(NamedTuple):
    """An attempt to be ended."""

    lease: Lease
    settlement: Settlement
    cancelled: bool
    """The worker gave up because somebody cancelled the job."""


def begin(connection: Connection, leases: Sequence[Lease], tell: Tell = nobody) -> list[Beginning]:
    """Begin an attempt for each lease whose row allows it. A few statements in all."""
    rows = _locked(connection, [lease.job for lease in leases])
    if _superseded(connection, rows, tell):
        rows = _locked(connection, [lease.job for lease in leases])
    renamed = _renamed(connection, {(it.queue, it.id) for it in leases} - rows.keys())
    changes: list[tuple[Row, Row]] = []
    answers: list[Beginning] = []
    for lease in leases:
        if (lease.queue, lease.id) in renamed:
            answers.append(Beginning(Standing.ENDED))
            continue
        row = rows.get((lease.queue, lease.id))
        answer, change = _begun(row, lease.token)
        answers.append(answer)
        if row is not None and change:
            changed = {**row, "started_at": row["now"], **change}
            changes.append((row, changed))
            # The next one may be another lease of the same job.
            rows[lease.queue, lease.id] = changed
    _write(connection, changes, tell)
    return answers


def _renamed(connection: Connection, missing: Collection[Key]) -> set[Key]:
    """Those that are names which a record had before it was queued again: nobody's any more."""
    if not missing:
        return set()
    first = {(queue, first_name(job)): (queue, job) for queue, job in missing}
    found = connection.execute(
        select(jobs.c.queue, jobs.c.id).where(tuple_(jobs.c.queue, jobs.c.id).in_(list(first)))
    )
    return {first[queue, id] for queue, id in found}


def _superseded(connection: Connection, rows: dict[Key, Row], tell: Tell) -> bool:
    """End those that come again though a newer one about their subject came meanwhile."""
    again = {
        (row["queue"], row["subject"]): row["now"]
        for row in rows.values()
        if row["attempts"] and row["subject"] is not None
    }
    return bool(again) and bool(supersede(connection, again, max(again.values()), tell))


def _begun(row: Row | None, token: int) -> tuple[Beginning, dict[str, Any]]:
    if row is None:
        return Beginning(Standing.MISSING), {}
    state = RecordState(row["state"])
    if state not in OPEN:
        return Beginning(Standing.ENDED, state, reason=row["last_error"]), {}
    try:
        check_counts(row["attempts"], row["max_attempts"], row["fence"])
    except InvalidOption as error:
        dead = _end(row, RecordState.DEAD) | {"last_error": _words(spoilt(error))}
        return Beginning(Standing.ENDED, RecordState.DEAD, reason=dead["last_error"]), dead
    if row["fence"] > token:
        return Beginning(Standing.STALE, state), {}
    if row["cancel_requested"]:
        return Beginning(Standing.ENDED, RecordState.CANCELLED), _end(row, RecordState.CANCELLED)
    again = row["fence"] == token and state is RecordState.RUNNING  # the answer was lost
    attempt = row["attempts"] + (0 if again else 1)
    begun = Beginning(
        Standing.BEGUN, RecordState.RUNNING, row["payload"], attempt, row["max_attempts"]
    )
    change = {"state": RecordState.RUNNING, "fence": token, "attempts": attempt, "relay_at": None}
    return begun, change


def end(
    connection: Connection, endings: Sequence[Ending], tell: Tell = nobody
) -> list[RecordState | None]:
    """End each attempt whose token is still the row's; the state it led to, None for a stale one.

    Repeated after a lost answer it changes nothing and answers the same. Two statements in all.
    """
    rows = _locked(connection, [it.lease.job for it in endings])
    changes: list[tuple[Row, Row]] = []
    answers: list[RecordState | None] = []
    for ending in endings:
        row = rows.get((ending.lease.queue, ending.lease.id))
        if row is None or row["fence"] != ending.lease.token:
            answers.append(None)
            continue
        if row["state"] != RecordState.RUNNING:
            answers.append(RecordState(row["state"]))
            continue
        change = _ended(row, ending)
        answers.append(change["state"])
        changes.append((row, {**row, **change}))
        rows[ending.lease.queue, ending.lease.id] = changes[-1][1]
    _write(connection, changes, tell)
    return answers


def _ended(row: Row, ending: Ending) -> dict[str, Any]:
    cancelled = ending.cancelled or bool(row["cancel_requested"])
    match ending.settlement:
        case Complete(result=result):
            return _end(row, RecordState.COMPLETED) | {"result": result or None}
        case _ if cancelled:
            return _end(row, RecordState.CANCELLED)
        case Bury(reason=reason):
            return _end(row, RecordState.DEAD) | {"last_error": _words(reason)}
        case Fail(reason=reason, delay=delay):
            rest = {"last_error": _words(reason), "due_at": _due(row, delay)}
            return {"state": RecordState.FAILED} | rest
        case Release(delay=delay):
            rest = {"attempts": max(row["attempts"] - 1, 0), "due_at": _due(row, delay)}
            return {"state": RecordState.PENDING} | rest
        case _:
            raise TypeError(f"not an end: {ending.settlement}")


def _end(row: Row, state: RecordState) -> dict[str, Any]:
    return {"state": state, "relay_at": None, "finished_at": row["now"]}


def _due(row: Row, delay: Duration | None) -> int | None:
    return row["now"] + duration_ms("delay", delay) if delay else None


def _words(reason: str) -> str:
    # PostgreSQL keeps no text with a NUL in it.
    return shortened(reason).replace("\0", "\N{REPLACEMENT CHARACTER}")


# ── rows ─────────────────────────────────────────────────────────────────────────────────

_held = (
    select(jobs, now_ms().label("now"))
    .where(named(jobs.c.job))
    .order_by(jobs.c.seq)
    .with_for_update()
)


def _locked(connection: Connection, refs: Sequence[JobRef]) -> dict[Key, Row]:
    """The rows of these jobs, held until the transaction ends; in one order for everybody."""
    found: dict[Key, Row] = {}
    for queue, names in by_queue({(ref.queue, ref.id) for ref in refs}):
        rows = rows_of(connection.execute(_held, {"in_queue": queue, "names": names}))
        found |= {(queue, row["job"]): row for row in rows}
    return found


_CHANGED = (
    "state", "fence", "attempts", "last_error", "result", "due_at", "started_at", "finished_at",
    "relay_at",
)  # fmt: skip


@cache
def _change(names: tuple[str, ...]) -> Update:
    """One row; its place is `at`."""
    columns: dict[str, Any] = {name: bindparam(name) for name in names}
    return update(jobs).where(jobs.c.seq == bindparam("at")).values(columns)


@cache
def _changes(names: tuple[str, ...]) -> Update:
    """All rows that are given."""
    rows = given(jobs, "seq", *names)
    return update(jobs).where(jobs.c.seq == rows.c.seq).values({it: rows.c[it] for it in names})


def _differing(change: tuple[Row, Row]) -> tuple[str, ...]:
    before, after = change
    return tuple(name for name in _CHANGED if after[name] != before[name])


def _write(connection: Connection, changes: list[tuple[Row, Row]], tell: Tell) -> None:
    """Write rows as they are to be, given as they were: only what differs, for each column that is
    set costs its indexes. What changes in the same way, one after the other, is one statement.
    """
    for names, group in groupby(changes, key=_differing):
        rows = {row["seq"]: dict(row) for _, row in group}.values()  # the later of two counts
        if names and has_arrays(connection):
            connection.execute(_changes(names), arrays_of(rows, "seq", *names))
        elif names:
            each = [{name: row[name] for name in names} | {"at": row["seq"]} for row in rows]
            connection.execute(_change(names), each)
    if changes:
        tell(connection, [row for _, row in changes])
