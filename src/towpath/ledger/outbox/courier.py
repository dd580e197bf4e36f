"""The courier: sends the events of the outbox to the sinks, at least once and in order per key.

It has a route per sink. Several processes may have a route of the same sink: only the one with the
lease sends. It gives up the lease when no events are left, so that the next event is sent by the
process that puts it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

from sqlalchemy.engine import Connection

from towpath.clock import Duration, duration_ms, instant, seconds, steady, wall_ms
from towpath.errors import InvalidOption
from towpath.ledger.errors import LedgerError, LedgerUnreachable, SinkUnreachable
from towpath.ledger.outbox.backoff import MOST_WAITING, CourierOptions, SinkBackoff
from towpath.ledger.outbox.batch import (
    BatchOutcome,
    evaluate,
    has_pending,
    next_batch,
    outcome_statements,
    refuse_invalid,
)
from towpath.ledger.outbox.event import Refusal
from towpath.ledger.outbox.leases import give_up_lease, take_lease
from towpath.ledger.outbox.outbox import OutboxCounts
from towpath.supervise import Background
from towpath.telemetry import events as lines
from towpath.telemetry.logs import Log
from towpath.telemetry.metrics import Metrics, Reading, SinkMetrics, SinkReading

if TYPE_CHECKING:
    from towpath.ledger.ledger import Ledger
    from towpath.ledger.outbox.event import OutboxEvent, Outcome, Sink


class _LeaseOver(Exception):
    """The lease ended during a send: another courier may be sending the same events."""


class Route:
    """Sends the events of *sink* until it is closed."""

    def __init__(
        self,
        ledger: Ledger,
        sink: Sink,
        *,
        options: CourierOptions,
        log: Log,
        counters: SinkMetrics,
    ) -> None:
        self._ledger, self._sink, self._name = ledger, sink, sink.name
        self._options, self._log, self._counters = options, log, counters
        self._lease = options.lease.total_seconds()
        self._holder = secrets.token_hex(8)
        self._held_until = 0.0
        """When the lease ends by this process's monotonic clock: earlier than by the database's."""
        self._backoff = SinkBackoff(options)
        self._ledger_away = False
        self._called, self._closing = asyncio.Event(), asyncio.Event()

    def call(self) -> None:
        """Wake the route: events may have been put."""
        self._called.set()

    def close(self) -> None:
        """Make `run` end after the current batch."""
        self._closing.set()
        self._called.set()

    async def run(self) -> None:
        """Send events until `close`. Raises only errors that are defects."""
        try:
            while not self._closing.is_set():
                self._called.clear()
                try:
                    await self._look()
                    self._ledger_away = False
                except LedgerError as error:
                    await self._without_ledger(error)
        finally:
            await self._give_up_lease()

    async def _without_ledger(self, error: LedgerError) -> None:
        if not self._ledger_away:
            self._ledger_away = True
            name = type(error).__qualname__
            self._log.emit(lines.OUTBOX_UNREADABLE, sink=self._name, error=name, reason=str(error))
        await _wait(self._closing, self._options.look_every)

    # ── reading events ───────────────────────────────────────────────────────────────────

    async def _look(self) -> None:
        """Send a batch, or wait until there may be events."""
        name, size, without = self._name, self._options.batch, self._backoff.waiting()
        crowded = len(without) >= MOST_WAITING
        # Read before taking the lease, so that a courier without events never writes.
        if crowded or not await self._ledger.read(
            lambda connection: has_pending(connection, name, without)
        ):
            await self._give_up_lease()
            return await _wait(self._called, self._options.look_every)
        if not self._has_lease and not await self._take_lease():
            # Another courier has the lease and sends new events too: `call` need not end this wait.
            return await _wait(self._closing, self._options.look_every)
        events = await self._ledger.read(
            lambda connection: next_batch(connection, name, without, size=size)
        )
        if not events:  # the previous holder of the lease has sent them
            return await self._give_up_lease()
        return await self._send_batch(events)

    # ── the lease ────────────────────────────────────────────────────────────────────────

    @property
    def _has_lease(self) -> bool:
        return steady() < self._held_until

    async def _take_lease(self, outcome: BatchOutcome | None = None) -> bool:
        """Take or renew the lease, and store *outcome* in the same transaction."""
        asked, lease_ms = steady(), duration_ms("lease", self._options.lease)
        statements = outcome_statements(outcome) if outcome is not None else []

        def change(connection: Connection) -> bool:
            for statement, rows in statements:
                connection.execute(statement, rows)
            return take_lease(connection, self._name, self._holder, lease_ms)

        held = await self._ledger.write(change)
        self._held_until = asked + self._lease if held else 0.0
        return held

    async def _give_up_lease(self) -> None:
        """Give up the lease. If that fails, the lease expires."""
        if self._has_lease:
            self._held_until = 0.0
            with suppress(LedgerError):
                await self._ledger.write(
                    lambda connection: give_up_lease(connection, self._name, self._holder)
                )

    # ── sending ──────────────────────────────────────────────────────────────────────────

    async def _send_batch(self, events: Sequence[OutboxEvent]) -> None:
        """Send *events* and store the outcomes; pause if the sink is unreachable."""
        broken = refuse_invalid(events)
        if broken is not None:
            return await self._store_outcome(broken)
        try:
            outcomes = await self._send(events)
            outcome = evaluate(events, outcomes, attempts=self._options.attempts)
        except SinkUnreachable as error:
            outcome = BatchOutcome(reason=error.reason)
        except _LeaseOver:
            return None
        if outcome.reason:
            return await self._pause(outcome)
        away = self._backoff.reached()
        if away is not None:
            self._log.emit(lines.SINK_BACK, sink=self._name, away=away)
        return await self._store_outcome(outcome)

    async def _send(self, events: Sequence[OutboxEvent]) -> Sequence[Outcome]:
        """Send *events* while the lease is held. Returns the sink's outcomes. Raises _LeaseOver."""
        limit = asyncio.timeout(self._held_until - steady())
        try:
            async with limit, self._keep_lease(limit):
                return await self._sink.send(events)
        except TimeoutError as error:
            if limit.expired():
                raise _LeaseOver from error
            raise SinkUnreachable(self._name, "no answer in time") from error

    @asynccontextmanager
    async def _keep_lease(self, limit: asyncio.Timeout) -> AsyncGenerator[None]:
        """Renew the lease while the body runs; *limit* ends the body when the lease ends."""
        over = asyncio.Event()
        keeping = asyncio.create_task(self._renew_lease(limit, over))
        try:
            yield
        finally:
            over.set()
            await asyncio.wait((keeping,))

    async def _renew_lease(self, limit: asyncio.Timeout, over: asyncio.Event) -> None:
        while not over.is_set():
            left = self._held_until - steady()
            await _wait(over, seconds(max(left - self._lease * 2 / 3, self._lease / 30)))
            if not over.is_set():
                with suppress(LedgerError):  # if the database stays away, the lease expires
                    await self._take_lease()
            if not limit.expired():
                limit.reschedule(asyncio.get_running_loop().time() + self._held_until - steady())

    # ── after sending ────────────────────────────────────────────────────────────────────

    async def _store_outcome(self, outcome: BatchOutcome) -> None:
        """Delete accepted events, set refused ones aside, and renew the lease."""
        await self._take_lease(outcome)
        self._counters.sent.inc(len(outcome.taken))
        self._counters.refused.inc(len(outcome.refused))
        self._note_failures(outcome)

    def _note_failures(self, outcome: BatchOutcome) -> None:
        for event, answer in (*outcome.refused, *outcome.delayed):
            about: dict[str, Any] = {"sink": self._name, "event_id": event.id, "type": event.type}
            about["reason"] = answer.reason
            if isinstance(answer, Refusal):
                self._log.emit(lines.OUTBOX_REFUSED, **about)
                continue
            delay = self._backoff.hold_back(event.key, event.attempts, answer.after)
            self._log.emit(lines.OUTBOX_DELAYED, attempt=event.attempts + 1, delay=delay, **about)

    async def _pause(self, outcome: BatchOutcome) -> None:
        """Give up the lease and wait before the next try. Another process may reach the sink."""
        if self._backoff.failed():
            self._log.emit(lines.SINK_UNREACHABLE, sink=self._name, reason=outcome.reason)
        await self._give_up_lease()
        await _wait(self._closing, self._backoff.pause(outcome.after))


