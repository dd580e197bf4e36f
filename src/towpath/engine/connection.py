"""One connection to one Redis server: TCP, TLS or a Unix socket, on the event loop.

redis-py's connections would take more than half of a submit's time in the client: a stream, a lock
and several coroutines per reply. Here a reply goes from the socket through hiredis to its waiter in
one step. A connection sends a command once: its caller knows whether a repeat is safe (`calls.py`),
and limits the time, except that of connecting.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from towpath.engine.resp import (
    NOT_ENOUGH,
    ConnectionLost,
    RedisError,
    encode_command,
    new_reader,
)
from towpath.engine.tls import refusal_at

Place = tuple[str, int]
"""The address of a Redis server: host and port, or the path of its Unix socket and 0."""

CONNECT_SECONDS = 3.0
CLOSED_BY_SERVER = "the server closed the connection"
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""Seconds of silence before the system probes the peer, seconds between probes, and their number:
a connection whose peer has vanished ends even if nothing is sent on it."""


_RESET = (RuntimeError, AttributeError)
"""What a write raises on a connection that the peer has reset: RuntimeError from uvloop, and
AttributeError from asyncio since Python 3.12, whose transport has dropped its loop by then."""


class Endpoint(msgspec.Struct, frozen=True):
    """The address of a Redis server, and how to log in to it."""

    place: Place
    tls: ssl.SSLContext | None = None
    username: str | None = None
    password: str | None = None
    db: int = 0

    def __str__(self) -> str:
        host, port = self.place
        return f"{host}:{port}" if port else host

    def greetings(self) -> list[tuple[Any, ...]]:
        """The commands that are sent first on a new connection."""
        commands: list[tuple[Any, ...]] = []
        if self.username is not None or self.password is not None:
            name = () if self.username is None else (self.username,)
            commands.append(("AUTH", *name, self.password or ""))
        if self.db:
            commands.append(("SELECT", self.db))
        return commands


