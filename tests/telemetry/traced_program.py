"""A program with a real SDK: submits, runs three attempts, and prints its spans and lines."""

import io
import json
import sys
from contextlib import suppress
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from towpath.telemetry import events, logs, traces

TWO: Any = {"handler": "review", "jobs": 2}
WHERE: Any = {"queue": "reviews", "handler": "review", "job": "01JB7Q"}


def run() -> dict[str, Any]:
    log, before = logs.Log(worker="w"), traces.active()
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)

    app = trace.get_tracer("app")
    with app.start_as_current_span("request"), traces.producer_span("reviews", **TWO):
        headers = traces.inject()
    with app.start_as_current_span("loop"):
        with traces.consumer_span(headers, attempt=1, **WHERE):
            log.emit(events.SERVER_BACK, server="s", away=1)
        with suppress(ValueError), traces.consumer_span(headers, attempt=2, **WHERE):
            raise ValueError("canary: a payload")
        with traces.consumer_span({}, attempt=3, **WHERE):
            pass
        with traces.consumer_span({"traceparent": "00-broken"}, attempt=4, **WHERE):
            pass
    log.emit(events.SERVER_BACK, server="s", away=1)
    spans = exporter.get_finished_spans()
    return {"before": before, "headers": headers, "spans": [described(span) for span in spans]}


def described(span: ReadableSpan) -> dict[str, Any]:
    context = span.get_span_context()
    assert context is not None
    return {
        "name": span.name,
        "kind": span.kind.name,
        "trace": trace.format_trace_id(context.trace_id),
        "id": trace.format_span_id(context.span_id),
        "parent": trace.format_span_id(span.parent.span_id) if span.parent else "",
        "links": [trace.format_span_id(link.context.span_id) for link in span.links],
        "attributes": dict(span.attributes or {}),
        "status": [span.status.status_code.name, span.status.description],
        "events": [event.name for event in span.events],
    }


if __name__ == "__main__":
    lines = io.StringIO()
    logs.configure(form="json", stream=lines)
    told = run()
    told["lines"] = [json.loads(line) for line in lines.getvalue().splitlines()]
    json.dump(told, sys.stdout)
