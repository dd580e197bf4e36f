"""A program with a real SDK that submits, runs what it submitted, and prints its spans.

    python -m tests.worker.traced_program <url>

It is a process of its own, because a provider of spans is set once for ever.
"""

import asyncio
import json
import sys

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.telemetry.traced_program import described
from towpath.app.app import Towpath
from towpath.clock import hours
from towpath.worker.context import Snooze
from towpath.worker.worker import Worker

app = Towpath("")
tracer = trace.get_tracer("shop")


@app.handler("shop")
async def sell(n: int) -> None:
    with tracer.start_as_current_span(f"inside {n}"):
        if n == 2:
            raise ValueError("canary: a payload")
        if n == 3:
            raise Snooze(hours(1))


@app.handler("till")
def count(_: int) -> None:
    with tracer.start_as_current_span("in a thread"):
        pass


async def run() -> None:
    async with app:
        with tracer.start_as_current_span("request"):
            for n in (1, 2, 3):
                await sell.submit(n)
            await count.submit_many([1])
        await app.engine.submit("shop", b"4")
        await Worker(app).drain()


if __name__ == "__main__":
    app.url = sys.argv[1]
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    asyncio.run(run())
    json.dump([described(span) for span in exporter.get_finished_spans()], sys.stdout)
