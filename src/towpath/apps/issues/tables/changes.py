"""Writes to the rows of issues: changes, notes of what the queue knows, moves, read pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Column, Delete, Table, Update, bindparam, delete, insert, select, update
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from towpath.apps.issues.model import Issue, IssueSource
from towpath.apps.issues.tables import KnownPage
from towpath.apps.issues.tables.schema import (
    issue_of,
    issues,
    pages,
    repositories,
    row_of,
    selectors,
)
from towpath.clock import wall_ms
from towpath.ledger.database.writing import Decide, Overtaken, Write
from towpath.ledger.records.record import Recorded

_i, _r, _s = issues.c, repositories.c, selectors.c

Pair = tuple[Issue | None, Issue | None]
"""A row before and after a change."""
Beside = Callable[[Connection, Issue | None, Issue], Write[Recorded] | None]
"""Returns the job to write in the transaction of a change; None = none."""


def change_issues(
    ids: Sequence[str],
    change: Callable[[Connection, Mapping[str, Issue]], Mapping[str, Issue | None]],
    beside: Beside,
    unless: Callable[[Connection, Issue], bool] | None = None,
) -> Decide[tuple[list[Pair], list[Recorded]]]:
    """Change the rows *ids* as *change* says; returns each before and after, equal if unchanged,
    and the jobs to queue.

    *unless* is asked last, in the write. If it is true for one row, none is changed. A new row is
    stored with the note of what the queue is about to get.
    """

    def decide(connection: Connection) -> Write[tuple[list[Pair], list[Recorded]]]:
        rows = _lock_rows(connection, ids)
        changed_to = change(connection, rows)
        pairs = [_pair(rows.get(id), changed_to[id]) for id in ids]
        differ = [(before, after) for before, after in pairs if after and after != before]
        more = [beside(connection, before, after) for before, after in differ]
        missing = _missing_rows(connection, [after for _, after in differ])

        def write(connection: Connection) -> tuple[list[Pair], list[Recorded]]:
            if unless is not None and any(unless(connection, after) for _, after in differ):
                return [(before, before) for before, _ in pairs], []
            _write_rows(connection, differ)
            for table, values in missing:
                _insert_row(connection, table, values)
            return pairs, [step(connection) for step in more if step is not None]

        return write

    return decide


def _lock_rows(connection: Connection, ids: Sequence[str]) -> dict[str, Issue]:
    """The known rows, by id. PostgreSQL locks them; on SQLite, a write compares revisions."""
    named = _i.id == ids[0] if len(ids) == 1 else _i.id.in_(ids)
    query = select(issues).where(named).order_by(_i.id).with_for_update()
    found = (issue_of(row) for row in connection.execute(query).mappings())
    return {issue.id: issue for issue in found}


def _pair(before: Issue | None, after: Issue | None) -> Pair:
    if after is None or after == before:
        return before, before
    after = msgspec.structs.replace(after, revision=after.revision + 1, updated=wall_ms())
    if before is None and after.wanted:
        after = msgspec.structs.replace(after, applied=after.wanted, settled=False)
    return before, after


def _write_rows(connection: Connection, some: Sequence[tuple[Issue | None, Issue]]) -> None:
    if new := [row_of(after) for before, after in some if before is None]:
        try:
            connection.execute(insert(issues), new)
        except IntegrityError as error:  # another process added one first
            raise Overtaken from error
    for before, after in some:
        if before is not None:
            same = _i.id == before.id, _i.revision == before.revision
            _require_one(connection, update(issues).where(*same).values(row_of(after)))


def _missing_rows(
    connection: Connection, some: Sequence[Issue]
) -> list[tuple[Table, dict[str, Any]]]:
    """The missing rows of these issues' repositories and selectors."""
    places = {issue.repository.lower(): issue for issue in some}
    kinds = {issue.selector: issue for issue in some if issue.role}
    new = [
        (repositories, _new_repository(issue.repository, issue.source))
        for issue in _issues_without_row(connection, _r.place, places)
    ]
    for issue in _issues_without_row(connection, _s.selector, kinds):
        kind = {"selector": issue.selector, "place": issue.repository.lower(), "role": issue.role}
        new.append((selectors, kind))
    return new


def _issues_without_row(
    connection: Connection, column: Column[str], wanted: Mapping[str, Issue]
) -> list[Issue]:
    """The issues whose name is in no row of *column*."""
    if not wanted:
        return []
    names = list(wanted)
    named = column == names[0] if len(names) == 1 else column.in_(names)
    there = set(connection.scalars(select(column).where(named)))
    return [issue for name, issue in wanted.items() if name not in there]


def _new_repository(name: str, source: str) -> dict[str, Any]:
    return {
        "place": name.lower(), "name": name, "source": str(source), "default_branch": "",
        "synced": 0, "trouble": "",
    }  # fmt: skip


def _insert_row(connection: Connection, table: Table, values: dict[str, Any]) -> None:
    try:
        connection.execute(insert(table), values)
    except IntegrityError as error:  # another process was faster
        raise Overtaken from error


