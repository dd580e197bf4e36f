"""Connections to checked addresses only.

The check sits where the connection is made, on the very addresses that are then connected to: there
is no second look-up that could answer otherwise, and no second reading of the URL. The HTTP
client above still knows the host by its name, so certificate, SNI and Host header stay the name's,
and a connection is only used again for the same name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import httpcore

from towpath.calls.errors import CallFailed, CallRefused
from towpath.calls.guard import Guard
from towpath.calls.resolving import Resolver
from towpath.calls.target import place
from towpath.clock import steady

_MOST_TRIED = 4
"""A name may have hundreds of addresses; a call is no means of knocking at all of them."""


class GuardedNetwork(httpcore.AsyncNetworkBackend):
    """Resolves a host once, has all its addresses checked, and connects to the first that answers.

    Raises CallRefused before any packet is sent to an address that is not permitted.
    """

    def __init__(self, guard: Guard, resolve: Resolver) -> None:
        self._guard, self._resolve = guard, resolve
        self._network = httpcore.AnyIOBackend()

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
                return await self._first_to_answer(addresses[:_MOST_TRIED], port, limit)
        except TimeoutError as error:
            raise CallFailed(place(host, port), f"no connection within {timeout:g} s") from error

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109 -- the signature is httpcore's
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        raise CallRefused("a Unix socket", "calls go to hosts only")

    async def sleep(self, seconds: float) -> None:
        await self._network.sleep(seconds)

    async def _addresses(self, host: str, port: int) -> Sequence[str]:
        if parse_address(host) is not None:
            return [host]
        try:
            found = await self._resolve(host, port)
        except TimeoutError:
            raise
        except (OSError, UnicodeError) as error:
            raise CallFailed(place(host, port), "the name has no address") from error
        if not found:
            raise CallFailed(place(host, port), "the name has no address")
        return found
