"""Queries on the rows of issues; `changes` has the writes.

A row is the truth about an issue, except for its holder: the lease of its task decides that, and
the row has a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import and_, func, or_, select, update
from sqlalchemy.engine import Connection

from towpath.apps.issues.model import Issue, IssueSource, IssueState, TaskType
from towpath.apps.issues.tables.schema import (
    TABLES,
    issue_of,
    issues,
    pages,
    repositories,
    selectors,
)

__all__ = ["TABLES"]

_numbers = msgspec.json.Decoder(frozenset[int])
_CALL_MS = 60_000
"""Time in ms until GitHub has a change of labels that a row notes, plus the difference between the
two clocks."""
_i, _r, _s = issues.c, repositories.c, selectors.c


# ── issues ───────────────────────────────────────────────────────────────────────────────


def issue_by_id(id: str) -> Callable[[Connection], Issue | None]:
    query = _issues_of(select(issues).where(_i.id == id))
    return lambda connection: next(iter(query(connection)), None)


def open_ids(connection: Connection, ids: Sequence[str]) -> list[str]:
    """Those *ids* whose rows say that the issue is open."""
    if not ids:
        return []
    query = select(_i.id).where(_i.id.in_(ids), _i.state == IssueState.OPEN)
    there = set(connection.scalars(query))
    return [id for id in ids if id in there]


def _issues_of(query: Any) -> Callable[[Connection], list[Issue]]:
    return lambda connection: [issue_of(row) for row in connection.execute(query).mappings()]


def issues_page(
    *,
    repository: str | None = None,
    state: IssueState | None = None,
    assignable: bool | None = None,
    agent: str | None = None,
    after: tuple[str, int] | None = None,
    now: int,
    size: int,
) -> Callable[[Connection], list[Issue]]:
    """Issues by repository and number. Assignable means that an agent could get it *now*, ms."""
    query = select(issues).order_by(_i.place, _i.number).limit(size)
    if repository is not None:
        query = query.where(_i.place == repository.lower())
    if state is not None:
        query = query.where(_i.state == state)
    if assignable is not None:
        delayed = and_(_i.task_type == TaskType.REVIEW, _i.review_due > now)
        free = and_(_i.withheld == "", _i.agent == "", _i.not_before <= now, ~delayed)
        query = query.where(free if assignable else ~free)
    if agent is not None:
        query = query.where(_i.agent == agent)
    if after is not None:
        place, number = after
        behind = and_(_i.place == place, _i.number > number)
        query = query.where(or_(_i.place > place, behind))
    return _issues_of(query)


def issue_of_task(task_id: str) -> Callable[[Connection], Issue | None]:
    """The issue that has this task now."""
    query = _issues_of(select(issues).where(_i.task_id == task_id).limit(1))
    return lambda connection: next(iter(query(connection)), None)


def issues_by_id(ids: Sequence[str]) -> Callable[[Connection], dict[str, Issue]]:
    """The known issues with these ids, by id."""
    query = _issues_of(select(issues).where(_i.id.in_(ids)))
    return lambda connection: {issue.id: issue for issue in query(connection)}


def issues_of_repository(
    repository: str, size: int, *, any_state: bool = False
) -> Callable[[Connection], list[Issue]]:
    """Issues of a repository; those that are gone only with *any_state*."""
    query = select(issues).where(_i.place == repository.lower()).limit(size)
    return _issues_of(query if any_state else query.where(_i.state != IssueState.GONE))


def ids_with_pull(repository: str) -> Callable[[Connection], list[str]]:
    """The ids of a repository's issues that have a pull request."""
    has = _i.place == repository.lower(), _i.pr_number.is_not(None)
    return lambda connection: list(connection.scalars(select(_i.id).where(*has)))


def ids_with_label(repository: str, label: str) -> Callable[[Connection], list[str]]:
    """The ids of a repository's issues with that label."""
    written = msgspec.json.encode(label).decode()
    has = _i.place == repository.lower(), _i.labels.contains(written, autoescape=True)
    return lambda connection: list(connection.scalars(select(_i.id).where(*has)))


def held_or_labelled(repository: str) -> Callable[[Connection], list[Issue]]:
    """Issues of a repository that are held, or have labels that Towpath set."""
    ours = or_(_i.agent != "", _i.shown != "[]")
    return _issues_of(select(issues).where(_i.place == repository.lower(), ours))


def open_numbers(repository: str, source: IssueSource) -> Callable[[Connection], set[int]]:
    """The numbers of a repository's issues that are open by their rows."""
    there = _i.place == repository.lower(), _i.state == IssueState.OPEN, _i.source == source
    return lambda connection: set(connection.scalars(select(_i.number).where(*there)))


def numbers_to_read_again(repository: str) -> Callable[[Connection], frozenset[int]]:
    """The numbers of open issues to read again even if their page is unchanged: a webhook came
    after the last read, or Towpath changed their labels about the last comparison or later.
    """
    place = repository.lower()
    compared = select(_r.synced).where(_r.place == place).scalar_subquery()
    doubt = or_(_i.read.is_(False), _i.touched > func.coalesce(compared, 0) - _CALL_MS)
    there = _i.place == place, _i.state == IssueState.OPEN, doubt
    return lambda connection: frozenset(connection.scalars(select(_i.number).where(*there)))


