"""Metrics for Prometheus: counters are counted as things happen, gauges are read at a scrape.

Costs: finding a counter by its labels takes 2 µs, so `Metrics.of` keeps all counters of a handler.
Adding any number to a counter takes half a µs, so a batch adds once. `Timings` is a histogram that
takes 0.15 µs per value of a batch, and 0.5 µs for one. With the client library's (1.25 µs, and 18
buckets), the three durations of a job would cost 3 µs more: 5 % of a job at 19,000 jobs a second.
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


# ── counters and histograms ──────────────────────────────────────────────────────────────


class Timings:
    """A histogram that is cheap to add to: one lock for any number of values.

    The client library's histogram walks its buckets and locks three times for each value, and can't
    take several at once. The library reads this one at a scrape, too.
    """

    __slots__ = ("_counts", "_lock", "_sum")

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, seconds: float) -> None:
        """Count one duration; a negative one, from two clocks, counts as 0."""
        with self._lock:
            self._counts[bisect_left(BUCKETS, seconds)] += 1
            if seconds > 0:
                self._sum += seconds

    def observe_many(self, durations: Iterable[float]) -> None:
        """Count several durations under one lock; each takes less than half as long as alone."""
        with self._lock:
            for seconds in durations:
                self._counts[bisect_left(BUCKETS, seconds)] += 1
                if seconds > 0:
                    self._sum += seconds

    def read(self) -> tuple[list[tuple[str, float]], float]:
        """The cumulative buckets for Prometheus, and the sum."""
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
    """The counters of one sink of the outbox."""

    __slots__ = ("refused", "sent")

    def __init__(self, counter: Callable[[MetricSpec], Counter]) -> None:
        self.sent = counter(measures.OUTBOX_SENT)
        self.refused = counter(measures.OUTBOX_REFUSED)


class ScheduleMetrics:
    """The counters of the schedules of one queue."""

    __slots__ = ("fired", "missed")

    def __init__(self, counter: Callable[[MetricSpec], Counter]) -> None:
        self.fired = counter(measures.SCHEDULES_FIRED)
        self.missed = counter(measures.SCHEDULES_MISSED)


# ── gauges ───────────────────────────────────────────────────────────────────────────────


class QueueReading(msgspec.Struct, frozen=True):
    """The gauges of one queue: jobs by state, and the age of the oldest ready job."""

    queue: str
    depth: Mapping[str, int]
    oldest: float = 0.0
    leases: int = 0
    """The number of its jobs that this worker holds."""


class SinkReading(msgspec.Struct, frozen=True):
    """The gauges of one sink: events in the outbox by state, and how long the oldest waits."""

    sink: str
    events: Mapping[str, int]
    lag: float = 0.0


class Reading(msgspec.Struct, frozen=True):
    """All gauges at one scrape."""

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
"""The place of a process that runs handlers; see `Metrics.watch`."""


class Metrics(Collector):
    """All metrics of a process, in a registry of its own or in the one it is given."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        if registry is None:
            registry = CollectorRegistry()
            ProcessCollector(registry=registry)
        self.registry = registry
        self._of: dict[tuple[str, str], HandlerMetrics] = {}
        self._adding = threading.Lock()
        self._reads: dict[str, Read] = {}
        self._made: dict[str, Any] = {
            spec.name: Counter(spec.name, spec.sentence, spec.labels, registry=registry)
            for spec in measures.CATALOGUE
            if spec.kind is MetricKind.COUNTER
        }
        registry.register(self)

    def of(self, queue: str, handler: str) -> HandlerMetrics:
        """The metrics of one handler; the first call creates them at 0.

        Later calls take about 0.1 µs. Pass only names that the program knows, never one that only
        a job has: each is kept as long as the process lives.
        """
        found = self._of.get((queue, handler))
        return self._add(queue, handler) if found is None else found

    def _add(self, queue: str, handler: str) -> HandlerMetrics:
        with self._adding:
            found = self._of.get((queue, handler))
            if found is None:
                found = self._of[queue, handler] = HandlerMetrics(
                    lambda spec: self._made[spec.name].labels(queue, handler)
                )
            return found

    def forget(self, queue: str, handler: str) -> None:
        """Remove the metrics of a handler that was removed. Has no effect if there are none."""
        with self._adding:
            if self._of.pop((queue, handler), None) is not None:
                for spec in measures.CATALOGUE:
                    if spec.kind is MetricKind.COUNTER and spec.labels == measures.PER_HANDLER:
                        self._made[spec.name].remove(queue, handler)

    def sink(self, name: str) -> SinkMetrics:
        """The counters of one sink; the first call creates them at 0."""
        return SinkMetrics(lambda spec: self._made[spec.name].labels(name))

    def schedules(self, queue: str) -> ScheduleMetrics:
        """The counters of a queue's schedules; the first call creates them at 0."""
        return ScheduleMetrics(lambda spec: self._made[spec.name].labels(queue))

    def own(self, spec: MetricSpec) -> Any:
        """Any other metric, as an object of the client library: a counter of this process without a
        handler, or a metric of an application, which is created at first use."""
        with self._adding:
            if spec.name not in self._made:
                kind = _KINDS[spec.kind]
                bounds = {"buckets": BUCKETS} if spec.kind is MetricKind.HISTOGRAM else {}
                made = kind(spec.name, spec.sentence, spec.labels, registry=self.registry, **bounds)
                self._made[spec.name] = made
            return self._made[spec.name]

    def watch(self, read: Read, *, place: str = WORKER) -> None:
        """Call *read* for gauges at each scrape, in the scraper's thread.

        *read* uses what the worker knows, or waits for its loop with a time limit. If it raises
        TowpathError, OSError or TimeoutError, the scrape goes on without its gauges, and
        `towpath_queues_readable` is 0: counters matter most while Redis is unreachable. A second
        function for the same *place* replaces the first; leases of a queue are summed over places.
        """
        self._reads[place] = read

    def serve(self, *, port: int = 0, addr: str = LOCAL) -> MetricsEndpoint:
        """Serve `/metrics` for Prometheus; by default only for this machine."""
        return MetricsEndpoint(self.registry, port=port, addr=addr)

    def collect(self) -> Iterator[Metric]:
        """Yields the histograms and the gauges to Prometheus's registry."""
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
            yield from _gauges_of(_merge_readings(readings))
        readable = _family(measures.READABLE)
        readable.add_metric((), int(len(readings) == len(self._reads)))
        yield readable


def _merge_readings(readings: Sequence[Reading]) -> Reading:
    """Merges several readings: the last one decides about a queue; leases are summed."""
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

    Has no password: every client sees the names of queues and handlers. Port 0 chooses a free
    port. Raises OSError if the port is taken.
    """

    def __init__(self, registry: CollectorRegistry, *, port: int, addr: str) -> None:
        self._server, self._thread = start_http_server(port, addr, registry=registry)
        self.addr = addr
        self.port = self._server.server_port

    def __str__(self) -> str:
        return f"{self.addr}:{self.port}"

    def close(self) -> None:
        """Stop serving and free the port. A repeat has no effect."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
