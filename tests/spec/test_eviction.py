"""Eviction: an engine refuses to start on a server that may delete live jobs."""

from collections.abc import Iterator

import pytest

from tests.entering import facts_of, refusal_on_entering
from towpath.embedded import EmbeddedCluster, EmbeddedServer
from towpath.engine.durability import Durability
from towpath.engine.engine import Engine
from towpath.errors import EvictionUnsafe

UNSAFE = [
    "allkeys-lru", "allkeys-lfu", "allkeys-random",
    "volatile-lru", "volatile-lfu", "volatile-random", "volatile-ttl",
]  # fmt: skip


@pytest.fixture
def evicting(request: pytest.FixtureRequest, server: EmbeddedServer) -> Iterator[EmbeddedServer]:
    server.ask("CONFIG", "SET", "maxmemory-policy", request.param)
    yield server
    server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")


class TestAnEngine:
    @pytest.mark.parametrize("evicting", UNSAFE, indirect=True)
    async def test_refuses_every_evicting_policy(self, evicting: EmbeddedServer) -> None:
        refusal = await refusal_on_entering(EvictionUnsafe, lambda: Engine(evicting.url))
        assert refusal.policy in str(refusal)
        assert "CONFIG SET maxmemory-policy noeviction" in refusal.remedy

    @pytest.mark.parametrize("evicting", ["allkeys-lru"], indirect=True)
    async def test_starts_once_the_remedy_was_followed(self, evicting: EmbeddedServer) -> None:
        evicting.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
        async with Engine(evicting.url) as engine:
            assert (await facts_of(engine)).eviction == "noeviction"

    @pytest.mark.parametrize("evicting", ["allkeys-lru"], indirect=True)
    async def test_refuses_a_redis_that_denies_config_too(self, evicting: EmbeddedServer) -> None:
        evicting.ask("ACL", "SETUSER", "limited", "on", ">pw", "~*", "&*", "+@all", "-config")
        url = f"unix://limited:pw@{evicting.socket}"
        declared = Durability.parse("disk")
        await refusal_on_entering(EvictionUnsafe, lambda: Engine(url, declared=declared))
        evicting.ask("ACL", "DELUSER", "limited")

    async def test_refuses_a_cluster_with_one_evicting_node(self, cluster: EmbeddedCluster) -> None:
        node = cluster.masters[2]
        node.ask("CONFIG", "SET", "maxmemory-policy", "volatile-ttl")
        try:
            await refusal_on_entering(EvictionUnsafe, lambda: Engine(cluster.url), servers=3)
        finally:
            node.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
