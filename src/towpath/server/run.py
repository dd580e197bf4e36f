"""Running a server: a socket, an event loop, and an end in good order."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

import uvicorn
from fastapi import FastAPI

from towpath.clock import Duration, seconds
from towpath.errors import InvalidOption, TowpathError

GRACE = seconds(10)
_BACKLOG = 2048


class PortTaken(TowpathError):
    """Something else listens at the address."""

    code = "port_taken"
    remedy = "Stop what listens there, or choose another port with --port."

    def __init__(self, host: str, port: int) -> None:
        super().__init__(f"{host}:{port} is in use")
        self.host, self.port = host, port


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 = a free one. Raises PortTaken, InvalidOption."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        if error.errno in (98, 48):
            raise PortTaken(host, port) from error
        rule = f"can't be listened on: {error.strerror or error}"
        raise InvalidOption("host", f"{host}:{port}", rule=rule) from error


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
    grace: Duration = GRACE,
) -> None:
    """Serve *app* until a signal ends it; open requests have *grace* to finish.

    `started` is awaited with the address once requests are answered.
    """
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=max(1, round(grace.total_seconds())),
        timeout_keep_alive=65,
        h11_max_incomplete_event_size=64 * 1024,
        loop="auto",
    )
    server = uvicorn.Server(config)
    telling = asyncio.create_task(_tell(server, sock, started))
    try:
        await server.serve(sockets=[sock])
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)


async def _tell(
    server: uvicorn.Server, sock: socket.socket, started: Callable[[str], Awaitable[None]]
) -> None:
    while not server.started:  # noqa: ASYNC110 -- uvicorn has no event for it
        await asyncio.sleep(0.02)
    host, port = sock.getsockname()[:2]
    await started(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
