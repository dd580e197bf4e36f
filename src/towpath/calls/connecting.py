"""Connections to checked addresses only.

The check sits where the connection is made, on the very addresses that are then connected to:
there is no second look-up that could answer otherwise, and no second reading of the URL. The HTTP
client above still knows the host by its name, so certificate, SNI and Host header stay the name's,
and a connection is only used again for the same name.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import httpcore

from towpath.calls.addresses import parse_address
from towpath.calls.errors import CallFailed
from towpath.calls.guard import Guard
from towpath.calls.target import place

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""Host and port to addresses as text. Raises OSError if the name has none."""

_THREADS = 8
_MOST_TRIED = 4
"""A name may have hundreds of addresses; a call is no means of knocking at all of them."""


class GuardedNetwork(httpcore.AsyncNetworkBackend):
    """Resolves a host once, has all its addresses checked, and connects to the first that answers.

    Raises CallRefused before any packet is sent to an address that is not permitted.
    """

    def __init__(self, guard: Guard, resolve: Resolver) -> None:
        self._guard, self._resolve = guard, resolve
        # A cast, because httpcore defines a second, empty class for when anyio is missing.
        self._network = cast("httpcore.AsyncNetworkBackend", httpcore.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 -- the signature is httpcore's
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        try:
            async with asyncio.timeout(timeout) as limit:
                addresses = self._guard.permit(host, port, await self._addresses(host, port))
                return await self._first_to_answer(addresses[:_MOST_TRIED], port, limit.when())
        except TimeoutError as error:
            raise CallFailed(place(host, port), f"no connection within {timeout:g} s") from error

    async def _addresses(self, host: str, port: int) -> Sequence[str]:
        if parse_address(host) is not None:
            return [host]
        try:
            found = await self._resolve(host, port)
        except (OSError, UnicodeError) as error:
            raise CallFailed(place(host, port), "the name has no address") from error
        if not found:
            raise CallFailed(place(host, port), "the name has no address")
        return found

    async def _first_to_answer(
        self, addresses: Sequence[str], port: int, until: float | None
    ) -> httpcore.AsyncNetworkStream:
        """Try one after the other; each has its share of the time, so that a silent one first in
        the list does not use up that of the others."""
        *others, last = addresses
        for left, address in zip(range(len(addresses), 1, -1), others, strict=True):
            try:
                return await self._network.connect_tcp(address, port, timeout=_share(until, left))
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return await self._network.connect_tcp(last, port)


def _share(until: float | None, left: int) -> float | None:
    return None if until is None else (until - asyncio.get_running_loop().time()) / left


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
