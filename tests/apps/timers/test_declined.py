"""Timers that are settled together with leases that no handler took are all in the log."""

import gc
from asyncio import Event
from typing import Any

from fastapi import FastAPI

from tests.apps.timers.service_mode import InstancesApi
from tests.calls.receivers import Reader, Receiver, Writer, http
from tests.waiting import eventually_async
from towpath.apps.timers.model import TypeKey, new_timer
from towpath.apps.timers.options import TimersOptions
from towpath.apps.timers.plugin import Timers
from towpath.apps.timers.service import TimerService
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.worker.context import Context

TIMERS = [f"timer-{n}" for n in range(50)]


async def submit_among_strangers(engine: Engine, timers: TimerService, key: TypeKey) -> None:
    """Submit timers, and before each of them a job without a handler, to be claimed together."""
    queue = await timers.types.ensure(key)
    await engine.queues.pause(queue)
    for id in TIMERS:
        await engine.submit(queue, b"", id=f"before-{id}", headers={"handler": "nobody's"})
        await timers.submit(new_timer(key.task_type, app=key.app, task_id=id, delay=0))
    await engine.queues.resume(queue)


async def all_logged(timers: TimerService, key: TypeKey) -> None:
    async def logged() -> bool:
        found = (await timers.log.read(key, size=1000)).firings
        return sorted(firing.task_id for firing in found) == sorted(TIMERS)

    await eventually_async(logged)


async def test_the_log_has_all_firings_of_a_plug_in_worker_that_declines_jobs(
    server: EmbeddedServer,
) -> None:
    timers, key = Timers(server.url), TypeKey("t")

    @timers.worker("t")
    async def run() -> None: ...

    async with timers.working():
        service = TimerService(timers.app.engine, TimersOptions())
        await submit_among_strangers(timers.app.engine, service, key)
        await all_logged(service, key)


async def test_the_log_has_all_firings_of_service_mode_when_jobs_are_declined(
    app: FastAPI, api: InstancesApi, receiver: Receiver
) -> None:
    receiver.answer = http()
    await api.register(receiver.url(), "t")
    service: TimerService = app.state.services["timers"]
    await submit_among_strangers(app.state.engine, service, TypeKey("t", "shop"))
    await all_logged(service, TypeKey("t", "shop"))


async def test_an_attempt_whose_lease_was_lost_leaves_nothing_in_memory(
    app: FastAPI, api: InstancesApi, receiver: Receiver, server: EmbeddedServer
) -> None:
    """It is never settled, so `on_settled` is not called with it."""
    over = Event()

    async def behave(_: Reader, __: Writer) -> None:
        await over.wait()

    receiver.behaviour = behave
    await api.register(receiver.url(), "t")
    service: TimerService = app.state.services["timers"]
    await service.submit(new_timer("t", app="shop", task_id="a", delay=0))

    async def called() -> bool:
        return len(receiver.requests) == 1

    await eventually_async(called)
    assert contexts_of("a") == 1
    server.ask("FLUSHALL")

    async def forgotten() -> bool:
        return contexts_of("a") == 0

    await eventually_async(forgotten)
    over.set()


def contexts_of(id: str) -> int:
    """Count the Contexts of a timer that this process still refers to."""
    gc.collect()
    things: list[Any] = gc.get_objects()
    return sum(isinstance(thing, Context) and thing.id == id for thing in things)
