"""Outgoing calls: only to allowed addresses, and within a time limit.

    async with Caller(allow=["worker.internal"]) as caller:
        answer = await caller.post("https://example.com/", b"{}", message="m1", secrets=[secret])

Of httpx, only the URL class and the certificates are used. Its client by default uses cookies,
proxies and compression, and logs every URL. httpcore's connection pool, on which httpx is built,
does none of that, and lets us replace the network.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import ssl
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Self, cast

import httpcore
import httpx

from towpath.calls.answer import CallAnswer
from towpath.calls.errors import AnswerTooLarge, CallerClosed, CallFailed
from towpath.calls.guard import CallTarget, Guard, parse_address, place
from towpath.calls.signature import headers_for
from towpath.clock import Duration, duration_ms, milliseconds, seconds
from towpath.errors import InvalidOption

# ── connections ──────────────────────────────────────────────────────────────────────────

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""Resolves host and port to addresses as text. Raises OSError if the name has no address."""

_THREADS = 8
_NO_ADDRESS = "the name has no address"
_MOST_TRIED = 4
"""A name may have hundreds of addresses; a call must not become a way to scan them all."""


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
            reason = f"no connection within {timeout:g} s"
            raise CallFailed(place(host, port), reason, sent=False) from error

    async def _addresses(self, host: str, port: int) -> Sequence[str]:
        if parse_address(host) is not None:
            return [host]
        try:
            found = await self._resolve(host, port)
        except (OSError, UnicodeError) as error:
            raise CallFailed(place(host, port), _NO_ADDRESS, sent=False) from error
        if not found:
            raise CallFailed(place(host, port), _NO_ADDRESS, sent=False)
        return found

    async def _first_to_answer(
        self, addresses: Sequence[str], port: int, until: float | None
    ) -> httpcore.AsyncNetworkStream:
        """Try one address after the other. Each gets an equal share of the remaining time, so that
        an address that does not answer leaves time for the others."""
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
    """Resolves names with the system's resolver, in threads of its own.

    Names come from strangers, and their name servers may be slow. In the event loop's default
    threads, slow lookups could block other lookups, such as that of the database.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="towpath-names")

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        found = await asyncio.get_running_loop().run_in_executor(
            self._threads, _look_up, host, port
        )
        return list(dict.fromkeys(found))

    def close(self) -> None:
        """Stop the threads, without waiting for lookups in progress."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _look_up(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


# ── headers ──────────────────────────────────────────────────────────────────────────────

Headers = list[tuple[bytes, bytes]]

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
_VALUE = re.compile(r"(?:[!-~](?:[ \t!-~]{0,8190}[!-~])?)?")
_OURS = {
    "accept-encoding",  # an uncompressed answer can't grow beyond its limit when it is decoded
    "connection",
    "content-length",
    "expect",
    "host",  # must be the name that the guard checked
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
}


def request_headers(own: Mapping[str, str], *, authority: bytes) -> Headers:
    """Return the headers of a request: *own*, and those that the connection needs.

    Raises InvalidOption for a header that only the client may set, and for an invalid one. The
    error does not repeat the value.
    """
    for name, value in own.items():
        _check_header(name, value)
    named = {"accept": "*/*", "user-agent": "towpath"} | {name.lower(): own[name] for name in own}
    return [
        (b"host", authority),
        (b"accept-encoding", b"identity"),
        *((name.encode(), value.encode()) for name, value in named.items()),
    ]


def answer_headers(received: Headers) -> dict[str, str]:
    """Return headers by name in lower case; values of repeated headers are joined by commas."""
    joined: dict[str, str] = {}
    for name, value in received:
        known, text = name.decode("latin-1").lower(), value.decode("latin-1")
        joined[known] = f"{joined[known]}, {text}" if known in joined else text
    return joined


def _check_header(name: str, value: str) -> None:
    if _NAME.fullmatch(name) is None:
        raise InvalidOption(
            "headers", "…", rule="a header's name must consist of letters, digits and hyphens"
        )
    if name.lower() in _OURS:
        raise InvalidOption("headers", name, rule="is set by the client itself")
    if _VALUE.fullmatch(value) is None:
        raise InvalidOption("headers", name, rule="must have a value of one line of ASCII")


# ── calls ────────────────────────────────────────────────────────────────────────────────

_IDLE = 4.0
"""Seconds for which an idle connection is kept. Many servers close idle connections after five
seconds; keeping them for less avoids sending a call just when the server closes."""
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_MEBIBYTE = 1 << 20
_TICK = milliseconds(1)
_WHOLE_CALL, _CONNECTION = seconds(30), seconds(5)
_LOGGERS = ("httpcore.connection", "httpcore.http11")
_calling: ContextVar[bool] = ContextVar("towpath_calling", default=False)


