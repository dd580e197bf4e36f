"""A Redis that may evict live jobs is refused, with a remedy."""

from collections.abc import Iterator

import pytest

from tests.entering import facts_of, refusal_on_entering
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
    refusal = await refusal_on_entering(EvictionUnsafe, lambda: Engine(evicting.url))
    assert refusal.policy == policy
    assert "maxmemory-policy noeviction" in refusal.remedy


async def test_a_redis_is_accepted_after_the_command_of_the_remedy(
    evicting: EmbeddedServer,
) -> None:
    evicting.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    refusal = await refusal_on_entering(EvictionUnsafe, lambda: Engine(evicting.url))
    command = refusal.remedy.split("`")[1]
    evicting.ask(*command.split())
    async with Engine(evicting.url) as engine:
        assert (await facts_of(engine)).eviction == "noeviction"


async def test_an_evicting_policy_is_found_where_config_is_denied(evicting: EmbeddedServer) -> None:
    """INFO shows it too; declaring a durability class does not disable the check."""
    evicting.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    evicting.ask("ACL", "SETUSER", "reader", *READER)
    url = evicting.url.replace("unix://", "unix://reader:secret@")
    declared = Durability.parse("disk")
    refusal = await refusal_on_entering(EvictionUnsafe, lambda: Engine(url, declared=declared))
    assert refusal.policy == "allkeys-lru"


async def test_a_cluster_with_one_evicting_master_is_refused(cluster: EmbeddedCluster) -> None:
    master = cluster.masters[2]
    master.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        refusal = await refusal_on_entering(EvictionUnsafe, lambda: Engine(cluster.url), servers=3)
        assert refusal.policy == "allkeys-lru"
    finally:
        master.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
