"""Eviction: an engine refuses to start on a server that may delete live jobs."""

from collections.abc import Iterator

import pytest

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
    async def test_refuses_every_policy_that_evicts(self, evicting: EmbeddedServer) -> None:
        with pytest.raises(EvictionUnsafe) as refusal:
            await Engine(evicting.url).__aenter__()
        assert refusal.value.policy in str(refusal.value)
        assert "CONFIG SET maxmemory-policy noeviction" in refusal.value.remedy

    @pytest.mark.parametrize("evicting", ["allkeys-lru"], indirect=True)
    async def test_starts_once_the_remedy_was_followed(self, evicting: EmbeddedServer) -> None:
        evicting.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
        async with Engine(evicting.url) as engine:
            assert engine.facts.eviction == "noeviction"

    @pytest.mark.parametrize("evicting", ["allkeys-lru"], indirect=True)
    async def test_refuses_a_server_that_denies_config_too(self, evicting: EmbeddedServer) -> None:
        evicting.ask("ACL", "SETUSER", "limited", "on", ">pw", "~*", "&*", "+@all", "-config")
        url = f"unix://limited:pw@{evicting.socket}"
        with pytest.raises(EvictionUnsafe):
            await Engine(url, declared=Durability.parse("disk")).__aenter__()
        evicting.ask("ACL", "DELUSER", "limited")

    async def test_refuses_a_cluster_with_one_such_node(self, cluster: EmbeddedCluster) -> None:
        node = cluster.masters[2]
        node.ask("CONFIG", "SET", "maxmemory-policy", "volatile-ttl")
        try:
            with pytest.raises(EvictionUnsafe):
                await Engine(cluster.url).__aenter__()
        finally:
            node.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
