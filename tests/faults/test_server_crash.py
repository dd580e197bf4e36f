"""I2: a Redis of class `disk` that is killed under load comes back with all that it
acknowledged.
"""

import asyncio
import random
from pathlib import Path

from tests.faults.counted_load import CountedLoad, under_load
from tests.faults.queue_contents import QueueContents, contents_of
from towpath.clock import hours
from towpath.embedded import EmbeddedServer
from towpath.engine.durability import Durability
from towpath.engine.engine import Engine
from towpath.engine.options import QueueOptions

QUEUE = "crash"
OPTIONS = QueueOptions(keep=hours(1), keep_most=1_000_000)
KILLS = 4


async def test_a_redis_of_class_disk_keeps_what_it_acknowledged(tmp_path: Path, seed: int) -> None:
    with EmbeddedServer(data=tmp_path) as server:
        load, found = await killed_under_load(server, Durability.parse("disk"), seed)
    assert load.losses(found) == {}
    assert len(load.submitted) > 100
    assert len(load.completed) > 100
    assert len(load.tokens) == len(set(load.tokens))


async def test_a_redis_of_class_memory_loses_what_it_acknowledged(seed: int) -> None:
    """Shows that the check can fail: it finds the losses of a Redis that does not write to disk."""
    with EmbeddedServer() as server:
        load, found = await killed_under_load(server, Durability.parse("memory"), seed)
    assert load.losses(found)["missing"]


async def killed_under_load(
    server: EmbeddedServer, durability: Durability, seed: int
) -> tuple[CountedLoad, QueueContents]:
    """Kills Redis several times under load; the engine goes on by itself."""
    chance = random.Random(seed)
    async with Engine(server.url) as engine:
        await engine.queues.configure(QUEUE, OPTIONS)
        load = CountedLoad(engine, QUEUE, durability)
        async with under_load(load):
            for _ in range(KILLS):
                await load.more(chance.randrange(50, 400))
                server.kill()
                await asyncio.to_thread(server.start)
            await load.more(100)
        return load, await contents_of(engine, QUEUE)
