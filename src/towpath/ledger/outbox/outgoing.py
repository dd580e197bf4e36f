"""What a courier does in the database: plain functions of a connection in a transaction.

Of all couriers of a sink one sends at a time: the one whose lease is in `towpath_couriers`. The
database's clock decides about it. No row stays locked while a sink is asked: it may hang.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import Text, bindparam, delete, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from towpath.ledger.database.schema import couriers, now_ms, outbox
from towpath.ledger.outbox.event import Event
from towpath.ledger.outbox.outbox import as_event
from towpath.ledger.outbox.verdict import Verdict

_REASON_MOST = 1000


# ── the lease ────────────────────────────────────────────────────────────────────────────


def hold(connection: Connection, sink: str, holder: str, lease_ms: int) -> bool:
    """Take the lease of *sink*, or keep it, for *lease_ms* from now. False = another has it."""
    mine = {"holder": holder, "expires_at": now_ms() + lease_ms}
    free = or_(couriers.c.holder == holder, couriers.c.expires_at <= now_ms())
    held = connection.execute(update(couriers).where(couriers.c.sink == sink, free).values(mine))
    if held.rowcount:
        return True
    kind = postgresql if connection.dialect.name == "postgresql" else sqlite
    first = kind.insert(couriers).values(sink=sink, **mine).on_conflict_do_nothing()
    return connection.execute(first).rowcount == 1


def let_go(connection: Connection, sink: str, holder: str) -> None:
    """End the lease, so that another courier need not wait for it. No effect if it is lost."""
    mine = couriers.c.sink == sink, couriers.c.holder == holder
    connection.execute(update(couriers).where(*mine).values(expires_at=0))


# ── events ───────────────────────────────────────────────────────────────────────────────


def has_pending(connection: Connection, sink: str, without: Collection[str]) -> bool:
    """Whether there is anything to send but the events of the keys *without*."""
    return (
        connection.scalar(select(outbox.c.seq).where(*_pending(sink, without)).limit(1)) is not None
    )


def next_batch(
    connection: Connection, sink: str, without: Collection[str], *, size: int
) -> list[Event]:
    """The first events of *sink* in order, at most *size*, but those of the keys *without*.

    All that are committed are looked at, not only those behind the last one sent: a transaction
    that began early may commit late.
    """
    query = select(outbox).where(*_pending(sink, without)).order_by(outbox.c.seq).limit(size)
    return [as_event(row) for row in connection.execute(query).mappings()]


def settle(connection: Connection, verdict: Verdict) -> None:
    """Write down what became of a batch.

    It needs no lease: what a sink has taken is taken, whoever sends now.
    """
    if verdict.taken:
        taken = [event.seq for event in verdict.taken]
        connection.execute(delete(outbox).where(outbox.c.seq.in_(taken)))
    if verdict.refused:
        aside = update(outbox).where(outbox.c.seq == bindparam("row"))
        values: dict[str, Any] = {"refused_at": now_ms(), "reason": bindparam("why", type_=Text)}
        rows = [{"row": it.seq, "why": _shortened(why.reason)} for it, why in verdict.refused]
        connection.execute(aside.values(values), rows)
    if verdict.delayed:
        tried = [event.seq for event, _ in verdict.delayed]
        once_more = {"attempts": outbox.c.attempts + 1}
        connection.execute(update(outbox).where(outbox.c.seq.in_(tried)).values(once_more))


def _pending(sink: str, without: Collection[str]) -> tuple[Any, ...]:
    these = outbox.c.sink == sink, outbox.c.refused_at.is_(None)
    return (*these, outbox.c.key.not_in(without)) if without else these


def _shortened(reason: str) -> str:
    # PostgreSQL takes no NUL in text.
    return reason.replace("\0", "")[:_REASON_MOST]
