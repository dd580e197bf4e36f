"""What a courier does: its pauses, what outcomes mean, and its statements in the database.

Of all couriers of a sink one sends at a time: the one whose lease is in `towpath_couriers`. The
database's clock decides about it. No row stays locked while a sink is asked: it may hang.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec
from sqlalchemy import BigInteger, Delete, Text, Update, bindparam, delete, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from towpath.clock import ZERO, Duration, milliseconds, seconds, steady
from towpath.engine.check import whole
from towpath.errors import InvalidOption
from towpath.ledger.database.schema import couriers, now_ms, outbox
from towpath.ledger.outbox.event import OutboxEvent, Outcome, Postponed, Refusal
from towpath.ledger.outbox.outbox import as_event

# ── patience ─────────────────────────────────────────────────────────────────────────────

_REASON_MOST = 1000
MOST_WAITING = 1000
"""Keys that wait by themselves; with more, something else is wrong, and nothing is sent."""


class CourierOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The limits and pauses of a courier."""

    batch: int = 100
    """Events that are in memory at once, per sink."""
    lease: Duration = seconds(30)
    """How long a courier that died keeps others from sending."""
    look_every: Duration = seconds(1)
    """How often to look for events that another process put."""
    first_pause: Duration = milliseconds(500)
    """After a sink was not reached; doubled each time."""
    longest_pause: Duration = seconds(60)
    attempts: int = 20
    """How often an event may fail while others are taken; then it is refused."""
    grace: Duration = seconds(5)
    """At the end, for the batch that is under way."""

    def __post_init__(self) -> None:
        whole("courier.batch", self.batch, 1, 500)
        whole("courier.attempts", self.attempts, 1, 1_000_000)
        for name in ("lease", "look_every", "first_pause", "grace"):
            if not milliseconds(1) <= getattr(self, name) <= seconds(3600):
                rule = "must be from a millisecond to an hour"
                raise InvalidOption(f"courier.{name}", getattr(self, name), rule=rule)
        if not self.first_pause <= self.longest_pause:
            rule = "must not be below first_pause"
            raise InvalidOption("courier.longest_pause", self.longest_pause, rule=rule)


class Patience:
    """What a courier remembers of failures. A new one begins with none, which does no harm."""

    def __init__(self, options: CourierOptions, *, ticks: Callable[[], float] = steady) -> None:
        self._first, self._longest = options.first_pause, options.longest_pause
        self._ticks = ticks
        self._failures, self._since = 0, 0.0
        self._keys: dict[str, float] = {}

    # ── the sink ─────────────────────────────────────────────────────────────────────────

    def failed(self) -> bool:
        """The sink was not reached. Whether that is news."""
        self._failures += 1
        if self._failures == 1:
            self._since = self._ticks()
        return self._failures == 1

    def reached(self) -> float | None:
        """The sink was reached. For how many seconds it had not been; None = it was before."""
        failures, self._failures = self._failures, 0
        return self._ticks() - self._since if failures else None

    def pause(self, asked_for: Duration) -> Duration:
        """How long to leave the sink alone: what it asks for, or longer after each failure."""
        return self._bounded(self._failures - 1, asked_for)

    # ── one key ──────────────────────────────────────────────────────────────────────────

    def hold_back(self, key: str, attempts: int, asked_for: Duration) -> Duration:
        """Leave *key* alone, for longer with each of its *attempts*; how long."""
        delay = self._bounded(attempts, asked_for)
        self._keys[key] = self._ticks() + delay.total_seconds()
        return delay

    def waiting(self) -> list[str]:
        """The keys whose time has not come."""
        now = self._ticks()
        self._keys = {key: until for key, until in self._keys.items() if until > now}
        return list(self._keys)

    def _bounded(self, failures: int, asked_for: Duration) -> Duration:
        doubled = self._first * 2 ** min(max(failures, 0), 30)
        return min(max(doubled, asked_for), self._longest)


# ── what the outcomes of a batch mean ────────────────────────────────────────────────────

_SPOILT = Refusal("its row can't be read")


class BatchOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a batch. Events that are not named are sent again."""

    taken: list[OutboxEvent] = []
    refused: list[tuple[OutboxEvent, Refusal]] = []
    """Set aside for good."""
    delayed: list[tuple[OutboxEvent, Postponed]] = []
    """Not taken while others were: each keeps its key waiting."""
    reason: str = ""
    """Why nothing at all was taken or refused: the sink is away. Empty = it is there."""
    after: Duration = ZERO
    """How long it asks to be left alone."""


def judge(
    events: Sequence[OutboxEvent], outcomes: Sequence[Outcome], *, attempts: int
) -> BatchOutcome:
    """What *outcomes* mean for *events*, one each.

    A failure counts against an event only where others got through: as long as none does, it is
    the sink that fails, and however long that lasts, nothing is given up. The last of *attempts*
    ends as a refusal, so that no event can hold up its key for ever.
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


def spoilt(events: Sequence[OutboxEvent]) -> BatchOutcome | None:
    """Refuse the events that somebody has spoilt by hand; None if all are whole."""
    broken = [(event, _SPOILT) for event in events if not event.is_whole()]
    return BatchOutcome(refused=broken) if broken else None


# ── the lease ────────────────────────────────────────────────────────────────────────────


_sink, _me = bindparam("of_sink", type_=Text), bindparam("me", type_=Text)
_lease = {"holder": _me, "expires_at": now_ms() + bindparam("lease_ms", type_=BigInteger)}
_free = or_(couriers.c.holder == _me, couriers.c.expires_at <= now_ms())
_held = update(couriers).where(couriers.c.sink == _sink, _free).values(_lease)
_first = {
    kind.dialect.name: kind.insert(couriers).values(sink=_sink, **_lease).on_conflict_do_nothing()
    for kind in (postgresql, sqlite)
}


def hold(connection: Connection, sink: str, holder: str, lease_ms: int) -> bool:
    """Take the lease of *sink*, or keep it, for *lease_ms* from now. False = another has it."""
    mine = {"of_sink": sink, "me": holder, "lease_ms": lease_ms}
    first = _first[connection.dialect.name]
    return any(connection.execute(statement, mine).rowcount for statement in (_held, first))


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
) -> list[OutboxEvent]:
    """The first events of *sink* in order, at most *size*, but those of the keys *without*.

    All that are committed are looked at, not only those behind the last one sent: a transaction
    that began early may commit late.
    """
    query = select(outbox).where(*_pending(sink, without)).order_by(outbox.c.seq).limit(size)
    return [as_event(row) for row in connection.execute(query).mappings()]


def settle(verdict: BatchOutcome) -> list[tuple[Delete | Update, list[dict[str, Any]] | None]]:
    """The statements, with their rows, that write down what became of a batch.

    It needs no lease: what a sink has taken is taken, whoever sends now.
    """
    gone = [event.seq for event in verdict.taken]
    # PostgreSQL takes no NUL in text.
    aside = [
        {"row": event.seq, "why": why.reason.replace("\0", "")[:_REASON_MOST]}
        for event, why in verdict.refused
    ]
    tried = [event.seq for event, _ in verdict.delayed]
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
