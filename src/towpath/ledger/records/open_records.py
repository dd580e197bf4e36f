"""Open records as a relay reads and updates them, and pages of records for people.

The queries of relays never read ended records, so their cost does not depend on those.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    LargeBinary,
    Select,
    bindparam,
    func,
    literal,
    null,
    or_,
    select,
    union_all,
    update,
)
from sqlalchemy.engine import Connection, RowMapping

from towpath.clock import instant
from towpath.engine.batcher import LARGEST_BATCH
from towpath.engine.check import integer
from towpath.errors import InvalidOption
from towpath.ids import QueueName, queue_name
from towpath.ledger.database.bulk import arrays_of, each_name, given, has_arrays, named, rows_of
from towpath.ledger.database.schema import jobs, moment, now_ms
from towpath.ledger.database.writing import Write
from towpath.ledger.records.attempts import rewrite
from towpath.ledger.records.record import (
    HIGHEST_FENCE,
    OPEN,
    Record,
    RecordPage,
    RecordState,
    Row,
    Tell,
    as_record,
    record_state,
)

_CLAIMED_FOR = 10_000
"""Milliseconds for which claimed records belong to a relay; then another one may claim them."""


class OpenRecord(NamedTuple):
    """A record, and the time at which it was read."""

    record: Record
    now: datetime
    """When the record was read, by the database's clock."""
    unseen: bool = True
    """Whether the row does not say yet that the job is in Redis."""


# ── queues with records ──────────────────────────────────────────────────────────────────

_unseen_queues = each_name(jobs.c.queue, "relay_at IS NOT NULL AND")
_any = "EXISTS (SELECT 1 FROM towpath_jobs WHERE queue = each.name AND state = '{}')"
_open_queues = each_name(jobs.c.queue, also=f"AND ({' OR '.join(map(_any.format, OPEN))})")


def unseen_queues(connection: Connection) -> list[QueueName]:
    """List the queues with records that may not be in Redis yet."""
    return list(connection.scalars(_unseen_queues))


def open_queues(connection: Connection) -> list[QueueName]:
    """List the queues with open records."""
    return list(connection.scalars(_open_queues))


# ── reading ──────────────────────────────────────────────────────────────────────────────

_LEFT_OUT = {"payload": literal(b"", LargeBinary), "result": null()}
_bare = [
    _LEFT_OUT[column.name].label(column.name) if column.name in _LEFT_OUT else column
    for column in jobs.c
]
"""The columns of a record without payload and result, which may be large and are not sent to Redis.
"""
_page = union_all(
    *(
        select(
            select(*_bare)
            .where(
                jobs.c.queue == bindparam("in_queue"),
                jobs.c.state == state,
                jobs.c.seq > bindparam("after"),
            )
            .order_by(jobs.c.seq)
            .limit(LARGEST_BATCH)
            .subquery()
        )
        for state in OPEN
    )
).subquery("open")
"""One query per state, because the index is ordered by state and `seq`: only the page is read."""
_first_of_page = select(_page, now_ms().label("now")).order_by(_page.c.seq).limit(LARGEST_BATCH)


def read_all(connection: Connection, query: Any, **values: Any) -> list[OpenRecord]:
    return as_read(connection.execute(query, values).mappings().all())


def as_read(rows: Sequence[Row]) -> list[OpenRecord]:
    """Convert rows that were read together with the time."""
    return [
        OpenRecord(as_record(row), instant(row["now"]), row["relay_at"] is not None) for row in rows
    ]


def page_of(connection: Connection, queue: str, after: int) -> list[OpenRecord]:
    """Return the next open records of *queue*, in the order in which they were created."""
    return read_all(connection, _first_of_page, in_queue=queue, after=after)


def rows_of_places(connection: Connection, seqs: Sequence[int]) -> list[OpenRecord]:
    """Return those of these records that exist and are open."""
    these = jobs.c.seq.in_(seqs), jobs.c.state.in_(OPEN)
    return read_all(connection, select(*_bare, now_ms().label("now")).where(*these))


_of_ids = select(*_bare).where(named(jobs.c.id))


