"""SAQ."""
# Its types are where its library is: in the peer's environment.
# pyright: basic, reportMissingImports=false

import asyncio
import math
import os

import uvloop
from saq import Queue

from benchmarks.peers.side.handling import handled

LABEL = "SAQ"
ENVIRONMENT = "saq"
REQUIRES = (
    "saq==0.26.4",
    "redis==7.4.1",
    "hiredis==3.5.0",
    "uvloop==0.23.0",
    "typing_extensions==4.16.0",
)
SETTINGS = "concurrency 100, ttl -1 (no result kept), uvloop; due times in whole seconds, up"
WORKER = "saq benchmarks.peers.rows.saq_row.settings"
BULK = "50 gathered"
ASYNCIO = True
DEFAULTS = "saq benchmarks.peers.rows.saq_row.default_settings"

WITH_DEFAULTS = "BENCH_DEFAULTS" in os.environ
if not WITH_DEFAULTS:
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
TTL = {} if WITH_DEFAULTS else {"ttl": -1}
queue = Queue.from_url(os.environ["BENCH_URL"])


async def work(_context, *, payload):
    if hold := handled(payload):
        await asyncio.sleep(hold)


settings = {"queue": queue, "functions": [work], "concurrency": 100}
default_settings = {"queue": queue, "functions": [work]}


async def connect():
    await queue.connect()


async def submit(payload):
    await queue.enqueue("work", payload=payload, **TTL)


async def submit_many(payloads):
    for start in range(0, len(payloads), 50):
        await asyncio.gather(*map(submit, payloads[start : start + 50]))


async def submit_later(payload, due):
    await queue.enqueue("work", payload=payload, **TTL, scheduled=math.ceil(due))
