"""streaq."""
# Its types are where its library is: in the peer's environment.
# pyright: basic, reportMissingImports=false

import asyncio
import os
from datetime import UTC, datetime

from streaq import Worker

from benchmarks.peers.side.handling import handled

LABEL = "streaq"
ENVIRONMENT = "streaq"
REQUIRES = ("streaq==7.2.0", "coredis==6.9.0", "uvloop==0.23.0")
SETTINGS = "concurrency 16, ttl 0, silent, uvloop"
WORKER = "streaq run benchmarks.peers.rows.streaq_row:worker"
BULK = "enqueue_many, 500 at once"
ASYNCIO = True
DEFAULTS = "streaq run benchmarks.peers.rows.streaq_row:worker"

WITH_DEFAULTS = "BENCH_DEFAULTS" in os.environ
TUNED = {} if WITH_DEFAULTS else {"concurrency": 16, "anyio_kwargs": {"use_uvloop": True}}
KEPT = {} if WITH_DEFAULTS else {"ttl": 0, "silent": True}

worker = Worker(redis_url=os.environ["BENCH_URL"], queue_name="bench", **TUNED)


@worker.task(name="work", **KEPT)
async def work(payload):
    if hold := handled(payload):
        await asyncio.sleep(hold)


async def connect():
    await worker.__aenter__()


async def submit(payload):
    await work.enqueue(payload)


async def submit_many(payloads):
    await worker.enqueue_many([work.enqueue(payload) for payload in payloads])


async def submit_later(payload, due):
    await work.enqueue(payload).start(schedule=datetime.fromtimestamp(due, UTC))
