"""Connecting to a host within a time limit, name look-up included, without an event loop."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Any

from towpath.clock import steady
from towpath.engine.connection import Place
from towpath.engine.resp import ConnectionLost

_SHORTEST = 0.001


def connect_within(place: Place, limit: float) -> socket.socket:
    """A socket that is connected to a host and port. Raises ConnectionLost, OSError, TimeoutError
    after *limit* seconds.
    """
    until = steady() + limit
    trouble = OSError(f"{place[0]} has no address")
    addresses = _look_up(place, limit)
    for at, (family, kind, protocol, _, address) in enumerate(addresses):
        sock: socket.socket | None = None
        try:
            sock = socket.socket(family, kind, protocol)  # fails if IPv6 is switched off
            # Each address gets its share of the time left, so a silent one can't use it all up.
            sock.settimeout(max((until - steady()) / (len(addresses) - at), _SHORTEST))
            sock.connect(address)
        except OSError as error:
            _close(sock)
            trouble = error
        except BaseException:
            _close(sock)
            raise
        else:
            return sock
    raise trouble


def _close(sock: socket.socket | None) -> None:
    if sock is not None:
        sock.close()


class _Lookup(threading.Thread):
    """The system's look-up of a name. It has no time limit, so it runs in a thread of its own,
    which is left running if it takes too long.
    """

    def __init__(self, place: Place) -> None:
        super().__init__(name=f"address of {place[0]}", daemon=True)
        self._place = place
        self.addresses: list[Any] = []
        self.trouble: OSError | None = None

    def run(self) -> None:
        try:
            self.addresses = socket.getaddrinfo(*self._place, type=socket.SOCK_STREAM)
        except OSError as error:
            self.trouble = error


_last_lookups: dict[Place, _Lookup] = {}
"""The last look-up of each place. Callers share one that still runs: while a name server is silent,
one thread waits for it, however often callers try."""


def _look_up(place: Place, limit: float) -> list[Any]:
    host, port = place
    with suppress(socket.gaierror):  # not a numeric address
        numeric = socket.AI_NUMERICHOST
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=numeric)
    lookup = _last_lookups.get(place)
    if lookup is None or not lookup.is_alive():
        lookup = _Lookup(place)
        lookup.start()
        _last_lookups[place] = lookup
    lookup.join(limit)
    if lookup.is_alive():
        raise ConnectionLost(f"the name {host} was not found in {limit:.1f} s")
    if lookup.trouble is not None:
        raise lookup.trouble.with_traceback(None)
    return lookup.addresses
