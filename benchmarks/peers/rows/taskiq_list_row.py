"""taskiq on a Redis list."""
# Its types are where its library is: in the peer's environment.
# pyright: basic, reportMissingImports=false

import asyncio
import os
from datetime import UTC, datetime

from taskiq import TaskiqScheduler
from taskiq_redis import ListQueueBroker, ListRedisScheduleSource

from benchmarks.peers.side.handling import handled

LABEL = "taskiq (list)"
ENVIRONMENT = "taskiq"
REQUIRES = (
    "taskiq==0.13.0",
    "taskiq-redis==1.2.4",
    "redis==8.1.0",
    "hiredis==3.5.0",
    "uvloop==0.23.0",
)
SETTINGS = "--max-async-tasks 100 --no-parse, uvloop; delays: its scheduler, every 1 s"
WORKER = (
    "taskiq worker benchmarks.peers.rows.taskiq_list_row:broker --workers 1 "
    "--max-async-tasks 100 --no-parse --log-level WARNING"
)
SCHEDULER = (
    "taskiq scheduler benchmarks.peers.rows.taskiq_list_row:scheduler --update-interval 1 "
    "--loop-interval 1 --log-level WARNING"
)
BULK = "50 gathered"
ASYNCIO = True
DEFAULTS = (
    "taskiq worker benchmarks.peers.rows.taskiq_list_row:broker --workers 1 --log-level WARNING"
)

broker = ListQueueBroker(os.environ["BENCH_URL"])
source = ListRedisScheduleSource(os.environ["BENCH_URL"])
scheduler = TaskiqScheduler(broker, [source])


@broker.task(task_name="work")
async def work(payload) -> None:
    if hold := handled(payload):
        await asyncio.sleep(hold)


async def connect():
    await broker.startup()
    await source.startup()


async def submit(payload):
    await work.kiq(payload)


async def submit_many(payloads):
    for start in range(0, len(payloads), 50):
        await asyncio.gather(*map(submit, payloads[start : start + 50]))


async def submit_later(payload, due):
    await work.schedule_by_time(source, datetime.fromtimestamp(due, UTC), payload)