# ── maintenance ──────────────────────────────────────────────────────────────────────────


def issues_not_in_queue(before: int, size: int) -> Callable[[Connection], list[Issue]]:
    """Issues that the queue may not match, and whose rows were last changed *before* that, ms."""
    old = _i.queue_matches.is_(False), _i.updated < before
    return _issues_of(select(issues).where(*old).limit(size))


def held_until(now: int, size: int) -> Callable[[Connection], list[Issue]]:
    """Held issues whose lease is to be checked at *now*, the first to end first."""
    due = _i.agent > "", _i.expires <= now
    return _issues_of(select(issues).where(*due).order_by(_i.expires).limit(size))


def held_after(ms: int, size: int) -> Callable[[Connection], list[Issue]]:
    """Issues whose lease ends after *ms*, the first to end first."""
    held = _i.agent > "", _i.expires > ms
    return _issues_of(select(issues).where(*held).order_by(_i.expires).limit(size))


def ids_of_other_policies(policy: str) -> Callable[[Connection], list[str]]:
    """The ids of issues that another policy has judged."""
    query = select(_i.id).where(or_(_i.policy < policy, _i.policy > policy))
    return lambda connection: list(connection.scalars(query))


def ids_naming_blockers(connection: Connection) -> list[str]:
    """The ids of open issues whose text contains `blocked`."""
    named = _i.state == IssueState.OPEN, _i.body.icontains("blocked")
    return list(connection.scalars(select(_i.id).where(*named)))


def issues_with_delay_over(now: int, size: int) -> Callable[[Connection], list[Issue]]:
    """Issues whose review delay is over, which was not reported yet."""
    over = _i.ready_reported.is_(False), _i.found > 0, _i.review_due <= now
    return _issues_of(select(issues).where(*over).limit(size))


def offered_issues(after: str, size: int) -> Callable[[Connection], list[Issue]]:
    """Issues that nobody holds and whose task is in the queue, by id."""
    free = _i.withheld == "", _i.agent == "", _i.task_id > "", _i.queue_matches.is_(True)
    return _issues_of(select(issues).where(_i.id > after, *free).order_by(_i.id).limit(size))


def all_issues(connection: Connection, *, after: str, size: int) -> list[Issue]:
    """All issues, page by page, by id."""
    return _issues_of(select(issues).where(_i.id > after).order_by(_i.id).limit(size))(connection)


# ── choosing a task ──────────────────────────────────────────────────────────────────────


def selectors_of(
    places: Iterable[str] | None, roles: Iterable[str] | None
) -> Callable[[Connection], list[str]]:
    """The selectors that tasks have had, of these repositories and roles; None = any."""
    query = select(_s.selector).order_by(_s.selector)
    if places is not None:
        query = query.where(_s.place.in_(list(places)))
    if roles is not None:
        query = query.where(_s.role.in_(list(roles)))
    return lambda connection: list(connection.scalars(query))


def best_selectors(
    some: Sequence[str], most: int, *, priority: int | None
) -> Callable[[Connection], list[str]]:
    """At most *most* of *some*, those with the most urgent free issues first. With *priority*, only
    issues of that priority count.
    """
    free = [_i.withheld == "", _i.agent == ""]
    if priority is not None:
        free.append(_i.priority == priority)
    best = func.max(_i.priority)
    query = select(_i.place, _i.role).where(*free).group_by(_i.place, _i.role).order_by(best.desc())

    def look(connection: Connection) -> list[str]:
        wanted = set(some)
        found = (f"{place}|{role}" for place, role in connection.execute(query))
        return [selector for selector in found if selector in wanted][:most]

    return look


def highest_priority(connection: Connection) -> int | None:
    """The highest priority of all issues that are handed out, held or not."""
    return connection.scalar(select(func.max(_i.priority)).where(_i.withheld == ""))


def count_held(connection: Connection, place: str, *, lock: bool = False) -> int:
    """How many issues of a repository are held. With *lock*, which needs a write, the repository is
    locked until the transaction ends.
    """
    if lock:
        connection.execute(update(repositories).where(_r.place == place).values(place=place))
    held = _i.place == place, _i.agent != ""
    return connection.scalar(select(func.count()).where(*held)) or 0


def repository_rows(connection: Connection) -> list[dict[str, Any]]:
    """The rows of all known repositories."""
    rows = connection.execute(select(repositories).order_by(_r.place)).mappings()
    return [dict(row) for row in rows]


def former_name(repository: str) -> Callable[[Connection], str | None]:
    """The first known name of a repository; None = it was not renamed."""
    query = select(_r.formerly).where(_r.place == repository.lower())
    return lambda connection: connection.scalar(query)


class KnownPage(NamedTuple):
    """A page of a list as it was last read."""

    path: str
    etag: str
    numbers: frozenset[int]
    next: str | None


def pages_of(repository: str) -> Callable[[Connection], dict[str, KnownPage]]:
    """The pages of a repository's list of open issues as last read, by path."""
    query = select(pages).where(pages.c.place == repository.lower())

    def look(connection: Connection) -> dict[str, KnownPage]:
        some = connection.execute(query).mappings()
        return {
            row["path"]: KnownPage(
                row["path"], row["etag"], _numbers.decode(row["numbers"]), row["following"]
            )
            for row in some
        }

    return look
