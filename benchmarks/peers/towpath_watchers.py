"""Followers of our jobs while they are measured: `python -m benchmarks.peers.towpath_watchers`.

A program waits for the result of a job that is due in a day, and a browser has the dashboard's
page of the queue open: while they do, the engine writes the events that it otherwise leaves out.
Prints a line of JSON when both are connected; ends when it is killed or its stdin is closed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from datetime import timedelta
from tempfile import TemporaryDirectory

import httpx

from benchmarks.peers.towpath_row import app, work
from benchmarks.web.serving import KEY, served_at

_DAY = timedelta(days=1)


async def follow() -> None:
    """Raises if one of them loses its connection."""
    with TemporaryDirectory(prefix="towpath-watchers-") as folder:
        database = f"sqlite:///{folder}/ledger.db"
        async with app, served_at(os.environ["BENCH_URL"], database) as serving:
            host, port = serving.place
            address = f"http://{host}:{port}"
            async with httpx.AsyncClient(base_url=address, timeout=None) as browser:  # noqa: S113 -- a stream that stays open
                login = await browser.post("/", data={"key": KEY}, headers={"Origin": address})
                assert login.status_code == 303, login.text[:300]
                await _follow(browser)


async def _follow(browser: httpx.AsyncClient) -> None:
    job = await work.submit({"kind": "result"}, delay=_DAY)
    async with (
        browser.stream("GET", "/ui/live", params={"queue": "bench"}) as page,
        asyncio.TaskGroup() as tasks,
    ):
        page.raise_for_status()
        followers = [
            tasks.create_task(job.result(within=_DAY)),
            tasks.create_task(_read(page)),
        ]
        print(json.dumps({"ready": True}), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        for follower in followers:
            follower.cancel()


async def _read(page: httpx.Response) -> None:
    async for _ in page.aiter_raw():
        pass


if __name__ == "__main__":
    asyncio.run(follow())
