"""Connections: one server, Sentinel or Cluster behind one small interface.

A `Line` carries one command at a time and sends it once: whoever calls knows whether a repeat
is safe (`channel.py`). Of redis-py only the connections are used: its own retries would run a
script twice. Time limits are the caller's too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, cast

from hiredis import pack_command  # pyright: ignore[reportUnknownVariableType] -- typed in part
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AskError, MovedError, NoScriptError, SlotNotCoveredError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError as ErrorReply

from towpath.engine.layout import TROUBLE, Cluster, Layout, OneServer, Place, Sentinels
from towpath.engine.script import Script
from towpath.engine.tls import refusal_at
from towpath.engine.url import ServerUrl, Topology
from towpath.supervise import detached, expect_loss

CONNECT_SECONDS = 3.0
KEYS = 2
"""Every script declares a key that is always there and one that never is: while their slot is on
its way to another node, the server then refuses the call whole, and it is sent again."""
_CONFIRM_KEPT_MS, _REDIRECTIONS = 600_000, 5
_LARGE = 64 * 1024
"""Bytes of an argument from which on copies of it cost more than the rest of a call."""
_RESET = (RuntimeError, AttributeError)
"""What a write on a connection that the other side has reset raises: uvloop's word for it, and that
of asyncio from Python 3.12 on, whose transport asks the loop it has let go of already."""


class Wire:
    """A connection to one server: made when it is used, and again after it was dropped."""

    def __init__(self, connection: AbstractConnection) -> None:
        self._connection = connection
        self.facts: object = None
        """What its server said about itself since it was connected, or since its last error."""
        self._was_answered = self._closed = False

    async def ask(self, command: tuple[Any, ...]) -> Any:
        """The reply. Raises one of TROUBLE, an error reply included."""
        try:
            if not self._connection.is_connected:
                await self._connect()
            await self._connection.send_packed_command(_packed(command), check_health=False)
            reply = await self._connection.read_response()  # pyright: ignore[reportUnknownVariableType] -- redis-py leaves replies untyped
        except _RESET as error:
            raise _lost(error) from error
        except ErrorReply:
            self.facts = None  # the server, or what it can do, may have changed
            raise
        except RedisConnectionError as error:
            if not self._was_answered and type(error) is RedisConnectionError:
                await self._listen()
            raise
        self._was_answered = True
        return reply  # pyright: ignore[reportUnknownVariableType] -- as above

    async def ask_both(self, first: tuple[Any, ...], second: tuple[Any, ...]) -> Any:
        """The reply to the second of two commands that are sent together."""
        replies = await self.ask_all((first, second))
        if errors := [reply for reply in replies if isinstance(reply, Exception)]:
            raise errors[0]
        return replies[1]

    async def ask_all(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The replies to commands that are sent together; one that is an error is in its place."""
        packed = [some for command in commands for some in _packed(command)]
        try:
            if not self._connection.is_connected:
                await self._connect()
            await self._connection.send_packed_command(packed, check_health=False)
            return [await self._reply() for _ in commands]
        except _RESET as error:
            raise _lost(error) from error
        except BaseException:
            await self.drop()  # a reply may be left unread: it must not be taken for another's
            raise

    async def _reply(self) -> Any:
        try:
            return await self._connection.read_response()  # pyright: ignore[reportUnknownVariableType] -- as above
        except ErrorReply as error:
            self.facts = None
            return error

    async def _listen(self) -> None:
        """Raise what a server has to say that refuses our certificate."""
        if isinstance(self._connection, SSLConnection):
            # Host, port and the context that it connects with; redis-py has no other way to them.
            arguments = cast("Any", self._connection)._connection_arguments()  # noqa: SLF001
            if (told := await refusal_at(arguments)) is not None:
                raise RedisConnectionError(str(told)) from told

    async def _connect(self) -> None:
        # A server that is frozen accepts, and then says nothing.
        async with asyncio.timeout(CONNECT_SECONDS):
            if not self._closed:
                await self._connection.connect()
        if (writer := self._writer) is not None:
            expect_loss(writer)
        if self._closed:
            await self.close()
            raise RedisConnectionError("the connection was closed")
        self.facts = None

    def cut(self) -> None:
        """End it under whoever waits for a reply: that is told as a lost connection."""
        # Not closed: that would first send what a frozen server does not take.
        if (writer := self._writer) is not None:
            writer.transport.abort()

    @property
    def _writer(self) -> asyncio.StreamWriter | None:
        return self._connection._writer  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- redis-py has no other way to it

    async def drop(self) -> None:
        self.cut()
        with suppress(*_RESET):
            await self._connection.disconnect(nowait=True)

    async def close(self) -> None:
        """For good: whoever connects meanwhile gives that up."""
        self._closed = True
        self.cut()
        with suppress(*TROUBLE, *_RESET):
            await self._connection.disconnect()


def _packed(command: tuple[Any, ...]) -> list[bytes]:
    """*command* as it is sent. A last argument that is large is not copied: hiredis would copy it
    three times.
    """
    # redis-py's asyncio packer is Python; hiredis does the same in a tenth of the time.
    last = command[-1]
    if type(last) not in (bytes, memoryview) or len(last) < _LARGE:
        return [cast("bytes", pack_command(command))]  # pyright: ignore[reportUnknownVariableType]
    words = cast("bytes", pack_command(command[:-1])).partition(b"\r\n")[2]  # pyright: ignore[reportUnknownVariableType]
    return [b"*%d\r\n%b$%d\r\n" % (len(command), words, len(last)), last, b"\r\n"]


