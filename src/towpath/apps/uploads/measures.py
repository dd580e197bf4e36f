"""The metrics of uploads, under their published names."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from towpath.clock import steady
from towpath.telemetry.measures import MetricKind, MetricSpec

if TYPE_CHECKING:
    from towpath.telemetry.metrics import Metrics

PROCESSED = MetricSpec(
    "repository_chunks_processed_total",
    MetricKind.COUNTER,
    (),
    "Chunks that this process has stored, as parts of objects.",
    "How much is stored?",
)
QUEUED = MetricSpec(
    "repository_chunks_queued",
    MetricKind.GAUGE,
    (),
    "Chunks in Redis that wait to be stored, at the last sweep.",
    "Do the workers keep up with the clients?",
)
CHUNK_LATENCY = MetricSpec(
    "repository_upload_chunk_latency",
    MetricKind.HISTOGRAM,
    (),
    "Seconds from a chunk's first byte to its acknowledgement.",
    "How long do clients wait?",
)
STORE_LATENCY = MetricSpec(
    "repository_s3_upload_latency",
    MetricKind.HISTOGRAM,
    (),
    "Seconds that the store takes for a part.",
    "Is the store slow?",
)
COMPLETION_LATENCY = MetricSpec(
    "repository_upload_completion_latency",
    MetricKind.HISTOGRAM,
    (),
    "Seconds from an upload's first chunk to its completion.",
    "How long do uploads take?",
)
RESERVED = MetricSpec(
    "towpath_uploads_reserved_bytes",
    MetricKind.GAUGE,
    (),
    "Bytes of the budget for chunks that are there or arrive, at this process's last look.",
    "Is there room? Compare it with the setting uploads.budget.",
)
ORPHANS = MetricSpec(
    "towpath_uploads_orphans_total",
    MetricKind.COUNTER,
    (),
    "Multipart uploads in the store that belonged to no upload; this process aborted them.",
    "Do crashes leave parts behind? They cost money until they are aborted.",
)
ALL = (PROCESSED, QUEUED, CHUNK_LATENCY, STORE_LATENCY, COMPLETION_LATENCY, RESERVED, ORPHANS)


class Measures:
    """Updates the metrics of uploads, if there are metrics."""

    def __init__(self, metrics: Metrics | None = None) -> None:
        self._metrics = metrics

    def count(self, spec: MetricSpec, many: float = 1) -> None:
        if self._metrics is not None:
            self._metrics.own(spec).inc(many)

    def set(self, spec: MetricSpec, value: float) -> None:
        if self._metrics is not None:
            self._metrics.own(spec).set(value)

    def observe(self, spec: MetricSpec, seconds: float) -> None:
        if self._metrics is not None:
            self._metrics.own(spec).observe(max(seconds, 0.0))

    @contextmanager
    def timed(self, spec: MetricSpec) -> Generator[None]:
        """Time the block, unless it raises."""
        began = steady()
        yield
        self.observe(spec, steady() - began)
