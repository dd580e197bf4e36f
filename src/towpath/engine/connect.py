"""Connections: one server, Sentinel or Cluster behind one small interface.

A `Line` carries one command at a time and sends it once: whoever calls knows whether a repeat
is safe (`channel.py`). Time limits are the caller's too.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from towpath.engine.layout import Ask, Cluster, Layout, OneServer, Sentinels
from towpath.engine.port import LoopPort, Port, Running
from towpath.engine.resp import TROUBLE, ConnectionLost, Redirected, ScriptUnknown, SlotUnknown
from towpath.engine.script import Script
from towpath.engine.url import ServerUrl, Topology
from towpath.engine.wire import Endpoint, Place, Wire

KEYS = 2
"""Every script declares a key that is always there and one that never is: while their slot is on
its way to another node, the server then refuses the call whole, and it is sent again."""
_CONFIRM_KEPT_MS, _REDIRECTIONS = 600_000, 5

Trust = Callable[[Wire], Awaitable[None]]
"""Raises if the server on that connection is not to be asked."""


class Line:
    """One command at a time, to whichever server is responsible for its key."""

    def __init__(self, link: Link, layout: Layout) -> None:
        self._link, self._layout = link, layout
        self.wires: dict[Place, Wire] = {}
        self._at: Place | None = None

    async def send(self, *command: Any, trust: Trust | None = None, behind: Any = None) -> Any:
        """The reply. Raises one of TROUBLE, an error reply included.

        With *trust*, that of a server which it lets pass: that one is asked first, on the
        connection that the command then takes. *behind* another one, both are sent together.
        """
        wire = await self._wire_of(command)
        if trust is not None:
            await trust(wire)
        try:
            return await (wire.ask_both(behind, command) if behind else wire.ask(command))
        except Redirected as error:
            if behind:
                await self._redirected(error, behind, trust)
            return await self._redirected(error, command, trust)

    async def send_all(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The replies of the server responsible for the first; errors are in their places."""
        return await (await self._wire_of(commands[0])).ask_all(commands)

    async def run(self, script: Script, args: tuple[Any, ...], trust: Trust | None = None) -> Any:
        """The same for a script: by its name, and whole to a server that does not know it."""
        command = ("EVALSHA", script.sha, KEYS, *args)
        wire = await self._wire_of(command)
        if trust is not None:
            await trust(wire)
        try:
            try:
                return await wire.ask(command)
            except Redirected as error:
                return await self._redirected(error, command, trust)
        except ScriptUnknown:
            # A new or restarted server, or one that was promoted: it learns the script this way.
            return await self.send("EVAL", script.source, KEYS, *args, trust=trust)

    async def confirmed(
        self, command: tuple[Any, ...], trust: Trust, key: str, replicas: int, limit_ms: int
    ) -> tuple[Any, int]:
        """The reply to *command*, and how many replicas have all that its server has written.

        All on one connection. WAIT looks at the last write of its own connection, and a
        repeated call writes nothing: so *key*, which nobody reads, is written in between.
        """
        wire = await self._wire_of(command)
        await trust(wire)
        answer = await wire.ask(command)
        wrote = ("SET", key, "1", "PX", _CONFIRM_KEPT_MS)
        return answer, int(await wire.ask_both(wrote, ("WAIT", replicas, limit_ms)))

    async def hang_up(self) -> None:
        """Drop the connection that was used last, after trouble with it.

        The next command makes a new one, to the server responsible then.
        """
        if self._at is not None and (wire := self.wires.get(self._at)) is not None:
            self._layout.doubt(self._at)
            await wire.drop()

    async def close(self) -> None:
        """Drop every connection; a command would make new ones."""
        wires, self.wires = self.wires, {}
        for wire in wires.values():
            await wire.close()

    async def _wire_of(self, command: tuple[Any, ...]) -> Wire:
        place = self._layout.only or self._layout.place(command)
        if place is None:
            await self._link.learn()
            place = self._layout.place(command)
            if place is None:
                raise SlotUnknown("no server of the cluster has the key's slot")
        return self._wire_at(place)

    def _wire_at(self, place: Place) -> Wire:
        self._at = place
        wire = self.wires.get(place)
        if wire is None:
            wire = self.wires[place] = self._link.wire(place)
        return wire

    async def _redirected(
        self, told: Redirected, command: tuple[Any, ...], trust: Trust | None
    ) -> Any:
        for _ in range(_REDIRECTIONS):
            slot, host, port = told.target
            # A server that does not know the other one's name means its own.
            place = (host or (self._at or ("", 0))[0], port)
            if told.is_moved:
                self._layout.moved(slot, place)
            wire = self._wire_at(place)
            try:
                if trust is not None:
                    await trust(wire)
                return await (
                    wire.ask(command) if told.is_moved else wire.ask_both(_ASKING, command)
                )
            except Redirected as error:
                told = error
        raise told


