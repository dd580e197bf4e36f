"""Health: liveness, readiness and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import suppress
from time import thread_time
from typing import Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from towpath.engine.engine import Engine
from towpath.engine.findings import SAME_DATABASE
from towpath.ledger.keys.key import KeyInfo
from towpath.server.records_elsewhere import RecordsElsewhere
from towpath.supervise import troubles
from towpath.telemetry.metrics import Reading
from towpath.web.auth import CanRead, account_of
from towpath.web.dependencies import PartOut, TheEngine, checked
from towpath.web.fields import Answer, example
from towpath.web.problems import documented
from towpath.worker.report import queue_reading

PLACE = "server"
_WITHIN = 2.0


class QueueReadings:
    """Reads the counts of all queues for a scrape, from the scraper's thread; one round trip reads
    fifty queues.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine, self._loop = engine, asyncio.get_running_loop()

    def read(self) -> Reading:
        """The counts of every queue. Raises TowpathError, TimeoutError."""
        asked = asyncio.run_coroutine_threadsafe(self._read(), self._loop)
        try:
            return asked.result(_WITHIN)
        finally:
            asked.cancel()

    async def _read(self) -> Reading:
        names = sorted(await self._engine.queues.list())
        found = await self._engine.inspect.counts_of(names)
        return Reading(queues=[queue_reading(name, counts) for name, counts in found.items()])


class _VisibleMetrics(Collector):
    def __init__(
        self, registry: CollectorRegistry, key: KeyInfo, queues: Mapping[str, str]
    ) -> None:
        self._registry, self._key, self._queues = registry, key, queues

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            family.samples = [sample for sample in family.samples if self._shows(family, sample)]
            if family.samples or "*" in self._key.queues:
                yield family

    def _shows(self, family: Metric, sample: Sample) -> bool:
        """Whether the key may see *sample*. Totals of an application need its queue, those of a
        sink all queues.
        """
        if queue := sample.labels.get("queue"):
            return self._key.covers(queue)
        if "*" in self._key.queues:
            return True
        if (queue := self._queues.get(family.name)) is not None:
            return queue != "" and self._key.covers(queue)
        return "sink" not in sample.labels


def seen_with(
    key: KeyInfo, registry: CollectorRegistry, queues: Mapping[str, str]
) -> CollectorRegistry:
    """The part of *registry* that *key* may see: only queues that it covers.

    *queues* has the queue of each metric of an application.
    """
    seen = CollectorRegistry()
    seen.register(_VisibleMetrics(registry, key, queues))
    return seen


router = APIRouter(tags=["health"])


class ReadyOut(Answer):
    """Whether every part works."""

    model_config = example(
        ready=False,
        status="degraded",
        parts={
            "store": {"ok": False, "error": "server_unreachable", "remedy": "Check that …"},
            "ledger": {"ok": True},
        },
    )

    ready: bool
    """Whether every part works."""
    status: Literal["ready", "degraded", "down"]
    """`ready`: every part works. `degraded`: some part does not; without Redis, jobs with a record
    are still accepted, and without the database, recently used keys stay valid. `down`: no part
    works."""
    parts: dict[str, PartOut]
    """`store` (Redis or Valkey), `ledger` (the database), and each application that has a check.
    Background tasks, such as the relay, appear only while they do not run."""


@router.head("/livez", response_class=PlainTextResponse, include_in_schema=False)
@router.get("/livez", response_class=PlainTextResponse)
async def livez() -> str:
    """Check that the process is alive. Needs no key."""
    return "ok"


@router.head("/readyz", include_in_schema=False)
@router.get(
    "/readyz",
    response_model=ReadyOut,
    response_model_exclude_none=True,
    responses={503: {"model": ReadyOut, "description": "A part does not work; the body names it."}},
)
async def readyz(request: Request, engine: TheEngine) -> Response:
    """Check that every part accepts writes; failing parts are named. Needs no key. The parts are
    tried at most once a second, for all who ask. The reasons are only in the server's log.
    """
    shared = request.app.state.snapshots.cached
    ready: ReadyOut = await shared("readyz", lambda: _probe_parts(request, engine))
    status, again = (200, {}) if ready.ready else (503, {"Retry-After": "1"})
    return JSONResponse(ready.model_dump(exclude_none=True), status, headers=again)


async def _probe_parts(request: Request, engine: Engine) -> ReadyOut:
    state = request.app.state
    probes = {"store": _is_fit(engine), "ledger": state.ledger.probe()}
    probes |= {name: probe(state.services[name]) for name, probe in state.probes.items()}
    found = await asyncio.gather(*map(checked, probes.values()))
    works = [check.ok for check in found]
    ended = {
        task: PartOut(ok=False, error=trouble.error, remedy=trouble.remedy)
        for task, trouble in troubles().items()
    }
    fine = all(works) and not ended
    parts = dict(zip(probes, found, strict=True)) | ended
    if parts["ledger"].ok and await _has_records_elsewhere(request):
        parts["ledger"] = PartOut(ok=True, warning="ledger_differs", remedy=SAME_DATABASE)
    return ReadyOut(
        ready=fine,
        status="ready" if fine else "degraded" if any(works) else "down",
        parts=parts,
    )


@router.get(
    "/metrics",
    response_class=PlainTextResponse,
    responses={200: {"description": "In Prometheus' text format."}, **documented()},
)
async def metrics(request: Request, key: CanRead) -> Response:
    """Metrics for Prometheus: of all queues, and of handlers that run in the server. Needs a key
    with the scope `read`; a key for some queues sees only those, and the totals of applications
    whose queues it has.
    """
    state = request.app.state
    seen = seen_with(key, state.metrics.registry, state.metric_queues)
    # In a thread, because the collector waits for this loop, which reads the queues.
    text, spent = await asyncio.to_thread(_render_metrics, seen)
    state.rates.settle(account_of(request.scope), 0, spent)
    return Response(text, media_type=CONTENT_TYPE_LATEST)


def _render_metrics(registry: CollectorRegistry) -> tuple[bytes, float]:
    """The metrics as text, and the processor time that this took."""
    began = thread_time()
    return generate_latest(registry), thread_time() - began


async def _has_records_elsewhere(request: Request) -> bool:
    """Whether workers keep their records in another database. False if Redis takes too long."""
    elsewhere: RecordsElsewhere = request.app.state.elsewhere
    with suppress(TimeoutError):
        async with asyncio.timeout(_WITHIN):
            return bool(await elsewhere.find())
    return False


async def _is_fit(engine: Engine) -> None:
    """Check that Redis accepts writes and evicts no jobs. Raises ServerError."""
    await engine.try_write()
    await engine.check()
