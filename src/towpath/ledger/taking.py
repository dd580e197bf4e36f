"""Making records: once per id, and of one subject the latest counts.

Statements are made once, here: making one costs more than running it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from sqlalchemy import (
    ARRAY,
    Text,
    and_,
    bindparam,
    func,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from towpath.ids import JobId
from towpath.ledger.announcing import Tell, nobody
from towpath.ledger.record import (
    RESTING,
    NewRecord,
    Recorded,
    RecordState,
    as_record,
    packed_options,
)
from towpath.ledger.schema import jobs, now_ms
from towpath.ledger.several import arrays_of, given, has_arrays, named, rows_of

NUDGED_WITHIN = 2_000
"""Milliseconds in which whoever made a record brings it to Redis; after that a relay does."""

Key = tuple[str, str]
"""A queue, and the id or the subject of a record there."""


def take(
    connection: Connection, wanted: Sequence[NewRecord], tell: Tell = nobody
) -> list[Recorded]:
    """Make records, in the caller's transaction. The same queue and id twice is one record.

    Three statements, however many records; one more per queue where some were there before.
    """
    now = _time(connection, wanted)
    found = {_key(row): row for row in _inserted(connection, wanted, now)}
    fresh = set(found)
    found |= _known(connection, {(it.queue, it.job.id) for it in wanted} - fresh)
    subjects = [(it.queue, it.subject) for it in wanted if it.subject is not None]
    superseded: dict[Key, list[JobId]] = {}
    for row in supersede(connection, subjects, now, tell):
        superseded.setdefault((row["queue"], row["subject"]), []).append(row["id"])
        found[_key(row)] = row
    answers: list[Recorded] = []
    for new in wanted:
        key = new.queue, new.job.id
        ended = superseded.get((new.queue, new.subject or ""), ())
        others = tuple(id for id in ended if id != new.job.id)
        answers.append(Recorded(as_record(found[key]), key not in fresh, others))
        fresh.discard(key)  # the second of two in one batch finds the first
    return answers


# ── rows ─────────────────────────────────────────────────────────────────────────────────


def by_queue(keys: Iterable[Key]) -> Iterable[tuple[str, list[str]]]:
    """The keys of each queue; in one order for everybody who locks what they name."""
    for queue, group in groupby(sorted(keys), key=lambda key: key[0]):
        yield queue, [name for _, name in group]


def _key(row: dict[str, Any]) -> Key:
    return row["queue"], row["id"]


_known_ones = select(jobs).where(named(jobs.c.id))


def _known(connection: Connection, keys: Iterable[Key]) -> dict[Key, dict[str, Any]]:
    found: dict[Key, dict[str, Any]] = {}
    for queue, ids in by_queue(keys):
        rows = rows_of(connection.execute(_known_ones, {"in_queue": queue, "names": ids}))
        found |= {_key(row): row for row in rows}
    return found


def _row(new: NewRecord, now: int) -> dict[str, Any]:
    more = new.job.more or {}
    due: int | None = more["due"] if "due" in more else now + more.get("delay", 0)
    return {
        "queue": new.queue,
        "id": new.job.id,
        "job": new.job.id,
        "state": RecordState.PENDING,
        "payload": new.job.payload,
        "options": packed_options(more),
        "priority": more.get("priority", 50),
        "lane": more.get("lane"),
        "subject": new.subject,
        "version": new.version,
        "attempts": 0,
        "max_attempts": more.get("max_attempts"),
        "fence": 0,
        "created_at": now,
        "due_at": due if "due" in more or "delay" in more else None,
        "relay_at": now + NUDGED_WITHIN,
        "cancel_requested": False,
    }


_MADE = (
    "queue", "id", "job", "state", "payload", "options", "priority", "lane", "subject", "version",
    "attempts", "max_attempts", "fence", "created_at", "due_at", "relay_at", "cancel_requested",
)  # fmt: skip
_made_each = (
    sqlite.insert(jobs).on_conflict_do_nothing(index_elements=["queue", "id"]).returning(jobs)
)
_all = given(jobs, *_MADE)
_made_many = (
    postgresql.insert(jobs)
    .from_select(_MADE, select(*(_all.c[name] for name in _MADE)))
    .on_conflict_do_nothing(index_elements=["queue", "id"])
    .returning(jobs)
)


def _inserted(
    connection: Connection, wanted: Sequence[NewRecord], now: int
) -> list[dict[str, Any]]:
    """Those that are new. Somebody may make the same at the same time: one of both does."""
    rows = [_row(new, now) for new in wanted]
    if has_arrays(connection):
        return rows_of(connection.execute(_made_many, arrays_of(rows, *_MADE)))
    return rows_of(connection.execute(_made_each, rows))


# ── one at a time ────────────────────────────────────────────────────────────────────────

_now = select(now_ms())
_named = func.unnest(bindparam("names", type_=ARRAY(Text))).column_valued("name")
_lock = func.count(func.pg_advisory_xact_lock(func.hashtextextended(_named, 0)))
# In this order: what time it is when all are locked.
_locked_and_now = select(select(_lock).scalar_subquery().label("locked"), now_ms().label("now"))


def _time(connection: Connection, wanted: Iterable[NewRecord]) -> int:
    """What time it is for the database, now that nobody else writes about the same subjects.

    Two who do so at the same time would not see each other's rows. SQLite has one writer anyway.
    In one order, so that nobody waits in a circle. Not for ids as well: a caller may make any
    number of records in one transaction, and a server has a few thousand locks in all.
    """
    names = sorted({f"{it.queue}/{it.subject}" for it in wanted if it.subject is not None})
    if not names or not has_arrays(connection):
        return connection.scalar(_now) or 0
    return connection.execute(_locked_and_now, {"names": names}).one().now


# ── subjects ─────────────────────────────────────────────────────────────────────────────

_newer = jobs.alias("newer")
_newest = (
    select(_newer.c.id)
    .where(
        _newer.c.queue == jobs.c.queue,
        _newer.c.subject == jobs.c.subject,
        or_(
            _newer.c.version > jobs.c.version,
            and_(_newer.c.version == jobs.c.version, _newer.c.id > jobs.c.id),
        ),
    )
    .order_by(_newer.c.version.desc(), _newer.c.id.desc())
    .limit(1)
    .scalar_subquery()
)
"""The latest of those about a row's subject that are newer than the row; none = it is."""
_resting = or_(*(jobs.c.state == state for state in RESTING))
_older = (
    select(jobs, _newest.label("newest"))
    .where(named(jobs.c.subject), _resting, _newest.is_not(None))
    .order_by(jobs.c.seq)
    .with_for_update(of=jobs)
)
_ended = (
    update(jobs)
    .where(jobs.c.seq == bindparam("at"))
    .values(
        state=RecordState.SUPERSEDED,
        finished_at=bindparam("now"),
        relay_at=None,
        last_error=bindparam("why"),
    )
)


def supersede(
    connection: Connection, subjects: Iterable[Key], now: int, tell: Tell
) -> list[dict[str, Any]]:
    """End all that have not begun and are not the latest of their subject; as they are then."""
    rows: list[dict[str, Any]] = []
    for queue, names in by_queue(set(subjects)):
        rows += rows_of(connection.execute(_older, {"in_queue": queue, "names": names}))
    if not rows:
        return []
    over = {"state": RecordState.SUPERSEDED, "finished_at": now, "relay_at": None}
    for row in rows:
        row.update(over, last_error=f"superseded by {row.pop('newest')}")
    changes = [{"at": row["seq"], "now": now, "why": row["last_error"]} for row in rows]
    connection.execute(_ended, changes)
    tell(connection, rows)
    return rows
