"""Spans of submits and attempts. Imported once the program uses OpenTelemetry: see `traces.py`.

They follow the semantic conventions for messaging:

- `submit <queue>` is a PRODUCER span, `process <queue>` a CONSUMER span, one per attempt.
- The consumer span is a *child* of the producer's **and** *linked* to it. The conventions ask for
  the link. They allow the parent for spans about a single message, and users expect it: one trace
  from the request to the end of its job.
- An exception that ends a span sets its class (`error.type`) and the status. Its text is left out,
  because it may quote the payload.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, ProxyTracerProvider, Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

_SYSTEM = "towpath"
_W3C = TraceContextTextMapPropagator()
"""Not the global propagator: every process must be able to read the headers of a job, however it is
configured."""
_tracer = trace.get_tracer(_SYSTEM)


def active() -> bool:
    """Whether a provider of spans is set up."""
    return not isinstance(trace.get_tracer_provider(), ProxyTracerProvider)


def inject() -> dict[str, str]:
    """The headers that carry the current span: `traceparent`, perhaps `tracestate`.

    Empty without a valid current span; that takes half a microsecond.
    """
    carrier: dict[str, str] = {}
    if trace.get_current_span().get_span_context().is_valid:
        _W3C.inject(carrier)
    return carrier


def current_ids() -> tuple[str, str] | None:
    """The ids of the current trace and span, in hexadecimal; None outside of a span."""
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return trace.format_trace_id(context.trace_id), trace.format_span_id(context.span_id)


def producer_span(queue: str, *, handler: str, jobs: int = 1) -> AbstractContextManager[Span]:
    """The span around a submit."""
    attributes = _attributes(queue, handler, operation="submit", kind="send")
    if jobs > 1:
        attributes["messaging.batch.message_count"] = jobs
    return _span(f"submit {queue}", SpanKind.PRODUCER, attributes)


def consumer_span(
    headers: Mapping[str, str], *, queue: str, handler: str, job: str, attempt: int
) -> AbstractContextManager[Span]:
    """The span around one attempt: a child of the span in *headers*, and linked to it."""
    attributes = _attributes(queue, handler, operation="process", kind="process")
    attributes["messaging.message.id"] = job
    attributes["towpath.attempt"] = attempt
    # Without headers, the context is empty: the current span of the worker is no parent of a job.
    context = _W3C.extract(headers)
    return _span(f"process {queue}", SpanKind.CONSUMER, attributes, parent=context)


def _attributes(
    queue: str, handler: str, *, operation: str, kind: str
) -> dict[str, AttributeValue]:
    return {
        "messaging.system": _SYSTEM,
        "messaging.destination.name": queue,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "towpath.handler": handler,
    }


@contextmanager
def _span(
    name: str,
    kind: SpanKind,
    attributes: dict[str, AttributeValue],
    *,
    parent: Context | None = None,
) -> Generator[Span]:
    links = [] if parent is None else _links(parent)
    with _tracer.start_as_current_span(
        name,
        context=parent,
        kind=kind,
        attributes=attributes,
        links=links,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield span
        except BaseException as error:
            span.set_attribute("error.type", type(error).__qualname__)
            span.set_status(StatusCode.ERROR)
            raise


def _links(parent: Context) -> list[Link]:
    producer = trace.get_current_span(parent).get_span_context()
    return [Link(producer)] if producer.is_valid else []