class Caller:
    """Makes outgoing calls. One per process is enough; it is safe to use from many tasks.

    Calls go to global addresses, and to the networks and hosts in *allow*. *timeout* is for the
    whole call, *connect_timeout* for resolving and reaching the host. An answer has at most
    *largest_answer* bytes, its headers at most about 100 KiB. At most *connections* calls run at
    once; others wait, and the wait counts as part of their timeout. *resolve* and *tls* replace
    the system's resolver and the default certificates.
    """

    def __init__(
        self,
        *,
        allow: Iterable[str] = (),
        timeout: Duration = _WHOLE_CALL,
        connect_timeout: Duration = _CONNECTION,
        largest_answer: int = _MEBIBYTE,
        connections: int = 100,
        resolve: Resolver | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        if largest_answer < 0 or connections < 1:
            option = "largest_answer" if largest_answer < 0 else "connections"
            raise InvalidOption(option, min(largest_answer, connections), rule="must be positive")
        self._guard = Guard(allow)
        self._timeout = duration_ms("timeout", timeout, least=_TICK) / 1000
        self._connect = duration_ms("connect_timeout", connect_timeout, least=_TICK) / 1000
        self._largest = largest_answer
        # Not the pool's own limit: a call cancelled while waiting there may leak a connection slot.
        self._turns = asyncio.Semaphore(connections)
        self._resolve, self._tls = resolve, tls
        self._pool: httpcore.AsyncConnectionPool | None = None
        self._owned = AsyncExitStack()

    async def __aenter__(self) -> Self:
        if self._pool is None:
            self._pool = await self._owned.enter_async_context(self._new_pool())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._pool = None
        await self._owned.aclose()

    def check(self, url: str) -> None:
        """Raise CallRefused for what `post` would refuse without resolving the name.

        Use it for a URL that is called later; its addresses are checked at the call. Uses no
        network, takes a few microseconds.
        """
        self._guard.target(url)

    async def post(
        self,
        url: str,
        body: bytes,
        *,
        headers: Mapping[str, str] = _NO_HEADERS,
        message: str = "",
        secrets: Sequence[str] = (),
    ) -> CallAnswer:
        """Send *body* and return the answer, whatever its status; `advice` interprets it.

        With *secrets* the call is signed for this attempt, under the id *message*, which is the
        same for every attempt. Raises CallRefused for a forbidden address, with nothing sent;
        CallFailed if no complete answer came in time (the receiver may have accepted the call);
        AnswerTooLarge.
        """
        signed = headers_for(secrets, message, body) if secrets else _NO_HEADERS
        return await self.call("POST", url, headers={**headers, **signed}, body=body)

    async def get(self, url: str, *, headers: Mapping[str, str] = _NO_HEADERS) -> CallAnswer:
        """Send a GET to *url*. Returns the answer, whatever its status. Raises as `post` does."""
        return await self.call("GET", url, headers=headers)

    async def call(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] = _NO_HEADERS,
        body: bytes | None = None,
    ) -> CallAnswer:
        """Send any request and return the answer. Raises as `post` does."""
        if (pool := self._pool) is None:
            raise CallerClosed
        target = self._guard.target(url)
        sent = request_headers(headers, authority=target.authority)
        with _silence():
            async with (
                self._translate_errors(target),
                asyncio.timeout(self._timeout),
                self._turns,
            ):
                return await self._exchange(pool, target, method, sent, body)

    async def _exchange(
        self,
        pool: httpcore.AsyncConnectionPool,
        target: CallTarget,
        method: str,
        sent: Headers,
        body: bytes | None,
    ) -> CallAnswer:
        url = httpcore.URL(
            scheme=target.scheme, host=target.host, port=target.port, target=target.path
        )
        limits = {"timeout": {"connect": self._connect}}
        async with pool.stream(method, url, headers=sent, content=body, extensions=limits) as got:
            whole = bytearray()
            async for chunk in got.aiter_stream():
                whole += chunk
                if len(whole) > self._largest:
                    raise AnswerTooLarge(str(target), status=got.status, limit=self._largest)
            return CallAnswer(got.status, answer_headers(got.headers), bytes(whole))

    def _new_pool(self) -> httpcore.AsyncConnectionPool:
        resolve = self._resolve
        if resolve is None:
            resolve = SystemResolver()
            self._owned.callback(resolve.close)
        return httpcore.AsyncConnectionPool(
            ssl_context=self._tls or httpx.create_ssl_context(),
            max_connections=None,
            keepalive_expiry=_IDLE,
            network_backend=GuardedNetwork(self._guard, resolve),
        )

    @asynccontextmanager
    async def _translate_errors(self, target: CallTarget) -> AsyncGenerator[None]:
        """Translate errors of the connection into errors of this package."""
        try:
            yield
        except httpcore.ConnectTimeout as error:
            reason = f"no connection within {self._connect:g} s"
            raise CallFailed(str(target), reason, sent=False) from error
        except TimeoutError as error:
            reason = f"no complete response within {self._timeout:g} s"
            raise CallFailed(str(target), reason) from error
        except httpcore.ConnectError as error:
            reason = f"no connection: {error}"
            raise CallFailed(str(target), reason, sent=False) from error
        except (httpcore.NetworkError, httpcore.ProtocolError):
            # Not chained: the parser's error quotes the response, which may echo our request.
            raise CallFailed(
                str(target), "connection closed, or the response was not valid HTTP"
            ) from None


def _not_ours(record: logging.LogRecord) -> bool:
    return not _calling.get()


@contextmanager
def _silence() -> Generator[None]:
    """Drop the log lines of the HTTP library about calls of this task, inside the block.

    At level debug the library logs what it receives: headers hold cookies, and a receiver may echo
    the request. The host program sets the level of these loggers, so only the lines of our own
    calls are dropped.
    """
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_not_ours)  # adding the same filter twice has no effect
    token = _calling.set(True)
    try:
        yield
    finally:
        _calling.reset(token)
