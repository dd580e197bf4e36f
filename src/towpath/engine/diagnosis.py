"""What a deployment says about itself, asked without refusing anything: for `towpath doctor`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from towpath.clock import Duration, steady, wall_ms
from towpath.engine.channel import Channel
from towpath.engine.cluster import open_cluster
from towpath.engine.lifetime import shipped_scripts
from towpath.engine.resp import TROUBLE, ErrorReply
from towpath.engine.script import ARGS
from towpath.engine.space import BESIDE
from towpath.engine.url import ServerUrl
from towpath.errors import ServerRefused, ServerUnreachable

_PINGS = 30
_WRITE_KEY = "towpath:doctor"
_SETTINGS = (
    "maxmemory-policy", "maxmemory", "appendonly", "appendfsync", "latency-monitor-threshold",
)  # fmt: skip


class ServerState(msgspec.Struct, frozen=True, kw_only=True):
    """One server that takes writes, as it is now."""

    info: dict[str, str]
    """Its INFO, name by name."""
    settings: dict[str, str]
    """The settings that matter; empty where CONFIG is denied."""
    skew_ms: float
    """How far its clock is ahead of this machine's."""
    round_trips_ms: list[float]
    """How long a PING took, fastest first."""
    slowest: dict[str, int]
    """What kept it from answering lately, by kind, in ms at worst; what its monitor knows."""
    scripts_known: int
    scripts_all: int
    scripts_refused: str
    """Why it takes no scripts; empty if it does."""


class Checkup(msgspec.Struct, frozen=True):
    """A whole deployment: its servers, and whether a write gets through."""

    servers: list[ServerState]
    write_refused: str
    """The server's words; empty if the write worked."""


async def examine(url: ServerUrl, *, within: Duration) -> Checkup:
    """Ask every primary about itself, load the scripts, and write one key that vanishes.

    Raises ServerUnreachable, or ServerRefused where the login is.
    """
    cluster = open_cluster(url)
    try:
        async with asyncio.timeout(within.total_seconds()):
            servers = [await _examined_once(channel) for channel in await cluster.primaries()]
            return Checkup(servers, await _refusal(lambda: _write(cluster.channel())))
    except TROUBLE as error:
        if isinstance(error, ErrorReply):
            raise ServerRefused(str(error)) from error
        raise ServerUnreachable(f"no answer from {url}: {error or type(error).__name__}") from error
    finally:
        await cluster.close()


async def _examined_once(channel: Channel) -> ServerState:
    try:
        return await _examined(channel)
    finally:
        await channel.close()


async def _examined(channel: Channel) -> ServerState:
    info: bytes = await channel.send("INFO")
    settings = await _settings(channel)
    trips = await _round_trips(channel)
    answers = shipped_scripts().of_records(BESIDE)["answers"]
    refused = await _refusal(lambda: channel.send("EVAL", answers.source, 0))
    known, every = (0, len(ARGS)) if refused else await _scripts(channel)
    return ServerState(
        info=_parsed(info),
        settings=settings,
        skew_ms=await _skew(channel),
        round_trips_ms=trips,
        slowest=await _slowest(channel),
        scripts_known=known,
        scripts_all=every,
        scripts_refused=refused or await _refusal(lambda: _load(channel)),
    )


async def _settings(channel: Channel) -> dict[str, str]:
    found: dict[str, str] = {}
    try:
        for name in _SETTINGS:
            flat: list[bytes] = await channel.send("CONFIG", "GET", name)
            found |= {flat[i].decode(): flat[i + 1].decode() for i in range(0, len(flat), 2)}
    except ErrorReply:
        return {}
    return found


async def _round_trips(channel: Channel) -> list[float]:
    taken: list[float] = []
    for _ in range(_PINGS):
        began = steady()
        await channel.send("PING")
        taken.append((steady() - began) * 1000)
    return sorted(taken)


async def _skew(channel: Channel) -> float:
    """The server's time less ours at the middle of the question: good to half a round trip."""
    before = wall_ms()
    second, micro = await channel.send("TIME")
    return int(second) * 1000 + int(micro) / 1000 - (before + wall_ms()) / 2


async def _slowest(channel: Channel) -> dict[str, int]:
    try:
        found: list[Any] = await channel.send("LATENCY", "LATEST")
    except ErrorReply:
        return {}
    return {row[0].decode(): int(row[3]) for row in found}


async def _scripts(channel: Channel) -> tuple[int, int]:
    """How many of our scripts the server has already."""
    scripts = shipped_scripts()
    try:
        known: list[int] = await channel.send(
            "SCRIPT", "EXISTS", *(scripts[name].sha for name in ARGS)
        )
    except ErrorReply:
        return 0, len(ARGS)
    return sum(map(int, known)), len(ARGS)


async def _load(channel: Channel) -> None:
    """Every script compiles there. The engine would send them at first use anyway."""
    scripts = shipped_scripts()
    for name in ARGS:
        await channel.send("SCRIPT", "LOAD", scripts[name].source)


async def _write(channel: Channel) -> None:
    await channel.send("SET", _WRITE_KEY, "1", "PX", 1000)


async def _refusal(ask: Callable[[], Awaitable[object]]) -> str:
    """The server's words if it refuses, else nothing."""
    try:
        await ask()
    except ErrorReply as error:
        return str(error)
    return ""


def _parsed(info: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in info.decode(errors="replace").splitlines())
    return {name: value for name, colon, value in lines if colon}
