"""The rows of issues, and every statement about them.

A row is the truth about an issue; who holds it is decided by the lease of its task, of which the
row has a note.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from sqlalchemy import Table, and_, delete, func, insert, or_, select, update
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from towpath.apps.issues.model import Issue, IssueState, Source
from towpath.apps.issues.tables.schema import (
    TABLES,
    is_known,
    issue_of,
    issues,
    repositories,
    row_of,
    selectors,
)
from towpath.clock import wall_ms
from towpath.ledger.database.writing import Decide, Overtaken, Write

__all__ = ["TABLES", "Connection", "is_known"]

_i, _r, _s = issues.c, repositories.c, selectors.c


# ── looking ──────────────────────────────────────────────────────────────────────────────


def one(connection: Connection, id: str, *, lock: bool = False) -> Issue | None:
    """The issue; with *lock* nobody else changes it before the transaction ends."""
    query = select(issues).where(_i.id == id)
    row = connection.execute(query.with_for_update() if lock else query).mappings().first()
    return None if row is None else issue_of(row)


def found(id: str) -> Callable[[Connection], Issue | None]:
    return lambda connection: one(connection, id)


def open_among(connection: Connection, ids: Sequence[str]) -> list[str]:
    """Those of these issues that are known to be open."""
    if not ids:
        return []
    query = select(_i.id).where(_i.id.in_(ids), _i.state == IssueState.OPEN)
    there = set(connection.scalars(query))
    return [id for id in ids if id in there]


def _some(query: Any) -> Callable[[Connection], list[Issue]]:
    return lambda connection: [issue_of(row) for row in connection.execute(query).mappings()]


def page(
    *,
    repository: str | None = None,
    state: IssueState | None = None,
    assignable: bool | None = None,
    agent: str | None = None,
    after: tuple[str, int] | None = None,
    size: int,
) -> Callable[[Connection], list[Issue]]:
    """Issues by repository and number."""
    query = select(issues).order_by(_i.place, _i.number).limit(size)
    if repository is not None:
        query = query.where(_i.place == repository.lower())
    if state is not None:
        query = query.where(_i.state == state)
    if assignable is not None:
        free = and_(_i.withheld == "", _i.agent == "")
        query = query.where(free if assignable else ~free)
    if agent is not None:
        query = query.where(_i.agent == agent)
    if after is not None:
        place, number = after
        behind = and_(_i.place == place, _i.number > number)
        query = query.where(or_(_i.place > place, behind))
    return _some(query)


def of_task(task_id: str) -> Callable[[Connection], Issue | None]:
    """The issue that has this task now."""
    query = _some(select(issues).where(_i.task_id == task_id).limit(1))
    return lambda connection: next(iter(query(connection)), None)


def among(ids: Sequence[str]) -> Callable[[Connection], dict[str, Issue]]:
    """Those of these issues that are known, by id."""
    query = _some(select(issues).where(_i.id.in_(ids)))
    return lambda connection: {it.id: it for it in query(connection)}


def of_repository(
    repository: str, size: int, *, any_state: bool = False
) -> Callable[[Connection], list[Issue]]:
    """Issues of a repository that are not gone, or all."""
    query = select(issues).where(_i.place == repository.lower()).limit(size)
    return _some(query if any_state else query.where(_i.state != IssueState.GONE))


def with_pull(repository: str) -> Callable[[Connection], list[str]]:
    """The ids of a repository's issues that have a pull request."""
    has = _i.place == repository.lower(), _i.pr_number.is_not(None)
    return lambda connection: list(connection.scalars(select(_i.id).where(*has)))


def labelled(repository: str, label: str) -> Callable[[Connection], list[str]]:
    """The ids of a repository's issues with that label."""
    written = msgspec.json.encode(label).decode()
    has = _i.place == repository.lower(), _i.labels.contains(written, autoescape=True)
    return lambda connection: list(connection.scalars(select(_i.id).where(*has)))


def shown_otherwise(repository: str) -> Callable[[Connection], list[Issue]]:
    """Issues of a repository that are held, or have labels of ours."""
    ours = or_(_i.agent != "", _i.shown != "[]")
    return _some(select(issues).where(_i.place == repository.lower(), ours))


def open_numbers(repository: str, source: Source) -> Callable[[Connection], set[int]]:
    """The numbers of the issues of a repository that are known to be open."""
    there = _i.place == repository.lower(), _i.state == IssueState.OPEN, _i.source == source
    return lambda connection: set(connection.scalars(select(_i.number).where(*there)))


