"""Supersession: which record about a subject is the latest, in whatever order records are created.

The latest is the one with the highest version, if callers give versions; among equal versions, the
one that follows the other; otherwise the one created later. Versions alone are not enough: they are
times of other systems, often in whole seconds. Ids are random.

Each owner has its own latest record: a record never supersedes those of another owner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from sqlalchemy import bindparam, or_, select, text, update
from sqlalchemy.engine import Connection

from towpath.ledger.database.bulk import Texts, has_arrays, named, rows_of
from towpath.ledger.database.schema import jobs
from towpath.ledger.records.record import RESTING, RecordState, Tell, next_name, owner_in

Key = tuple[str, str]
"""A queue, and the id or the subject of a record there."""
Row = dict[str, Any]
LOOKED_BACK = 32
"""How many of a subject's last records are compared: more than are created in a second."""


def by_queue(keys: Iterable[Key]) -> Iterable[tuple[str, list[str]]]:
    """Group keys by queue, sorted, so that all callers lock rows in the same order."""
    for queue, group in groupby(sorted(keys), key=lambda key: key[0]):
        yield queue, [name for _, name in group]


# ── the order ────────────────────────────────────────────────────────────────────────────

_COLUMNS = "seq, id, job, state, subject, version, revision, follows, options"
_FOUND = "FROM towpath_jobs WHERE queue = :in_queue AND subject ="
_MOST = f"ORDER BY version DESC, seq DESC LIMIT {LOOKED_BACK}"
# These texts contain only our own names and placeholders of parameters, no outside values. Each
# costs one index lookup per subject, even if the table has no statistics.
_names = bindparam("names", type_=Texts())
_last_postgres = text(
    f"SELECT it.* FROM unnest(CAST(:names AS text[])) AS name,"  # noqa: S608 -- see above
    f" LATERAL (SELECT {_COLUMNS} {_FOUND} name {_MOST}) AS it"
).bindparams(_names)
_last_sqlite = text(
    f"SELECT {_COLUMNS} FROM (SELECT value AS name FROM json_each(:names))"  # noqa: S608 -- see above
    f" CROSS JOIN towpath_jobs WHERE seq IN (SELECT seq {_FOUND} name {_MOST})"
).bindparams(_names)


def histories(connection: Connection, subjects: Iterable[Key]) -> dict[Key, list[Row]]:
    """Read the last records about each subject, in the order of their creation."""
    found: dict[Key, list[Row]] = {subject: [] for subject in subjects}
    last = _last_postgres if has_arrays(connection) else _last_sqlite
    for queue, names in by_queue(found):
        for row in rows_of(connection.execute(last, {"in_queue": queue, "names": names})):
            if row["version"] is not None:  # null only if the row was edited by hand
                found[queue, row["subject"]].append(with_owner(row))
    return {key: sorted(rows, key=lambda row: row["seq"]) for key, rows in found.items()}


def with_owner(row: Row) -> Row:
    """Return *row* with the owner from its options."""
    return {**row, "owner": owner_in(row["options"])}


def by_owner(rows: Iterable[Row]) -> dict[str | None, list[Row]]:
    """Group rows by owner, in the same order."""
    found: dict[str | None, list[Row]] = {}
    for row in rows:
        found.setdefault(row["owner"], []).append(row)
    return found


def in_order(rows: Sequence[Row]) -> list[Row]:
    """Sort *rows*, given in the order of creation, so that each is behind the one that it follows.

    A row that follows none, or one that does not exist, keeps its place.
    """
    if len(rows) < 2:  # the usual case, and the rest takes a tenth of creating a record
        return list(rows)
    ordered: list[Row] = []
    begun: set[str] = set()

    def place(row: Row) -> None:
        begun.add(row["id"])
        before = row["follows"]
        if before is not None and all(other["revision"] != before for other in ordered):
            for other in rows:
                # A row that follows this one, and goes back to that revision, is later.
                is_back = other["follows"] == row["revision"]
                if other["revision"] == before and other["id"] not in begun and not is_back:
                    place(other)
                    break
        ordered.append(row)

    for row in rows:
        if row["id"] not in begun:
            place(row)
    return ordered


def latest(known: Sequence[Row]) -> Row | None:
    """Return the latest of *known*; None if there is none."""
    top = max((row["version"] for row in known), default=None)
    ordered = in_order([row for row in known if row["version"] == top])
    return ordered[-1] if ordered else None


