"""Traces: a job's headers carry the context of its submit to the spans of its attempts.

Only OpenTelemetry's API is used; without an SDK, nothing is recorded and jobs get no headers.
`spans.py` imports the API. It is only imported once the program itself has imported the API.
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


def _load_spans() -> Any:
    """The module `spans`, or None while nothing in this process has loaded OpenTelemetry: before
    that no provider can have been set, and no span can be open.
    """
    global _spans  # noqa: PLW0603 -- looked up several times per job
    if _spans is None and (api := sys.modules.get(_API)) is not None and not _is_loading(api):
        from towpath.telemetry import spans  # noqa: PLC0415 -- loads OpenTelemetry

        _spans = spans
    return _spans


def _is_loading(module: ModuleType) -> bool:
    """Whether another thread is still importing *module*. Waiting for it could deadlock: that
    thread may log a line meanwhile, and so wait for the caller.
    """
    return getattr(module.__spec__, "_initializing", False)


if os.environ.get("OTEL_PYTHON_TRACER_PROVIDER"):
    # OpenTelemetry loads the provider with that name at the first use of its API.
    from towpath.telemetry import spans as _spans


def active() -> bool:
    """Whether a provider of spans is set up. Takes at most 1 µs: a worker asks once per batch."""
    spans = _spans or _load_spans()
    return spans is not None and spans.active()


def inject() -> dict[str, str]:
    """The headers that carry the current span: `traceparent`, perhaps `tracestate`.

    Empty without a valid current span.
    """
    spans = _spans or _load_spans()
    return {} if spans is None else spans.inject()


def current_ids() -> tuple[str, str] | None:
    """The ids of the current trace and span, in hexadecimal; None outside of a span."""
    spans = _spans or _load_spans()
    return None if spans is None else spans.current_ids()


def producer_span(queue: str, *, handler: str, jobs: int = 1) -> AbstractContextManager[Any]:
    """The span around a submit; `inject()` inside of it returns the headers for the jobs.

    Has no effect without an SDK.
    """
    spans = _spans or _load_spans()
    if spans is None or not spans.active():
        return _OFF
    return spans.producer_span(queue, handler=handler, jobs=jobs)


def consumer_span(
    headers: Mapping[str, str], *, queue: str, handler: str, job: str, attempt: int
) -> AbstractContextManager[Any]:
    """The span around one attempt: a child of the span in *headers*, and linked to it.

    Without valid headers, it begins a trace of its own. An exception that leaves the block marks
    the span as failed, so only failures may leave it. Has no effect without an SDK.
    """
    spans = _spans or _load_spans()
    if spans is None or not spans.active():
        return _OFF
    return spans.consumer_span(headers, queue=queue, handler=handler, job=job, attempt=attempt)
