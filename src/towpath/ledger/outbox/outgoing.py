"""The parts of a courier: its backoff, the evaluation of outcomes, and its SQL statements.

For each sink, only the courier with the lease in `towpath_couriers` sends. Leases go by the
database's clock. No row stays locked during a send, because a sink may hang.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec
from sqlalchemy import BigInteger, Delete, Text, Update, bindparam, delete, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from towpath.clock import ZERO, Duration, milliseconds, seconds, steady
from towpath.engine.check import integer
from towpath.errors import InvalidOption
from towpath.ledger.database.schema import couriers, now_ms, outbox
from towpath.ledger.outbox.event import OutboxEvent, Outcome, Postponed, Refusal
from towpath.ledger.outbox.outbox import as_event

# ── backoff ──────────────────────────────────────────────────────────────────────────────

_REASON_MOST = 1000
MOST_WAITING = 1000
"""Maximum number of keys with a backoff of their own. At this number nothing is sent to the sink
until some of them end: probably the sink itself fails."""


class CourierOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The limits and pauses of a courier."""

    batch: int = 100
    """Maximum number of events in memory, per sink."""
    lease: Duration = seconds(30)
    """How long a courier that died keeps others from sending."""
    look_every: Duration = seconds(1)
    """How often to look for events that another process put."""
    first_pause: Duration = milliseconds(500)
    """The pause after a sink was not reached; doubled after each further failure."""
    longest_pause: Duration = seconds(60)
    attempts: int = 20
    """How often an event may fail while others are accepted; then it counts as refused."""
    grace: Duration = seconds(5)
    """At the end, the time for finishing the current batch."""

    def __post_init__(self) -> None:
        integer("courier.batch", self.batch, 1, 500)
        integer("courier.attempts", self.attempts, 1, 1_000_000)
        for name in ("lease", "look_every", "first_pause", "grace"):
            if not milliseconds(1) <= getattr(self, name) <= seconds(3600):
                rule = "must be from a millisecond to an hour"
                raise InvalidOption(f"courier.{name}", getattr(self, name), rule=rule)
        if not self.first_pause <= self.longest_pause:
            rule = "must not be below first_pause"
            raise InvalidOption("courier.longest_pause", self.longest_pause, rule=rule)


class Patience:
    """The backoff of a courier, for its sink and for single keys. It is in memory only: a restarted
    courier tries everything at once, which does no harm.
    """

    def __init__(self, options: CourierOptions, *, ticks: Callable[[], float] = steady) -> None:
        self._first, self._longest = options.first_pause, options.longest_pause
        self._ticks = ticks
        self._failures, self._since = 0, 0.0
        self._keys: dict[str, float] = {}

    # ── the sink ─────────────────────────────────────────────────────────────────────────

    def failed(self) -> bool:
        """Count a failure to reach the sink. Returns whether it is the first in a row."""
        self._failures += 1
        if self._failures == 1:
            self._since = self._ticks()
        return self._failures == 1

    def reached(self) -> float | None:
        """Note that the sink was reached. Returns the seconds of its outage; None without one."""
        failures, self._failures = self._failures, 0
        return self._ticks() - self._since if failures else None

    def pause(self, asked_for: Duration) -> Duration:
        """Return the pause before the next send: doubled by each failure, at least *asked_for*."""
        return self._delay_after(self._failures - 1, asked_for)

    # ── one key ──────────────────────────────────────────────────────────────────────────

    def hold_back(self, key: str, attempts: int, asked_for: Duration) -> Duration:
        """Delay the events of *key*, longer with each of its *attempts*. Returns the delay."""
        delay = self._delay_after(attempts, asked_for)
        self._keys[key] = self._ticks() + delay.total_seconds()
        return delay

    def waiting(self) -> list[str]:
        """Return the keys that are still delayed."""
        now = self._ticks()
        self._keys = {key: until for key, until in self._keys.items() if until > now}
        return list(self._keys)

    def _delay_after(self, failures: int, asked_for: Duration) -> Duration:
        doubled = self._first * 2 ** min(max(failures, 0), 30)
        return min(max(doubled, asked_for), self._longest)


# ── evaluating the outcomes of a batch ───────────────────────────────────────────────────

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


def judge(
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


def spoilt(events: Sequence[OutboxEvent]) -> BatchOutcome | None:
    """Refuse events whose rows were edited by hand and are invalid; None if there are none."""
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
    """Take or renew the lease of *sink* for *lease_ms* from now. False = another courier has it."""
    mine = {"of_sink": sink, "me": holder, "lease_ms": lease_ms}
    first = _first[connection.dialect.name]
    return any(connection.execute(statement, mine).rowcount for statement in (_held, first))


def let_go(connection: Connection, sink: str, holder: str) -> None:
    """End the lease, so that another courier need not wait. No effect if the lease was lost."""
    mine = couriers.c.sink == sink, couriers.c.holder == holder
    connection.execute(update(couriers).where(*mine).values(expires_at=0))


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


def settle(verdict: BatchOutcome) -> list[tuple[Delete | Update, list[dict[str, Any]] | None]]:
    """Return the statements, with their rows, that store the outcomes of a batch.

    They don't check the lease: an event that a sink has accepted is done, even if another courier
    has the lease by now.
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
