"""A proxy in front of Redis that fails as networks do.

All faults can be set and lifted while connections are open, from any thread. Probabilities are per
piece of data of a script call: the engine has one call in flight per connection, so a piece is
nearly always one request or one reply. The commands with which a client connects are not cut.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Self

from towpath.embedded import Address
from towpath.engine.check import integer

_PIECE = 65_536
_HOST = "127.0.0.1"


class Hole(Enum):
    """What a black hole swallows. Connections stay open."""

    NOTHING = "nothing"
    REQUESTS = "requests: the server never sees them"
    REPLIES = "replies: the server has done what was asked"


@dataclass
class Faults:
    """The faults that are active now. Default: none."""

    chance: random.Random = field(default_factory=random.Random)
    cut_replies: float = 0.0
    """Probability that the connection ends instead of a reply, or in the middle of one."""
    cut_requests: float = 0.0
    """Probability that it ends in the middle of a request, which the server then never runs."""
    reset: bool = False
    """Whether connections end with RST instead of FIN."""
    hole: Hole = Hole.NOTHING
    delay: float = 0.0
    """Seconds before each reply."""
    piece: int = _PIECE
    """Bytes delivered at a time."""
    rate: float = 0.0
    """Bytes of replies per second and connection; 0 = as fast as it goes."""


class Proxy:
    """A proxy between a client and the server at *upstream*. Listens on a Unix socket or a port."""

    def __init__(self, upstream: Address, faults: Faults, *, tcp: bool = False) -> None:
        self.upstream, self._tcp = upstream, tcp
        """The address to which new connections go."""
        self.faults = faults
        self.connections = 0
        self.cuts = 0
        self.swallowed = 0
        self._replies = self._next = self._every = 0
        self.url = ""
        self._open: dict[asyncio.Task[None], socket.socket] = {}
        """The tasks that serve connections, each with the socket of its client."""
        self._stack = AsyncExitStack()

    def cut_next(self, count: int = 1) -> None:
        """Lose the replies to the next *count* calls. The server carries the calls out."""
        self._next = integer("count", count, 1, 1_000_000)

    def cut_every(self, nth: int) -> None:
        """Lose every *nth* reply from now on; *nth* is at least 2, so that calls come to an end."""
        self._every, self._replies = integer("nth", nth, 2, 1_000_000), 0

    def cut_no_more(self) -> None:
        """Undo `cut_next` and `cut_every`."""
        self._next = self._every = 0

    def loses_this_reply(self) -> bool:
        """Internal: whether this reply is lost; asked once per reply."""
        self._replies += 1
        if self._next:
            self._next -= 1
            return True
        return bool(self._every) and self._replies % self._every == 0

    async def __aenter__(self) -> Self:
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="towpath-"))
        if self._tcp:
            listener = socket.create_server((_HOST, 0))
            self.url = f"redis://{_HOST}:{listener.getsockname()[1]}"
        else:
            path = Path(folder) / "proxy.sock"
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(str(path))
            listener.listen()
            self.url = f"unix://{path}"
        self._stack.callback(listener.close)
        listener.setblocking(False)
        # Not asyncio's server: that may accept a connection after it was closed, and the proxy
        # would not wait for that connection.
        loop = asyncio.get_running_loop()
        loop.add_reader(listener, self._accept, listener)
        self._stack.callback(loop.remove_reader, listener)
        return self

    async def __aexit__(self, *_: object) -> None:
        try:  # also if the caller is cancelled: while a port is open, uvloop's loop does not end
            await self._stack.aclose()
        finally:
            await self.drop_all()

    async def drop_all(self) -> None:
        """End every open connection now."""
        await _end(*self._open)

    def _accept(self, listener: socket.socket) -> None:
        try:
            client, _ = listener.accept()
        except OSError:  # the client has hung up already
            return
        client.setblocking(False)
        _send_at_once(client)
        self.connections += 1
        task = asyncio.get_running_loop().create_task(self._serve(client))
        self._open[task] = client
        task.add_done_callback(self._close_client)

    def _close_client(self, task: asyncio.Task[None]) -> None:
        client = self._open.pop(task)
        if self.faults.reset and self._tcp:
            with suppress(OSError):  # the client has ended the connection already
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()

    async def _serve(self, client: socket.socket) -> None:
        with suppress(OSError):  # the server is away: the client's connection ends
            async with _connected(self.upstream) as server:
                rules = _Rules(self)
                requests = asyncio.create_task(_pump(client, server, rules.on_request))
                replies = asyncio.create_task(_pump(server, client, rules.on_reply))
                await _first_of(requests, replies)


class _Rules:
    """Applies the faults to the data of one connection. A rule returns False to end it."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._calling = self._awaited = False
        self._free_at = 0.0

    async def on_request(self, piece: bytes, to: socket.socket) -> bool:
        self._calling = self._awaited = b"EVAL" in piece[:64]
        faults = self._proxy.faults
        if faults.hole is Hole.REQUESTS:
            self._proxy.swallowed += 1
            return True
        if self._by_chance(faults.cut_requests):
            return await self._cut(piece, to)
        return await _deliver(piece, to, _PIECE)

    async def on_reply(self, piece: bytes, to: socket.socket) -> bool:
        faults = self._proxy.faults
        if faults.delay:
            await asyncio.sleep(faults.delay)
        if faults.hole is Hole.REPLIES:
            self._proxy.swallowed += 1
            return True
        if self._loses(piece) or self._by_chance(faults.cut_replies):
            return await self._cut(piece, to)
        if faults.rate:
            await self._wait_for_rate(len(piece) / faults.rate)
        return await _deliver(piece, to, faults.piece)

    async def _wait_for_rate(self, seconds: float) -> None:
        """Wait until a line with that rate would be free. A sleep that was too long shortens the
        next one.
        """
        now = asyncio.get_running_loop().time()
        self._free_at = max(now, self._free_at) + seconds
        await asyncio.sleep(self._free_at - now)

    def _loses(self, piece: bytes) -> bool:
        """Whether to lose this reply. Only its first piece counts, and NOSCRIPT does not."""
        counts = self._awaited and not piece.startswith(b"-NOSCRIPT")
        self._awaited = False
        return counts and self._proxy.loses_this_reply()

    def _by_chance(self, probability: float) -> bool:
        return self._calling and self._proxy.faults.chance.random() < probability

    async def _cut(self, piece: bytes, to: socket.socket) -> bool:
        self._proxy.cuts += 1
        await _deliver(piece[: self._proxy.faults.chance.randrange(len(piece))], to, _PIECE)
        return False