class _Stream(asyncio.Protocol):
    """An open socket, and the replies to the last message."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._reader = loop, new_reader()
        self._waiter: asyncio.Future[list[Any]] | None = None
        self._replies: list[Any] = []
        self._wanted = 0
        self._transport: asyncio.Transport | None = None
        self._end_reason = CLOSED_BY_SERVER
        self.is_lost = False
        """Whether nothing more can be sent."""
        self.ended: asyncio.Future[None] = loop.create_future()

    def exchange(self, message: list[bytes], wanted: int) -> asyncio.Future[list[Any]]:
        """Send *message*. Returns a future of the *wanted* number of replies. One exchange at a
        time.
        """
        if self._transport is None or self._transport.is_closing():
            self.is_lost = True
            raise ConnectionLost(self._end_reason)
        self._replies, self._wanted = [], wanted
        waiter = self._waiter = self._loop.create_future()
        try:
            for part in message:
                self._transport.write(part)
        except _RESET as error:
            self._waiter = None
            raise ConnectionLost(f"the connection was reset: {error}") from error
        return waiter

    def cut(self, why: str) -> None:
        """End the connection at once. Unsent data is dropped: a frozen server would never take
        it.
        """
        if not self.is_lost:
            self.is_lost, self._end_reason = True, why
            if self._transport is not None:
                self._transport.abort()

    # ── called by the event loop ─────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        reader, replies = self._reader, self._replies
        reader.feed(data)
        try:
            while len(replies) < self._wanted:
                reply = reader.gets()
                if reply is NOT_ENOUGH:
                    return
                replies.append(reply)
        except ConnectionLost as error:
            self.cut(f"the server does not speak the Redis protocol: {error}")
            return
        if reader.has_data():
            self.cut("the server sent more replies than it was asked for")
            return
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(replies)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        if exc is not None:
            self._end_reason = f"the connection was reset: {exc}"
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            lost = ConnectionLost(self._end_reason)
            lost.__cause__ = exc
            waiter.set_exception(lost)
        if not self.ended.done():
            self.ended.set_result(None)


class Connection:
    """A connection to one server: made when it is used, and again after it was dropped.

    One exchange at a time. If a caller stops waiting for its reply, the connection is dropped, so
    that no later call reads that reply as its own.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._stream: _Stream | None = None
        self.facts: object = None
        """The server's facts, read on this connection (`durability.py`). None after connecting and
        after an error reply: they may have changed.
        """
        self._was_answered = self._is_closed = False

    async def ask(self, command: tuple[Any, ...]) -> Any:
        """The reply to *command*. Raises one of TROUBLE, an error reply included."""
        [reply] = await self.exchange(encode_command(command), 1)
        if isinstance(reply, RedisError):
            raise reply
        return reply

    async def ask_both(self, first: tuple[Any, ...], second: tuple[Any, ...]) -> Any:
        """The reply to the second of two commands that are sent together."""
        replies = await self.ask_all((first, second))
        if errors := [reply for reply in replies if isinstance(reply, Exception)]:
            raise errors[0]
        return replies[1]

    async def ask_all(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The replies to commands that are sent together; an error reply is in its place."""
        message = [part for command in commands for part in encode_command(command)]
        return await self.exchange(message, len(commands))

    async def exchange(self, message: list[bytes], wanted: int) -> list[Any]:
        try:
            stream = self._stream
            if stream is None or stream.is_lost:
                stream = await self._connect()
            replies = await stream.exchange(message, wanted)
        except ConnectionLost:
            if not self._was_answered:
                await self._raise_tls_refusal()
            raise
        except BaseException:
            self.cut()
            raise
        self._was_answered = True
        for reply in replies:
            if isinstance(reply, RedisError):
                self.facts = None  # the server may be another, or its settings changed
        return replies

    async def _raise_tls_refusal(self) -> None:
        """Raises ConnectionLost with the reason why the server refused our certificate, if it sends
        one.
        """
        endpoint = self._endpoint
        if endpoint.tls is not None:
            host, port = endpoint.place
            refusal = await refusal_at({"host": host, "port": port, "ssl": endpoint.tls})
            if refusal is not None:
                raise ConnectionLost(str(refusal)) from refusal

    async def _connect(self) -> _Stream:
        try:
            # A frozen server accepts connections, but never replies.
            async with asyncio.timeout(CONNECT_SECONDS):
                self._require_open()
                stream = self._stream = await self._open()
                await self._greet(stream)
                self._require_open()
        except TimeoutError as error:
            self.cut()
            text = f"{self._endpoint} gave no answer to a new connection in {CONNECT_SECONDS} s"
            raise ConnectionLost(text) from error
        except OSError as error:
            text = f"can't connect to {self._endpoint}: {error.strerror or error}"
            raise ConnectionLost(text) from error
        except BaseException:
            self.cut()
            raise
        self.facts = None
        return stream

    def _require_open(self) -> None:
        if self._is_closed:
            raise ConnectionLost("the connection was closed")

    async def _greet(self, stream: _Stream) -> None:
        """Log in and choose the database, in one message."""
        greetings = self._endpoint.greetings()
        if greetings:
            message = [part for command in greetings for part in encode_command(command)]
            for reply in await stream.exchange(message, len(greetings)):
                if isinstance(reply, RedisError):
                    raise reply

    async def _open(self) -> _Stream:
        loop, (host, port) = asyncio.get_running_loop(), self._endpoint.place
        if not port:
            _, stream = await loop.create_unix_connection(lambda: _Stream(loop), host)
            return stream
        transport, stream = await loop.create_connection(
            lambda: _Stream(loop), host, port, ssl=self._endpoint.tls
        )
        keep_alive(transport.get_extra_info("socket"))
        return stream

    def cut(self) -> None:
        """End the connection now. A caller that waits for a reply gets ConnectionLost."""
        if self._stream is not None:
            self._stream.cut("the connection was cut")

    async def drop(self) -> None:
        """End the connection; the next command makes a new one."""
        self.cut()

    async def close(self) -> None:
        """End the connection for good. An attempt to connect that is in progress fails."""
        self._is_closed = True
        self.cut()
        if self._stream is not None:
            await asyncio.wait((self._stream.ended,))


def keep_alive(sock: socket.socket | None) -> None:
    """Let the system end the connection if its peer has vanished."""
    if sock is None:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        option = getattr(socket, name, None)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
