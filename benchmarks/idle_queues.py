"""A worker with 1,000 idle queues takes few connections and few commands a second."""

from __future__ import annotations

import asyncio
import time

from benchmarks.bench import Plan
from benchmarks.figure import Figure, at_most, measured
from towpath import Towpath, Worker, hours
from towpath.embedded import EmbeddedServer
from towpath.embedded.process import ask_fields

QUEUES = 1_000
_BEGUN_S = 15
"""Seconds until it has declared all of them and looked at each."""


async def run(plan: Plan) -> list[Figure]:
    seconds = plan.count(20, 12)
    told: dict[str, list[float]] = {"connections": [], "commands": [], "server": [], "client": []}
    async with EmbeddedServer() as server:
        for _ in range(plan.rounds):
            for name, value in (await _idle(server, seconds)).items():
                told[name].append(value)
    what = f"one worker, {QUEUES:,} idle queues, a job for tomorrow in each"
    return [
        measured("idle_queues", f"connections: {what}", "", told["connections"], at_most(60)),
        measured("idle_queues", f"packets: {what}", "commands/s", told["commands"], at_most(700)),
        measured("idle_queues", f"the server's processor: {what}", "%", told["server"]),
        measured("idle_queues", f"the worker's processor: {what}", "%", told["client"]),
    ]


async def _idle(server: EmbeddedServer, seconds: int) -> dict[str, float]:
    """The cost of an idle worker, once it has polled all its queues."""
    server.ask("FLUSHALL")
    app = Towpath(server.url)

    async def never(_: int) -> None: ...

    handlers = [app.handler(f"bench_idle.{n}")(never) for n in range(QUEUES)]
    async with app:
        for handler in handlers:
            await handler.submit(1, delay=hours(24))
        worker = Worker(app, signals=())
        running = asyncio.create_task(worker.run())
        await asyncio.sleep(_BEGUN_S)
        before, mine = _server(server), time.process_time()
        await asyncio.sleep(seconds)
        after, own = _server(server), time.process_time() - mine
        connections = ask_fields(server.address, "INFO", "clients")["connected_clients"]
        worker.stop()
        await running
    return {
        "connections": float(connections),
        "commands": (after[0] - before[0]) / seconds,
        "server": 100 * (after[1] - before[1]) / seconds,
        "client": 100 * own / seconds,
    }


def _server(server: EmbeddedServer) -> tuple[int, float]:
    """The commands that Redis has processed, and its CPU seconds."""
    stats = ask_fields(server.address, "INFO", "stats")
    cpu = ask_fields(server.address, "INFO", "cpu")
    used = float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"])
    return int(stats["total_commands_processed"]), used
