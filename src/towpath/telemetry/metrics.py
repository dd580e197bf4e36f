"""Metrics for Prometheus: counted where things happen, looked at when somebody asks.

What costs: finding a counter by its labels takes 2 µs, so `Metrics.of` finds all of a handler's
once. Adding to one takes half a µs for any number at once, so a batch pays once. A histogram of the
client library takes 1.2 to 2 µs per value, so there is `Timings`.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any, Self

import msgspec
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    start_http_server,
)
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from towpath.errors import TowpathError
from towpath.telemetry import measures
from towpath.telemetry.measures import MetricKind, MetricSpec

BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0),
)
"""Upper bounds in seconds: from a millisecond, the best punctuality, to the usual time limit."""

LOCAL = "127.0.0.1"


# ── what is counted while jobs run ───────────────────────────────────────────────────────


class Timings:
    """A histogram that is cheap to add to: one search and one lock, however many values.

    The client library's own walks its buckets and locks three times, 1.2 to 2 µs for each value;
    it has no way to take several at once. This one is read by the same library at a scrape.
    """

    __slots__ = ("_counts", "_lock", "_sum")

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, seconds: float) -> None:
        """Count one duration; a negative one (two clocks) counts as 0."""
        with self._lock:
            self._counts[bisect_left(BUCKETS, seconds)] += 1
            if seconds > 0:
                self._sum += seconds

    def observe_many(self, durations: Iterable[float]) -> None:
        """Count several under one lock, each at less than half of the cost of one alone."""
        with self._lock:
            for seconds in durations:
                self._counts[bisect_left(BUCKETS, seconds)] += 1
                if seconds > 0:
                    self._sum += seconds

    def read(self) -> tuple[list[tuple[str, float]], float]:
        """The cumulative buckets as Prometheus wants them, and the sum."""
        with self._lock:
            counts, total = list(self._counts), self._sum
        bounds = [*(str(bound) for bound in BUCKETS), "+Inf"]
        return list(zip(bounds, accumulate(counts), strict=True)), total


class HandlerMetrics:
    """The metrics of one handler of one queue, found once and kept: `of.completed.inc(40)`."""

    __slots__ = (
        "cancelled",
        "completed",
        "dead",
        "failed",
        "handed_over",
        "lost",
        "punctuality",
        "ran",
        "redelivered",
        "released",
        "snoozed",
        "stale_refused",
        "started",
        "submitted",
        "timed_out",
        "unhandled",
        "waited",
    )

    def __init__(self, counter: Callable[[MetricSpec], Counter]) -> None:
        self.submitted = counter(measures.SUBMITTED)
        self.started = counter(measures.STARTED)
        self.completed = counter(measures.COMPLETED)
        self.failed = counter(measures.FAILED)
        self.dead = counter(measures.DEAD)
        self.snoozed = counter(measures.SNOOZED)
        self.unhandled = counter(measures.UNHANDLED)
        self.handed_over = counter(measures.HANDED_OVER)
        self.released = counter(measures.RELEASED)
        self.cancelled = counter(measures.CANCELLED)
        self.timed_out = counter(measures.TIMED_OUT)
        self.redelivered = counter(measures.REDELIVERED)
        self.lost = counter(measures.LOST)
        self.stale_refused = counter(measures.STALE_REFUSED)
        self.ran = Timings()
        self.waited = Timings()
        self.punctuality = Timings()


class SinkMetrics:
    """What is counted for one sink of the outbox."""

    __slots__ = ("refused", "sent")

    def __init__(self, counter: Callable[[MetricSpec], Counter]) -> None:
        self.sent = counter(measures.OUTBOX_SENT)
        self.refused = counter(measures.OUTBOX_REFUSED)


class ScheduleMetrics:
    """What is counted for the schedules of one queue."""

    __slots__ = ("fired", "missed")

    def __init__(self, counter: Callable[[MetricSpec], Counter]) -> None:
        self.fired = counter(measures.SCHEDULES_FIRED)
        self.missed = counter(measures.SCHEDULES_MISSED)


# ── what is looked at when somebody asks ─────────────────────────────────────────────────


class QueueReading(msgspec.Struct, frozen=True):
    """How one queue stands: jobs by state, and the age of the oldest that could run."""

    queue: str
    depth: Mapping[str, int]
    oldest: float = 0.0
    leases: int = 0
    """How many of its jobs this worker holds."""


class SinkReading(msgspec.Struct, frozen=True):
    """How one sink stands: events in the outbox by state, and how long the oldest has waited."""

    sink: str
    events: Mapping[str, int]
    lag: float = 0.0


class Reading(msgspec.Struct, frozen=True):
    """How everything stands at a scrape."""

    queues: Sequence[QueueReading] = ()
    slots: Mapping[str, int] = {}
    sinks: Sequence[SinkReading] = ()


Read = Callable[[], Reading]
_KINDS: Mapping[MetricKind, Callable[..., Any]] = {
    MetricKind.COUNTER: Counter,
    MetricKind.GAUGE: Gauge,
    MetricKind.HISTOGRAM: Histogram,
}
WORKER = "worker"
"""The place of whoever runs handlers."""


class Metrics(Collector):
    """All metrics of a process, in a registry of its own or in the one it is given."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        if registry is None:
            registry = CollectorRegistry()
            ProcessCollector(registry=registry)
        self.registry = registry
        self._of: dict[tuple[str, str], HandlerMetrics] = {}
        self._own: dict[str, Any] = {}
        self._adding = threading.Lock()
        self._reads: dict[str, Read] = {}
        self._counters = {
            spec.name: Counter(spec.name, spec.sentence, spec.labels, registry=registry)
            for spec in measures.CATALOGUE
            if spec.kind is MetricKind.COUNTER
        }
        registry.register(self)

    def of(self, queue: str, handler: str) -> HandlerMetrics:
        """The metrics of one handler, at 0 from the first time they are asked for.

        About 0.1 µs after the first time. Give names that the program knows, never one that only
        a job names: each is kept as long as the process lives.
        """
        found = self._of.get((queue, handler))
        return self._add(queue, handler) if found is None else found

    def _add(self, queue: str, handler: str) -> HandlerMetrics:
        with self._adding:
            found = self._of.get((queue, handler))
            if found is None:
                found = self._of[queue, handler] = HandlerMetrics(
                    lambda spec: self._counters[spec.name].labels(queue, handler)
                )
            return found

    def forget(self, queue: str, handler: str) -> None:
        """Show nothing more of a handler that is gone; without effect if nothing was counted."""
        with self._adding:
            if self._of.pop((queue, handler), None) is not None:
                for spec in measures.CATALOGUE:
                    if spec.kind is MetricKind.COUNTER and spec.labels == measures.PER_HANDLER:
                        self._counters[spec.name].remove(queue, handler)

    def sink(self, name: str) -> SinkMetrics:
        """The counters of one sink, at 0 from the first time they are asked for."""
        return SinkMetrics(lambda spec: self._counters[spec.name].labels(name))

    def schedules(self, queue: str) -> ScheduleMetrics:
        """The counters of a queue's schedules, at 0 from the first time they are asked for."""
        return ScheduleMetrics(lambda spec: self._counters[spec.name].labels(queue))

    def own(self, spec: MetricSpec) -> Any:
        """A metric of an application: the client library's own, made the first time."""
        with self._adding:
            if spec.name not in self._own:
                kind = _KINDS[spec.kind]
                bounds = {"buckets": BUCKETS} if spec.kind is MetricKind.HISTOGRAM else {}
                made = kind(spec.name, spec.sentence, spec.labels, registry=self.registry, **bounds)
                self._own[spec.name] = made
            return self._own[spec.name]

    def watch(self, read: Read, *, place: str = WORKER) -> None:
        """Ask *read* how things stand, at each scrape and in the scraper's own thread.

        It answers from what the worker knows, or waits for its loop with a time limit. If it
        raises TowpathError, OSError or TimeoutError, the scrape goes on without those gauges and
        says so: counters matter most while the server is away. A second one takes the *place* of
        the first; of two places that know a queue both count its leases.
        """
        self._reads[place] = read

    def serve(self, *, port: int = 0, addr: str = LOCAL) -> MetricsEndpoint:
        """Open `/metrics` for Prometheus, to this machine only unless told otherwise."""
        return MetricsEndpoint(self.registry, port=port, addr=addr)

    def collect(self) -> Iterator[Metric]:
        """What Prometheus's registry asks for: the histograms and the gauges."""
        yield self._histogram(measures.JOB_SECONDS, lambda of: of.ran)
        yield self._histogram(measures.WAIT_SECONDS, lambda of: of.waited)
        yield self._histogram(measures.PUNCTUALITY_SECONDS, lambda of: of.punctuality)
        yield from self._gauges()

    def _histogram(
        self, spec: MetricSpec, timings: Callable[[HandlerMetrics], Timings]
    ) -> HistogramMetricFamily:
        family = HistogramMetricFamily(spec.name, spec.sentence, labels=spec.labels)
        for labels, of in list(self._of.items()):
            buckets, total = timings(of).read()
            family.add_metric(labels, buckets, total)
        return family

    def _gauges(self) -> Iterator[Metric]:
        if not self._reads:
            return
        readings: list[Reading] = []
        for read in list(self._reads.values()):
            with suppress(TowpathError, OSError, TimeoutError):
                readings.append(read())
        if readings:
            yield from _gauges_of(_joined(readings))
        readable = _family(measures.READABLE)
        readable.add_metric((), int(len(readings) == len(self._reads)))
        yield readable


