"""Free TCP ports on the loopback address.

Servers take 10000 to 19999, and with them their cluster bus 20000 to 29999 (a server's bus is its
port plus 10000). Both lie below the range from which the system takes ports for outgoing
connections, so nobody grabs one by accident between this check and the server's own bind.
"""

import errno
import secrets
import socket

LOOPBACK = "127.0.0.1"
BUS_OFFSET = 10_000
_FIRST, _COUNT, _TRIES = 10_000, 10_000, 1_000


def free_port() -> int:
    """A port that is free now, together with its bus port. Others may still be faster: retry."""
    for _ in range(_TRIES):
        port = _FIRST + secrets.randbelow(_COUNT)
        if is_free(port):
            return port
    raise OSError(errno.EADDRINUSE, f"no free port found from {_FIRST} up")


def is_free(port: int) -> bool:
    """Whether nobody listens on *port*, nor on its bus port."""
    return _can_bind(port) and _can_bind(port + BUS_OFFSET)


def _can_bind(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: connections that have ended are in nobody's way.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
