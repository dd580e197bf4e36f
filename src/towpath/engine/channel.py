"""A channel: one call at a time, with the channel's name and a number; and how long calls take."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from towpath.clock import Duration, DurationField, default_duration, duration, seconds
from towpath.engine.connection import Connection, Place
from towpath.engine.resp import Redirected, RedisError, ScriptUnknown, SlotUnknown, encode_command
from towpath.engine.script import Script
from towpath.engine.submit_timeout import GIVE_UP_AFTER
from towpath.errors import InvalidOption

if TYPE_CHECKING:
    from towpath.engine.cluster import Cluster
    from towpath.engine.layout import Layout


KEYS = 2
"""Every script declares one key that always exists and one that never does. So while their slot
moves to another node, Redis refuses the whole call before it runs, and it is sent again."""
_CONFIRM_KEPT_MS, _REDIRECTIONS = 600_000, 5

Trust = Callable[[Connection], Awaitable[None]]
"""Raises if the server of a connection must not get the command."""
_ASKING = ("ASKING",)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How long the engine waits for Redis."""

    answer: DurationField = default_duration(seconds(5))
    """Time to wait for one reply before the call is sent again."""
    give_up: DurationField = default_duration(GIVE_UP_AFTER)
    """Time to wait for a call with all its repeats; then it raises ServerUnreachable."""
    channels: int = 4
    """Number of calls in flight at once; on a cluster, per master."""

    def __post_init__(self) -> None:
        for name in ("answer", "give_up"):
            value = duration(f"limits.{name}", getattr(self, name))
            msgspec.structs.force_setattr(self, name, value)
        if not seconds(0) < self.answer <= self.give_up:
            raise InvalidOption("limits.answer", self.answer, rule="must be above 0, up to give_up")
        if not 1 <= self.channels <= 1000:
            raise InvalidOption("limits.channels", self.channels, rule="must be from 1 to 1000")


def limits_within(timeout: Duration) -> Limits:
    """The default limits, but calls raise ServerUnreachable after *timeout*."""
    return Limits(answer=min(Limits().answer, timeout), give_up=timeout)


class Channel:
    """One call at a time, to the Redis server that is responsible for its key. Writing calls carry
    the channel's name and a number, which Redis stores with the answer.

    A channel sends a command once: its caller knows whether a repeat is safe (`calls.py`), and
    limits the time.
    """

    __slots__ = (
        "__weakref__",
        "_last_place",
        "_layout",
        "cluster",
        "connections",
        "name",
        "number",
    )

    def __init__(self, cluster: Cluster, layout: Layout, name: str = "") -> None:
        self.cluster, self._layout, self.name = cluster, layout, name
        self.number = 0
        """The number of the last call."""
        self.connections: dict[Place, Connection] = {}
        """One connection to each server that got a command."""
        self._last_place: Place | None = None

    async def send(self, *command: Any, trust: Trust | None = None, behind: Any = None) -> Any:
        """The reply to *command*. Raises one of TROUBLE, an error reply included.

        *trust* is called first, with the connection that the command then takes. *behind* is a
        command that is sent before it in the same message.
        """
        connection = await self._connection_of(command)
        if trust is not None:
            await trust(connection)
        try:
            return await (
                connection.ask_both(behind, command) if behind else connection.ask(command)
            )
        except Redirected as error:
            if behind:
                await self._follow_redirect(error, behind, trust)
            return await self._follow_redirect(error, command, trust)

    async def send_all(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The replies of the server responsible for the first command; an error is returned in
        its place.
        """
        return await (await self._connection_of(commands[0])).ask_all(commands)

    async def run(self, script: Script, args: tuple[Any, ...], trust: Trust | None = None) -> Any:
        """The reply of a script: sent as its digest, or whole if the server does not have it."""
        command = ("EVALSHA", script.sha, KEYS, *args)
        place = self._layout.only
        connection = self._connection_at(place) if place else await self._connection_of(command)
        if trust is not None:
            await trust(connection)
        try:
            [answer] = await connection.exchange(encode_command(command), 1)
            if not isinstance(answer, RedisError):
                return answer
            if isinstance(answer, Redirected):
                return await self._follow_redirect(answer, command, trust)
            raise answer
        except ScriptUnknown:
            # A new, restarted or promoted server does not have the script: EVAL loads it.
            return await self.send("EVAL", script.source, KEYS, *args, trust=trust)

    async def confirmed(
        self, command: tuple[Any, ...], trust: Trust, key: str, replicas: int, limit_ms: int
    ) -> tuple[Any, int]:
        """The reply to *command*, and how many replicas have its write.

        WAIT counts the replicas that have the last write of its own connection, and a repeated call
        writes nothing. So all is sent on one connection, and *key*, which is never read, is written
        before WAIT.
        """
        connection = await self._connection_of(command)
        await trust(connection)
        answer = await connection.ask(command)
        wrote = ("SET", key, "1", "PX", _CONFIRM_KEPT_MS)
        return answer, int(await connection.ask_both(wrote, ("WAIT", replicas, limit_ms)))

    async def hang_up(self) -> None:
        """Drop the connection that was used last, after trouble with it.

        The next command connects again, to the server that is responsible then.
        """
        if (
            self._last_place is not None
            and (connection := self.connections.get(self._last_place)) is not None
        ):
            self._layout.doubt(self._last_place)
            await connection.drop()

    async def close(self) -> None:
        """Drop every connection; a command would make new ones."""
        while self.connections:
            await self.connections.popitem()[1].close()

    async def _connection_of(self, command: tuple[Any, ...]) -> Connection:
        place = self._layout.only or self._layout.place(command)
        if place is None:
            await self.cluster.learn()
            place = self._layout.place(command)
            if place is None:
                raise SlotUnknown("no server of the cluster has the key's slot")
        return self._connection_at(place)

    def _connection_at(self, place: Place) -> Connection:
        self._last_place = place
        connection = self.connections.get(place)
        if connection is None:
            connection = self.connections[place] = self.cluster.connection(place)
        return connection

    async def _follow_redirect(
        self, redirect: Redirected, command: tuple[Any, ...], trust: Trust | None
    ) -> Any:
        for _ in range(_REDIRECTIONS):
            slot, host, port = redirect.target
            # No host means that the other server has the same host as this one.
            place = (host or (self._last_place or ("", 0))[0], port)
            if redirect.is_moved:
                self._layout.moved(slot, place)
            connection = self._connection_at(place)
            try:
                if trust is not None:
                    await trust(connection)
                return await (
                    connection.ask(command)
                    if redirect.is_moved
                    else connection.ask_both(_ASKING, command)
                )
            except Redirected as error:
                redirect = error
        raise redirect
