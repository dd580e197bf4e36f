"""A server that may evict live jobs is refused, with what to do about it."""

from collections.abc import Iterator

import pytest

from towpath.embedded import EmbeddedCluster, EmbeddedServer
from towpath.engine.durability import Durability
from towpath.engine.engine import Engine
from towpath.errors import EvictionUnsafe

EVICTING = [
    "allkeys-lru",
    "allkeys-lfu",
    "allkeys-random",
    "volatile-lru",
    "volatile-lfu",
    "volatile-random",
    "volatile-ttl",
]
READER = ("reset", "on", ">secret", "~*", "+@all", "-config")


@pytest.fixture
def evicting(server: EmbeddedServer) -> Iterator[EmbeddedServer]:
    yield server
    server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
    server.ask("ACL", "DELUSER", "reader")


@pytest.mark.parametrize("policy", EVICTING)
async def test_every_policy_but_noeviction_is_refused(
    evicting: EmbeddedServer, policy: str
) -> None:
    evicting.ask("CONFIG", "SET", "maxmemory-policy", policy)
    with pytest.raises(EvictionUnsafe, match=policy) as refusal:
        async with Engine(evicting.url):
            pass
    assert refusal.value.policy == policy
    assert "maxmemory-policy noeviction" in refusal.value.remedy


async def test_the_remedy_helps(evicting: EmbeddedServer) -> None:
    evicting.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    with pytest.raises(EvictionUnsafe) as refusal:
        async with Engine(evicting.url):
            pass
    command = refusal.value.remedy.split("`")[1]
    evicting.ask(*command.split())
    async with Engine(evicting.url) as engine:
        assert engine.facts.eviction == "noeviction"


async def test_it_is_found_where_config_is_denied(evicting: EmbeddedServer) -> None:
    """INFO tells it too; declaring a durability class does not switch the check off."""
    evicting.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    evicting.ask("ACL", "SETUSER", "reader", *READER)
    url = evicting.url.replace("unix://", "unix://reader:secret@")
    with pytest.raises(EvictionUnsafe, match="allkeys-lru"):
        async with Engine(url, declared=Durability.parse("disk")):
            pass


async def test_one_master_of_a_cluster_is_enough(cluster: EmbeddedCluster) -> None:
    master = cluster.masters[2]
    master.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(EvictionUnsafe, match="allkeys-lru"):
            async with Engine(cluster.url):
                pass
    finally:
        master.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
