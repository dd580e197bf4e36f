"""Real HTTP servers that answer as they are told, byte by byte, and remember who called."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

Reader = asyncio.StreamReader
Writer = asyncio.StreamWriter
Behaviour = Callable[[Reader, Writer], Awaitable[None]]

LOOPBACK = "127.0.0.1"


def http(
    status: str = "200 OK", body: bytes = b"", headers: tuple[tuple[str, str], ...] = ()
) -> bytes:
    """A whole answer."""
    named = [("Content-Length", str(len(body))), *headers]
    lines = "".join(f"{name}: {value}\r\n" for name, value in named)
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body


@dataclass(frozen=True)
class Request:
    """What came in."""

    line: str
    headers: dict[str, str]
    body: bytes


async def read_request(reader: Reader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    line, *rest = head.strip().split("\r\n")
    headers = {
        name.lower(): value for name, _, value in (header.partition(": ") for header in rest)
    }
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(line, headers, body)


@dataclass
class Receiver:
    """Behaves as told once a request is in; by default it answers 200 and goes on listening."""

    behaviour: Behaviour | None = None
    answer: bytes = field(default_factory=http)
    port: int = 0
    connections: int = 0
    requests: list[Request] = field(default_factory=list[Request])
    server_names: list[str | None] = field(default_factory=list[str | None])
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """Somebody hung up before the behaviour was over."""
    serving: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    def connected(self, reader: Reader, writer: Writer) -> None:
        self.connections += 1
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self.serving.add(task)
        task.add_done_callback(self.serving.discard)

    async def _serve(self, reader: Reader, writer: Writer) -> None:
        try:
            while True:
                self.requests.append(await read_request(reader))
                if self.behaviour is not None:
                    return await self.behaviour(reader, writer)
                writer.write(self.answer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            self.left.set()
        finally:
            writer.close()

    async def end(self) -> None:
        """Hang up on everybody."""
        open_ = list(self.serving)
        for task in open_:
            task.cancel()
        await asyncio.gather(*open_, return_exceptions=True)

    def url(self, host: str = LOOPBACK, *, path: str = "/hook", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"


@asynccontextmanager
async def receiving(
    receiver: Receiver, *, address: str = LOOPBACK, port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncGenerator[Receiver]:
    """Listen on *address* until the end of the block."""
    if tls is not None:
        tls.sni_callback = lambda _, name, __: receiver.server_names.append(name)
    server = await asyncio.start_server(receiver.connected, address, port, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        await receiver.end()


def answering(*addresses: str) -> LocalResolver:
    """A resolver that gives every name these addresses."""
    return LocalResolver(lambda _: addresses)


class LocalResolver:
    """A resolver that asks nobody, and counts how often it was asked."""

    def __init__(self, answer: Callable[[int], tuple[str, ...]]) -> None:
        self._answer = answer
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> tuple[str, ...]:
        self.asked.append(host)
        return self._answer(len(self.asked))
