"""A TCP server for a test; when it ends, it closes its connections and ends their handlers."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

Reader = asyncio.StreamReader
Writer = asyncio.StreamWriter
Handle = Callable[[Reader, Writer], Awaitable[None]]

LOOPBACK = "127.0.0.1"
LIMIT = 1024 * 1024
"""Bytes that a reader takes ahead."""


class TcpServer:
    """A connection ends with its handler, once what was written is sent, or when it is cut."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._open = set[asyncio.Task[None]]()
        self.port, self.is_over = 0, False

    def connected(self, reader: Reader, writer: Writer) -> None:
        if self.is_over:  # it came in the last moment
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def cut_all(self) -> None:
        """Ends every open connection now, with whatever it has still to send."""
        cut = list(self._open)
        for task in cut:
            task.cancel()
        await asyncio.gather(*cut, return_exceptions=True)

    async def _serve(self, reader: Reader, writer: Writer) -> None:
        try:
            await self._handle(reader, writer)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
        finally:
            writer.transport.abort()


@asynccontextmanager
async def accepting(
    handle: Handle, *, address: str = LOOPBACK, port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncGenerator[TcpServer]:
    """Serves each connection by *handle* until the end of the block.

    Connections that are still open are cut: one that outlives its event loop fails some later test.
    """
    server = TcpServer(handle)
    listener = await asyncio.start_server(server.connected, address, port, ssl=tls, limit=LIMIT)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        server.is_over = True
        await server.cut_all()
