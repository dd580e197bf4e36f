"""Real HTTP servers that answer as a test chooses, byte by byte, and remember their requests."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.tcp_server import LOOPBACK, Handle, Reader, TcpServer, Writer, accepting


def http(
    status: str = "200 OK", body: bytes = b"", headers: tuple[tuple[str, str], ...] = ()
) -> bytes:
    """A complete answer."""
    named = [("Content-Length", str(len(body))), *headers]
    lines = "".join(f"{name}: {value}\r\n" for name, value in named)
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body


@dataclass(frozen=True)
class Request:
    """A received request."""

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
    """Runs a chosen behaviour for each request; by default it answers 200 and keeps the
    connection.
    """

    behaviour: Handle | None = None
    answer: bytes = field(default_factory=http)
    port: int = 0
    connections: int = 0
    requests: list[Request] = field(default_factory=list[Request])
    server_names: list[str | None] = field(default_factory=list[str | None])
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """Somebody hung up before the behaviour was over."""
    server: TcpServer | None = None

    async def serve(self, reader: Reader, writer: Writer) -> None:
        self.connections += 1
        try:
            while True:
                self.requests.append(await read_request(reader))
                if self.behaviour is not None:
                    return await self.behaviour(reader, writer)
                writer.write(self.answer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            self.left.set()

    async def hang_up(self) -> None:
        """Closes every connection; it goes on listening."""
        if self.server is not None:
            await self.server.cut_all()

    def url(self, host: str = LOOPBACK, *, path: str = "/hook", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"


@asynccontextmanager
async def receiving(
    receiver: Receiver, *, address: str = LOOPBACK, port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncGenerator[Receiver]:
    """Listens on *address* until the end of the block."""
    if tls is not None:
        tls.sni_callback = lambda _, name, __: receiver.server_names.append(name)
    async with accepting(receiver.serve, address=address, port=port, tls=tls) as server:
        receiver.server, receiver.port = server, server.port
        yield receiver


def answering(*addresses: str) -> LocalResolver:
    """A resolver that gives these addresses for every name."""
    return LocalResolver(lambda _: addresses)


class LocalResolver:
    """A resolver that asks no name server, and counts how often it is called."""

    def __init__(self, answer: Callable[[int], tuple[str, ...]]) -> None:
        self._answer = answer
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> tuple[str, ...]:
        self.asked.append(host)
        return self._answer(len(self.asked))
