"""Records as people look at them: a page of the newest, and how many are in each state.

Read by an index, state by state: the rows of a whole queue would have to be sorted.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Select,
    bindparam,
    func,
    null,
    or_,
    select,
    union_all,
)
from sqlalchemy.engine import Connection

from towpath.engine.check import whole
from towpath.errors import InvalidOption
from towpath.ids import queue_name
from towpath.ledger.database.schema import jobs
from towpath.ledger.records.record import Record, RecordPage, RecordState, record_state

LARGEST_PAGE = 1000
_brief = [it if it.name != "result" else null().label("result") for it in jobs.c]
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
    """The newest of these records, one more than *size*. Raises InvalidOption."""
    name, most = queue_name(queue), whole("size", size, 1, LARGEST_PAGE) + 1
    wanted: list[ColumnElement[bool]] = [jobs.c.queue == name]
    if prefix is not None:
        wanted.append(or_(*map(_begins, _several(prefix))))
    if after is not None:
        wanted.append(jobs.c.seq < _place(after))
    states = None if state is None else [record_state(state)]
    if subject is not None:
        # A subject has few records: its index is the one to use, and no other must look as good.
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


def _sorted(query: Select[Any], rows: FromClause, most: int) -> Select[Any]:
    return query.order_by(rows.c.seq.desc()).limit(most)


def page(found: list[Record], size: int) -> RecordPage:
    """What `newest` found as a page."""
    more = len(found) > size
    return RecordPage(found[:size], _mark(found[size - 1].seq) if more else None)


def counted(connection: Connection, queue: str) -> dict[RecordState, int]:
    """How many records of *queue* are in each state."""
    found = connection.execute(_counts, {"in_queue": queue}).one()
    return dict(zip(RecordState, found, strict=True))


def _several(one_or_more: str | Sequence[str]) -> Sequence[str]:
    return [one_or_more] if isinstance(one_or_more, str) else one_or_more


def _begins(prefix: str) -> ColumnElement[bool]:
    # Not LIKE: it would not tell capitals from small letters on SQLite, and would on PostgreSQL.
    return func.substr(jobs.c.subject, 1, len(prefix)) == prefix


def _mark(seq: int) -> str:
    return base64.urlsafe_b64encode(str(seq).encode()).decode().rstrip("=")


def _place(after: str) -> int:
    try:
        place = int(base64.urlsafe_b64decode(after + "=" * (-len(after) % 4)))
    except (ValueError, UnicodeError):
        place = -1
    if not 0 <= place < 2**63:
        raise InvalidOption("after", after, rule="must be the mark of a page before")
    return place