def version_of(known: Sequence[Row], version: int | None) -> int:
    """Return *version*; if it is None, the highest version, so that ties are broken by `follows`,
    then by the order of creation.
    """
    return max((row["version"] for row in known), default=0) if version is None else version


def told_before(
    known: Sequence[Row], *, version: int, revision: str, follows: str | None
) -> Row | None:
    """Return the record of the same event, if there is one: callers may repeat it under another id.

    Events are the same if revision, version and, as far as both have it, `follows` are equal;
    but not if the subject has returned to the revision in *follows* since that record.
    """
    ordered = in_order([row for row in known if row["version"] == version])
    for place in reversed(range(len(ordered))):
        row = ordered[place]
        if row["revision"] == revision and (
            follows is None or row["follows"] is None or row["follows"] == follows
        ):
            since = ordered[place + 1 :]
            is_back = follows is not None and any(other["revision"] == follows for other in since)
            return None if is_back else row
    return None


# ── superseding ──────────────────────────────────────────────────────────────────────────

_resting = or_(*(jobs.c.state == state for state in RESTING))
_waiting = select(jobs.c.seq, jobs.c.id, jobs.c.subject, jobs.c.state, jobs.c.options).where(
    named(jobs.c.subject), _resting
)
_held = (
    select(jobs)
    .where(jobs.c.seq.in_(bindparam("seqs", expanding=True)), _resting)
    .order_by(jobs.c.seq)
    .with_for_update()
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
_revived = (
    update(jobs)
    .where(jobs.c.seq == bindparam("at"), jobs.c.state == RecordState.SUPERSEDED)
    .values(
        state=RecordState.PENDING,
        job=bindparam("name"),
        attempts=0,
        last_error=None,
        due_at=None,
        next_try_at=None,
        finished_at=None,
        relay_at=bindparam("now"),
    )
)


def left_out(connection: Connection, known: Mapping[Key, Sequence[Row]]) -> dict[Key, list[Row]]:
    """Read all waiting records of subjects that may have more records than those in *known*."""
    found = {key: list[Row]() for key, rows in known.items() if len(rows) >= LOOKED_BACK}
    for queue, names in by_queue(found):
        for row in rows_of(connection.execute(_waiting, {"in_queue": queue, "names": names})):
            found[queue, row["subject"]].append(with_owner(row))
    return found


def outdated(
    known: Mapping[Key, Sequence[Row]], more: Mapping[Key, Sequence[Row]]
) -> dict[int, str]:
    """Return the numbers of waiting records that are not the latest of their subject and owner,
    each with the id of the latest. *known* are the last records about each subject, *more* those
    that it leaves out.
    """
    return {
        row["seq"]: newest["id"]
        for subject, rows in known.items()
        for owner, own in by_owner(rows).items()
        if (newest := latest(own)) is not None
        for row in (*own, *by_owner(more.get(subject, ())).get(owner, ()))
        if row["id"] != newest["id"] and row["state"] in RESTING
    }


def supersede(connection: Connection, over: Mapping[int, str], now: int, tell: Tell) -> list[Row]:
    """End records that are *outdated* and still waiting. Returns their rows after that."""
    if not over:
        return []
    held = rows_of(connection.execute(_held, {"seqs": list(over)}))
    ended = {"state": RecordState.SUPERSEDED, "finished_at": now, "relay_at": None}
    for row in held:
        row.update(ended, last_error=f"superseded by {over[row['seq']]}")
    if held:
        changes = [{"at": row["seq"], "now": now, "why": row["last_error"]} for row in held]
        connection.execute(_ended, changes)
        tell(held)(connection)
    return held


def revive(connection: Connection, known: Mapping[Key, Sequence[Row]], now: int) -> None:
    """Queue the latest record of each subject and owner again if it was superseded by a record that
    turned out to be older.

    That happens if a record between two others is created last: only then their order is known.
    """
    for rows in known.values():
        for own in by_owner(rows).values():
            newest = latest(own)
            if newest is not None and newest["state"] == RecordState.SUPERSEDED:
                name = next_name(newest["id"], newest["job"])
                connection.execute(_revived, {"at": newest["seq"], "name": name, "now": now})
