"""The dashboard's overview with much data: how long it takes, and how many commands it costs Redis.

    .venv/bin/python -m benchmarks.dashboard_overview
    .venv/bin/python -m benchmarks.dashboard_overview --jobs 20000 --queues 50 --lanes 500

Fills a Redis of its own with 1,000,000 jobs in 500 queues and 10,000 lanes (some minutes), starts
`towpath serve` on it and opens the overview again and again: when all queues are read for it, and
within the second for which the result is shared. Then one page is held open, then fifty, and the
commands of Redis are counted: they must be the same.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from time import perf_counter

import httpx

from benchmarks.bench import Bench, bench
from benchmarks.web.serving import KEY, ServerProcess, served
from towpath.engine.model import new_job

_LOADS = 15
_WATCHED_S = 20.0
_BATCH = 500
_PATIENCE = 120.0


async def main(jobs: int, queues: int, lanes: int) -> None:
    async with bench() as workbench:
        began = perf_counter()
        await _fill(workbench, jobs, queues, lanes)
        _say(f"{jobs:,} jobs in {queues:,} queues and {lanes:,} lanes", began)
        async with served(workbench) as (serving, _), _visitor(*serving.place) as visitor:
            await _pages(workbench, serving, visitor)
            for pages in (1, 50):
                asked = await _open_pages(workbench, visitor, pages)
                _tell(f"commands a second with {pages} open pages", f"{asked:,.0f}")


async def _fill(workbench: Bench, jobs: int, queues: int, lanes: int) -> None:
    """Fills the queues. Half of the jobs are in lanes, so most of those wait."""
    each, of_queue = jobs // queues, max(lanes // queues, 1)
    for queue in range(queues):
        for start in range(0, each, _BATCH):
            some = [
                new_job(b"x" * 100, lane=f"lane-{n % of_queue}") if n % 2 else new_job(b"x" * 100)
                for n in range(start, min(start + _BATCH, each))
            ]
            await workbench.engine.submit_many(f"queue-{queue:03}", some)


@asynccontextmanager
async def _visitor(host: str, port: int) -> AsyncGenerator[httpx.AsyncClient]:
    """A client with a login session."""
    address = f"http://{host}:{port}"
    limits = httpx.Limits(max_connections=200)
    async with httpx.AsyncClient(base_url=address, timeout=_PATIENCE, limits=limits) as client:
        answer = await client.post("/", data={"key": KEY}, headers={"Origin": address})
        assert answer.status_code == 303, answer.text[:300]
        yield client


async def _pages(workbench: Bench, serving: ServerProcess, visitor: httpx.AsyncClient) -> None:
    anew, shared, asked, spent = list[float](), list[float](), list[int](), list[float]()
    first = await _load(visitor)
    for _ in range(_LOADS):
        await asyncio.sleep(2.0)  # until the cached result is too old to be shown again
        before, used = _commands(workbench), _cpu(workbench, serving)
        anew.append(await _load(visitor))
        asked.append(_commands(workbench) - before)
        spent.append(_cpu(workbench, serving) - used)
        shared.append(await _load(visitor))
    _tell("the first overview of all", f"{first * 1000:,.0f} ms")
    for name, took in (("read anew", anew), ("shared", shared)):
        median, worst = statistics.median(took) * 1000, max(took) * 1000
        _tell(f"the overview, all queues {name}", f"{median:,.0f} ms (at most {worst:,.0f})")
    _tell("CPU for it, server and store together", f"{statistics.median(spent) * 1000:,.0f} ms")
    _tell("commands of the store for one overview", f"{statistics.median(asked):,.0f}")


async def _load(visitor: httpx.AsyncClient) -> float:
    began = perf_counter()
    answer = await visitor.get("/")
    assert answer.status_code == 200
    return perf_counter() - began


async def _open_pages(workbench: Bench, visitor: httpx.AsyncClient, pages: int) -> float:
    async with AsyncExitStack() as stack:
        for _ in range(pages):
            stream = await stack.enter_async_context(visitor.stream("GET", "/ui/live"))
            assert stream.status_code == 200
        before, began = _commands(workbench), perf_counter()
        await asyncio.sleep(_WATCHED_S)
        return (_commands(workbench) - before) / (perf_counter() - began)


def _cpu(workbench: Bench, serving: ServerProcess) -> float:
    info = workbench.meter.info("cpu")
    return serving.cpu() + float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


def _commands(workbench: Bench) -> int:
    return int(workbench.meter.info("stats")["total_commands_processed"])


def _say(what: str, began: float) -> None:
    _tell(what, f"filled in {perf_counter() - began:,.0f} s")


def _tell(what: str, value: str) -> None:
    sys.stdout.write(f"{what:<60} {value}\n")
    sys.stdout.flush()


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.dashboard_overview", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--queues", type=int, default=500)
    parser.add_argument("--lanes", type=int, default=10_000)
    return parser.parse_args(words)


if __name__ == "__main__":
    given = arguments()
    asyncio.run(main(given.jobs, given.queues, given.lanes))
