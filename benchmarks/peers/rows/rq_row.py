"""RQ."""
# Its types are where its library is: in the peer's environment.
# pyright: basic, reportMissingImports=false

import os
import time
from datetime import UTC, datetime

from redis import Redis
from rq import Queue
from rq.serializers import JSONSerializer

from benchmarks.peers.side.handling import handled

LABEL = "RQ"
ENVIRONMENT = "rq"
REQUIRES = ("rq==2.12.0", "redis==8.1.0", "hiredis==3.5.0")
SETTINGS = "SimpleWorker (no fork), JSON serializer, result_ttl 0, with its scheduler"
WORKER = (
    "rq worker --url {url} --worker-class rq.worker.SimpleWorker --serializer json "
    "--with-scheduler --logging_level WARNING --disable-job-desc-logging bench"
)
BULK = "enqueue_many, 500 at once"
MOST = 2_000

queue = Queue(
    "bench", connection=Redis.from_url(os.environ["BENCH_URL"]), serializer=JSONSerializer
)


def work(payload):
    if hold := handled(payload):
        time.sleep(hold)


def submit(payload):
    queue.enqueue(work, payload, result_ttl=0)


def submit_many(payloads):
    queue.enqueue_many([Queue.prepare_data(work, (payload,), result_ttl=0) for payload in payloads])


def submit_later(payload, due):
    at = datetime.fromtimestamp(due, UTC)
    queue.enqueue_at(at, work, payload, result_ttl=0)
