"""The outbox: events that are sent if, and only if, the change that they describe was committed.

`put` writes events in the transaction of the change, one row per sink; a courier (`courier.py`)
then sends them and deletes the rows. A row that its sink refuses for good stays, with the reason,
until an operator resends or deletes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import (
    ColumnElement,
    ScalarSelect,
    bindparam,
    delete,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.engine import Connection, RowMapping

from towpath.clock import ZERO, Duration, instant, wall_ms
from towpath.engine.check import integer
from towpath.errors import InvalidOption
from towpath.ids import sink_name
from towpath.ledger.database.bulk import each_name
from towpath.ledger.database.schema import outbox
from towpath.ledger.outbox.event import NewEvent, OutboxEvent

if TYPE_CHECKING:
    from towpath.ledger.ledger import Ledger

LARGEST_PAGE = 1000
COUNTED_MOST = 10_000
"""Counting stops here, because the events of a sink are counted all the time."""
_put = insert(outbox)
_PUT = "towpath.put"
"""Key in a connection's `info`: whether events were put since `was_put` was last called."""


class OutboxCounts(msgspec.Struct, frozen=True):
    """The numbers of one sink, counted up to 10,000."""

    pending: int = 0
    refused: int = 0
    oldest_at: datetime | None = None
    """When the oldest pending event was put."""

    def lag(self, now: datetime) -> Duration:
        """How long the oldest pending event has waited by *now*; zero if there is none."""
        return ZERO if self.oldest_at is None else max(now - self.oldest_at, ZERO)


class RefusedEvent(msgspec.Struct, frozen=True):
    """An event that its sink refused, with the reason."""

    event: OutboxEvent
    reason: str
    refused_at: datetime


class Outbox:
    """The events of a ledger that wait to be sent: `ledger.outbox`.

    *sinks* are the names of the sinks that get every event; without any, nothing is written.
    """

    def __init__(
        self, ledger: Ledger, *, sinks: Iterable[str] = (), wall: Callable[[], int] = wall_ms
    ) -> None:
        self._ledger, self._wall = ledger, wall
        self.sinks = _names(sinks)
        self._couriers: set[Callable[[], None]] = set()

    # ── putting events ───────────────────────────────────────────────────────────────────

    def put(self, connection: Connection, events: Iterable[NewEvent]) -> None:
        """Write *events* in the transaction of *connection*: they are sent after it commits, and
        only then.

        Put an event after the change that it describes: then events of one key are sent in order,
        because the row that they both changed orders their transactions. One statement.
        """
        self.putting(events)(connection)

    def putting(self, events: Iterable[NewEvent]) -> Callable[[Connection], None]:
        """Prepare *events*. Returns a function that puts them, given a connection."""
        now = self._wall()
        rows = [
            msgspec.structs.asdict(event) | {"sink": sink, "attempts": 0, "created_at": now}
            for event in events
            for sink in self.sinks
        ]

        def put(connection: Connection) -> None:
            if rows:
                connection.execute(_put, rows)
                connection.info[_PUT] = True

        return put

    def nudge(self) -> None:
        """Internal: tell the couriers of this process that events may have been put."""
        for call in self._couriers:
            call()

    def call(self, courier: Callable[[], None]) -> None:
        """Internal: call *courier* at each nudge."""
        self._couriers.add(courier)

    def call_no_more(self, courier: Callable[[], None]) -> None:
        """Internal: undo `call`."""
        self._couriers.discard(courier)

    # ── reading ──────────────────────────────────────────────────────────────────────────

    async def counts(self) -> dict[str, OutboxCounts]:
        """Return the counts of this ledger's sinks, and of all others that have rows. One read."""
        found = await self._ledger.read(_counts)
        return {sink: OutboxCounts() for sink in self.sinks} | found

    async def refused(self, sink: str, *, after: int = 0, size: int = 50) -> list[RefusedEvent]:
        """Return events that *sink* refused, oldest first; *after* is the `seq` of an event."""
        name, size = sink_name(sink), integer("size", size, 1, LARGEST_PAGE)
        query = (
            select(outbox)
            .where(*_refused_by(name), outbox.c.seq > after)
            .order_by(outbox.c.seq)
            .limit(size)
        )

        def read(connection: Connection) -> list[RefusedEvent]:
            return [
                RefusedEvent(as_event(row), row["reason"], instant(row["refused_at"]))
                for row in connection.execute(query).mappings()
            ]

        return await self._ledger.read(read)

    # ── refused events ───────────────────────────────────────────────────────────────────

    async def resend(self, sink: str, ids: Sequence[str]) -> int:
        """Send refused events again, in their old order. Returns how many."""
        return await self._resend(_refused_by(sink_name(sink)), ids)

    async def resend_all(self, sink: str) -> int:
        """Send again all events that *sink* refused. Returns how many."""
        return await self._resend(_refused_by(sink_name(sink)))

    async def delete(self, sink: str, ids: Sequence[str]) -> int:
        """Delete refused events for good. Returns how many. Pending events stay."""
        these = *_refused_by(sink_name(sink)), outbox.c.id.in_(list(ids))
        done = delete(outbox).where(*these)
        return await self._ledger.write(lambda connection: connection.execute(done).rowcount)

    async def _resend(self, those: tuple[Any, ...], ids: Sequence[str] | None = None) -> int:
        named = () if ids is None else (outbox.c.id.in_(list(ids)),)
        again = {"refused_at": None, "reason": None, "attempts": 0}
        change = update(outbox).where(*those, *named).values(again)
        done = await self._ledger.write(lambda connection: connection.execute(change).rowcount)
        self.nudge()
        return done


