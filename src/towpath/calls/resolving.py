"""From a host's name to its addresses."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""Host and port to addresses as text. Raises OSError if the name has none."""

_THREADS = 8


class SystemResolver:
    """Asks the system, in threads of its own.

    The event loop's own threads would do, but names come from strangers, and their name servers may
    take as long as they like: they shall keep nobody from finding the database.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="towpath-names")

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        found = await asyncio.get_running_loop().run_in_executor(
            self._threads, _look_up, host, port
        )
        return list(dict.fromkeys(found))

    def close(self) -> None:
        """Ask no more. Does not wait for an answer that is still to come."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _look_up(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]
