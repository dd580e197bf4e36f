"""The servers of one Redis deployment: which one has a key, and how to connect to it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from towpath.engine.channel import Channel
from towpath.engine.connection import Connection, Endpoint, Place
from towpath.engine.layout import Ask, Layout, OneServer, Sentinels, SlotOwners
from towpath.engine.port import LoopPort, Port, Running
from towpath.engine.resp import TROUBLE, ConnectionLost
from towpath.engine.url import ServerUrl, Topology


class Cluster:
    """One deployment of Redis or Valkey. Connections are made when they are used."""

    def __init__(
        self, url: ServerUrl, layout: Layout, connect: Callable[[Place], Connection], port: Port
    ) -> None:
        self._layout, self._connect, self._url = layout, connect, url
        self.port = port
        self._connections: dict[int, dict[Place, Connection]] = {}
        """The connections of each channel, by the `id()` of their dict."""
        self._learning: Running[None] = {}
        self._check_task: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def in_slots(self) -> bool:
        """Whether the keys of one command must share a slot."""
        return isinstance(self._layout, SlotOwners)

    def channel(self, name: str = "") -> Channel:
        """A new channel of that name. The cluster closes its connections."""
        channel = Channel(self, self._layout, name)
        self._connections[id(channel.connections)] = channel.connections
        return channel

    async def release(self, connections: dict[Place, Connection]) -> None:
        """Close the connections of a channel that is gone."""
        self._connections.pop(id(connections), None)
        while connections:
            await connections.popitem()[1].close()

    async def primaries(self) -> list[Channel]:
        """A channel to each server that takes writes now. The caller closes them."""
        await self.learn()
        return [Channel(self, OneServer(place)) for place in self._layout.primaries()]

    def owner(self, key: str) -> Place | None:
        """The server that calls about *key* go to, as far as known."""
        return self._layout.only or self._layout.owner(("GET", key))

    def name(self, owner: Place | None) -> str:
        """The server's name for logs."""
        if owner is None or self._url.topology is not Topology.CLUSTER:
            return str(self._url)
        return f"{owner[0]}:{owner[1]}"

    def connection(self, place: Place) -> Connection:
        """A connection to that server. Raises one of TROUBLE once the cluster is closed."""
        if self._closed:
            raise ConnectionLost("the engine was closed")
        return self._connect(place)

    async def learn(self) -> None:
        """Ask which servers are responsible now. Concurrent callers share one question."""
        await self.port.share(self._learning, "layout", self._layout.learn)

    def look_again(self) -> None:
        """Check whether a silent server was replaced, and cut every connection to servers that are
        no longer primaries. Callers that wait there, also for work and events, then go to the
        server that is responsible now.
        """
        self._check_task = self.port.detach(
            "look at who is responsible", self._cut_replaced, self._check_task
        )

    async def _cut_replaced(self) -> None:
        with suppress(*TROUBLE):
            await self.learn()
            current = self._layout.primaries()
            for connections in list(self._connections.values()):
                for place, connection in list(connections.items()):
                    if place not in current:
                        connection.cut()

    async def close(self) -> None:
        """Close all connections for good: no new ones are made afterwards."""
        self._closed = True
        for task in (self._check_task, *list(self._learning.values())):
            if task is not None:
                task.cancel()
                await asyncio.wait((task,))
        for connections in list(self._connections.values()):
            await self.release(connections)


def open_cluster(url: ServerUrl, port: Port | None = None) -> Cluster:
    """The deployment that *url* names. Nothing is connected yet."""
    port = port or LoopPort()
    tls = url.tls.context() if url.tls is not None else None
    connect = partial(_new_connection, port, tls=tls, login=(url.username, url.password), db=url.db)
    match url.topology:
        case Topology.CLUSTER:
            return Cluster(url, SlotOwners(url.hosts, _ask_once(connect), port), connect, port)
        case Topology.SENTINEL:
            login = (url.sentinel_username, url.sentinel_password)
            encrypted = tls if url.tls is not None and url.tls.sentinels else None
            ask = _ask_once(partial(_new_connection, port, tls=encrypted, login=login))
            return Cluster(url, Sentinels(url.hosts, url.path, ask, port), connect, port)
        case Topology.SINGLE:
            [place] = url.hosts or ((url.path, 0),)
            return Cluster(url, OneServer(place), connect, port)


def _new_connection(
    port: Port,
    place: Place,
    *,
    tls: ssl.SSLContext | None,
    login: tuple[str | None, str | None],
    db: int = 0,
) -> Connection:
    return port.connection(Endpoint(place, tls, *login, db))


def _ask_once(connect: Callable[[Place], Connection]) -> Ask:
    async def ask(place: Place, command: tuple[Any, ...]) -> Any:
        connection = connect(place)
        try:
            return await connection.ask(command)
        finally:
            await connection.close()

    return ask
