"""Huey."""
# Its types are where its library is: in the peer's environment.
# pyright: basic, reportMissingImports=false

import os
import time

from huey import RedisHuey

from benchmarks.peers.side.handling import handled

LABEL = "Huey"
ENVIRONMENT = "huey"
REQUIRES = ("huey==3.5.4", "gevent==26.9.0", "redis==8.1.0", "hiredis==3.5.0")
SETTINGS = "10 greenlets, no results"
WORKER = (
    "python -m gevent.monkey --module huey.bin.huey_consumer benchmarks.peers.rows.huey_row.huey "
    "--worker-type greenlet --workers 10 --quiet"
)
DEFAULTS = "python -m huey.bin.huey_consumer benchmarks.peers.rows.huey_row.huey --quiet"

huey = RedisHuey("bench", url=os.environ["BENCH_URL"], results="BENCH_DEFAULTS" in os.environ)


@huey.task(name="work")
def work(payload):
    if hold := handled(payload):
        time.sleep(hold)


def submit(payload):
    work(payload)


def submit_later(payload, due):
    work.schedule((payload,), delay=due - time.time())
