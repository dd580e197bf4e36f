"""Towpath's row: the same jobs through the same bench, in the environment that it runs in."""

from __future__ import annotations

import asyncio
import os
import time
from datetime import timedelta
from typing import Any

from benchmarks.peers.side.handling import handled
from towpath import Towpath

LABEL = "Towpath"
SETTINGS = "concurrency 500, nothing kept, uvloop; lease, token and heartbeat as always"
WORKER = "python -m benchmarks.peers.towpath_worker"
DEFAULTS = "towpath worker benchmarks.peers.towpath_row:app"
ASYNCIO = True
BULK = "submit_many, 500 at once"

app = Towpath(os.environ["BENCH_URL"])


# Like the peers: no results, except with defaults.
KEPT = None if "BENCH_DEFAULTS" in os.environ else timedelta(0)


@app.handler("bench", keep=KEPT)
async def work(payload: dict[str, Any]) -> None:
    if hold := handled(payload):
        await asyncio.sleep(hold)


async def connect() -> None:
    await app.__aenter__()


async def submit(payload: dict[str, Any]) -> None:
    await work.submit(payload)


def submit_blocking(payload: dict[str, Any]) -> None:
    work.blocking.submit(payload)


async def submit_many(payloads: list[dict[str, Any]]) -> None:
    await work.submit_many(payloads)


async def submit_later(payload: dict[str, Any], due: float) -> None:
    await work.submit(payload, delay=timedelta(seconds=due - time.time()))
