"""A courier process for the crash test: sends until it is killed, or its stdin is closed.

python -m tests.ledger.courier_program <database> redis|kafka|webhook <where> [<secret>]
"""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from tests.ledger.kafka_program import TOPIC
from towpath.calls.caller import Caller
from towpath.clock import milliseconds, seconds
from towpath.engine.engine import Engine
from towpath.ledger.ledger import Ledger
from towpath.ledger.outbox.backoff import CourierOptions
from towpath.ledger.outbox.courier import Courier
from towpath.ledger.outbox.event import Sink
from towpath.ledger.outbox.sinks.kafka import KafkaSink
from towpath.ledger.outbox.sinks.redis_stream import RedisStreamSink
from towpath.ledger.outbox.sinks.webhook import WebhookSink

OPTIONS = CourierOptions(
    batch=8,
    lease=milliseconds(500),
    look_every=milliseconds(20),
    first_pause=milliseconds(5),
    longest_pause=milliseconds(50),
)


@asynccontextmanager
async def sink_at(kind: str, where: str, *secrets: str) -> AsyncGenerator[Sink]:
    match kind:
        case "redis":
            async with Engine(where) as engine:
                yield RedisStreamSink(engine, name="events")
        case "webhook":
            async with Caller(allow=["127.0.0.1"], timeout=seconds(2)) as caller:
                yield WebhookSink(caller, where, secrets=secrets, name="events")
        case _:
            yield KafkaSink(where, TOPIC, name="events", limit=seconds(2))


async def carry(database: str, *sink: str) -> None:
    async with (
        Ledger(database) as ledger,
        sink_at(*sink) as destination,
        Courier(ledger, [destination], options=OPTIONS),
    ):
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(carry(*sys.argv[1:]))
