"""Running a server: a socket, an event loop, and a clean stop."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import json
import logging
import resource
import signal
import socket
import traceback
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Any, ClassVar, cast

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from towpath.clock import steady
from towpath.errors import InvalidOption, TowpathError
from towpath.supervise import exempt_from_collection
from towpath.telemetry import events
from towpath.telemetry.logs import Log
from towpath.web.limits import ServerLimits
from towpath.web.open_requests import CONNECTION, RESERVE, Connections
from towpath.web.problems import TYPES

# ── uvicorn's protocol, with limits ──────────────────────────────────────────────────────

HEAD_MOST = 64 * 1024
"""Maximum size of a request line and its headers, in bytes."""
LINGER_S = 15.0
"""Seconds for which the rest of a body is discarded after its request was answered."""


class BoundedProtocol(HttpToolsProtocol):
    """Refuses a head that is too large (431), too slow (408) or ambiguous (400), and counts
    connections.

    The rest of a refused body is discarded for a while: so a client that is still sending can read
    the response, instead of a reset of the connection.
    """

    head_within: ClassVar[float]
    """Seconds that a request's line and headers may take to arrive."""
    all: ClassVar[Connections]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.address, self.reserved = "", False
        self._head, self._in_head = 0, True
        self._refusal = 400
        self._timer: asyncio.TimerHandle | None = None

    # ── the connection ───────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] -- as uvicorn has it
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        if not self.all.add(self):
            self.abort()
            return
        self._start(self.head_within, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        self.all.remove(self)
        super().connection_lost(exc)

    def abort(self) -> None:
        """Close the connection at once, without waiting for the client to read what was sent."""
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self._in_head:
            self._head += len(data)
            if self._head > HEAD_MOST and not self.transport.is_closing():
                self._refuse(431)

    # ── callbacks of the parser ──────────────────────────────────────────────────────────

    def on_message_begin(self) -> None:
        self._head, self._in_head = 0, True
        self._start(self.head_within, self._too_slow)
        super().on_message_begin()
        cast("dict[str, Any]", self.scope)[CONNECTION] = self

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head += len(name) + len(value) + 4
        if self._head + len(self.url) > HEAD_MOST:
            self._refusal = 431
            raise ValueError("the headers are too large")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop()
        _check_head(self.headers, self.parser.get_http_version())  # pyright: ignore[reportOptionalMemberAccess] -- set since the connection was made
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self.cycle.response_complete and self._timer is None:
            self._start(LINGER_S, self.transport.close)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._stop()
        self.all.mark_busy(self)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete:  # else the next request of a pipeline has begun
            self.all.mark_idle(self)

    # ── errors before the application gets the request ───────────────────────────────────

    def send_400_response(self, msg: str) -> None:
        """Answer a head that the parser could not read, or that was refused."""
        self._refuse(self._refusal)

    def _too_slow(self) -> None:
        if self._head:
            self._refuse(408)
        else:
            self.transport.close()

    def _refuse(self, status: int) -> None:
        code, detail = _REFUSALS[status]
        problem = {"type": TYPES + code, "title": code, "status": status, "detail": detail}
        body = json.dumps(problem).encode()
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
            "content-type: application/problem+json\r\n"
            "connection: close\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _start(self, after: float, what: Any) -> None:
        self._stop()
        self._timer = self.loop.call_later(after, what)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _check_head(headers: Sequence[tuple[bytes, bytes]], version: str) -> None:
    """Raises ValueError for a head that a proxy may read differently: the parser accepts unknown
    transfer codings before `chunked`, and any number of `Host` headers.
    """
    codings = [
        value.strip(b" \t").lower() for name, value in headers if name == b"transfer-encoding"
    ]
    if codings and (codings != [b"chunked"] or version != "1.1"):
        raise ValueError("only `chunked`, once, in HTTP/1.1")
    hosts = sum(name == b"host" for name, _ in headers)
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        raise ValueError("one host")


_REFUSALS = {
    400: ("malformed-request", "this is not HTTP"),
    408: ("head-too-slow", "the headers did not come in time"),
    431: ("head-too-large", f"at most {HEAD_MOST} bytes of headers"),
}


# ── running ──────────────────────────────────────────────────────────────────────────────

_BACKLOG = 2048
_ACCEPT_AT_ONCE = RESERVE // 2
"""Connections that the event loop accepts before it closes others for them: fewer than the reserve,
so that descriptors never run out."""
_DESCRIPTORS_MOST = 1024 * 1024


class PortTaken(TowpathError):
    """Another program listens at this address."""

    code = "port_taken"
    remedy = "Stop the program that listens there, or use another port: --port, make up PORT=…"

    def __init__(self, host: str, port: int) -> None:
        super().__init__(f"{host}:{port} is in use")
        self.host, self.port = host, port


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 = a free one. Raises PortTaken, InvalidOption."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        sock = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(host, port) from error
        rule = f"can't be used for listening: {error.strerror or error}"
        raise InvalidOption("host", f"{host}:{port}", rule=rule) from error
    # Connections inherit TCP_NODELAY; asyncio sets it only for sockets that it made itself. Without
    # it, the body of a response waits until the client confirms the headers: 40 ms per request.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def url_of(sock: socket.socket) -> str:
    """The URL of a server that listens on *sock*."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def raise_descriptors() -> int:
    """Raise this process's limit of open files to the hard limit. Returns the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS_MOST if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS_MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # the system may refuse the limit that it reports
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _DESCRIPTORS_MOST if soft == resource.RLIM_INFINITY else soft


def is_local(host: str) -> bool:
    """Whether only this machine can reach *host*."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


async def serve(
    app: FastAPI,
    sock: socket.socket,
    *,
    started: Callable[[str], Awaitable[None]],
    log: Log,
) -> None:
    """Serve *app* within its limits until SIGTERM or SIGINT ends it.

    Raises the limit of open files to the hard limit, and limits the connections so that some files
    are left for Redis, the database and others.

    `started` is awaited with the address once requests are answered. A request whose headers
    take longer than `head_within` is refused; at the end, open requests have `grace` to finish.
    """
    limits: ServerLimits = app.state.limits
    connections = app.state.open_requests.limit_connections(raise_descriptors())
    bounds = {"head_within": limits.head_within.total_seconds(), "all": connections}
    config = uvicorn.Config(
        app,
        http=type("Bounded", (BoundedProtocol,), bounds),
        backlog=_ACCEPT_AT_ONCE,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=max(1, round(limits.grace.total_seconds())),
        timeout_keep_alive=65,
    )
    server = _Server(config, app.state.stopping)
    reporting = asyncio.create_task(_report_start(server, sock, started))
    began = steady()
    with _silence_loggers(log):
        try:
            await server.serve(sockets=[sock])
        finally:
            reporting.cancel()
            await asyncio.wait((reporting,))
    if not reporting.cancelled():
        reporting.result()  # raises the error of `started`, which has stopped the server
    log.emit(events.HTTP_STOPPED, reason=server.why, uptime=steady() - began)


class _Server(uvicorn.Server):
    """A uvicorn server that returns after a signal instead of raising the signal again."""

    def __init__(self, config: uvicorn.Config, stopping: asyncio.Event) -> None:
        super().__init__(config)
        self._stopping = stopping
        self.why = "it was asked to stop"

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        loop = asyncio.get_running_loop()
        heard = (signal.SIGTERM, signal.SIGINT)
        for number in heard:
            loop.add_signal_handler(number, self._begin_stop, number)
        try:
            yield
        finally:
            for number in heard:
                loop.remove_signal_handler(number)

    def _begin_stop(self, number: signal.Signals) -> None:
        self.why = f"received {number.name}"
        self._stopping.set()
        self.handle_exit(number, None)


class _DefectFilter(logging.Filter):
    """Replaces uvicorn's report of an unexpected error by a log event with the error's class and
    place. The error's text is left out: it may quote a secret.
    """

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.exc_info or record.exc_info[1] is None:
            return True
        error = record.exc_info[1]
        while isinstance(error, BaseExceptionGroup):
            error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        self._log.emit(events.HTTP_DEFECT, error=type(error).__qualname__, place=place)
        return False


_NOISY_LOGGERS = ("mcp", "sse_starlette", "uvicorn", "uvicorn.error")
"""Loggers whose messages below ERROR are debugging noise or quote data of users."""


@contextmanager
def _silence_loggers(log: Log) -> Generator[None]:
    for name in _NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
    defects, uvicorns = _DefectFilter(log), logging.getLogger("uvicorn.error")
    uvicorns.addFilter(defects)
    try:
        yield
    finally:
        uvicorns.removeFilter(defects)


async def _report_start(
    server: uvicorn.Server, sock: socket.socket, started: Callable[[str], Awaitable[None]]
) -> None:
    while not server.started:  # noqa: ASYNC110 -- uvicorn has no event for it
        await asyncio.sleep(0.02)
    # The event loop has set the backlog to what it accepts at once.
    sock.listen(_BACKLOG)
    exempt_from_collection()
    try:
        await started(url_of(sock))
    except BaseException:
        server.should_exit = True
        raise