async def _wait(event: asyncio.Event, most: Duration) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(most.total_seconds()):
            await event.wait()


_READ_EVERY = seconds(10)
_PLACE = "courier"


class Courier:
    """Sends the events of *ledger*'s outbox to *sinks* while it is entered.

        async with Courier(ledger, [RedisStreamSink(engine)]):
            …

    Any number of couriers may run, on any host: for each sink, one of them sends at a time, and if
    it dies, another takes over when its lease ends. An event is sent again until its sink accepts
    it or refuses it for good; later events of its key wait. Leaving finishes the current batch,
    within the grace, and closes the sinks. If a sink raises an unexpected error, its route starts
    again after a pause.
    """

    def __init__(
        self,
        ledger: Ledger,
        sinks: Sequence[Sink],
        *,
        options: CourierOptions | None = None,
        log: Log | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        names = [sink.name for sink in sinks]
        if len(set(names)) < len(names):
            raise InvalidOption("sinks", names, rule="each name once")
        self._ledger, self._sinks = ledger, sinks
        self._options, self._log = options or CourierOptions(), log or Log()
        self._metrics = metrics or Metrics()
        self._routes: list[Route] = []
        self._running: list[Background] = []
        self._read_at, self._counts = steady(), dict[str, OutboxCounts]()

    async def __aenter__(self) -> Self:
        if self._running:
            return self
        self._read_at = steady()
        own: dict[str, Any] = {"options": self._options, "log": self._log}
        self._routes = [
            Route(self._ledger, sink, counters=self._metrics.sink(sink.name), **own)
            for sink in self._sinks
        ]
        self._ledger.outbox.call(self._call)
        tasks = {"readings of the outbox": self._read_regularly}
        for sink, route in zip(self._sinks, self._routes, strict=True):
            tasks[f"courier of {sink.name}"] = route.run
        self._running = [
            Background(name, run, log=self._log).start() for name, run in tasks.items()
        ]
        self._metrics.watch(self.read, place=_PLACE)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ledger.outbox.call_no_more(self._call)
        running, self._running = self._running, []
        for task in running:
            task.retire()
        for route in self._routes:
            route.close()
        if running:
            reading, *routes = running
            await reading.stop()
            # A batch that is not finished within the grace is sent again later.
            await asyncio.gather(*(route.stop(grace=self._options.grace) for route in routes))
        for sink in self._sinks:
            await sink.close()

    def read(self) -> Reading:
        """Return the latest counts of the sinks, for metrics. Does not wait; safe in any thread.

        Raises LedgerUnreachable if the counts are too old.
        """
        if not self._running:
            return Reading()
        if steady() - self._read_at > 3 * _READ_EVERY.total_seconds():
            raise LedgerUnreachable("the outbox could not be read")
        now = instant(wall_ms())
        return Reading(
            sinks=[
                SinkReading(
                    sink,
                    {"pending": counts.pending, "refused": counts.refused},
                    counts.lag(now).total_seconds(),
                )
                for sink, counts in self._counts.items()
            ]
        )

    def _call(self) -> None:
        for route in self._routes:
            route.call()

    async def _read_regularly(self) -> None:
        while True:
            with suppress(LedgerError):  # the routes log it, and `read` raises
                self._counts = await self._ledger.outbox.counts()
                self._read_at = steady()
            await asyncio.sleep(_READ_EVERY.total_seconds())
