"""Calls that are under way when the engine is left, and later ones, fail at once and say why."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.waiting import eventually_in_loop
from towpath.clock import minutes
from towpath.embedded import EmbeddedServer
from towpath.engine.channel import Limits
from towpath.engine.engine import Engine
from towpath.errors import EngineClosed

PATIENT = Limits(answer=minutes(5), give_up=minutes(10), channels=1)
"""Longer than any test may take: who waits for these hangs."""
CALLS: dict[str, Callable[[Engine], Awaitable[object]]] = {
    "write": lambda engine: engine.queues.pause("mails"),
    "read": lambda engine: engine.inspect.counts("mails"),
    "check": lambda engine: engine.check(),
}


@pytest.mark.parametrize("call", CALLS)
async def test_a_call_to_a_frozen_redis_ends_when_the_engine_is_left(
    server: EmbeddedServer, call: str
) -> None:
    async with Engine(server.url, limits=PATIENT) as engine:
        await engine.inspect.counts("mails")
        server.pause()
        try:
            # The second call waits for the only channel.
            asked = [asyncio.ensure_future(CALLS[call](engine)) for _ in range(2)]
            await eventually_in_loop(lambda: not any(task.done() for task in asked))
            leaving = asyncio.create_task(engine.__aexit__(None, None, None))
            for task in asked:
                with pytest.raises(EngineClosed):
                    await task
            await leaving
        finally:
            server.unpause()


@pytest.mark.parametrize("call", CALLS)
async def test_a_call_after_the_engine_was_left_is_refused(
    server: EmbeddedServer, call: str
) -> None:
    async with Engine(server.url, limits=PATIENT) as engine:
        pass
    with pytest.raises(EngineClosed):
        await CALLS[call](engine)
