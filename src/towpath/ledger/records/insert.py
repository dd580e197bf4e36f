"""Creates records: one per id, and one per event of a subject.

Statements are built once, at import: building one costs more than running it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import ARRAY, Select, Text, bindparam, func, literal, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from towpath.ids import JobId
from towpath.ledger.database.bulk import arrays_of, given, has_arrays, named, rows_of
from towpath.ledger.database.schema import jobs, now_ms
from towpath.ledger.database.writing import Overtaken, Write
from towpath.ledger.records.record import (
    NewRecord,
    Recorded,
    RecordState,
    Tell,
    as_record,
    nobody,
    owner_in,
    packed_options,
)
from towpath.ledger.records.supersession import (
    Key,
    Row,
    by_queue,
    histories,
    left_out,
    outdated,
    revive,
    supersede,
    told_before,
    version_of,
    with_owner,
)

QUEUED_WITHIN = 2_000
"""Milliseconds in which the creator of a record queues it in Redis; after that, a relay does."""


def submit(
    connection: Connection,
    wanted: Sequence[NewRecord],
    tell: Tell = nobody,
    *,
    queued: bool = True,
) -> Write[Callable[[], list[Recorded]]]:
    """Create records in the caller's transaction. Records with the same queue and id are one
    record, and so are records of the same event: the answer is then the first one.

    With *queued* the caller queues them in Redis after the commit, and a relay leaves it time for
    that. Three statements for any number of records; one or two more if some have subjects, and one
    per queue if some existed before. The write returns a function that builds the answers, so that
    this can happen after the commit.
    """
    now, there = _time(connection, wanted)
    subjects = {(record.queue, record.subject) for record in wanted if record.subject}
    # Not needed on PostgreSQL, where the subjects are locked.
    last = connection.scalar(_last) if subjects and not has_arrays(connection) else None
    known = histories(connection, subjects)
    seen = {subject: [*rows] for subject, rows in known.items()}
    more = left_out(connection, known)
    planned, answering = _plan(known, wanted)
    relay_at = now + QUEUED_WITHIN if queued else now
    rows = [row for new in planned if _key(row := new_row(new, now, relay_at)) not in there]
    new = {_key(row): row for row in reversed(rows)}  # of two with the same id, the first counts

    def make(connection: Connection) -> Callable[[], list[Recorded]]:
        # If no record was created since `last` was read, the histories can't have grown.
        behind = last is not None and connection.scalar(_last) != last
        if behind and histories(connection, subjects) != seen:
            raise Overtaken
        # Another transaction may insert the same record at the same time; only one succeeds.
        each = (_made_each, rows)
        insert = (_made_many, arrays_of(rows, *_MADE)) if has_arrays(connection) else each
        made = {(queue, id): seq for queue, id, seq in connection.execute(*insert)} if rows else {}
        found = there | {key: {**NOT_YET, **new[key], "seq": seq} for key, seq in made.items()}
        others = _rows(connection, _known_ones, set(answering) - found.keys())
        found.update({_key(row): row for row in others})
        over: list[Row] = []
        if subjects:
            # Only records of the same owners: a submit must not change those of another owner.
            owners = {(record.queue, record.subject, _owner(record)) for record in wanted}
            own_rows = {
                key: [
                    row
                    for row in _replace_planned(key, known[key], found)
                    if (*key, row["owner"]) in owners
                ]
                for key in known
            }
            over = supersede(connection, outdated(own_rows, more), now, tell)
            revive(connection, own_rows, now)
        return lambda: _answers(wanted, answering, found, set(made), over)

    return make


def _answers(
    wanted: Sequence[NewRecord],
    answering: Sequence[Key],
    found: dict[Key, Row],
    fresh: set[Key],
    over: Sequence[Row],
) -> list[Recorded]:
    superseded: dict[tuple[str, str, str | None], list[JobId]] = {}
    for row in over:
        latest_of = row["queue"], row["subject"], owner_in(row["options"])
        superseded.setdefault(latest_of, []).append(row["id"])
        found[_key(row)] = row
    answers: list[Recorded] = []
    for new, key in zip(wanted, answering, strict=True):
        latest_of = new.queue, new.subject or "", _owner(new)
        ended = superseded.get(latest_of, ()) if key in fresh else ()
        others = tuple(id for id in ended if id != key[1])
        answers.append(Recorded(as_record(found[key]), key not in fresh, others))
        fresh.discard(key)  # the second of two in one batch finds the first
    return answers


def _plan(
    known: Mapping[Key, list[dict[str, Any]]], wanted: Sequence[NewRecord]
) -> tuple[list[NewRecord], list[Key]]:
    """Return the records to create, with their versions, and for each of *wanted* the key of the
    record to answer with.

    Adds the records to create to *known*.
    """
    planned: list[NewRecord] = []
    answering: list[Key] = []
    for new in wanted:
        key = new.queue, str(new.job.id)
        if new.subject is not None:
            rows = known[new.queue, new.subject]
            owner = _owner(new)
            own = [row for row in rows if row["owner"] == owner]
            version = version_of(own, new.version)
            place: dict[str, Any] = {
                "version": version,
                "revision": new.revision,
                "follows": new.follows,
            }
            if new.revision is not None and (same := told_before(own, **place)):
                answering.append((new.queue, same["id"]))
                continue
            rows.append({"id": key[1], "owner": owner, **place})
            new = new._replace(version=version)  # noqa: PLW2901 -- the same record with its version
        planned.append(new)
        answering.append(key)
    return planned, answering


def _owner(new: NewRecord) -> str | None:
    return (new.job.more or {}).get("owner")


def _replace_planned(
    subject: Key, rows: Sequence[dict[str, Any]], found: Mapping[Key, dict[str, Any]]
) -> list[dict[str, Any]]:
    """Replace planned records in *rows* by the rows that were created. Leaves out rows that existed
    before under the id of a planned record, but are about another subject."""
    queue, name = subject
    made = {row["id"]: row if "seq" in row else with_owner(found[queue, row["id"]]) for row in rows}
    return sorted(
        (row for row in made.values() if row["subject"] == name), key=lambda row: row["seq"]
    )


# ── rows ─────────────────────────────────────────────────────────────────────────────────


def _key(row: dict[str, Any]) -> Key:
    return row["queue"], row["id"]


_known_ones = select(jobs).where(named(jobs.c.id))


def _rows(connection: Connection, query: Select[Any], keys: Iterable[Key]) -> list[Row]:
    return [
        row
        for queue, ids in by_queue(keys)
        for row in rows_of(connection.execute(query, {"in_queue": queue, "names": ids}))
    ]


def new_row(new: NewRecord, now: int, relay_at: int) -> dict[str, Any]:
    """Return the row of a record created at *now*, without `seq`."""
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
        "revision": new.revision,
        "follows": new.follows,
        "attempts": 0,
        "max_attempts": more.get("max_attempts"),
        "fence": 0,
        "created_at": now,
        "due_at": due if "due" in more or "delay" in more else None,
        "relay_at": relay_at,
        "cancel_requested": False,
    }


_MADE = (
    "queue", "id", "job", "state", "payload", "options", "priority", "lane", "subject", "version",
    "revision", "follows", "attempts", "max_attempts", "fence", "created_at", "due_at", "relay_at",
    "cancel_requested",
)  # fmt: skip
NOT_YET: dict[str, Any] = {column.name: None for column in jobs.c if column.name not in _MADE}
"""The columns that are null in a new record."""
_PLACE = jobs.c.queue, jobs.c.id, jobs.c.seq
# DO NOTHING for a conflict of any unique key: if another transaction inserts the same record,
# PostgreSQL may find the conflict of `job` before that of `id`, and would raise it as an error.
_made_each = sqlite.insert(jobs).on_conflict_do_nothing().returning(*_PLACE)
_all = given(jobs, *_MADE)
_made_many = (
    postgresql.insert(jobs)
    .from_select(_MADE, select(*(_all.c[name] for name in _MADE)))
    .on_conflict_do_nothing()
    .returning(*_PLACE)
)


# ── locks of subjects, and the time ──────────────────────────────────────────────────────

_last = select(func.coalesce(func.max(jobs.c.seq), 0))
_now_and_known = select(jobs, now_ms().label("now")).select_from(
    select(literal(1)).subquery().outerjoin(jobs, named(jobs.c.id))
)
_named = func.unnest(bindparam("names", type_=ARRAY(Text))).column_valued("name")
_lock = func.count(func.pg_advisory_xact_lock(func.hashtextextended(_named, 0)))
# In this order, so that the time is read after all locks are held.
_locked_and_now = select(select(_lock).scalar_subquery().label("locked"), now_ms().label("now"))


def _time(connection: Connection, wanted: Sequence[NewRecord]) -> tuple[int, dict[Key, Row]]:
    """Lock the subjects of *wanted*, and return the database's time; on SQLite, also those of the
    wanted records that exist, since they can be read without the write lock.

    Without locks, two transactions about a subject would not see each other's rows. SQLite needs
    none, because it has one writer. The locks are taken in sorted order, to prevent deadlocks. Ids
    are not locked: a transaction may create any number of records, and PostgreSQL has only a few
    thousand locks.
    """
    if has_arrays(connection):
        names = sorted(
            {f"{record.queue}/{record.subject}" for record in wanted if record.subject is not None}
        )
        return connection.execute(_locked_and_now, {"names": names}).one().now, {}
    rows = _rows(
        connection, _now_and_known, {(record.queue, str(record.job.id)) for record in wanted}
    )
    return rows[0]["now"] if rows else 0, {_key(row): row for row in rows if row["seq"] is not None}
