"""One worker process of Towpath's timers: `python -m benchmarks.peers.timers_worker`."""

from __future__ import annotations

import sys

from benchmarks.peers.timers_row import timers
from towpath import Worker

if __name__ == "__main__":
    sys.exit(Worker(timers.app, concurrency=500).run_forever())
