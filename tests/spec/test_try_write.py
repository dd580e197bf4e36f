"""try_write: tells whether Redis accepts writes, without leaving a trace."""

import pytest

from tests.spec.deployment import Deployment
from tests.waiting import eventually_async
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.engine.keys import PROBE
from towpath.errors import MemoryFull


class TestTryingAWrite:
    async def test_leaves_nothing_behind(self, engine: Engine, deployment: Deployment) -> None:
        await engine.try_write()
        assert await engine.queues.list() == {}

        async def gone() -> bool:
            return deployment.ask("EXISTS", PROBE) == 0

        await eventually_async(gone)

    async def test_tells_that_redis_accepts_no_writes(self) -> None:
        with EmbeddedServer() as server:
            async with Engine(server.url) as engine:
                server.ask("CONFIG", "SET", "maxmemory", "1")
                with pytest.raises(MemoryFull):
                    await engine.try_write()
