"""Dramatiq."""
# Its types are where its library is: in the peer's environment.
# pyright: basic, reportMissingImports=false

import os
import time

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.peers.side.handling import handled

LABEL = "Dramatiq"
ENVIRONMENT = "dramatiq"
REQUIRES = ("dramatiq==2.2.1", "gevent==26.9.0", "redis==8.1.0", "hiredis==3.5.0")
SETTINGS = "dramatiq-gevent, one process of 50 greenlets, no results"
WORKER = "dramatiq-gevent benchmarks.peers.rows.dramatiq_row --processes 1 --threads 50"
DEFAULTS = "dramatiq benchmarks.peers.rows.dramatiq_row --processes 1"

dramatiq.set_broker(RedisBroker(url=os.environ["BENCH_URL"]))


@dramatiq.actor(actor_name="work", queue_name="bench")
def work(payload):
    if hold := handled(payload):
        time.sleep(hold)


def submit(payload):
    work.send(payload)


def submit_later(payload, due):
    work.send_with_options(args=(payload,), delay=max(0, round((due - time.time()) * 1000)))
