"""Changes of one record by its users: cancel, retry, move, set, delete.

A record that is retried, moved or replaced gets a new id in Redis. A job that Redis still has under
the old id belongs to no record: a worker that claims it finds no row with this id, and ends it. So
the row decides, whether Redis has been notified of the change or not, and whatever its clock says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, delete, func, select, update
from sqlalchemy.engine import Connection, RowMapping

from towpath.engine.codec import BY_DELAY
from towpath.errors import NotOwned
from towpath.ledger.database.bulk import has_arrays
from towpath.ledger.database.schema import jobs, now_ms
from towpath.ledger.database.writing import Overtaken, Write
from towpath.ledger.errors import (
    RecordEnded,
    RecordNotDead,
    RecordNotFound,
    RecordNotWaiting,
    RecordOpen,
)
from towpath.ledger.records.insert import NOT_YET, QUEUED_WITHIN, new_row, submit
from towpath.ledger.records.record import (
    OPEN,
    RESTING,
    NewRecord,
    Record,
    Recorded,
    RecordState,
    Row,
    Tell,
    as_record,
    next_name,
    nothing,
    owner_in,
)

_RETRIED = (RecordState.DEAD, RecordState.CANCELLED, RecordState.FAILED)


def cancel(
    connection: Connection, queue: str, id: str, tell: Tell, *, for_owner: str | None = None
) -> Write[Row]:
    """End a waiting record, or ask the worker of a running one to stop. Returns the row after that.

    Raises RecordNotFound, RecordEnded, and NotOwned if it has another owner than *for_owner*.
    """
    row = row_of(connection, queue, id, _one_held)
    if for_owner is not None and owner_in(row["options"]) != for_owner:
        raise NotOwned(f"{queue}/{id}")
    if row["state"] in RESTING:
        over = {"state": RecordState.CANCELLED, "finished_at": row["now"], "relay_at": None}
        return _update_row(row, over, tell([{**row, **over}]))
    if row["state"] == RecordState.RUNNING:
        # A relay notifies the worker if this process does not, as when Redis is unreachable.
        soon = row["now"] + QUEUED_WITHIN
        return _update_row(row, {"cancel_requested": True, "relay_at": soon})
    if row["state"] != RecordState.CANCELLED:
        raise RecordEnded(queue, id, row["state"])
    return lambda _: row


def retry(connection: Connection, queue: str, id: str) -> Write[tuple[Row, Row]]:
    """Give a record new attempts. Returns the row before and after that. Raises RecordNotFound,
    RecordNotDead.
    """
    row = row_of(connection, queue, id, _one_held)
    if row["state"] not in _RETRIED:
        raise RecordNotDead(queue, id, row["state"])
    anew = {
        "state": RecordState.PENDING,
        "attempts": 0,
        "cancel_requested": False,
        # It runs now, even if it was cancelled before it was due.
        "due_at": row["due_at"] if (row["due_at"] or 0) <= row["now"] else None,
        "next_try_at": None,
        "finished_at": None,
        "relay_at": row["now"],
    }
    return _renamed(row, anew)


def move(
    connection: Connection, queue: str, id: str, due: int, delay: int, *, queued: bool
) -> Write[tuple[Row, Row]]:
    """Give a waiting record another due time (*due* and *delay* are those of `when`). Returns the
    row before and after that.

    With *queued* the caller notifies Redis. Raises RecordNotFound, RecordNotWaiting.
    """
    row = row_of(connection, queue, id, _one_held)
    if row["state"] not in RESTING:
        raise RecordNotWaiting(queue, id, row["state"])
    now = row["now"]
    due_at = max(now, now + delay if due == BY_DELAY else due)
    soon = now + QUEUED_WITHIN if queued else now
    return _renamed(row, {"due_at": due_at, "next_try_at": None, "relay_at": soon})


def delete_record(connection: Connection, queue: str, id: str) -> Write[Row]:
    """Delete a record that has ended. Returns its row. Raises RecordNotFound, RecordOpen."""
    row = row_of(connection, queue, id, _one_held)
    if row["state"] in OPEN:
        raise RecordOpen(queue, id, row["state"])
    gone = delete(jobs).where(*_still(row))

    def write(connection: Connection) -> Row:
        if not connection.execute(gone).rowcount:
            raise Overtaken
        return row

    return write


def set_record(
    connection: Connection, new: NewRecord, tell: Tell, *, queued: bool
) -> Write[Callable[[], tuple[Record | None, Record]]]:
    """Create a record, or replace the one with its id. The new record is the last of its lane.

    The write returns a function that builds the old record, if there was one, and the new one.
    Raises RecordNotWaiting if the old record is running.
    """
    try:
        row = row_of(connection, new.queue, new.job.id, _one_held)
    except RecordNotFound:
        return _create_record(submit(connection, [new], tell, queued=queued))
    if row["state"] == RecordState.RUNNING:
        raise RecordNotWaiting(new.queue, new.job.id, row["state"])
    now, name = row["now"], next_name(row["id"], row["job"])
    values = NOT_YET | new_row(new, now, now + QUEUED_WITHIN if queued else now) | {"job": name}
    values["seq"] = _next_postgres if has_arrays(connection) else _next_sqlite
    change = update(jobs).where(*_still(row)).values(values).returning(jobs.c.seq)

    def write(connection: Connection) -> Callable[[], tuple[Record | None, Record]]:
        seq = connection.scalar(change)
        if seq is None:
            raise Overtaken
        return lambda: (as_record(row), as_record({**values, "seq": seq}))

    return write


def _create_record(
    make: Write[Callable[[], list[Recorded]]],
) -> Write[Callable[[], tuple[None, Record]]]:
    def write(connection: Connection) -> Callable[[], tuple[None, Record]]:
        [recorded] = make(connection)()
        if recorded.existed:  # another process has just created it: try again, and replace that
            raise Overtaken
        return lambda: (None, recorded.record)

    return write


# ── rows ─────────────────────────────────────────────────────────────────────────────────

_one = select(jobs, now_ms().label("now")).where(
    jobs.c.queue == bindparam("in_queue"), jobs.c.id == bindparam("its_id")
)
_one_held = _one.with_for_update()


def row_of(connection: Connection, queue: str, id: str, query: Select[Any] = _one) -> RowMapping:
    """Return the row of a record, with the current time as `now`. Raises RecordNotFound."""
    found = connection.execute(query, {"in_queue": queue, "its_id": id})
    row = found.mappings().one_or_none()
    if row is None:
        raise RecordNotFound(queue, id)
    return row


_others = jobs.alias("others")
_next_sqlite = select(func.max(_others.c.seq) + 1).scalar_subquery()
_next_postgres = func.nextval(func.pg_get_serial_sequence(jobs.name, "seq"))
"""The next number of a record, which puts the record last in its lane."""


def _still(row: RowMapping) -> Iterator[ColumnElement[bool]]:
    return (jobs.c[name] == row[name] for name in ("seq", "job", "state"))


def _renamed(row: RowMapping, values: dict[str, Any]) -> Write[tuple[Row, Row]]:
    name = next_name(row["id"], row["job"])
    # The fencing token stays: later ones must be higher, even if Redis loses data.
    write = _update_row(row, values | {"job": name})
    return lambda writer: (row, write(writer))


def _update_row(
    row: RowMapping, values: dict[str, Any], put_events: Callable[[Connection], None] = nothing
) -> Write[Row]:
    """Prepare an update of *row*. The write returns the row after the update, and raises Overtaken
    if the row has changed meanwhile.
    """
    change = update(jobs).where(*_still(row)).values(values)

    def write(connection: Connection) -> Row:
        if not connection.execute(change).rowcount:
            raise Overtaken
        put_events(connection)
        return {**row, **values}

    return write
