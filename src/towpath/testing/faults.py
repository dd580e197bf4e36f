"""What goes wrong in production, for tests: real processes, real connections, a real server.

`WorkerProcess` is killed, frozen and stopped; `cut_replies` loses replies of calls that the server
has carried out; `server_down` takes the server away for a while.
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
    """A way to *server* on which replies get lost: connect to the `url` of what this yields.

    `cut_next()` and `cut_every(3)` say which; the server has done what was asked, and its client
    does not know. `cuts` counts them. It runs in a thread of its own: code that blocks may use it.
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
    """*server* is away until the end of the block; it comes back with everything it had."""
    await asyncio.to_thread(_stop, server)
    try:
        yield
    finally:
        await asyncio.to_thread(_start_again, server)


def _stop(server: EmbeddedServer) -> None:
    # A server without a data directory keeps nothing. With a rule for saving it writes all down as
    # its last act, and reads it at the next start.
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
