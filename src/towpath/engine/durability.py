"""Durability classes: what a Redis server promises about an acknowledged write, as it reports."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple, Self

import msgspec

from towpath.clock import seconds, steady
from towpath.engine.channel import Channel
from towpath.engine.cluster import Cluster
from towpath.engine.port import Port
from towpath.engine.refusals import translate_error
from towpath.engine.resp import TROUBLE, ErrorReply
from towpath.errors import DurabilityUnavailable, DurabilityUnknown, EvictionUnsafe, InvalidOption

Ask = Callable[[tuple[Any, ...]], Awaitable[Any]]
"""Sends a command to one Redis server, always on the same connection; returns the reply."""
FACTS_LAST = seconds(1)
"""How long the facts of a server are trusted on a connection. A setting may be weakened while the
connection is open (`CONFIG SET appendonly no`): submits that need a durability class notice this
after that time at the latest."""
_ANSWER_WITHIN = 1.5
"""Seconds for a server to report its facts, which takes it no work."""


class Disk(IntEnum):
    """What Redis writes to its disk, weakest first."""

    MEMORY = 0
    """Nothing survives the end of the Redis process."""
    SECOND = 1
    """A crash may lose about the last second, more on a slow disk."""
    DISK = 2
    """Nothing acknowledged is lost to a crash or power cut, as long as the disk survives."""


class Durability(msgspec.Struct, frozen=True):
    """What a confirmed submit survives: `memory`, `second`, `disk`, or `replica:n`."""

    disk: Disk = Disk.MEMORY
    replicas: int = 0
    """Replicas that must have a write before it counts."""

    def __str__(self) -> str:
        return f"replica:{self.replicas}" if self.replicas else self.disk.name.lower()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `memory`, `second`, `disk` or `replica:n`. Raises InvalidOption."""
        name, _, number = text.partition(":")
        if name == "replica" and number.isdecimal() and 1 <= int(number) <= 100:
            return cls(replicas=int(number))
        if not number and name.upper() in Disk.__members__:
            return cls(disk=Disk[name.upper()])
        raise InvalidOption("durability", text, rule="must be memory, second, disk or replica:n")


class ServerFacts(msgspec.Struct, frozen=True):
    """What a Redis deployment reports about itself. Of several servers, the weakest counts."""

    flavour: str
    version: str
    durability: Durability
    replicas: int
    """Replicas of the primary that has the fewest."""
    eviction: str
    servers: int


class KnownFacts(NamedTuple):
    """The facts that a server reported on a connection, and when, by the steady clock."""

    facts: ServerFacts
    asked_at: float


async def probe(cluster: Cluster, declared: Durability | None) -> ServerFacts:
    """The facts of all primaries that answer. Where CONFIG is denied, the class is *declared*.

    Raises EvictionUnsafe, DurabilityUnknown if CONFIG is denied and no class is declared, and one
    of TROUBLE if no primary answers.
    """
    channels = await cluster.primaries()
    port = cluster.port
    answers = await port.every(
        [partial(_ask_facts_within, port, channel, declared) for channel in channels]
    )
    facts = [found for found in answers if isinstance(found, ServerFacts)]
    passing: BaseException | None = None
    for answer in answers:
        if isinstance(answer, TROUBLE) and translate_error(answer) is None:
            passing = answer
        elif isinstance(answer, BaseException):
            raise answer
    if passing is not None and not facts:
        raise passing
    weakest = min(facts, key=lambda server: server.durability.disk)
    return msgspec.structs.replace(
        weakest, replicas=min(server.replicas for server in facts), servers=len(facts)
    )


async def require(
    ask: Ask, known: object, wanted: Durability, declared: Durability | None
) -> KnownFacts:
    """The facts of the server behind *ask* if it can give *wanted*, else DurabilityUnavailable.

    The facts are read on each connection, again when the *known* ones are older than `FACTS_LAST`,
    and again before a submit is refused, as a setting may have changed. Replicas are not checked
    here: those that confirm the write are counted (`Calls.confirmed`).
    """
    if (
        isinstance(known, KnownFacts)
        and wanted.disk <= known.facts.durability.disk
        and steady() - known.asked_at < FACTS_LAST.total_seconds()
    ):
        return known
    found = await ask_known(ask, declared)
    if wanted.disk > found.facts.durability.disk:
        raise DurabilityUnavailable(str(wanted), str(found.facts.durability))
    return found


async def ask_known(ask: Ask, declared: Durability | None) -> KnownFacts:
    """The result of `ask_facts`, with the time before the first command."""
    began = steady()
    return KnownFacts(await ask_facts(ask, declared), began)


async def _ask_facts_within(
    port: Port, channel: Channel, declared: Durability | None
) -> ServerFacts:
    try:
        async with port.within(_ANSWER_WITHIN):
            return await ask_facts(lambda command: channel.send(*command), declared)
    finally:
        await channel.close()


async def ask_facts(ask: Ask, declared: Durability | None) -> ServerFacts:
    """The facts that one server reports. Raises EvictionUnsafe, DurabilityUnknown."""
    info = _parse_info(await ask(("INFO",)))
    settings = await _read_settings(ask)
    policy = settings.get("maxmemory-policy", info.get("maxmemory_policy", ""))
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


async def _read_settings(ask: Ask) -> dict[str, str]:
    """The settings that matter; empty if CONFIG is denied."""
    found: dict[str, str] = {}
    try:
        for name in ("maxmemory-policy", "appendonly", "appendfsync"):
            flat: list[Any] = await ask(("CONFIG", "GET", name))
            found |= {flat[i].decode(): flat[i + 1].decode() for i in range(0, len(flat), 2)}
    except ErrorReply:
        return {}
    return found


def _class_of(settings: dict[str, str]) -> Durability:
    if settings.get("appendonly") != "yes":
        return Durability(Disk.MEMORY)
    return Durability(
        {"always": Disk.DISK, "everysec": Disk.SECOND}.get(settings["appendfsync"], Disk.MEMORY)
    )


def _parse_info(info: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in info.decode(errors="replace").splitlines())
    return {name: value for name, colon, value in lines if colon}