def _joined(readings: Sequence[Reading]) -> Reading:
    """One reading of several: each queue once, as the last one saw it."""
    queues: dict[str, QueueReading] = {}
    for of_queue in (queue for reading in readings for queue in reading.queues):
        before = queues.get(of_queue.queue)
        leases = of_queue.leases + (before.leases if before else 0)
        queues[of_queue.queue] = msgspec.structs.replace(of_queue, leases=leases)
    slots = {state: number for reading in readings for state, number in reading.slots.items()}
    sinks = {sink.sink: sink for reading in readings for sink in reading.sinks}
    return Reading(queues=list(queues.values()), slots=slots, sinks=list(sinks.values()))


def _gauges_of(reading: Reading) -> Iterator[Metric]:
    depth, oldest, leases = (
        _family(measures.QUEUE_DEPTH),
        _family(measures.OLDEST_SECONDS),
        _family(measures.LEASES_ACTIVE),
    )
    slots, sinks = _family(measures.SLOTS), _sink_gauges(reading.sinks)
    for queue in reading.queues:
        for state, jobs in queue.depth.items():
            depth.add_metric((queue.queue, state), jobs)
        oldest.add_metric((queue.queue,), queue.oldest)
        leases.add_metric((queue.queue,), queue.leases)
    for state, number in reading.slots.items():
        slots.add_metric((state,), number)
    yield from (depth, oldest, leases, slots, *sinks)


def _sink_gauges(readings: Sequence[SinkReading]) -> tuple[Metric, Metric]:
    events, lag = _family(measures.OUTBOX_EVENTS), _family(measures.OUTBOX_LAG)
    for reading in readings:
        for state, number in reading.events.items():
            events.add_metric((reading.sink, state), number)
        lag.add_metric((reading.sink,), reading.lag)
    return events, lag


def _family(spec: MetricSpec) -> GaugeMetricFamily:
    return GaugeMetricFamily(spec.name, spec.sentence, labels=spec.labels)


class MetricsEndpoint:
    """Serves `/metrics` over HTTP in its own thread, until it is closed.

    Whoever reaches it learns the names of queues and handlers; there is no password. Port 0 takes
    a free one. Raises OSError if the port is taken.
    """

    def __init__(self, registry: CollectorRegistry, *, port: int, addr: str) -> None:
        self._server, self._thread = start_http_server(port, addr, registry=registry)
        self.addr = addr
        self.port = self._server.server_port

    def __str__(self) -> str:
        return f"{self.addr}:{self.port}"

    def close(self) -> None:
        """Answer no more and give the port back; without effect the second time."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
