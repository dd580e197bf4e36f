"""The courier: sends what is in the outbox to the sinks, at least once and in order per key.

It has a route per sink. Routes of one sink in several processes take turns: whoever holds the lease
sends, and lets go of it when nothing is left, so that the next event leaves through the process
that put it.
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
from towpath.ledger.outbox.event import Refusal
from towpath.ledger.outbox.outbox import OutboxCounts
from towpath.ledger.outbox.outgoing import (
    MOST_WAITING,
    BatchOutcome,
    CourierOptions,
    Patience,
    has_pending,
    hold,
    judge,
    let_go,
    next_batch,
    settle,
    spoilt,
)
from towpath.supervise import Background
from towpath.telemetry import events as lines
from towpath.telemetry.logs import Log
from towpath.telemetry.metrics import Metrics, Reading, SinkMetrics, SinkReading

if TYPE_CHECKING:
    from towpath.ledger.ledger import Ledger
    from towpath.ledger.outbox.event import OutboxEvent, Outcome, Sink


class _LeaseOver(Exception):
    """The lease ended in the middle of a send: another courier may be at the same events."""


class Route:
    """Carries the events of *sink* until it is closed."""

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
        """By this process's stopwatch: earlier than by the database's clock."""
        self._patience = Patience(options)
        self._ledger_away = False
        self._called, self._closing = asyncio.Event(), asyncio.Event()

    def call(self) -> None:
        """Something may have been put."""
        self._called.set()

    def close(self) -> None:
        """End after the batch that is under way."""
        self._closing.set()
        self._called.set()

    async def run(self) -> None:
        """Carry events until closed. Ends by itself only with an error that is a defect."""
        try:
            while not self._closing.is_set():
                self._called.clear()
                try:
                    await self._look()
                    self._ledger_away = False
                except LedgerError as error:
                    await self._without_ledger(error)
        finally:
            await self._leave()

    async def _without_ledger(self, error: LedgerError) -> None:
        if not self._ledger_away:
            self._ledger_away = True
            name = type(error).__qualname__
            self._log.emit(lines.OUTBOX_UNREADABLE, sink=self._name, error=name, reason=str(error))
        await _wait(self._closing, self._options.look_every)

    # ── taking ───────────────────────────────────────────────────────────────────────────

    async def _look(self) -> None:
        """Send what there is, or wait until there may be something."""
        name, size, without = self._name, self._options.batch, self._patience.waiting()
        crowded = len(without) >= MOST_WAITING
        # Looked at before anything is written: a courier that has nothing to do writes nothing.
        if crowded or not await self._ledger.read(
            lambda connection: has_pending(connection, name, without)
        ):
            await self._leave()
            return await _wait(self._called, self._options.look_every)
        if not self._held and not await self._hold():
            # Another courier sends: these too. So a call is no reason to look again.
            return await _wait(self._closing, self._options.look_every)
        events = await self._ledger.read(
            lambda connection: next_batch(connection, name, without, size=size)
        )
        if not events:  # whoever held the lease before has sent them
            return await self._leave()
        return await self._carry(events)

    # ── the lease ────────────────────────────────────────────────────────────────────────

    @property
    def _held(self) -> bool:
        return steady() < self._held_until

    async def _hold(self, verdict: BatchOutcome | None = None) -> bool:
        """Take or keep the lease, and write down *verdict* in the same transaction."""
        asked, lease_ms = steady(), duration_ms("lease", self._options.lease)
        settled = settle(verdict) if verdict is not None else []

        def change(connection: Connection) -> bool:
            for statement, rows in settled:
                connection.execute(statement, rows)
            return hold(connection, self._name, self._holder, lease_ms)

        held = await self._ledger.write(change)
        self._held_until = asked + self._lease if held else 0.0
        return held

    async def _leave(self) -> None:
        """Let go of the lease. If that fails, it ends by itself."""
        if self._held:
            self._held_until = 0.0
            with suppress(LedgerError):
                await self._ledger.write(
                    lambda connection: let_go(connection, self._name, self._holder)
                )

    # ── sending ──────────────────────────────────────────────────────────────────────────

    async def _carry(self, events: Sequence[OutboxEvent]) -> None:
        """Send *events*, write down what became of them, or leave the sink alone for a while."""
        broken = spoilt(events)
        if broken is not None:
            return await self._settle(broken)
        try:
            outcomes = await self._send(events)
            verdict = judge(events, outcomes, attempts=self._options.attempts)
        except SinkUnreachable as error:
            verdict = BatchOutcome(reason=error.reason)
        except _LeaseOver:
            return None
        if verdict.reason:
            return await self._pause(verdict)
        away = self._patience.reached()
        if away is not None:
            self._log.emit(lines.SINK_BACK, sink=self._name, away=away)
        return await self._settle(verdict)

    async def _send(self, events: Sequence[OutboxEvent]) -> Sequence[Outcome]:
        """What the sink answers, as long as the lease is held. Raises _LeaseOver."""
        limit = asyncio.timeout(self._held_until - steady())
        try:
            async with limit, self._kept(limit):
                return await self._sink.send(events)
        except TimeoutError as error:
            if limit.expired():
                raise _LeaseOver from error
            raise SinkUnreachable(self._name, "no answer in time") from error

    @asynccontextmanager
    async def _kept(self, limit: asyncio.Timeout) -> AsyncGenerator[None]:
        """Keep the lease while the body runs; *limit* ends the body when the lease ends."""
        over = asyncio.Event()
        keeping = asyncio.create_task(self._keep(limit, over))
        try:
            yield
        finally:
            over.set()
            await asyncio.wait((keeping,))

    async def _keep(self, limit: asyncio.Timeout, over: asyncio.Event) -> None:
        while not over.is_set():
            left = self._held_until - steady()
            await _wait(over, seconds(max(left - self._lease * 2 / 3, self._lease / 30)))
            if not over.is_set():
                with suppress(LedgerError):  # if the database stays away, the lease just ends
                    await self._hold()
            if not limit.expired():
                limit.reschedule(asyncio.get_running_loop().time() + self._held_until - steady())

    # ── after sending ────────────────────────────────────────────────────────────────────

    async def _settle(self, verdict: BatchOutcome) -> None:
        """Delete what was taken, set aside what was refused, and keep the lease."""
        await self._hold(verdict)
        self._counters.sent.inc(len(verdict.taken))
        self._counters.refused.inc(len(verdict.refused))
        self._tell(verdict)

    def _tell(self, verdict: BatchOutcome) -> None:
        for event, answer in (*verdict.refused, *verdict.delayed):
            about: dict[str, Any] = {"sink": self._name, "event_id": event.id, "type": event.type}
            about["reason"] = answer.reason
            if isinstance(answer, Refusal):
                self._log.emit(lines.OUTBOX_REFUSED, **about)
                continue
            delay = self._patience.hold_back(event.key, event.attempts, answer.after)
            self._log.emit(lines.OUTBOX_DELAYED, attempt=event.attempts + 1, delay=delay, **about)

    async def _pause(self, verdict: BatchOutcome) -> None:
        """Leave the sink alone. Another process may reach it: the lease is free meanwhile."""
        if self._patience.failed():
            self._log.emit(lines.SINK_UNREACHABLE, sink=self._name, reason=verdict.reason)
        await self._leave()
        await _wait(self._closing, self._patience.pause(verdict.after))


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

    Any number may run, anywhere: of each sink one sends at a time, and another takes over within
    the lease if it dies. An event is sent again until its sink has it or refuses it for good;
    those of its key wait behind it. Leaving finishes the batch under way, within the grace, and
    closes the sinks. A sink that raises what it must not is tried again after a pause.
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
        tasks = {"readings of the outbox": self._read_now_and_then}
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
            # What is under way after the grace is sent again.
            await asyncio.gather(*(route.stop(grace=self._options.grace) for route in routes))
        for sink in self._sinks:
            await sink.close()

    def read(self) -> Reading:
        """How the sinks stood a moment ago; for whoever scrapes, in any thread, without waiting.

        Raises LedgerUnreachable if they could not be looked at for a while.
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

    async def _read_now_and_then(self) -> None:
        while True:
            with suppress(LedgerError):  # said by the routes, and by what is read
                self._counts = await self._ledger.outbox.counts()
                self._read_at = steady()
            await asyncio.sleep(_READ_EVERY.total_seconds())
