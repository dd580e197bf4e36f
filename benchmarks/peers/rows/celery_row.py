"""Celery."""
# Its types are where its library is: in the peer's environment.
# pyright: basic, reportMissingImports=false

import os
import time
from datetime import UTC, datetime

from celery import Celery

from benchmarks.peers.side.handling import handled

LABEL = "Celery"
ENVIRONMENT = "celery"
REQUIRES = ("celery[redis]==5.7.0", "redis==8.1.0", "hiredis==3.5.0")
SETTINGS = "solo pool, prefetch 100, results ignored; no gossip, mingle, heartbeat, events"
WORKER = (
    "celery -A benchmarks.peers.rows.celery_row worker --pool solo --loglevel WARNING "
    "--without-gossip --without-mingle --without-heartbeat"
)
DEFAULTS = "celery -A benchmarks.peers.rows.celery_row worker --concurrency 1 --loglevel WARNING"

app = Celery("bench", broker=os.environ["BENCH_URL"])
if "BENCH_DEFAULTS" not in os.environ:
    app.conf.update(
        task_ignore_result=True,
        worker_prefetch_multiplier=100,
        worker_send_task_events=False,
        task_serializer="json",
        accept_content=["json"],
    )


@app.task(name="work")
def work(payload):
    if hold := handled(payload):
        time.sleep(hold)


def submit(payload):
    work.apply_async((payload,))


def submit_later(payload, due):
    work.apply_async((payload,), eta=datetime.fromtimestamp(due, UTC))