def unread_numbers(repository: str) -> Callable[[Connection], frozenset[int]]:
    """Of those, the ones of which webhooks told something since they were last asked for."""
    there = _i.place == repository.lower(), _i.state == IssueState.OPEN, _i.read.is_(False)
    return lambda connection: frozenset(connection.scalars(select(_i.number).where(*there)))


# ── what is to be looked after ───────────────────────────────────────────────────────────


def unsettled(size: int) -> Callable[[Connection], list[Issue]]:
    """Issues of which the queue does not know all."""
    return _some(select(issues).where(_i.settled.is_(False)).limit(size))


def held_until(now: int, size: int) -> Callable[[Connection], list[Issue]]:
    """Issues whose lease is to be looked at."""
    due = _i.agent != "", _i.expires <= now
    return _some(select(issues).where(*due).order_by(_i.expires).limit(size))


def judged_otherwise(policy: str, size: int) -> Callable[[Connection], list[Issue]]:
    """Issues that another policy has judged."""
    other = or_(_i.policy < policy, _i.policy > policy)
    return _some(select(issues).where(other).limit(size))


def held_back(word: str, size: int) -> Callable[[Connection], list[Issue]]:
    """Issues that are withheld for that reason."""
    return _some(select(issues).where(_i.withheld == word).limit(size))


def ready_untold(now: int, size: int) -> Callable[[Connection], list[Issue]]:
    """Issues whose review delay is over, and nobody was told."""
    over = _i.ready_told.is_(False), _i.found > 0, _i.review_due <= now
    return _some(select(issues).where(*over).limit(size))


def everything(connection: Connection, *, after: str, size: int) -> list[Issue]:
    """All issues, page by page, by id."""
    return _some(select(issues).where(_i.id > after).order_by(_i.id).limit(size))(connection)


# ── choosing ─────────────────────────────────────────────────────────────────────────────


def selectors_of(
    places: Iterable[str] | None, roles: Iterable[str] | None
) -> Callable[[Connection], list[str]]:
    """The kinds of tasks that there were, of these repositories and roles."""
    query = select(_s.selector).order_by(_s.selector)
    if places is not None:
        query = query.where(_s.place.in_(list(places)))
    if roles is not None:
        query = query.where(_s.role.in_(list(roles)))
    return lambda connection: list(connection.scalars(query))


def best_selectors(
    some: Sequence[str], most: int, *, priority: int | None
) -> Callable[[Connection], list[str]]:
    """Those of *some* with the most urgent issues that wait; of one *priority*, if that is said."""
    free = [_i.withheld == "", _i.agent == ""]
    if priority is not None:
        free.append(_i.priority == priority)
    best = func.max(_i.priority)
    query = select(_i.place, _i.role).where(*free).group_by(_i.place, _i.role).order_by(best.desc())

    def look(connection: Connection) -> list[str]:
        wanted = set(some)
        found = (f"{place}|{role}" for place, role in connection.execute(query))
        return [it for it in found if it in wanted][:most]

    return look


def highest(connection: Connection) -> int | None:
    """The highest priority of all issues that are handed out, held or not."""
    return connection.scalar(select(func.max(_i.priority)).where(_i.withheld == ""))


def held_in(connection: Connection, place: str, *, lock: bool = False) -> int:
    """How many issues of a repository are held. With *lock* whoever asks, in a write, is alone with
    that repository until its transaction ends.
    """
    if lock:
        connection.execute(update(repositories).where(_r.place == place).values(place=place))
    held = _i.place == place, _i.agent != ""
    return connection.scalar(select(func.count()).where(*held)) or 0


# ── changing ─────────────────────────────────────────────────────────────────────────────

Beside = Callable[[Connection, Issue | None, Issue], Write[object] | None]
"""What is written with a change, in one transaction; None = nothing."""


def changed(
    id: str,
    change: Callable[[Connection, Issue | None], Issue | None],
    beside: Beside,
    unless: Callable[[Connection, Issue], bool] | None = None,
) -> Decide[tuple[Issue | None, Issue | None]]:
    """Let *change* say what a row becomes; what it was, and what it is. The same = untouched, also
    where *unless* says so, which is asked last: while nobody else can write.
    """

    def decide(connection: Connection) -> Write[tuple[Issue | None, Issue | None]]:
        before = one(connection, id, lock=True)
        after = change(connection, before)
        if after is None or after == before:
            return lambda _: (before, before)
        after = msgspec.structs.replace(after, revision=after.revision + 1, updated=wall_ms())
        more = beside(connection, before, after)
        known = _known(connection, after)

        def write(connection: Connection) -> tuple[Issue | None, Issue | None]:
            if unless is not None and unless(connection, after):
                return before, before
            _put(connection, before, after)
            for table, values in known:
                _unless_there(connection, table, values)
            if more is not None:
                more(connection)
            return before, after

        return write

    return decide


