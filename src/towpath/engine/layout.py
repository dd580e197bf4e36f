"""Which Redis server has a key: the only one, the sentinels' primary, or the master of its slot.

A server is trusted until a call to it gets no reply. Then it is in doubt: before the next command
for it, other servers are asked which one is responsible. So a call that reached its time limit is
not sent to a frozen master again and again.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol

from towpath.engine.connection import Place
from towpath.engine.port import Port
from towpath.engine.resp import SLOTS, ConnectionLost, SlotUnknown, slot_of

Ask = Callable[[Place, tuple[Any, ...]], Awaitable[Any]]
"""Sends one command to the server at a place, on a connection of its own. Returns the reply."""

_ANSWER_WITHIN, _NEXT_AFTER = 1.0, 0.25
"""Seconds that one server has for its answer, and after which the next one is asked as well."""


class Layout(Protocol):
    """Which Redis server is responsible for which key."""

    only: Place | None
    """The server that is responsible for all keys and never changes; None = it may change."""

    def place(self, command: tuple[Any, ...]) -> Place | None:
        """The server that *command* belongs to; None if it is not known or in doubt."""
        ...

    def owner(self, command: tuple[Any, ...]) -> Place | None:
        """An identifier of the server that *command* belongs to, in doubt or not; None = not known.

        Behind sentinels it is the name of the service, whichever server is the primary.
        """
        ...

    def doubt(self, place: Place) -> None:
        """Note that this server did not answer, or refused. Others are asked before it is used."""
        ...

    def moved(self, slot: int, place: Place) -> None:
        """Note that another server named *place* as the master of *slot*."""
        ...

    async def learn(self) -> None:
        """Ask which server is responsible now. Raises one of TROUBLE."""
        ...

    def primaries(self) -> list[Place]:
        """Every server that takes writes, as far as known."""
        ...


class OneServer:
    """A single server, responsible for all keys."""

    def __init__(self, place: Place) -> None:
        self.only: Place | None = place

    def place(self, command: tuple[Any, ...]) -> Place | None:
        return self.only

    owner = place

    def doubt(self, place: Place) -> None:
        """Does nothing: there is no other server to ask."""

    def moved(self, slot: int, place: Place) -> None:
        """Does nothing: there are no slots."""

    async def learn(self) -> None:
        """Does nothing: there is no other server to ask."""

    def primaries(self) -> list[Place]:
        return [self.only] if self.only else []


class Sentinels:
    """The server that the sentinels name as the primary of *service*."""

    only: Place | None = None

    def __init__(self, sentinels: Sequence[Place], service: str, ask: Ask, port: Port) -> None:
        self._sentinels, self._service, self._ask = sentinels, service, ask
        self._port = port
        self._primary: Place | None = None
        self._doubted = False

    def place(self, command: tuple[Any, ...]) -> Place | None:
        return None if self._doubted else self._primary

    def owner(self, command: tuple[Any, ...]) -> Place | None:
        return (self._service, 0)

    def doubt(self, place: Place) -> None:
        self._doubted = self._doubted or place == self._primary

    def moved(self, slot: int, place: Place) -> None:
        """Does nothing: there are no slots."""

    async def learn(self) -> None:
        """Ask all sentinels at once, and use the first answer that names a primary."""
        asks = [partial(self._ask_sentinel, sentinel) for sentinel in self._sentinels]
        self._primary = await self._port.first(asks, 0)
        self._doubted = False

    def primaries(self) -> list[Place]:
        return [self._primary] if self._primary else []

    async def _ask_sentinel(self, sentinel: Place) -> Place:
        async with self._port.within(_ANSWER_WITHIN):
            flat = await self._ask(sentinel, ("SENTINEL", "MASTER", self._service))
        fields = {flat[i]: flat[i + 1].decode() for i in range(0, len(flat), 2)}
        flags = fields[b"flags"].split(",")
        if {"s_down", "o_down"} & set(flags) or "master" not in flags:
            raise ConnectionLost(f"the primary of {self._service} is down")
        return fields[b"ip"], int(fields[b"port"])


class SlotOwners:
    """The masters of a cluster, each responsible for its slots."""

    only: Place | None = None

    def __init__(self, seeds: Sequence[Place], ask: Ask, port: Port) -> None:
        self._seeds, self._ask, self._port = seeds, ask, port
        self._nodes: list[Place] = []
        self._owners: list[Place | None] = [None] * SLOTS
        self._doubted: set[Place] = set()

    def place(self, command: tuple[Any, ...]) -> Place | None:
        place = self.owner(command)
        return None if place in self._doubted else place

    def owner(self, command: tuple[Any, ...]) -> Place | None:
        return self._owners[slot_of(key_of(command))]

    def doubt(self, place: Place) -> None:
        self._doubted.add(place)

    def moved(self, slot: int, place: Place) -> None:
        self._owners[slot] = place
        if place not in self._nodes:
            self._nodes.append(place)

    async def learn(self) -> None:
        """Ask one node, and soon the next one if it does not answer: it may be frozen."""
        nodes = random.sample(self._nodes, len(self._nodes))
        nodes += [seed for seed in self._seeds if seed not in self._nodes]
        asks = [partial(self._ask_node, place) for place in nodes]
        node, slots = await self._port.first(asks, _NEXT_AFTER)
        self._set_owners(slots, node)

    def primaries(self) -> list[Place]:
        return list({owner: None for owner in self._owners if owner is not None})

    async def _ask_node(self, node: Place) -> tuple[Place, list[Any]]:
        async with self._port.within(_ANSWER_WITHIN):
            slots = await self._ask(node, ("CLUSTER", "SLOTS"))
        if not slots:
            raise SlotUnknown("the node reports no slots")
        return node, slots

    def _set_owners(self, slots: list[Any], node: Place) -> None:
        owners: list[Place | None] = [None] * SLOTS
        nodes: dict[Place, None] = {}
        for first, last, *servers in slots:
            # A node that does not know the host name by which it is reached sends none.
            places = [
                ((server[0] or b"").decode() or node[0], int(server[1])) for server in servers
            ]
            owners[first : last + 1] = [places[0]] * (last + 1 - first)
            nodes |= dict.fromkeys(places)
        self._owners, self._nodes = owners, list(nodes)
        self._doubted.clear()


def key_of(command: tuple[Any, ...]) -> str:
    """The key that decides where *command* belongs."""
    match command[0]:
        case "EVALSHA" | "EVAL":
            return command[3]
        case "XREAD":
            return command[command.index("STREAMS") + 1]
        case _:
            return command[1]
