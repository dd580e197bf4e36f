"""Writes to the rows of issues: changes, notes of what the queue knows, moves, read pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace
from sqlalchemy import Column, Delete, Table, Update, bindparam, delete, insert, select, update
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from towpath.apps.issues.model import (
    PROJECTIONS,
    Facts,
    Issue,
    IssueSource,
    IssueState,
    Payload,
)
from towpath.apps.issues.policy import IssuePolicy
from towpath.apps.issues.tables import KnownPage, count_held, highest_priority, open_ids
from towpath.apps.issues.tables.schema import (
    issue_of,
    issues,
    needs_no_update,
    pages,
    repositories,
    row_of,
    selectors,
)
from towpath.apps.issues.transitions import Transition, apply_facts, judge
from towpath.clock import wall_ms
from towpath.ledger.database.writing import Decide, Overtaken, Write
from towpath.ledger.records.jobs import Jobs
from towpath.ledger.records.record import Recorded

_i, _r, _s = issues.c, repositories.c, selectors.c


class IssueChange(NamedTuple):
    """A row before and after a change; equal = nothing was changed."""

    before: Issue | None
    after: Issue | None

    @property
    def changed(self) -> bool:
        return self.before != self.after


class QueueWork(NamedTuple):
    """What changed rows leave to do in the queue, in the published keys, and in other rows."""

    submit: list[Issue]
    """New issues whose rows already name a task that the queue does not have yet."""
    update: list[Issue]
    """Issues whose tasks in the queue differ from their rows."""
    delays: list[Issue]
    """Issues whose review delay is to be published."""
    judge_blocked: bool
    """Whether an issue was opened or closed, so that others may be blocked or free now."""


class ChangedIssues(NamedTuple):
    """The rows that a transaction has changed, in the order of the request, and the work that is
    left to do.
    """

    changes: list[IssueChange]
    work: QueueWork
    limited: bool = False
    """Whether a limit of the policy was reached; then nothing was changed."""


Answer = tuple[ChangedIssues, list[Recorded]]
"""The changed rows, and the records of projections, for `ledger.jobs.decide`."""


def change_issues(
    wanted: Mapping[str, Facts | Transition], *, policy: IssuePolicy, projections: Jobs | None
) -> Decide[Answer]:
    """Apply facts or a transition to the row of each id, then judge it by *policy*.

    Facts make a missing row; a transition without a row changes nothing. A new row is stored with
    the note of what the queue is about to get. A new holder is stored with the record of the job
    that shows it on GitHub, if the caller passes the records as *projections*.
    """
    return lambda connection: _decide(connection, wanted, policy, projections)


def hold_issue(
    task_id: str, transition: Transition, *, policy: IssuePolicy, projections: Jobs | None
) -> Decide[Answer]:
    """Apply *transition*, which notes a holder, to the row that has the task, unless a limit of
    *policy* is reached. Changes nothing if no row has the task.
    """

    def decide(connection: Connection) -> Write[Answer]:
        ids = connection.scalars(select(_i.id).where(_i.task_id == task_id).limit(1))
        wanted = dict.fromkeys(ids, transition)
        return _decide(connection, wanted, policy, projections, limited=True)

    return decide


def _decide(
    connection: Connection,
    wanted: Mapping[str, Facts | Transition],
    policy: IssuePolicy,
    projections: Jobs | None,
    *,
    limited: bool = False,
) -> Write[Answer]:
    rows, now = _lock_rows(connection, list(wanted)), wall_ms()
    issues_after = {id: _apply(change, rows.get(id), now) for id, change in wanted.items()}
    changes = [
        _compare(rows.get(id), issue and _judge(connection, issue, policy, issues_after, now))
        for id, issue in issues_after.items()
    ]
    differ = [(before, after) for before, after in changes if after and after != before]
    projecting = [
        projections.submitting(
            connection, PROJECTIONS, msgspec.json.encode(Payload(after.id)),
            lane=after.id, subject=after.id,
        )
        for before, after in differ
        if projections is not None and _has_new_holder(before, after)
    ]  # fmt: skip
    missing = _missing_rows(connection, [after for _, after in differ])

    def write(connection: Connection) -> Answer:
        if limited and any(_is_limited(connection, after, policy) for _, after in differ):
            unchanged = [IssueChange(before, before) for before, _ in changes]
            return ChangedIssues(unchanged, _queue_work([]), limited=True), []
        _write_rows(connection, differ)
        for table, values in missing:
            _insert_row(connection, table, values)
        created = [create(connection) for create in projecting]
        return ChangedIssues(changes, _queue_work(differ)), created

    return write


def _apply(change: Facts | Transition, issue: Issue | None, now: int) -> Issue | None:
    if isinstance(change, Facts):
        return apply_facts(issue, change, now=now)
    return change(issue) if issue is not None else None


def _judge(
    connection: Connection,
    issue: Issue,
    policy: IssuePolicy,
    changing: Mapping[str, Issue | None],
    now: int,
) -> Issue:
    """The row as the policy decides; *changing* are all rows of the same change, by id."""
    named = policy.blockers(issue)
    known = open_ids(connection, [id for id in named if id not in changing])
    blockers = [id for id in named if id in known or _is_open(changing.get(id))]
    return judge(issue, policy, now=now, open_blockers=blockers)


def _compare(before: Issue | None, after: Issue | None) -> IssueChange:
    """The change, with the revision and the notes that a changed row gets."""
    if after is None or after == before:
        return IssueChange(before, before)
    after = replace(after, revision=after.revision + 1, updated=wall_ms())
    if before is None and after.wanted:
        after = replace(after, applied=after.wanted, queue_matches=False)
    return IssueChange(before, after)


def _has_new_holder(before: Issue | None, after: Issue) -> bool:
    """Whether GitHub has to show another holder of its issue, or none any more."""
    if before is None or after.source is not IssueSource.GITHUB:
        return False
    return (before.agent, before.token) != (after.agent, after.token)


def _is_limited(connection: Connection, issue: Issue, policy: IssuePolicy) -> bool:
    """Whether a limit keeps *issue* from being held. Called in a write, as it may lock rows."""
    if policy.only_highest and issue.priority < (highest_priority(connection) or 0):
        return True
    most, place = policy.limits.repository, issue.repository.lower()
    return bool(most) and count_held(connection, place, lock=True) >= most


def _queue_work(changed: Sequence[tuple[Issue | None, Issue]]) -> QueueWork:
    new = [after for before, after in changed if before is None]
    old = [(before, after) for before, after in changed if before is not None]
    return QueueWork(
        submit=[issue for issue in new if issue.wanted],
        update=[issue for _, issue in old if not (issue.queue_matches and needs_no_update(issue))],
        delays=[issue for issue in new if issue.found or issue.pr_number is not None]
        + [issue for before, issue in old if _review_facts(before) != _review_facts(issue)],
        judge_blocked=any(_is_open(before) != _is_open(after) for before, after in changed),
    )


def _review_facts(issue: Issue) -> tuple[int, int | None]:
    return issue.found, issue.pr_number


def _is_open(issue: Issue | None) -> bool:
    return issue is not None and issue.state is IssueState.OPEN


def _lock_rows(connection: Connection, ids: Sequence[str]) -> dict[str, Issue]:
    """The known rows, by id. PostgreSQL locks them; on SQLite, a write compares revisions."""
    if not ids:
        return {}
    named = _i.id == ids[0] if len(ids) == 1 else _i.id.in_(ids)
    query = select(issues).where(named).order_by(_i.id).with_for_update()
    found = (issue_of(row) for row in connection.execute(query).mappings())
    return {issue.id: issue for issue in found}


def _write_rows(connection: Connection, some: Sequence[tuple[Issue | None, Issue]]) -> None:
    if new := [row_of(after) for before, after in some if before is None]:
        try:
            connection.execute(insert(issues), new)
        except IntegrityError as error:  # another process has just inserted one of these rows
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
    except IntegrityError as error:  # another process has just inserted this row
        raise Overtaken from error


def note_intent(some: Sequence[Issue]) -> Write[list[bool]]:
    """Note the task that the queue is about to get for each issue; False for an issue whose row has
    changed since. The note adds one to the revision.
    """

    def write(connection: Connection) -> list[bool]:
        noted: list[bool] = []
        for issue in some:
            same = _i.id == issue.id, _i.revision == issue.revision
            values = {
                "applied": issue.wanted,
                "queue_matches": False,
                "revision": issue.revision + 1,
            }
            done = connection.execute(update(issues).where(*same).values(values)).rowcount
            noted.append(bool(done))
        return noted

    return write


_NOTE_IN_QUEUE = (
    update(issues)
    .where(_i.id == bindparam("which"), _i.revision == bindparam("seen"))
    .values(applied=bindparam("sent"), queue_matches=True, revision=_i.revision + 1)
)


def note_in_queue(some: Sequence[Issue]) -> Write[None]:
    """Note that the queue matches each issue, unless its row has changed since."""
    rows = [{"which": issue.id, "seen": issue.revision, "sent": issue.wanted} for issue in some]
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
                except IntegrityError as error:  # another process has just inserted a row there
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
        except IntegrityError as error:  # another process has just stored these pages
            raise Overtaken from error

    return write


def delete_pages(repository: str) -> Write[None]:
    """Forget the pages of a repository, so that the next comparison reads all of them."""
    gone = delete(pages).where(pages.c.place == repository.lower())
    return lambda connection: connection.execute(gone) and None
