"""arq."""
# Its types are where its library is: in the peer's environment.
# pyright: basic, reportMissingImports=false

import asyncio
import os
from datetime import UTC, datetime

import uvloop
from arq import ArqRedis, create_pool
from arq.connections import RedisSettings

from benchmarks.peers.side.handling import handled

LABEL = "arq"
ENVIRONMENT = "arq"
REQUIRES = ("arq==0.28.0", "redis==5.3.1", "hiredis==3.5.0", "uvloop==0.23.0")
SETTINGS = "max_jobs 10, poll_delay 0.01 s, keep_result 0, uvloop"
WORKER = (
    "arq benchmarks.peers.rows.arq_row.WorkerSettings --custom-log-dict "
    "benchmarks.peers.rows.arq_row.QUIET"
)
BULK = "50 gathered"
ASYNCIO = True
DEFAULTS = (
    "arq benchmarks.peers.rows.arq_row.DefaultSettings --custom-log-dict "
    "benchmarks.peers.rows.arq_row.QUIET"
)

QUIET = {"version": 1, "disable_existing_loggers": False}
SERVER = RedisSettings.from_dsn(os.environ["BENCH_URL"])

if "BENCH_DEFAULTS" not in os.environ:
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())


async def work(_context, payload):
    if hold := handled(payload):
        await asyncio.sleep(hold)


class WorkerSettings:
    functions = (work,)
    redis_settings = SERVER
    max_jobs = 10
    poll_delay = 0.01
    keep_result = 0


class DefaultSettings:
    functions = (work,)
    redis_settings = SERVER


pool: dict[str, ArqRedis] = {}


async def connect():
    pool["it"] = await create_pool(SERVER)


async def submit(payload):
    await pool["it"].enqueue_job("work", payload)


async def submit_many(payloads):
    for start in range(0, len(payloads), 50):
        await asyncio.gather(*map(submit, payloads[start : start + 50]))


async def submit_later(payload, due):
    await pool["it"].enqueue_job("work", payload, _defer_until=datetime.fromtimestamp(due, UTC))
