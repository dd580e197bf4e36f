"""Waits for a job's end, and followers of a queue, go on after an outage of Redis."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from tests.waiting import HANGS, eventually_async
from towpath.clock import hours, milliseconds, minutes
from towpath.embedded import EmbeddedServer
from towpath.engine.channel import Limits
from towpath.engine.engine import Engine
from towpath.engine.model import Lease
from towpath.engine.options import QueueOptions
from towpath.engine.states import State
from towpath.errors import ServerUnreachable, StillOpen

QUEUE = "outlast"
SHORT = Limits(answer=milliseconds(200), give_up=milliseconds(600))
"""An outage is longer than any call is repeated."""
Act = Callable[[EmbeddedServer], object]

outages = pytest.mark.parametrize(
    ("away", "back"),
    [
        (EmbeddedServer.pause, EmbeddedServer.unpause),
        (EmbeddedServer.kill, EmbeddedServer.start),
    ],
    ids=["frozen", "killed"],
)


async def outlasted(engine: Engine) -> None:
    """Returns when Redis was away for longer than a call takes to be given up."""
    with pytest.raises(ServerUnreachable):
        await engine.inspect.counts(QUEUE)


async def completed(engine: Engine, lease: Lease) -> bool:
    with suppress(ServerUnreachable):
        await engine.complete(lease)
        return True
    return False


@outages
async def test_waits_and_followers_outlast_an_outage(tmp_path: Path, away: Act, back: Act) -> None:
    with EmbeddedServer(data=tmp_path) as server:
        async with Engine(server.url, limits=SHORT) as engine:
            await engine.queues.configure(QUEUE, QueueOptions(keep=hours(1)))
            await engine.submit(QUEUE, b"", id="a")
            [lease] = await engine.claim(QUEUE, worker="anna", lease=minutes(10))
            ended = asyncio.create_task(engine.events.ended(lease.job, within=minutes(5)))
            async with engine.events.follow(QUEUE) as live:
                away(server)
                await outlasted(engine)
                with pytest.raises((ServerUnreachable, StillOpen)):
                    await engine.events.ended(lease.job, within=milliseconds(100))
                await asyncio.to_thread(back, server)
                async with asyncio.timeout(HANGS):
                    await eventually_async(partial(completed, engine, lease))
                    assert (await ended).state is State.DONE
                    assert (await anext(live)).verb == "complete"
