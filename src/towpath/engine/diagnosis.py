"""The state of a Redis deployment, read without refusing an unfit one: for `towpath doctor`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from towpath.clock import Duration, steady, wall_ms
from towpath.engine.channel import Channel
from towpath.engine.cluster import open_cluster
from towpath.engine.resp import TROUBLE, ErrorReply
from towpath.engine.script import ARGS, shipped_scripts
from towpath.engine.url import ServerUrl
from towpath.errors import ServerRefused, ServerUnreachable

_PINGS = 30
_WRITE_KEY = "towpath:doctor"
_SETTINGS = (
    "maxmemory-policy", "maxmemory", "appendonly", "appendfsync", "latency-monitor-threshold",
)  # fmt: skip


class ServerState(msgspec.Struct, frozen=True, kw_only=True):
    """One Redis server that takes writes, as it is now."""

    info: dict[str, str]
    """The reply to INFO, name by name."""
    settings: dict[str, str]
    """The settings that matter; empty if CONFIG is denied."""
    skew_ms: float
    """How far the clock of Redis is ahead of this machine's."""
    round_trips_ms: list[float]
    """How long each PING took, fastest first."""
    slowest: dict[str, int]
    """The longest time in ms for which each kind of event blocked the server lately, as its latency
    monitor recorded it."""
    scripts_known: int
    scripts_all: int
    scripts_refused: str
    """Why the server runs no scripts; empty if it does."""


class Checkup(msgspec.Struct, frozen=True):
    """A whole deployment: its servers, and whether a write gets through."""

    servers: list[ServerState]
    write_refused: str
    """The server's error; empty if the write worked."""


async def examine(url: ServerUrl, *, within: Duration) -> Checkup:
    """Read the state of every primary, load the scripts, and write one key that expires.

    Raises ServerUnreachable, or ServerRefused if the login is refused.
    """
    cluster = open_cluster(url)
    try:
        async with asyncio.timeout(within.total_seconds()):
            servers = [await _examine_and_close(channel) for channel in await cluster.primaries()]
            return Checkup(servers, await _refusal_of(lambda: _write(cluster.channel())))
    except TROUBLE as error:
        if isinstance(error, ErrorReply):
            raise ServerRefused(str(error)) from error
        raise ServerUnreachable(f"no answer from {url}: {error or type(error).__name__}") from error
    finally:
        await cluster.close()


async def _examine_and_close(channel: Channel) -> ServerState:
    try:
        return await _examine_server(channel)
    finally:
        await channel.close()


async def _examine_server(channel: Channel) -> ServerState:
    info: bytes = await channel.send("INFO")
    settings = await _read_settings(channel)
    trips = await _measure_round_trips(channel)
    ping = shipped_scripts().index["ping"]
    refused = await _refusal_of(lambda: channel.send("EVAL", ping.source, 0))
    known, every = (0, len(ARGS)) if refused else await _count_scripts(channel)
    return ServerState(
        info=_parse_info(info),
        settings=settings,
        skew_ms=await _measure_skew(channel),
        round_trips_ms=trips,
        slowest=await _read_latency(channel),
        scripts_known=known,
        scripts_all=every,
        scripts_refused=refused or await _refusal_of(lambda: _load_scripts(channel)),
    )


async def _read_settings(channel: Channel) -> dict[str, str]:
    found: dict[str, str] = {}
    try:
        for name in _SETTINGS:
            flat: list[bytes] = await channel.send("CONFIG", "GET", name)
            found |= {flat[i].decode(): flat[i + 1].decode() for i in range(0, len(flat), 2)}
    except ErrorReply:
        return {}
    return found


async def _measure_round_trips(channel: Channel) -> list[float]:
    trips_ms: list[float] = []
    for _ in range(_PINGS):
        began = steady()
        await channel.send("PING")
        trips_ms.append((steady() - began) * 1000)
    return sorted(trips_ms)


async def _measure_skew(channel: Channel) -> float:
    """The server's time minus ours in the middle of the round trip: exact to half a round trip."""
    before = wall_ms()
    second, micro = await channel.send("TIME")
    return int(second) * 1000 + int(micro) / 1000 - (before + wall_ms()) / 2


async def _read_latency(channel: Channel) -> dict[str, int]:
    try:
        found: list[Any] = await channel.send("LATENCY", "LATEST")
    except ErrorReply:
        return {}
    return {row[0].decode(): int(row[3]) for row in found}


async def _count_scripts(channel: Channel) -> tuple[int, int]:
    """How many of our scripts the server has loaded, and how many there are."""
    scripts = shipped_scripts()
    try:
        known: list[int] = await channel.send(
            "SCRIPT", "EXISTS", *(scripts[name].sha for name in ARGS)
        )
    except ErrorReply:
        return 0, len(ARGS)
    return sum(map(int, known)), len(ARGS)


async def _load_scripts(channel: Channel) -> None:
    """Load every script, which shows that it compiles. The engine would load it at first use."""
    scripts = shipped_scripts()
    for name in ARGS:
        await channel.send("SCRIPT", "LOAD", scripts[name].source)


async def _write(channel: Channel) -> None:
    await channel.send("SET", _WRITE_KEY, "1", "PX", 1000)


async def _refusal_of(ask: Callable[[], Awaitable[object]]) -> str:
    """The server's error if it refuses, else an empty text."""
    try:
        await ask()
    except ErrorReply as error:
        return str(error)
    return ""


def _parse_info(info: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in info.decode(errors="replace").splitlines())
    return {name: value for name, colon, value in lines if colon}