_ASKING = ("ASKING",)


class Link:
    """The way to one deployment of Redis or Valkey. Nothing is connected before it is used."""

    def __init__(
        self, url: ServerUrl, layout: Layout, connect: Callable[[Place], Wire], port: Port
    ) -> None:
        self._layout, self._connect, self._url = layout, connect, url
        self.port = port
        self._lines: list[Line] = []
        self._learning: Running[None] = {}
        self._looking: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def in_slots(self) -> bool:
        """Whether the keys of one command must share a slot."""
        return isinstance(self._layout, Cluster)

    def line(self) -> Line:
        line = Line(self, self._layout)
        self._lines.append(line)
        return line

    async def primaries(self) -> list[Line]:
        """A line to each server that takes writes now; whoever asks for them closes them."""
        await self.learn()
        return [Line(self, OneServer(place)) for place in self._layout.primaries()]

    def target(self, key: str) -> Place | None:
        """Which server calls about *key* are for, as far as known: its trouble is theirs."""
        return self._layout.only or self._layout.target(("GET", key))

    def name(self, target: Place | None) -> str:
        """A target as people know it."""
        if target is None or self._url.topology is not Topology.CLUSTER:
            return str(self._url)
        return f"{target[0]}:{target[1]}"

    def wire(self, place: Place) -> Wire:
        """A connection to that server. Raises one of TROUBLE once the link is closed."""
        if self._closed:
            raise ConnectionLost("the engine was closed")
        return self._connect(place)

    async def learn(self) -> None:
        """Ask who is responsible now; all who want to know at the same time share the answer."""
        await self.port.share(self._learning, "layout", self._layout.learn)

    def look_again(self) -> None:
        """A server keeps somebody waiting: if others say that it was replaced, cut every connection
        to it. Whoever waits there, for work and events too, then goes to the one responsible now.
        """
        self._looking = self.port.detach("look at who is responsible", self._look, self._looking)

    async def _look(self) -> None:
        with suppress(*TROUBLE):
            await self.learn()
            current = self._layout.primaries()
            for line in self._lines:
                for place, wire in list(line.wires.items()):
                    if place not in current:
                        wire.cut()

    async def close(self) -> None:
        """For good: what somebody still asks for afterwards connects nobody."""
        self._closed = True
        for task in (self._looking, *list(self._learning.values())):
            if task is not None:
                task.cancel()
                await asyncio.wait((task,))
        for line in self._lines:
            await line.close()


def open_link(url: ServerUrl, port: Port | None = None) -> Link:
    """The link to the deployment that *url* names. Nothing is connected yet."""
    port = port or LoopPort()
    tls = url.tls.context() if url.tls is not None else None
    connect = partial(_connected, port, tls=tls, login=(url.username, url.password), db=url.db)
    match url.topology:
        case Topology.CLUSTER:
            return Link(url, Cluster(url.hosts, _asking(connect), port), connect, port)
        case Topology.SENTINEL:
            login = (url.sentinel_username, url.sentinel_password)
            encrypted = tls if url.tls is not None and url.tls.sentinels else None
            ask = _asking(partial(_connected, port, tls=encrypted, login=login))
            return Link(url, Sentinels(url.hosts, url.path, ask, port), connect, port)
        case Topology.SINGLE:
            [place] = url.hosts or ((url.path, 0),)
            return Link(url, OneServer(place), connect, port)


def _connected(
    port: Port,
    place: Place,
    *,
    tls: ssl.SSLContext | None,
    login: tuple[str | None, str | None],
    db: int = 0,
) -> Wire:
    endpoint = Endpoint(place, tls, *login, db)
    if os.environ.get("TOWPATH_WIRE") == "redis-py" and tls is None and not port.in_threads:
        from towpath.engine.redis_py import RedisPyWire  # noqa: PLC0415 -- slow to import

        return RedisPyWire(endpoint)
    return port.wire(endpoint)


def _asking(connect: Callable[[Place], Wire]) -> Ask:
    async def ask(place: Place, command: tuple[Any, ...]) -> Any:
        wire = connect(place)
        try:
            return await wire.ask(command)
        finally:
            await wire.close()

    return ask
