"""Every benchmark by name, in the order in which they run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from inspect import getdoc
from types import MappingProxyType, ModuleType

from benchmarks import (
    drain,
    http_consumers,
    http_message,
    http_streams,
    idle_queues,
    issues_backlog,
    issues_race,
    issues_sync,
    memory,
    neighbours,
    pickup,
    punctuality,
    results,
    reviews_end_to_end,
    reviews_outage,
    reviews_webhook,
    round_trips,
    scale,
    schedules_idle,
    selectors,
    server_cpu,
    submit_bulk,
    submit_concurrent,
    submit_single,
    timers_accuracy,
    timers_idle,
    timers_scale,
    timers_service,
    timers_storm,
    uploads_ack,
    uploads_memory,
    uploads_small,
    uploads_throughput,
    uploads_tus,
)
from benchmarks.bench import Plan
from benchmarks.figure import Figure
from benchmarks.peers import comparison, crash
from benchmarks.report import FIGURES, ISSUES, REVIEWS, TIMERS, UPLOADS, Marks

Run = Callable[[Plan], Awaitable[list[Figure]]]

_ENGINE: tuple[ModuleType, ...] = (
    submit_bulk,
    submit_concurrent,
    submit_single,
    server_cpu,
    memory,
    neighbours,
    scale,
    pickup,
    punctuality,
    drain,
    results,
    round_trips,
    schedules_idle,
    selectors,
    http_message,
    http_consumers,
    http_streams,
    idle_queues,
)
_REVIEWS: tuple[ModuleType, ...] = (reviews_webhook, reviews_outage, reviews_end_to_end)
_TIMERS: tuple[ModuleType, ...] = (
    timers_accuracy,
    timers_storm,
    timers_scale,
    timers_service,
    timers_idle,
)
_ISSUES: tuple[ModuleType, ...] = (issues_race, issues_backlog, issues_sync)
_UPLOADS: tuple[ModuleType, ...] = (
    uploads_throughput,
    uploads_tus,
    uploads_ack,
    uploads_memory,
    uploads_small,
)


def _by_name(modules: tuple[ModuleType, ...]) -> dict[str, ModuleType]:
    return {module.__name__.rpartition(".")[2]: module for module in modules}


PARTS: Mapping[Marks, Mapping[str, ModuleType]] = MappingProxyType(
    {
        FIGURES: _by_name(_ENGINE),
        REVIEWS: _by_name(_REVIEWS),
        TIMERS: _by_name(_TIMERS),
        ISSUES: _by_name(_ISSUES),
        UPLOADS: _by_name(_UPLOADS),
    }
)
"""What is measured and written together: the engine with the server on it, reviews, timers,
issues and uploads. Each of the other benchmarks is a part of docs/benchmarks.md of its own."""

BENCHMARKS: Mapping[str, ModuleType] = MappingProxyType(
    {
        **PARTS[FIGURES],
        **PARTS[REVIEWS],
        **PARTS[TIMERS],
        **PARTS[ISSUES],
        **PARTS[UPLOADS],
        "peers": comparison,
        "crash": crash,
    }
)


def run_of(name: str) -> Run:
    return BENCHMARKS[name].run


def claim_of(name: str) -> str:
    """The sentence that describes the benchmark."""
    return (getdoc(BENCHMARKS[name]) or "").partition("\n")[0]