def rows_of_ids(connection: Connection, queue: str, ids: Collection[str]) -> Sequence[Row]:
    """Return the rows of records in any state, without payloads and results."""
    names = sorted(ids)
    return rows_of(connection.execute(_of_ids, {"in_queue": queue, "names": names}))


def highest_fence(connection: Connection, queue: str) -> int:
    # An invalid value in a row that was edited by hand must not affect the tokens of all jobs.
    real = jobs.c.queue == queue, jobs.c.state.in_(OPEN), jobs.c.fence <= HIGHEST_FENCE
    return connection.scalar(select(func.max(jobs.c.fence)).where(*real)) or 0


# ── claiming ─────────────────────────────────────────────────────────────────────────────

_due = (
    select(jobs.c.seq)
    .where(
        jobs.c.queue == bindparam("in_queue"),
        jobs.c.relay_at <= moment() + bindparam("early", type_=BigInteger),
        jobs.c.state.in_(OPEN),
    )
    .order_by(jobs.c.relay_at, jobs.c.seq)
    .limit(LARGEST_BATCH)
    .with_for_update(skip_locked=True)
)
_taken = (
    update(jobs)
    .where(jobs.c.seq.in_(_due.scalar_subquery()))
    .values(relay_at=now_ms() + _CLAIMED_FOR)
    .returning(*_bare, now_ms().label("now"))
)


def claim_due(connection: Connection, queue: str, early: int = 0) -> Sequence[RowMapping]:
    """Claim records of *queue* whose `relay_at` has come, or comes within *early* ms: no other
    relay takes them for a while. Returns rows for `as_read`.

    No row stays locked while the relay calls Redis, because Redis may hang.
    """
    return connection.execute(_taken, {"in_queue": queue, "early": early}).mappings().all()


def release(connection: Connection, seqs: Sequence[int]) -> None:
    """Give back claimed records that are not known to be in Redis, for the next look."""
    still = jobs.c.seq.in_(seqs), jobs.c.relay_at.is_not(None)
    connection.execute(update(jobs).where(*still).values(relay_at=now_ms()))


# ── writing ──────────────────────────────────────────────────────────────────────────────

_SEEN = ("seq", "job", "cancel_requested")
# Not for a record that was cancelled since it was read: its job must still be cancelled.
_seen_each = (
    update(jobs)
    .where(
        jobs.c.seq == bindparam("at_seq"),
        jobs.c.job == bindparam("at_job"),
        jobs.c.cancel_requested == bindparam("at_cancel_requested"),
    )
    .values(relay_at=None)
)
_all_seen = given(jobs, *_SEEN)
_seen_many = (
    update(jobs).where(*(jobs.c[name] == _all_seen.c[name] for name in _SEEN)).values(relay_at=None)
)


_held = (
    select(jobs, now_ms().label("now"))
    .where(jobs.c.seq.in_(bindparam("seqs", expanding=True)), jobs.c.state.in_(OPEN))
    .order_by(jobs.c.seq)
    .with_for_update()
)
_TIMES = ("finished_at", "relay_at")


def write_down(
    connection: Connection,
    there: Sequence[Record],
    changes: Sequence[tuple[Record, dict[str, Any]]],
    tell: Tell,
) -> Write[list[Row]]:
    """Note in the rows of *there* that their jobs are in Redis, and apply *changes*. The write
    returns the rows of records that got a new id in Redis.

    Times in *changes* are milliseconds from now. Rows that have changed meanwhile are left alone.
    """
    seen = [{name: getattr(record, name) for name in _SEEN} for record in there]
    each = [{f"at_{name}": value for name, value in values.items()} for values in seen]
    wanted = {(record.seq, record.job): change for record, change in changes}
    pairs: list[tuple[Row, Row]] = []
    if wanted:
        held = rows_of(connection.execute(_held, {"seqs": [seq for seq, _ in wanted]}))
        still = [(row, wanted.get((row["seq"], row["job"]))) for row in held]
        pairs += [(row, _changed(row, change)) for row, change in still if change is not None]
    rewritten = rewrite(connection, pairs, tell)

    def write(connection: Connection) -> list[Row]:
        if seen and has_arrays(connection):
            connection.execute(_seen_many, arrays_of(seen, *_SEEN))
        elif seen:
            connection.execute(_seen_each, each)
        rewritten(connection)
        return [after for before, after in pairs if after["job"] != before["job"]]

    return write