def note_intent(some: Sequence[Issue]) -> Write[list[bool]]:
    """Note what the queue is about to get of each issue; False for an issue whose row has changed
    since. The note adds one to the revision.
    """

    def write(connection: Connection) -> list[bool]:
        noted: list[bool] = []
        for issue in some:
            same = _i.id == issue.id, _i.revision == issue.revision
            values = {"applied": issue.wanted, "settled": False, "revision": issue.revision + 1}
            done = connection.execute(update(issues).where(*same).values(values)).rowcount
            noted.append(bool(done))
        return noted

    return write


_NOTE_IN_QUEUE = (
    update(issues)
    .where(_i.id == bindparam("which"), _i.revision == bindparam("seen"))
    .values(applied=bindparam("told"), settled=True, revision=_i.revision + 1)
)


def note_in_queue(some: Sequence[Issue]) -> Write[None]:
    """Note that the queue matches each issue, unless its row has changed since."""
    rows = [{"which": issue.id, "seen": issue.revision, "told": issue.wanted} for issue in some]
    return lambda connection: connection.execute(_NOTE_IN_QUEUE, rows) and None


def note_renewal(issue: Issue, expires: int) -> Write[bool]:
    """Note that the lease of a hold was renewed."""
    same = _i.id == issue.id, _i.token == issue.token, _i.agent == issue.agent
    return lambda connection: bool(
        connection.execute(
            update(issues).where(*same).values(expires=expires, revision=_i.revision + 1)
        ).rowcount
    )


def move_issue(id: str, repository: str) -> Decide[str]:
    """Move the issue *id* to another repository; returns the id of the task to withdraw, or "".

    If the new repository has a row for the issue already, that row stays if it is held; else the
    moved one replaces it.
    """
    new_id = f"{repository.lower()}#{id.rpartition('#')[2]}"

    def decide(connection: Connection) -> Write[str]:
        rows = _lock_rows(connection, [id, new_id])
        moving, there = rows.get(id), rows.get(new_id)
        replaced = moving if there is not None and there.held else there

        def write(connection: Connection) -> str:
            if moving is None:  # another process has moved it
                return ""
            if replaced is not None:
                same = _i.id == replaced.id, _i.revision == replaced.revision
                _require_one(connection, delete(issues).where(*same))
            if replaced is not moving:
                same = _i.id == id, _i.revision == moving.revision
                names = {"id": new_id, "repository": repository, "place": repository.lower()}
                moved = update(issues).where(*same).values({**names, "revision": _i.revision + 1})
                try:
                    _require_one(connection, moved)
                except IntegrityError as error:  # another process added a row there
                    raise Overtaken from error
            return replaced.task_id if replaced is not None else ""

        return write

    return decide


def _require_one(connection: Connection, change: Update | Delete) -> None:
    """Change one row by its revision. Raises Overtaken if it has another revision by now."""
    if not connection.execute(change).rowcount:
        raise Overtaken


# ── repositories ─────────────────────────────────────────────────────────────────────────


def set_repository(name: str, **values: Any) -> Decide[None]:
    """Store *values* in the row of a repository."""

    def decide(connection: Connection) -> Write[None]:
        there = connection.scalar(select(_r.place).where(_r.place == name.lower())) is not None

        def write(connection: Connection) -> None:
            if not there:
                _insert_row(connection, repositories, _new_repository(name, IssueSource.GITHUB))
            change = update(repositories).where(_r.place == name.lower())
            connection.execute(change.values(values))

        return write

    return decide


def rename_repository(old: str, new: str) -> Decide[None]:
    """Rename a repository. Its first name is kept, because the options may have that one."""

    def decide(connection: Connection) -> Write[None]:
        first = connection.scalar(select(_r.formerly).where(_r.place == old.lower())) or old
        note = set_repository(new, formerly=first if first.lower() != new.lower() else None)(
            connection
        )

        def write(connection: Connection) -> None:
            for table in (repositories, selectors, pages):
                connection.execute(delete(table).where(table.c.place == old.lower()))
            note(connection)

        return write

    return decide


def store_pages(repository: str, some: Sequence[KnownPage]) -> Write[None]:
    """Store pages as they were read, in place of what was stored before."""
    place, paths = repository.lower(), [page.path for page in some]
    rows = [
        {
            "path": page.path,
            "place": place,
            "etag": page.etag,
            "numbers": msgspec.json.encode(sorted(page.numbers)).decode(),
            "following": page.next,
        }
        for page in some
    ]

    def write(connection: Connection) -> None:
        connection.execute(delete(pages).where(pages.c.path.in_(paths)))
        try:
            connection.execute(insert(pages), rows)
        except IntegrityError as error:  # another process has read them just now
            raise Overtaken from error

    return write


def delete_pages(repository: str) -> Write[None]:
    """Forget the pages of a repository, so that the next comparison reads all of them."""
    gone = delete(pages).where(pages.c.place == repository.lower())
    return lambda connection: connection.execute(gone) and None
