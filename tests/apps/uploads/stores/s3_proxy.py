"""A proxy in front of an S3 server: it forwards calls, answers some itself, and loses answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import urlsplit

from tests.tcp_server import LOOPBACK, accepting


class CallFault(Enum):
    """A fault of a call."""

    LOST = "the connection ends instead of the answer"
    CUT = "it ends in the middle of the answer"
    DAMAGED = "another byte arrives than was sent"
    SILENT = "nothing comes, and the connection stays open"


@dataclass
class S3Proxy:
    """A proxy whose faults a test sets. *calls* has the first lines of calls, *bodies* the rest."""

    upstream: str
    url: str = ""
    calls: list[str] = field(default_factory=list[str])
    bodies: list[bytes] = field(default_factory=list[bytes])
    rules: list[tuple[str, CallFault | bytes]] = field(
        default_factory=list[tuple[str, "CallFault | bytes"]]
    )
    """By how a call's first line begins: its fault, or the answer instead of the server's."""

    def refuse(self, call: str, status: int, code: str, **headers: str) -> None:
        """Answers with an error, as S3 does."""
        body = f"<Error><Code>{code}</Code><Message>for a test</Message></Error>"
        lines = [f"HTTP/1.1 {status} For-A-Test", f"Content-Length: {len(body)}"]
        lines.append("Connection: close")
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.rules.append((call, "\r\n".join([*lines, "", body]).encode()))

    def count(self, call: str) -> int:
        return sum(1 for line in self.calls if line.startswith(call))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await self._one(reader, writer)

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        line = head.partition(b"\r\n")[0].decode()
        self.calls.append(line)
        body = await reader.readexactly(_length(head))
        self.bodies.append(body)
        fault = next((fault for call, fault in self.rules if _matches(call, line)), None)
        if isinstance(fault, bytes):
            writer.write(fault)
            await writer.drain()
            return
        if fault is CallFault.DAMAGED:
            body = bytes([body[0] ^ 1]) + body[1:]
        answer = await self._forward(head, body)
        if fault is CallFault.SILENT:
            await reader.read()  # until the client gives up
        elif fault is not CallFault.LOST:
            writer.write(answer[: len(answer) - 10] if fault is CallFault.CUT else answer)
            await writer.drain()

    async def _forward(self, head: bytes, body: bytes) -> bytes:
        """Forward a call; returns the answer of the server."""
        place = urlsplit(self.upstream)
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        try:
            writer.write(head[:-2] + b"Connection: close\r\n\r\n" + body)
            await writer.drain()
            return await reader.read()
        finally:
            writer.transport.abort()  # closing it would wait for a frozen server


def _matches(call: str, line: str) -> bool:
    """Whether a call matches: `POST uploadId` is any POST with `uploadId` in its path."""
    method, _, part = call.partition(" ")
    return line.startswith(method) and part in line


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


@asynccontextmanager
async def proxied(upstream: str) -> AsyncGenerator[S3Proxy]:
    s3_proxy = S3Proxy(upstream)
    async with accepting(s3_proxy.serve) as server:
        s3_proxy.url = f"http://{LOOPBACK}:{server.port}"
        yield s3_proxy