def _put(connection: Connection, before: Issue | None, after: Issue) -> None:
    if before is None:
        try:
            connection.execute(insert(issues), row_of(after))
        except IntegrityError as error:  # another told of it first
            raise Overtaken from error
        return
    same = _i.id == before.id, _i.revision == before.revision
    if not connection.execute(update(issues).where(*same).values(row_of(after))).rowcount:
        raise Overtaken


def _known(connection: Connection, issue: Issue) -> list[tuple[Table, dict[str, Any]]]:
    """What makes its repository and its selector known, where they are not."""
    place, some = issue.repository.lower(), list[tuple[Table, dict[str, Any]]]()
    if connection.scalar(select(_r.place).where(_r.place == place)) is None:
        some.append((repositories, _new_repository(issue.repository, issue.source)))
    selector = issue.selector
    if issue.role and connection.scalar(select(_s.selector).where(_s.selector == selector)) is None:
        some.append((selectors, {"selector": selector, "place": place, "role": issue.role}))
    return some


def _new_repository(name: str, source: str) -> dict[str, Any]:
    return {
        "place": name.lower(), "name": name, "source": str(source), "default_branch": "",
        "synced": 0, "trouble": "",
    }  # fmt: skip


def _unless_there(connection: Connection, table: Table, values: dict[str, Any]) -> None:
    try:
        connection.execute(insert(table), values)
    except IntegrityError as error:  # another was faster
        raise Overtaken from error


def intended(some: Sequence[tuple[Issue, str]], *, settled: bool) -> Write[list[bool]]:
    """Note what the queue is told of each issue, or is about to be told; False for those whose row
    has changed since. What was noted has one more in its revision.
    """

    def write(connection: Connection) -> list[bool]:
        noted: list[bool] = []
        for issue, wanted in some:
            same = _i.id == issue.id, _i.revision == issue.revision
            values = {"applied": wanted, "settled": settled, "revision": issue.revision + 1}
            done = connection.execute(update(issues).where(*same).values(values)).rowcount
            noted.append(bool(done))
        return noted

    return write


def extended(issue: Issue, expires: int) -> Write[bool]:
    """Note that the lease of a hold was renewed."""
    same = _i.id == issue.id, _i.token == issue.token, _i.agent == issue.agent
    return lambda connection: bool(
        connection.execute(
            update(issues).where(*same).values(expires=expires, revision=_i.revision + 1)
        ).rowcount
    )


def moved(issue: Issue, repository: str) -> Decide[str]:
    """Give an issue to another repository: the task that is to be withdrawn, if any.

    Of two rows for the same issue the one counts that somebody holds, else the older one.
    """
    id = f"{repository.lower()}#{issue.number}"

    def decide(connection: Connection) -> Write[str]:
        other = one(connection, id, lock=True)

        def write(connection: Connection) -> str:
            if other is not None and other.held:
                connection.execute(delete(issues).where(_i.id == issue.id))
                return issue.task_id
            connection.execute(delete(issues).where(_i.id == id))
            values = {"id": id, "repository": repository, "place": repository.lower()}
            change = update(issues).where(_i.id == issue.id)
            connection.execute(change.values({**values, "revision": _i.revision + 1}))
            return other.task_id if other is not None else ""

        return write

    return decide


# ── repositories ─────────────────────────────────────────────────────────────────────────


def repository_facts(connection: Connection) -> list[dict[str, Any]]:
    """All repositories that are known."""
    rows = connection.execute(select(repositories).order_by(_r.place)).mappings()
    return [dict(row) for row in rows]


def noted(name: str, **values: Any) -> Decide[None]:
    """Note something about a repository."""

    def decide(connection: Connection) -> Write[None]:
        there = connection.scalar(select(_r.place).where(_r.place == name.lower())) is not None

        def write(connection: Connection) -> None:
            if not there:
                _unless_there(connection, repositories, _new_repository(name, Source.GITHUB))
            change = update(repositories).where(_r.place == name.lower())
            connection.execute(change.values(values))

        return write

    return decide


def repository_renamed(old: str) -> Write[None]:
    """Forget what a repository was called; its new name is made known by its issues."""

    def write(connection: Connection) -> None:
        connection.execute(delete(repositories).where(_r.place == old.lower()))
        connection.execute(delete(selectors).where(_s.place == old.lower()))

    return write
