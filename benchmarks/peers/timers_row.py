"""Towpath's timers in plug-in mode: a row of its own for comparisons of due times."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime
from typing import Any

from benchmarks.peers.side.handling import handled
from towpath.apps.timers.plugin import Timers

LABEL = "Towpath timers"
SETTINGS = "plug-in mode, an async worker, concurrency 500, uvloop; log of firings as always"
WORKER = "python -m benchmarks.peers.timers_worker"
TYPE = "bench"

timers = Timers(os.environ.get("BENCH_URL", "redis://localhost"))


@timers.worker(TYPE)
async def work(payload: dict[str, Any]) -> None:
    handled(payload)


async def connect() -> None:
    await timers.__aenter__()


async def submit(payload: dict[str, Any]) -> None:
    await timers.submit(TYPE, payload, delay=0)


async def submit_later(payload: dict[str, Any], due: float) -> None:
    await timers.submit(TYPE, payload, due=datetime.fromtimestamp(due, UTC))


async def submit_many_later(payloads: list[dict[str, Any]], dues: list[float]) -> None:
    await asyncio.gather(*map(submit_later, payloads, dues))