_Rule = Callable[[bytes, socket.socket], Awaitable[bool]]
"""Passes a piece on, or drops it. Returns False to end the connection."""


# Sockets and not streams: a stream whose connection is reset keeps the error in a future that
# nothing reads, and asyncio reports it when that future is collected.


async def _pump(source: socket.socket, to: socket.socket, rule: _Rule) -> None:
    loop = asyncio.get_running_loop()
    while piece := await loop.sock_recv(source, _PIECE):
        if not await rule(piece, to):
            return


async def _deliver(data: bytes, to: socket.socket, size: int) -> bool:
    loop = asyncio.get_running_loop()
    for start in range(0, len(data), size):
        await loop.sock_sendall(to, data[start : start + size])
        await asyncio.sleep(0)  # lets the client read this piece before the next one
    return True


async def _first_of(*tasks: asyncio.Task[None]) -> None:
    """Wait until one of the tasks has ended, then end the others."""
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _end(*tasks)


async def _end(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def _connected(address: Address) -> AsyncGenerator[socket.socket]:
    loop = asyncio.get_running_loop()
    if isinstance(address, Path):
        family, place = socket.AF_UNIX, str(address)
    else:
        found = await loop.getaddrinfo(*address, type=socket.SOCK_STREAM)
        family, place = found[0][0], found[0][4]
    with socket.socket(family) as server:
        server.setblocking(False)
        _send_at_once(server)
        await loop.sock_connect(server, place)
        yield server


def _send_at_once(connection: socket.socket) -> None:
    """Send small pieces at once (TCP_NODELAY), as asyncio's own connections do."""
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
