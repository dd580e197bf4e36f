"""A batch of events: reading it, evaluating what the sink answered, and storing that."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec
from sqlalchemy import Delete, Text, Update, bindparam, delete, select, update
from sqlalchemy.engine import Connection

from towpath.clock import ZERO, Duration
from towpath.ledger.database.schema import now_ms, outbox
from towpath.ledger.outbox.event import OutboxEvent, Outcome, Postponed, Refusal
from towpath.ledger.outbox.outbox import as_event

_REASON_MOST = 1000
"""Characters that are kept of the reason for a refusal."""
_SPOILT = Refusal("its row can't be read")


class BatchOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The evaluation of a batch. Events in none of the lists are sent again."""

    taken: list[OutboxEvent] = []
    refused: list[tuple[OutboxEvent, Refusal]] = []
    """Events to be set aside."""
    delayed: list[tuple[OutboxEvent, Postponed]] = []
    """Events that failed while others were accepted; later events of their keys wait."""
    reason: str = ""
    """Why the sink is unreachable: it neither accepted nor refused any event. Empty = reachable."""
    after: Duration = ZERO
    """The minimum pause that the sink asks for."""


def evaluate(
    events: Sequence[OutboxEvent], outcomes: Sequence[Outcome], *, attempts: int
) -> BatchOutcome:
    """Evaluate the *outcomes* of *events*, one each.

    A failure counts as an attempt of an event only if others were accepted or refused. Otherwise
    the sink itself fails, and no event is given up, however long that lasts. An event that fails in
    the last of its *attempts* is refused, so that no event can block its key for ever.
    """
    answered = list(zip(events, outcomes, strict=True))
    taken = [event for event, outcome in answered if outcome is None]
    refused = [(event, outcome) for event, outcome in answered if isinstance(outcome, Refusal)]
    later = [(event, outcome) for event, outcome in answered if isinstance(outcome, Postponed)]
    if not taken and not refused:
        reason = later[0][1].reason if later else "nothing was sent"
        return BatchOutcome(
            reason=reason, after=max((outcome.after for _, outcome in later), default=ZERO)
        )
    delayed: list[tuple[OutboxEvent, Postponed]] = []
    for event, outcome in later:
        if event.attempts + 1 < attempts:
            delayed.append((event, outcome))
        else:
            given_up = f"not accepted in {attempts} attempts: {outcome.reason}"
            refused.append((event, Refusal(given_up)))
    return BatchOutcome(taken=taken, refused=refused, delayed=delayed)


def refuse_invalid(events: Sequence[OutboxEvent]) -> BatchOutcome | None:
    """Refuse events whose rows were edited by hand and are invalid; None if there are none."""
    broken = [(event, _SPOILT) for event in events if not event.is_whole()]
    return BatchOutcome(refused=broken) if broken else None


# ── events ───────────────────────────────────────────────────────────────────────────────


def has_pending(connection: Connection, sink: str, without: Collection[str]) -> bool:
    """Whether there are events to send, other than those of the keys in *without*."""
    return (
        connection.scalar(select(outbox.c.seq).where(*_pending(sink, without)).limit(1)) is not None
    )


def next_batch(
    connection: Connection, sink: str, without: Collection[str], *, size: int
) -> list[OutboxEvent]:
    """Read the first events of *sink* in order, at most *size*, without the keys in *without*.

    Does not start after the last event that was sent: a transaction may commit late, with lower
    numbers.
    """
    query = select(outbox).where(*_pending(sink, without)).order_by(outbox.c.seq).limit(size)
    return [as_event(row) for row in connection.execute(query).mappings()]


def outcome_statements(
    outcome: BatchOutcome,
) -> list[tuple[Delete | Update, list[dict[str, Any]] | None]]:
    """Return the statements, with their rows, that store the outcomes of a batch.

    They don't check the lease: an event that a sink has accepted is done, even if another courier
    has the lease by now.
    """
    gone = [event.seq for event in outcome.taken]
    # PostgreSQL takes no NUL in text.
    aside = [
        {"row": event.seq, "why": why.reason.replace("\0", "")[:_REASON_MOST]}
        for event, why in outcome.refused
    ]
    tried = [event.seq for event, _ in outcome.delayed]
    once_more = {"attempts": outbox.c.attempts + 1}
    each = (
        (gone, delete(outbox).where(outbox.c.seq.in_(gone)), None),
        (aside, _refused, aside),
        (tried, update(outbox).where(outbox.c.seq.in_(tried)).values(once_more), None),
    )
    return [(statement, rows) for needed, statement, rows in each if needed]


_refused = (
    update(outbox)
    .where(outbox.c.seq == bindparam("row"))
    .values(refused_at=now_ms(), reason=bindparam("why", type_=Text))
)


def _pending(sink: str, without: Collection[str]) -> tuple[Any, ...]:
    these = outbox.c.sink == sink, outbox.c.refused_at.is_(None)
    return (*these, outbox.c.key.not_in(without)) if without else these
