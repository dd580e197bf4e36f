"""One worker process of Towpath: `python -m benchmarks.peers.towpath_worker`."""

from __future__ import annotations

import sys

from benchmarks.peers.towpath_row import app
from towpath import Worker

if __name__ == "__main__":
    sys.exit(Worker(app, concurrency=500).run_forever())