def _changed(row: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    later = {name: row["now"] + change[name] for name in _TIMES if change.get(name) is not None}
    return {**row, **change, **later}


# ── for people: the newest, and how many are in each state ───────────────────────────────

# One query per state, each by an index: otherwise all rows of the queue would have to be sorted.

LARGEST_PAGE = 1000
_brief = [column if column.name != "result" else null().label("result") for column in jobs.c]
_counts = select(
    *(
        select(func.count())
        .where(jobs.c.queue == bindparam("in_queue"), jobs.c.state == state)
        .scalar_subquery()
        for state in RecordState
    )
)


def newest(
    queue: str,
    *,
    state: RecordState | None,
    subject: str | Sequence[str] | None,
    prefix: str | Sequence[str] | None,
    after: str | None,
    size: int,
) -> Select[Any]:
    """Return the query for the newest records, one more than *size*. Raises InvalidOption."""
    name, most = queue_name(queue), integer("size", size, 1, LARGEST_PAGE) + 1
    wanted: list[ColumnElement[bool]] = [jobs.c.queue == name]
    if prefix is not None:
        # Not LIKE, which ignores case on SQLite, but not on PostgreSQL.
        begins = (func.substr(jobs.c.subject, 1, len(start)) == start for start in _several(prefix))
        wanted.append(or_(*begins))
    if after is not None:
        wanted.append(jobs.c.seq < _place(after))
    states = None if state is None else [record_state(state)]
    if subject is not None:
        # A subject has few records, so its index is the best. `coalesce` hides `state` from the
        # planner, which might otherwise prefer the index of states.
        wanted.append(jobs.c.subject.in_(_several(subject)))
        if states:
            wanted.append(func.coalesce(jobs.c.state, "").in_(states))
        return _sorted(select(*_brief).where(*wanted), jobs, most)
    by_state = (
        _sorted(select(*_brief).where(*wanted, jobs.c.state == one), jobs, most)
        for one in states or RecordState
    )
    all_of_them = union_all(*(select(part.subquery()) for part in by_state)).subquery()
    return _sorted(select(all_of_them), all_of_them, most)


def oldest(queue: str, states: Sequence[str], after: int, size: int) -> Select[Any]:
    """Return the query for the oldest records in *states* after *after*, without payloads and
    results.
    """
    name, most = queue_name(queue), integer("size", size, 1, LARGEST_PAGE)
    by_state = (
        select(*_bare)
        .where(jobs.c.queue == name, jobs.c.state == state, jobs.c.seq > after)
        .order_by(jobs.c.seq)
        .limit(most)
        for state in states
    )
    found = union_all(*(select(part.subquery()) for part in by_state)).subquery()
    return select(found).order_by(found.c.seq).limit(most)


def _sorted(query: Select[Any], rows: FromClause, most: int) -> Select[Any]:
    return query.order_by(rows.c.seq.desc()).limit(most)


def page(found: list[Record], size: int) -> RecordPage:
    """Make a page of the records that `newest` found."""
    more = len(found) > size
    return RecordPage(found[:size], _mark(found[size - 1].seq) if more else None)


def counted(connection: Connection, queue: str) -> dict[RecordState, int]:
    """Count the records of *queue* in each state."""
    found = connection.execute(_counts, {"in_queue": queue}).one()
    return dict(zip(RecordState, found, strict=True))


def _several(one_or_more: str | Sequence[str]) -> Sequence[str]:
    return [one_or_more] if isinstance(one_or_more, str) else one_or_more


def _mark(seq: int) -> str:
    return base64.urlsafe_b64encode(str(seq).encode()).decode().rstrip("=")


def _place(after: str) -> int:
    try:
        place = int(base64.urlsafe_b64decode(after + "=" * (-len(after) % 4)))
    except (ValueError, UnicodeError):
        place = -1
    if not 0 <= place < 2**63:
        raise InvalidOption(
            "after", after, rule="must be the `after` value returned with the previous page"
        )
    return place