def was_put(connection: Connection) -> bool:
    """Whether events were put on *connection* since the last call."""
    return connection.info.pop(_PUT, False)


def as_event(row: RowMapping) -> OutboxEvent:
    """Return the event of a row."""
    return OutboxEvent(**{name: row[name] for name in OutboxEvent.__struct_fields__})


def _names(sinks: Iterable[str]) -> tuple[str, ...]:
    if isinstance(sinks, str):
        raise InvalidOption("sinks", sinks, rule="must be a list of names")
    names = tuple(sink_name(sink) for sink in sinks)
    if len(set(names)) < len(names):
        raise InvalidOption("sinks", list(names), rule="each name once")
    return names


def _refused_by(sink: str) -> tuple[Any, ...]:
    return outbox.c.sink == sink, outbox.c.refused_at.is_not(None)


_with_pending = each_name(outbox.c.sink, "refused_at IS NULL AND")
_with_refused = each_name(outbox.c.sink, "refused_at IS NOT NULL AND")
_this = outbox.c.sink == bindparam("of_sink")
_waits = outbox.c.refused_at.is_(None)


def _number(*which: ColumnElement[bool]) -> ScalarSelect[int]:
    # With ORDER BY, PostgreSQL reads the index; without, it reads the table.
    some = select(outbox.c.seq).where(*which).order_by(outbox.c.seq).limit(COUNTED_MOST).subquery()
    return select(func.count()).select_from(some).scalar_subquery()


_counted = select(
    _number(_this, _waits),
    _number(_this, outbox.c.refused_at.is_not(None)),
    select(outbox.c.created_at)
    .where(_this, _waits)
    .order_by(outbox.c.seq)
    .limit(1)
    .scalar_subquery(),
)


def _counts(connection: Connection) -> dict[str, OutboxCounts]:
    sinks = sorted({*connection.scalars(_with_pending), *connection.scalars(_with_refused)})
    found = {sink: connection.execute(_counted, {"of_sink": sink}).one() for sink in sinks}
    return {
        sink: OutboxCounts(pending, refused, None if oldest is None else instant(oldest))
        for sink, (pending, refused, oldest) in found.items()
    }
