"""Durability classes: what a server promises about an acknowledged write, found by asking it."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Self

import msgspec
from redis.exceptions import ResponseError

from towpath.engine.connect import Line, Link
from towpath.errors import DurabilityUnavailable, DurabilityUnknown, EvictionUnsafe, InvalidOption


class Disk(IntEnum):
    """What a server writes to its disk, weakest first."""

    MEMORY = 0
    """Nothing survives the server's process."""
    SECOND = 1
    """A crash may lose about the last second, more on a slow disk."""
    DISK = 2
    """Nothing acknowledged is lost to a crash or power cut, as long as the disk survives."""


class Durability(msgspec.Struct, frozen=True):
    """A class to have or to ask for: `memory`, `second`, `disk`, or `replica:n`."""

    disk: Disk = Disk.MEMORY
    replicas: int = 0
    """Replicas that must have a write before it counts."""

    def __str__(self) -> str:
        return f"replica:{self.replicas}" if self.replicas else self.disk.name.lower()

    @classmethod
    def parse(cls, text: str) -> Self:
        """`memory`, `second`, `disk` or `replica:n`, else InvalidOption."""
        name, _, number = text.partition(":")
        if name == "replica" and number.isdecimal() and 1 <= int(number) <= 100:
            return cls(replicas=int(number))
        if not number and name.upper() in Disk.__members__:
            return cls(disk=Disk[name.upper()])
        raise InvalidOption("durability", text, rule="must be memory, second, disk or replica:n")


class ServerFacts(msgspec.Struct, frozen=True):
    """What a deployment says about itself: the weakest of its servers, where there are several."""

    flavour: str
    version: str
    durability: Durability
    replicas: int
    """Replicas attached to the primary (the one with the fewest)."""
    eviction: str
    servers: int

    def require(self, wanted: Durability) -> None:
        """Raise DurabilityUnavailable unless a submit can ask for *wanted* here."""
        if wanted.disk > self.durability.disk:
            raise DurabilityUnavailable(str(wanted), str(self.durability))
        if wanted.replicas > self.replicas:
            raise DurabilityUnavailable(str(wanted), f"replica:{self.replicas}")


async def probe(link: Link, declared: Durability | None) -> ServerFacts:
    """Ask every primary. Where CONFIG is denied, *declared* says the class.

    Raises EvictionUnsafe, and DurabilityUnknown where nobody tells.
    """
    facts = [await _probe_server(line, declared) for line in await link.primaries()]
    weakest = min(facts, key=lambda it: it.durability.disk)
    return msgspec.structs.replace(
        weakest, replicas=min(it.replicas for it in facts), servers=len(facts)
    )


async def _probe_server(line: Line, declared: Durability | None) -> ServerFacts:
    try:
        info = _parsed(await line.send("INFO"))
        policy = info.get("maxmemory_policy", "")
        settings = await _settings(line)
    finally:
        await line.hang_up()
    policy = settings.get("maxmemory-policy", policy)
    if policy != "noeviction":
        raise EvictionUnsafe(policy or "not known")
    durability = _class_of(settings) if settings else declared
    if durability is None:
        raise DurabilityUnknown("CONFIG GET is denied, and no durability class is declared")
    flavour = "valkey" if "valkey_version" in info else "redis"
    return ServerFacts(
        flavour=flavour,
        version=info.get("valkey_version") or info.get("redis_version", "unknown"),
        durability=durability,
        replicas=int(info.get("connected_slaves", "0")),
        eviction=policy,
        servers=1,
    )


async def _settings(line: Line) -> dict[str, str]:
    """The settings that matter; empty where CONFIG is denied."""
    found: dict[str, str] = {}
    try:
        for name in ("maxmemory-policy", "appendonly", "appendfsync"):
            flat: list[Any] = await line.send("CONFIG", "GET", name)
            found |= {flat[i].decode(): flat[i + 1].decode() for i in range(0, len(flat), 2)}
    except ResponseError:
        return {}
    return found


def _class_of(settings: dict[str, str]) -> Durability:
    if settings.get("appendonly") != "yes":
        return Durability(Disk.MEMORY)
    return Durability(
        {"always": Disk.DISK, "everysec": Disk.SECOND}.get(settings["appendfsync"], Disk.MEMORY)
    )


def _parsed(info: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in info.decode(errors="replace").splitlines())
    return {name: value for name, colon, value in lines if colon}
