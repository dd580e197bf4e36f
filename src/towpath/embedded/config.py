"""The text of a server's configuration file."""

from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from towpath.embedded.home import Home
from towpath.embedded.ports import LOOPBACK


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


# Nothing acknowledged is lost to a crash: RELIABILITY, class `disk`. Snapshots add nothing to it.
DURABLE = {"appendonly": "yes", "appendfsync": "always", "save": ""}
VOLATILE = {"appendonly": "no", "save": ""}
# Work is refused at the memory limit, never silently dropped.
NO_EVICTION = {"maxmemory-policy": "noeviction"}


def place(home: Home, listen: Listen, port: int) -> dict[str, str]:
    """Where a server lives and listens; nothing but this machine can reach it."""
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
