"""Faults for tests, with real processes, connections and servers.

`WorkerProcess` can be killed, frozen and stopped; `cut_replies` loses the replies to calls that
Redis has carried out; `server_down` stops Redis for a while.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from towpath.embedded import EmbeddedServer
from towpath.testing.process import WorkerProcess
from towpath.testing.proxy import Faults, Hole, Proxy

__all__ = ["Faults", "Hole", "Proxy", "WorkerProcess", "cut_replies", "server_down"]

T = TypeVar("T")
_DUMP = "dump.rdb"


@contextmanager
def cut_replies(server: EmbeddedServer) -> Generator[Proxy]:
    """A proxy to *server* that loses replies: connect to the `url` of what this yields.

    `cut_next()` and `cut_every(3)` say which replies are lost. The server has then done what was
    asked, and the client does not know. `cuts` counts them. The proxy runs in its own thread, so
    blocking code can use it.
    """
    with _loop_in_a_thread() as loop:

        def run(work: Coroutine[Any, Any, T]) -> T:
            return asyncio.run_coroutine_threadsafe(work, loop).result()

        proxy = run(Proxy(server.address, Faults()).__aenter__())
        try:
            yield proxy
        finally:
            run(proxy.__aexit__())


@asynccontextmanager
async def server_down(server: EmbeddedServer) -> AsyncGenerator[None]:
    """Stop *server* until the block ends; it comes back with all its data."""
    await asyncio.to_thread(_stop, server)
    try:
        yield
    finally:
        await asyncio.to_thread(_start_again, server)


def _stop(server: EmbeddedServer) -> None:
    # A server without a data directory stores nothing. With a rule for saving, it writes a dump
    # when it stops, and reads the dump at the next start.
    server.ask("CONFIG", "SET", "save", "3600 1")
    server.stop()


def _start_again(server: EmbeddedServer) -> None:
    server.start()
    (server.directory / _DUMP).unlink(missing_ok=True)


@contextmanager
def _loop_in_a_thread() -> Generator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="towpath-proxy", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
