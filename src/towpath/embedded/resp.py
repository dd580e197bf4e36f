"""Just enough of the Redis protocol to ask a private server a question over a raw socket.

Not a client: one connection, one question at a time. It is here so that `embedded` needs no
client library, and so that only the engine imports one.
"""

import socket
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

from towpath.embedded.errors import CommandRefused

Address: TypeAlias = Path | tuple[str, int]
Reply: TypeAlias = "bytes | int | list[Reply] | None"
Word: TypeAlias = str | bytes | int

_ANSWER_WITHIN = 5.0


class Connection:
    """One open connection; every send and receive gives up after *within* seconds (OSError)."""

    def __init__(self, address: Address, *, within: float = _ANSWER_WITHIN) -> None:
        self._socket = _connect(address, within)
        self._replies = self._socket.makefile("rb")

    def ask(self, *words: Word) -> Reply:
        """Send one command and return its reply; an error reply raises CommandRefused."""
        self._socket.sendall(encode(*words))
        return self._reply(words)

    def close(self) -> None:
        self._replies.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _reply(self, words: tuple[Word, ...]) -> Reply:
        line = self._replies.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the server closed the connection")
        kind, rest = line[:1], line[1:-2]
        match kind:
            case b"+":
                return rest
            case b"-":
                raise CommandRefused(str(words[0]), rest.decode(errors="replace"))
            case b":":
                return int(rest)
            case b"$":
                return self._bulk(int(rest))
            case b"*":
                return [self._reply(words) for _ in range(int(rest))]
            case _:
                raise ConnectionError(f"not a RESP2 reply: {line[:40]!r}")

    def _bulk(self, size: int) -> bytes | None:
        if size < 0:
            return None
        body = self._replies.read(size + 2)
        if len(body) < size + 2:
            raise ConnectionError("the server closed the connection")
        return body[:-2]


def ask(address: Address, *words: Word) -> Reply:
    """Ask one question on a connection of its own."""
    with Connection(address) as connection:
        return connection.ask(*words)


def ask_fields(address: Address, *words: Word) -> dict[str, str]:
    """Ask for a text of `name:value` lines: INFO, CLUSTER INFO."""
    return fields(ask(address, *words))


def fields(reply: Reply) -> dict[str, str]:
    """A reply of `name:value` lines as a dict; any other reply is an empty one."""
    return dict(line.split(":", 1) for line in text(reply).splitlines() if ":" in line)


def text(reply: Reply) -> str:
    """A reply as text; empty if it is none."""
    return reply.decode() if isinstance(reply, bytes) else ""


def items(reply: Reply) -> list[Reply]:
    """A reply as a list; empty if it is none."""
    return reply if isinstance(reply, list) else []


def encode(*words: Word) -> bytes:
    """A command as the protocol's array of bulk strings."""
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    bulks = (b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)
    return b"*%d\r\n" % len(parts) + b"".join(bulks)


def _connect(address: Address, within: float) -> socket.socket:
    if not isinstance(address, Path):
        return socket.create_connection(address, timeout=within)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(within)
        connection.connect(str(address))
    except OSError:
        connection.close()
        raise
    return connection
