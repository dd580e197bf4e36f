"""1,000 types of timers that nothing falls due of cost few connections and commands a second.

In plug-in mode one worker serves all of them, with a timer for tomorrow in each; in service mode
one scheduler, for ten apps with an instance and a hundred types each, whose heartbeats count, too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from tempfile import TemporaryDirectory

from benchmarks.bench import Bench, Plan, bench
from benchmarks.figure import Figure, at_most, measured
from benchmarks.timers_service import SECRET, register
from benchmarks.web.serving import KEY, ServerProcess, served_with
from benchmarks.web.wire import client, request
from towpath import Worker, hours
from towpath.apps.timers.plugin import Timers

Cpu = Callable[[], float]
TYPES, APPS = 1_000, 10
_BEGUN_S = 15
"""Seconds until all of them are served and were looked at."""
_HEARTBEAT_S = 10
_ADDRESS = "http://127.0.0.1:9/timers"
"""Nobody is called: nothing is due."""


async def run(plan: Plan) -> list[Figure]:
    seconds = plan.count(20, 12)
    plugin, service = list[dict[str, float]](), list[dict[str, float]]()
    for _ in range(plan.count(3, 1)):
        async with bench() as workbench:
            plugin.append(await _plugin(workbench, seconds))
        async with bench() as workbench:
            service.append(await _service(workbench, seconds))
    return [
        *_figures("timers_idle", f"one worker, {TYPES:,} idle types", plugin),
        *_figures("timers_idle.service", f"one scheduler, {TYPES:,} idle types", service),
    ]


def _figures(name: str, what: str, rounds: list[dict[str, float]]) -> list[Figure]:
    def of(field: str) -> list[float]:
        return [seen[field] for seen in rounds]

    return [
        measured(f"{name}.connections", f"{what}: connections", "", of("connections"), at_most(60)),
        measured(f"{name}.commands", f"{what}: commands", "commands/s", of("commands")),
        measured(f"{name}.server", f"{what}: CPU of the store", "%", of("server")),
        measured(f"{name}.client", f"{what}: CPU of the process", "%", of("client")),
    ]


async def _plugin(workbench: Bench, seconds: int) -> dict[str, float]:
    timers = Timers(workbench.server.url)

    async def never() -> None: ...

    for n in range(TYPES):
        timers.add(never, task_type=f"idle.{n}")
    async with timers:
        for n in range(0, TYPES, 50):
            some = range(n, n + 50)
            await asyncio.gather(*(timers.submit(f"idle.{n}", delay=hours(24)) for n in some))
        worker = Worker(timers.app, signals=())
        running = asyncio.create_task(worker.run())
        try:
            return await _watched(workbench, seconds, time.process_time)
        finally:
            worker.stop()
            await running


async def _service(workbench: Bench, seconds: int) -> dict[str, float]:
    settings = {"TOWPATH_CALLS__SECRETS": SECRET, "TOWPATH_TIMERS__ALLOW": "127.0.0.0/8"}
    with TemporaryDirectory(prefix="towpath-bench-") as folder:
        database = f"sqlite:///{folder}/ledger.db"
        async with served_with(workbench, database, **settings) as serving:
            each = TYPES // APPS
            ids = {
                f"app-{app}": await register(
                    serving, f"app-{app}", _ADDRESS, [f"idle.{n}" for n in range(each)]
                )
                for app in range(APPS)
            }
            beating = asyncio.create_task(_beat(serving, ids))
            try:
                return await _watched(workbench, seconds, serving.cpu)
            finally:
                beating.cancel()


async def _beat(serving: ServerProcess, ids: dict[str, str]) -> None:
    while True:
        await asyncio.sleep(_HEARTBEAT_S)
        async with client(serving.place) as one:
            for app, id in ids.items():
                path = f"/api/v1/apps/{app}/instances/{id}/heartbeat"
                assert (await one.ask(request("POST", path, KEY, b""))).status == 204


async def _watched(workbench: Bench, seconds: int, cpu: Cpu) -> dict[str, float]:
    """The cost of idling, once everything has started. Commands inside of scripts count, too."""
    await asyncio.sleep(_BEGUN_S)
    before, store, own = _commands(workbench), workbench.meter.server_cpu(), cpu()
    await asyncio.sleep(seconds)
    return {
        "connections": float(workbench.meter.info("clients")["connected_clients"]),
        "commands": (_commands(workbench) - before) / seconds,
        "server": 100 * (workbench.meter.server_cpu() - store) / seconds,
        "client": 100 * (cpu() - own) / seconds,
    }


def _commands(workbench: Bench) -> int:
    return int(workbench.meter.info("stats")["total_commands_processed"])
