"""In service mode one scheduler makes at least 60 % of the calls per second that httpx makes alone.

End to end at the instance: timers that are due at once, from the first call that one local instance
gets to the last, over connections that are kept. Beside it httpx in a process of its own, with as
many calls at once, to the same instance. The instance answers 200 and does nothing else.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from statistics import median
from tempfile import TemporaryDirectory

import msgspec

from benchmarks.bench import Bench, Plan, bench
from benchmarks.figure import Figure, Reference, at_least, measured
from benchmarks.web.process import StartedProcess, started
from benchmarks.web.serving import KEY, ServerProcess, served_with
from benchmarks.web.wire import client, request
from towpath.apps.timers.model import new_timer
from towpath.apps.timers.options import TimersOptions
from towpath.apps.timers.service import TimerService
from towpath.clock import wall_ms

APP = TYPE = "bench"
SECRET = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
_WITHIN = 300.0
_AGAIN_S = 10
"""Seconds between two registrations: who is silent for 30 s is called no more."""


class CallsRound(msgspec.Struct):
    """What the instance reports of a round."""

    seconds: float
    connections: int
    """Opened so far."""


class CalleeProcess:
    """An instance in a process of its own."""

    def __init__(self, process: StartedProcess, address: str) -> None:
        self._process, self.address = process, address

    async def round(self) -> CallsRound:
        """The next finished round."""
        async with asyncio.timeout(_WITHIN):
            line = await self._process.said.readline()
        return msgspec.json.decode(line, type=CallsRound)


@asynccontextmanager
async def callee(calls: int) -> AsyncGenerator[CalleeProcess]:
    words = [sys.executable, "-m", "benchmarks.web.callee", str(calls)]
    async with started(words, {}) as process:
        told = msgspec.json.decode(await process.said.readline())
        yield CalleeProcess(process, told["address"])


async def run(plan: Plan) -> list[Figure]:
    calls = plan.count(4_000, 1_000)
    at_once = TimersOptions().calls_per_type
    settings = {"TOWPATH_CALLS__SECRETS": SECRET, "TOWPATH_TIMERS__ALLOW": "127.0.0.0/8"}
    ours, alone = list[float](), list[float]()
    cpu, opened = list[float](), list[float]()
    with TemporaryDirectory(prefix="towpath-bench-") as folder:
        async with (
            bench() as workbench,
            served_with(workbench, f"sqlite:///{folder}/ledger.db", **settings) as serving,
            callee(calls) as instance,
            registered(serving, instance),
        ):
            last = await _fired(workbench, serving, instance, calls)  # a first round, to warm up
            for _ in range(plan.rounds):
                before = serving.cpu()
                seen = await _fired(workbench, serving, instance, calls)
                ours.append(calls / seen.seconds)
                cpu.append((serving.cpu() - before) / calls * 1e6)
                opened.append(seen.connections - last.connections)
                last = await _alone(instance, calls, at_once)
                alone.append(calls / last.seconds)
    what = f"calls to one instance, {at_once} at once"
    bound = f"a call takes {median(cpu):.0f} µs of the server process's CPU"
    return [
        measured(
            "timers_service",
            f"{what}, end to end",
            "calls/s",
            ours,
            at_least(0.6, "httpx"),
            beside=Reference("calls/s, httpx alone", alone),
            bound=bound,
        ),
        measured("timers_service.cpu", f"{what}: CPU of the server process", "µs/call", cpu),
        measured("timers_service.opened", f"{what}: connections opened anew", "", opened),
    ]


async def _fired(
    workbench: Bench, serving: ServerProcess, instance: CalleeProcess, calls: int
) -> CallsRound:
    """Submits so many timers that are due at once; returns when the instance was called for all of
    them.
    """
    service = TimerService(workbench.engine, TimersOptions())
    due = wall_ms() + 2_000 + calls
    for at in range(0, calls, 500):
        count = min(500, calls - at)
        some = [new_timer(TYPE, {"order": 7}, app=APP, delay_time=due) for _ in range(count)]
        await service.submit_many(some)
    assert wall_ms() < due, "they were due before the last one was in"
    return await instance.round()


@asynccontextmanager
async def registered(serving: ServerProcess, instance: CalleeProcess) -> AsyncGenerator[None]:
    """Keeps the instance registered while the body runs."""

    async def keep() -> None:
        while True:
            await asyncio.sleep(_AGAIN_S)
            await register(serving, APP, instance.address, [TYPE])

    await register(serving, APP, instance.address, [TYPE])
    keeping = asyncio.create_task(keep())
    try:
        yield
    finally:
        keeping.cancel()


async def _alone(instance: CalleeProcess, calls: int, tasks: int) -> CallsRound:
    words = ["-m", "benchmarks.web.httpx_calls", instance.address, str(calls), str(tasks)]
    process = await asyncio.create_subprocess_exec(sys.executable, *words)
    seen = await instance.round()
    assert await process.wait() == 0
    return seen


async def register(serving: ServerProcess, app: str, address: str, types: list[str]) -> str:
    """Registers an instance; returns its id."""
    body = msgspec.json.encode({"address": address, "task_types": types})
    async with client(serving.place) as one:
        answer = await one.ask(request("POST", f"/api/v1/apps/{app}/instances", KEY, body))
    assert answer.status == 201, answer.body
    return msgspec.json.decode(answer.body)["instance_id"]
