"""Entering an engine: before it, after it, again, and in forked processes."""

import subprocess
import sys
from collections.abc import Awaitable, Callable

import pytest

from tests.spec.jobs_in_states import REVIEWS
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.errors import EngineClosed

FORKING = """
import asyncio, os, sys
from towpath.engine.engine import Engine

engine = Engine(sys.argv[1])

async def submit(id):
    async with engine:
        await engine.submit("reviews", b"", id=id)

for id in ("first", "second"):
    child = os.fork()
    if not child:
        asyncio.run(submit(id))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


USES: dict[str, Callable[[Engine], Awaitable[object]]] = {
    "submit": lambda engine: engine.submit(REVIEWS, b""),
    "check": lambda engine: engine.check(),
    "publish": lambda engine: engine.publish("news", [{"a": "b"}], cap=1),
    "queues": lambda engine: engine.queues.list(),
    "inspect": lambda engine: engine.inspect.counts(REVIEWS),
    "events": lambda engine: engine.events.list(REVIEWS),
    "schedules": lambda engine: engine.schedules.of(REVIEWS),
    "workers": lambda engine: engine.workers.list(),
}


@pytest.mark.parametrize("use", USES)
async def test_an_engine_that_was_not_entered_refuses_calls(
    server: EmbeddedServer, use: str
) -> None:
    with pytest.raises(RuntimeError, match="`async with Engine"):
        await USES[use](Engine(server.url))


def test_an_engine_that_was_not_entered_has_no_facts() -> None:
    with pytest.raises(RuntimeError, match="`async with Engine"):
        _ = Engine("redis://nowhere").facts


async def test_an_engine_that_was_left_refuses_calls(server: EmbeddedServer) -> None:
    async with Engine(server.url) as engine:
        pass
    with pytest.raises(EngineClosed):
        await engine.submit(REVIEWS, b"")
    with pytest.raises(EngineClosed):
        await engine.queues.list()


async def test_an_engine_may_be_entered_again(server: EmbeddedServer) -> None:
    engine = Engine(server.url)
    for id in ("first", "second"):
        async with engine:
            await engine.submit(REVIEWS, b"", id=id)
            assert engine.facts.servers == 1
    async with engine:
        assert (await engine.inspect.counts(REVIEWS)).ready == 2


async def test_an_engine_that_was_made_before_a_fork_may_be_entered_in_each_child(
    server: EmbeddedServer,
) -> None:
    """If two children named their calls alike, the second would get the answers of the first."""
    subprocess.run([sys.executable, "-c", FORKING, server.url], check=True)  # noqa: ASYNC221 -- nothing else runs here
    async with Engine(server.url) as engine:
        assert (await engine.inspect.counts(REVIEWS)).ready == 2