def _lost(error: Exception) -> RedisConnectionError:
    return RedisConnectionError(f"the connection was reset: {error}")


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
        except AskError as error:
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
            except AskError as error:
                return await self._redirected(error, command, trust)
        except NoScriptError:
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
                raise SlotNotCoveredError("no server of the cluster has the key's slot")
        return self._wire_at(place)

    def _wire_at(self, place: Place) -> Wire:
        self._at = place
        wire = self.wires.get(place)
        if wire is None:
            wire = self.wires[place] = self._link.wire(place)
        return wire

    async def _redirected(
        self, told: AskError, command: tuple[Any, ...], trust: Trust | None
    ) -> Any:
        for _ in range(_REDIRECTIONS):
            # A server that does not know the other one's name means its own.
            host = cast("str", told.host) or (self._at or ("", 0))[0]  # pyright: ignore[reportUnknownMemberType] -- redis-py leaves it untyped
            place = (host, int(told.port))
            has_moved = isinstance(told, MovedError)
            if has_moved:
                self._layout.moved(told.slot_id, place)
            wire = self._wire_at(place)
            try:
                if trust is not None:
                    await trust(wire)
                return await (wire.ask(command) if has_moved else wire.ask_both(_ASKING, command))
            except AskError as error:
                told = error
        raise told


_ASKING = ("ASKING",)


class Link:
    """The way to one deployment of Redis or Valkey. Nothing is connected before it is used."""

    def __init__(
        self, url: ServerUrl, layout: Layout, connect: Callable[[Place], AbstractConnection]
    ) -> None:
        self._layout, self._connect, self._url = layout, connect, url
        self._lines: list[Line] = []
        self._learning: asyncio.Task[None] | None = None
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
            raise RedisConnectionError("the engine was closed")
        return Wire(self._connect(place))

    async def learn(self) -> None:
        """Ask who is responsible now; all who want to know at the same time share the answer."""
        if self._learning is None:
            self._learning = asyncio.create_task(self._layout.learn())
            self._learning.add_done_callback(self._learnt)
        learning, me = self._learning, asyncio.current_task()
        try:
            await asyncio.shield(learning)
        except asyncio.CancelledError:
            if learning.cancelled() and me is not None and not me.cancelling():
                raise RedisConnectionError("the engine was closed") from None
            raise

    def _learnt(self, task: asyncio.Task[None]) -> None:
        self._learning = None
        if not task.cancelled():
            task.exception()  # those who waited for it have it; if nobody does, nobody minds

    def look_again(self) -> None:
        """A server keeps somebody waiting: if others say that it was replaced, cut every connection
        to it. Whoever waits there, for work and events too, then goes to the one responsible now.
        """
        if self._looking is None or self._looking.done():
            self._looking = detached("look at who is responsible", self._look())

    async def _look(self) -> None:
        with suppress(*TROUBLE):
            await self.learn()
            current = self._layout.primaries()
            for line in self._lines:
                for place, wire in line.wires.items():
                    if place not in current:
                        wire.cut()

    async def close(self) -> None:
        """For good: what somebody still asks for afterwards connects nobody."""
        self._closed = True
        for task in (self._looking, self._learning):
            if task is not None:
                task.cancel()
                await asyncio.wait((task,))
        for line in self._lines:
            await line.close()


def open_link(url: ServerUrl) -> Link:
    """The link to the deployment that *url* names. Nothing is connected yet."""
    usual: dict[str, Any] = {
        "protocol": 2,
        "socket_timeout": None,
        "socket_connect_timeout": CONNECT_SECONDS,
        "retry": Retry(NoBackoff(), 0),
        # It would send CLIENT SETINFO, which servers before 7.2 do not know: they refuse to give a
        # user the right to it.
        "driver_info": None,
        "socket_read_size": 1024 * 1024,
    }
    login = {"username": url.username, "password": url.password}
    watching = {"username": url.sentinel_username, "password": url.sentinel_password}
    tls = url.tls.options() if url.tls is not None else {}
    connect = _connecting({**usual, **login, **tls, "db": url.db})
    match url.topology:
        case Topology.CLUSTER:
            return Link(url, Cluster(url.hosts, _asking(connect)), connect)
        case Topology.SENTINEL:
            encrypted = tls if url.tls is not None and url.tls.sentinels else {}
            ask = _asking(_connecting({**usual, **watching, **encrypted}))
            return Link(url, Sentinels(url.hosts, url.path, ask), connect)
        case Topology.SINGLE:
            [place] = url.hosts or ((url.path, 0),)
            return Link(url, OneServer(place), connect)


def _connecting(options: dict[str, Any]) -> Callable[[Place], AbstractConnection]:
    def connect(place: Place) -> AbstractConnection:
        host, port = place
        at: dict[str, Any] = {"host": host, "port": port} if port else {"unix_socket_path": host}
        return Redis(**at, **options).connection_pool.make_connection()

    return connect


def _asking(connect: Callable[[Place], AbstractConnection]) -> Any:
    async def ask(place: Place, command: tuple[Any, ...]) -> Any:
        wire = Wire(connect(place))
        try:
            return await wire.ask(command)
        finally:
            await wire.close()

    return ask
