"""Open connections of a server, and open requests of keys and login sessions.

Both have limits: in total, per address, per key and per credential that a key issued. A request
may run only while its credential is valid: a key until it is revoked or expires, a login session
also until its logout.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable
from enum import StrEnum
from typing import Any, Protocol

from fastapi import Request
from starlette.types import Scope

from towpath.clock import steady
from towpath.errors import TowpathError
from towpath.ledger.keys.key import KeyInfo
from towpath.supervise import Background
from towpath.web.limits import Account, ServerLimits
from towpath.web.problems import Refused

LOOK_EVERY = 0.5
"""Seconds between two checks of a credential. The ledger reads a key again after three seconds, so
the requests of a revoked key end within five.
"""
_BRIEF = 2.0
"""Seconds that a request with neither a stream nor a wait may run before it is checked again."""
_GRACE = 5.0
"""Seconds that a stream or a waiting claim has to end by itself."""
_AGAIN = {"Retry-After": "5"}
OPEN, CONNECTION = "towpath.open_request", "towpath.connection"
"""Keys of an ASGI scope: the open request, and its connection."""

# ── connections ──────────────────────────────────────────────────────────────────────────

RESERVE = 32
"""Connections beyond the limit, for health checks and admins."""
_FEWEST = 16


class ClientConnection(Protocol):
    """A connection of a client, as its protocol class implements it."""

    address: str
    reserved: bool
    """Whether it belongs to the reserve: only health checks and admins are answered."""

    def abort(self) -> None: ...


def connections_within(descriptors: int) -> int:
    """The number of connections for a process with so many file descriptors.

    A quarter of them, up to 1,024, is kept for Redis, the database, files and outgoing calls.
    """
    return max(_FEWEST, descriptors - RESERVE - min(descriptors // 4, 1024))


class Connections:
    """The connections of a server.

    At the limit, a new connection replaces the one that has been idle for longest. A connection is
    idle while it has neither a complete request, nor one with a valid key. If none is idle, the new
    one belongs to the reserve.
    """

    def __init__(self, most: int, per_address: int) -> None:
        self.most, self._per_address = most, per_address
        self._of_address: dict[str, dict[ClientConnection, None]] = {}
        self._idle: dict[ClientConnection, None] = {}  # in the order in which they became idle
        self._idle_of: dict[str, dict[ClientConnection, None]] = {}
        self.count = 0

    def add(self, connection: ClientConnection) -> bool:
        """Count a new connection. False = even the reserve is used up: the caller must close it."""
        address = connection.address
        if self._is_full(address):
            self._close_idle(address)
            connection.reserved = self._is_full(address)
            if connection.reserved and self.count >= self.most + RESERVE:
                return False
        here = self._of_address.setdefault(address, {})
        here[connection] = None
        self.count += 1
        self.mark_idle(connection)
        return True

    def remove(self, connection: ClientConnection) -> None:
        """Uncount a closed connection. A repeat has no effect."""
        if connection in self._of_address.get(connection.address, ()):
            self.mark_busy(connection)
            self.count -= 1
            here = self._of_address[connection.address]
            del here[connection]
            if not here:
                del self._of_address[connection.address]

    def mark_idle(self, connection: ClientConnection) -> None:
        """Note that the connection has no request that is being answered."""
        if connection in self._of_address.get(connection.address, ()):
            self._idle[connection] = None
            self._idle_of.setdefault(connection.address, {})[connection] = None

    def mark_busy(self, connection: ClientConnection) -> None:
        """Note that a request is being answered: the connection is not closed for a new one."""
        if connection in self._idle:
            del self._idle[connection]
            idle = self._idle_of[connection.address]
            del idle[connection]
            if not idle:
                del self._idle_of[connection.address]

    def is_reserved(self, connection: ClientConnection) -> bool:
        """Whether the connection still belongs to the reserve: others may have closed since."""
        if connection.reserved:
            mine = self._count_of(connection.address)
            connection.reserved = self.count > self.most or mine > self._per_address
        return connection.reserved

    def _is_full(self, address: str) -> bool:
        return self.count >= self.most or self._count_of(address) >= self._per_address

    def _count_of(self, address: str) -> int:
        return len(self._of_address.get(address, ()))

    def _close_idle(self, address: str) -> None:
        """Close the connection that has been idle for longest; one of the address if that is at its
        limit.
        """
        of_address = self._count_of(address) >= self._per_address
        idle = self._idle_of.get(address, {}) if of_address else self._idle
        if idle:
            oldest = next(iter(idle))
            self.remove(oldest)
            oldest.abort()


# ── requests with a credential ───────────────────────────────────────────────────────────


class LiveCredential(Hashable, Protocol):
    """A key or a login session as a request sent it; equal ones are checked once."""

    def __call__(self) -> Awaitable[KeyInfo | None]:
        """Its key; None once the key or the session has ended. Raises LedgerError."""
        ...


class OpenKind(StrEnum):
    """The kinds of long requests; each has limits of its own."""

    STREAM = "event streams"
    WAIT = "waiting claims"


REQUEST = "requests at a time"
"""The kind under which every request is counted."""


class Hold:
    """A stream or a waiting claim, from `OpenRequests.open` to `close`."""

    __slots__ = ("_ended", "_on_end", "_request", "kind")

    def __init__(self, request: OpenRequest, kind: OpenKind) -> None:
        self._request, self.kind = request, kind
        self._ended = False
        self._on_end: Callable[[], object] | None = None

    def on_end(self, then: Callable[[], object]) -> None:
        """Call *then* once the credential has ended."""
        self._on_end = then
        if self._ended:
            then()

    def end(self) -> None:
        """Note that the credential has ended."""
        if not self._ended:
            self._ended = True
            if self._on_end is not None:
                self._on_end()

    def close(self) -> None:
        """Uncount the stream or wait. A repeat has no effect."""
        self._request.release(self)


class OpenRequest:
    """One request, from the check of its credential until it is answered."""

    __slots__ = (
        "_all", "account", "address", "began", "connection", "credential", "cut_at", "holds",
    )  # fmt: skip

    def __init__(
        self, all: OpenRequests, scope: Scope, account: Account, credential: LiveCredential
    ) -> None:
        self._all, self.account, self.credential = all, account, credential
        self.connection: ClientConnection | None = scope.get(CONNECTION)
        self.address = address_of(scope)
        self.began = steady()
        self.holds: dict[Hold, None] = {}
        self.cut_at: float | None = None
        """When its connection is closed; set once the credential has ended."""

    def end(self) -> None:
        """End the request, because its credential has ended. A stream or a wait gets some time to
        end by itself; the connection of any other request is closed.
        """
        now = steady()
        if self.cut_at is None:
            self.cut_at = now + _GRACE if self.holds else now
        for hold in list(self.holds):
            hold.end()
        if self.connection and now >= self.cut_at:
            self.connection.abort()

    def release(self, hold: Hold) -> None:
        if hold in self.holds:
            del self.holds[hold]
            self._all.uncount(self, hold.kind)

    def close(self) -> None:
        """Uncount the request, which was answered."""
        for hold in list(self.holds):
            hold.close()
        self._all.remove(self)


class OpenRequests:
    """All open requests with a credential, and the connections."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._together = {OpenKind.STREAM: limits.streams, OpenKind.WAIT: limits.waits}
        self._each = {OpenKind.STREAM: limits.streams_per_key, OpenKind.WAIT: limits.waits_per_key}
        self._of_key = self._of_credentials = limits.requests_per_key
        self.connections: Connections | None = None
        """None if the server does not listen itself: another program runs its ASGI app."""
        self._open: dict[OpenRequest, None] = {}
        self._counts: defaultdict[Any, int] = defaultdict(int)
        """By kind, by address, and by account and kind. Has no zeros."""
        self._watching = Background("watcher of open requests", self._watch)

    def limit_connections(self, descriptors: int) -> Connections:
        """Limit connections to what *descriptors*, the number of file descriptors, allows. One key
        may use half of them for requests, and the credentials that it issued a quarter.
        """
        most = min(self._limits.connections, connections_within(descriptors))
        self._of_key = min(self._of_key, max(1, most // 2))
        self._of_credentials = min(self._of_credentials, max(1, most // 4))
        self.connections = Connections(most, self._limits.connections_per_address)
        return self.connections

    def count(self, kind: OpenKind) -> int:
        """The number of open requests of *kind*."""
        return self._counts.get(kind, 0)

    def is_reserved(self, scope: Scope) -> bool:
        """Whether the request came over a connection of the reserve."""
        connection = scope.get(CONNECTION)
        return (
            connection is not None
            and self.connections is not None
            and self.connections.is_reserved(connection)
        )

    # ── one request ──────────────────────────────────────────────────────────────────────

    def refuse_if_too_many(self, scope: Scope, account: Account) -> None:
        """Raises Refused (429) if the account or the address has too many open requests."""
        of_all = self._of_credentials if account.credential else self._of_key
        for each in account.counted():
            self._refuse_beyond(each, REQUEST, of_all)
        most = self._limits.connections_per_address
        if self._counts.get(("address", address_of(scope)), 0) >= most:
            raise Refused(
                429,
                "too_many_of_address",
                f"the limit of {most} requests at a time for this address is reached",
                remedy="Close some. Behind a proxy, let the server trust its headers.",
                headers=_AGAIN,
            )

    def enter(self, scope: Scope, account: Account, credential: LiveCredential) -> OpenRequest:
        """Count a request until it is closed, and end it if *credential* ends."""
        request = OpenRequest(self, scope, account, credential)
        self._open[request] = None
        for each in account.counted():
            self._counts[each, REQUEST] += 1
        self._counts["address", request.address] += 1
        scope[OPEN] = request
        if request.connection is not None and self.connections is not None:
            self.connections.mark_busy(request.connection)
        return request

    def remove(self, request: OpenRequest) -> None:
        if request in self._open:
            del self._open[request]
            for each in request.account.counted():
                self._decrement((each, REQUEST))
            self._decrement(("address", request.address))

    # ── streams and waits ────────────────────────────────────────────────────────────────

    def refuse_if_full(self, request: Request, kind: OpenKind) -> None:
        """Raises Refused: 429 if the account has too many of *kind* open, 503 if all have."""
        if self.is_reserved(request.scope):
            raise no_connections()
        for each in request_of(request).account.counted():
            self._refuse_beyond(each, kind, self._each[kind])
        if self._counts.get(kind, 0) >= self._together[kind]:
            raise Refused(
                503,
                f"too_many_{kind.name.lower()}s",
                f"the limit of {self._together[kind]} {kind} on this server is reached",
                remedy="Close some, or start another server.",
                headers=_AGAIN,
            )

    def open(self, request: Request, kind: OpenKind) -> Hold:
        """Count a request as a stream or a wait until it is closed. Raises Refused (429, 503)."""
        self.refuse_if_full(request, kind)
        opened = request_of(request)
        hold = Hold(opened, kind)
        opened.holds[hold] = None
        for each in opened.account.counted():
            self._counts[each, kind] += 1
        self._counts[kind] += 1
        return hold

    def uncount(self, request: OpenRequest, kind: OpenKind) -> None:
        for each in request.account.counted():
            self._decrement((each, kind))
        self._decrement(kind)

    def _refuse_beyond(self, account: Account, kind: str, of_key: int) -> None:
        """Raises Refused (429) if the account is at its limit for *kind*, for a key *of_key*."""
        most = account.limit(of_key, self._limits.credential_share)
        if self._counts.get((account, kind), 0) >= most:
            raise Refused(
                429,
                "too_many_of_credential" if account.credential else "too_many_of_key",
                f"the limit of {most} {kind} for {account.named} is reached",
                remedy="Close some, and try again then."
                if account.credential
                else "Close some, or use another key.",
                headers=_AGAIN,
            )

    def _decrement(self, counted: Any) -> None:
        self._counts[counted] -= 1
        if not self._counts[counted]:
            del self._counts[counted]

    # ── credentials that end ─────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Start checking the credentials of open requests."""
        self._watching.start()

    async def close(self) -> None:
        """Stop checking the credentials of open requests."""
        await self._watching.stop()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            before = steady() - _BRIEF
            lasting: defaultdict[LiveCredential, list[OpenRequest]] = defaultdict(list)
            for request in self._open:
                if request.holds or request.began < before:
                    lasting[request.credential].append(request)
            looks = (
                _check_credential(credential, requests) for credential, requests in lasting.items()
            )
            await asyncio.gather(*looks)


async def _check_credential(credential: LiveCredential, requests: list[OpenRequest]) -> None:
    """End the *requests* of a credential that has ended.

    If the database does not answer, streams and waits end, because they could run for ever; their
    clients try again.
    """
    try:
        if await credential() is not None:
            return
        ended = requests
    except TowpathError:
        ended = [request for request in requests if request.holds]
    for request in ended:
        request.end()


def request_of(request: Request) -> OpenRequest:
    """The open request; for an inner request, the one that it was made from."""
    return request.scope[OPEN]


def address_of(scope: Scope) -> str:
    """The client's address; behind a trusted proxy, the one that the proxy names."""
    client = scope.get("client")
    return client[0] if client else ""


def no_connections() -> Refused:
    """The error for requests that may not use the reserve."""
    return Refused(
        503,
        "too_many_connections",
        "the limit of connections of this server or for this address is reached",
        remedy="Close some, or start another server.",
        headers={**_AGAIN, "Connection": "close"},
    )
