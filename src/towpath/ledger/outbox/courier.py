"""The courier: sends what is in the outbox to the sinks, at least once and in order per key."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from towpath.clock import instant, seconds, steady, wall_ms
from towpath.errors import InvalidOption
from towpath.ledger.errors import LedgerError, LedgerUnreachable
from towpath.ledger.outbox.outbox import OutboxCounts
from towpath.ledger.outbox.patience import CourierOptions
from towpath.ledger.outbox.route import Route
from towpath.supervise import Background
from towpath.telemetry.logs import Log
from towpath.telemetry.metrics import Metrics, Reading, SinkReading

if TYPE_CHECKING:
    from towpath.ledger.ledger import Ledger
    from towpath.ledger.outbox.sinks.port import Sink

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
        self._routes = [self._route(sink) for sink in self._sinks]
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
        for it in running:
            it.retire()
        for route in self._routes:
            route.close()
        if running:
            reading, *routes = running
            await reading.stop()
            # What is under way after the grace is sent again.
            await asyncio.gather(*(it.stop(grace=self._options.grace) for it in routes))
        for sink in self._sinks:
            await sink.close()

    def read(self) -> Reading:
        """How the sinks stood a moment ago; for whoever scrapes, in any thread, without waiting.

        Raises LedgerUnreachable if they could not be looked at for a while.
        """
        if not self._running:
            return Reading()
        if steady() - self._read_at > 3 * _READ_EVERY.total_seconds():
            raise LedgerUnreachable("the outbox could not be looked at")
        now = instant(wall_ms())
        return Reading(
            sinks=[
                SinkReading(
                    sink,
                    {"pending": it.pending, "refused": it.refused},
                    it.lag(now).total_seconds(),
                )
                for sink, it in self._counts.items()
            ]
        )

    def _route(self, sink: Sink) -> Route:
        counters = self._metrics.sink(sink.name)
        return Route(self._ledger, sink, options=self._options, log=self._log, counters=counters)

    def _call(self) -> None:
        for route in self._routes:
            route.call()

    async def _read_now_and_then(self) -> None:
        while True:
            with suppress(LedgerError):  # said by the routes, and by what is read
                self._counts = await self._ledger.outbox.counts()
                self._read_at = steady()
            await asyncio.sleep(_READ_EVERY.total_seconds())
