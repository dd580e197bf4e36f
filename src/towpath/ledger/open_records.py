"""Open records as a relay reads them, takes them and writes what it saw of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import func, select, tuple_, update
from sqlalchemy.engine import Connection

from towpath.clock import instant
from towpath.engine.batcher import LARGEST_BATCH
from towpath.ids import QueueName
from towpath.ledger.announcing import Tell
from towpath.ledger.record import HIGHEST_FENCE, OPEN, Record, as_record
from towpath.ledger.schema import jobs, now_ms

_CLAIMED_FOR = 10_000
"""Milliseconds in which a relay that took records brings them to Redis; then another one may."""

At = tuple[Record, datetime]
"""A record, and what time it was for the database when it was read."""


def read_all(connection: Connection, query: Any) -> list[At]:
    rows = connection.execute(query).mappings()
    return [(as_record(row), instant(row["now"])) for row in rows]


def open_queues(connection: Connection) -> list[QueueName]:
    return list(connection.scalars(select(jobs.c.queue).where(jobs.c.state.in_(OPEN)).distinct()))


def highest_fence(connection: Connection, queue: str) -> int:
    # One that somebody has spoilt would spoil the tokens of all others.
    real = jobs.c.queue == queue, jobs.c.state.in_(OPEN), jobs.c.fence <= HIGHEST_FENCE
    return connection.scalar(select(func.max(jobs.c.fence)).where(*real)) or 0


def page_of(connection: Connection, queue: str, after: int) -> list[At]:
    query = (
        select(jobs, now_ms().label("now"))
        .where(jobs.c.queue == queue, jobs.c.state.in_(OPEN), jobs.c.seq > after)
        .order_by(jobs.c.seq)
        .limit(LARGEST_BATCH)
    )
    return read_all(connection, query)


def take_due(connection: Connection) -> list[At]:
    """Records that are due to be looked after, for this relay alone for a while.

    Nothing stays locked while Redis is asked: it may hang.
    """
    due = (
        select(jobs.c.seq)
        .where(jobs.c.relay_at <= now_ms(), jobs.c.state.in_(OPEN))
        .order_by(jobs.c.seq)
        .limit(LARGEST_BATCH)
        .with_for_update(skip_locked=True)
    )
    taken = (
        update(jobs)
        .where(jobs.c.seq.in_(due.scalar_subquery()))
        .values(relay_at=now_ms() + _CLAIMED_FOR)
        .returning(jobs, now_ms().label("now"))
    )
    return sorted(read_all(connection, taken), key=by_queue)


def give_back(connection: Connection, seqs: Sequence[int]) -> None:
    """Let the next look have them at once, where nobody has seen them in Redis."""
    still = jobs.c.seq.in_(seqs), jobs.c.relay_at.is_not(None)
    connection.execute(update(jobs).where(*still).values(relay_at=now_ms()))


def write_down(
    connection: Connection,
    there: Sequence[tuple[int, str, bool]],
    changes: Sequence[tuple[Record, dict[str, Any]]],
    tell: Tell,
) -> list[At]:
    """Write; the records that got another name. A row that moved on meanwhile is left alone."""
    if there:
        # Most of them were seen before: a row that is not written costs nothing.
        # One that was cancelled since it was read is still to be told of.
        same = tuple_(jobs.c.seq, jobs.c.job, jobs.c.cancel_requested).in_(there)
        still = same, jobs.c.relay_at.is_not(None)
        connection.execute(update(jobs).where(*still).values(relay_at=None))
    renamed: list[At] = []
    for record, change in changes:
        still = jobs.c.seq == record.seq, jobs.c.job == record.job, jobs.c.state.in_(OPEN)
        written = update(jobs).where(*still).values(change)
        rows = connection.execute(written.returning(jobs, now_ms().label("now"))).mappings().all()
        tell(connection, rows)
        if "job" in change:
            renamed += [(as_record(row), instant(row["now"])) for row in rows]
    return renamed


def by_queue(at: At) -> tuple[str, int]:
    return at[0].queue, at[0].seq
