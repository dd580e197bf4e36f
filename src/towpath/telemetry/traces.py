"""Traces: the context travels in the job's headers, and the two spans are tied together.

Only OpenTelemetry's API is used; without an SDK nothing is recorded and nothing is put into jobs.
The API is loaded only where the program has loaded it: `spans.py` has what needs it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

_API = "opentelemetry.trace"
_OFF: AbstractContextManager[Any] = nullcontext()
_spans: ModuleType | None = None


def _loaded() -> Any:
    """The module `spans`, or None while nothing in this process has loaded OpenTelemetry: before
    that no provider can have been set, and no span can be open.
    """
    global _spans  # noqa: PLW0603 -- looked up several times per job
    if _spans is None and (api := sys.modules.get(_API)) is not None and not _is_loading(api):
        from towpath.telemetry import spans  # noqa: PLC0415 -- loads OpenTelemetry

        _spans = spans
    return _spans


def _is_loading(module: ModuleType) -> bool:
    """Whether somebody is still importing *module*. To wait for that could last for ever: they may
    log a line meanwhile, and so wait for the caller.
    """
    return getattr(module.__spec__, "_initializing", False)


if os.environ.get("OTEL_PYTHON_TRACER_PROVIDER"):
    # OpenTelemetry loads the provider of that name when it is first asked for one.
    from towpath.telemetry import spans as _spans


def active() -> bool:
    """Whether a provider of spans was set up. At most 1 µs: a worker asks once per batch."""
    spans = _spans or _loaded()
    return spans is not None and spans.active()


def inject() -> dict[str, str]:
    """The headers that carry the current span: `traceparent`, perhaps `tracestate`.

    Empty without a valid current span.
    """
    spans = _spans or _loaded()
    return {} if spans is None else spans.inject()


def current_ids() -> tuple[str, str] | None:
    """The trace's and the span's id as they are written everywhere; None outside of a span."""
    spans = _spans or _loaded()
    return None if spans is None else spans.current_ids()


def producer_span(queue: str, *, handler: str, jobs: int = 1) -> AbstractContextManager[Any]:
    """The span around a submit; `inject()` inside of it gives what the jobs carry.

    Free of effect while no SDK is there.
    """
    spans = _spans or _loaded()
    if spans is None or not spans.active():
        return _OFF
    return spans.producer_span(queue, handler=handler, jobs=jobs)


def consumer_span(
    headers: Mapping[str, str], *, queue: str, handler: str, job: str, attempt: int
) -> AbstractContextManager[Any]:
    """The span around one attempt, tied to the one that *headers* carry.

    Without headers, or with headers that can't be read, it begins a trace of its own. Let through
    it only what is a failure: whatever is raised inside marks the span as one. Free of effect
    while no SDK is there.
    """
    spans = _spans or _loaded()
    if spans is None or not spans.active():
        return _OFF
    return spans.consumer_span(headers, queue=queue, handler=handler, job=job, attempt=attempt)
