"""One server process: its start, its signals, the end of its log, and waiting for it.

It also has just enough of the Redis protocol to send the server commands over a raw socket, so that
`embedded` needs no client library, and only the engine imports one.
"""

import asyncio
import atexit
import os
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self, TypeAlias

from towpath.backoff import Backoff
from towpath.embedded.errors import CommandRefused, ServerDidNotStart, ServerNotRunning
from towpath.processes.launch import launch

Address: TypeAlias = Path | tuple[str, int]
Reply: TypeAlias = "bytes | int | list[Reply] | None"
Word: TypeAlias = str | bytes | int

_ANSWER_WITHIN = 5.0


class RedisConnection:
    """One open connection; every send and receive gives up after *within* seconds (OSError)."""

    def __init__(self, address: Address, *, within: float = _ANSWER_WITHIN) -> None:
        self._socket = _connect(address, within)
        self._replies = self._socket.makefile("rb")

    def ask(self, *words: Word) -> Reply:
        """Send one command and return its reply. Raises CommandRefused for an error reply."""
        self._socket.sendall(encode(*words))
        return self._reply(words)

    def close(self) -> None:
        self._replies.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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
    """Send one command on a connection of its own. Raises CommandRefused for an error reply."""
    with RedisConnection(address) as connection:
        return connection.ask(*words)


def ask_fields(address: Address, *words: Word) -> dict[str, str]:
    """Send a command whose reply has lines of `name:value`, as INFO, and return them as a dict."""
    return fields(ask(address, *words))


def fields(reply: Reply) -> dict[str, str]:
    """A reply of `name:value` lines as a dict; empty for any other reply."""
    return dict(line.split(":", 1) for line in text(reply).splitlines() if ":" in line)


def text(reply: Reply) -> str:
    """A reply as text; empty if it is no text."""
    return reply.decode() if isinstance(reply, bytes) else ""


def items(reply: Reply) -> list[Reply]:
    """A reply as a list; empty if it is no list."""
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


_FIRST_PAUSE = 0.001
_LONGEST_PAUSE = 0.025


def wait_until(fact: Callable[[], bool], *, within: float) -> bool:
    """Wait until *fact* is true. Returns False if it is not after *within* seconds.

    The first check is immediate and the pauses grow from 1 ms, so that a quick fact is seen
    quickly and a slow one costs next to no CPU.
    """
    end = time.monotonic() + within
    pauses = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, factor=1.5)
    while not fact():
        if time.monotonic() >= end:
            return False
        time.sleep(pauses.next_pause())
    return True


class Startable(ABC):
    """Something that runs between `start` and `stop`; both may be called twice without harm."""

    @abstractmethod
    def start(self) -> Self:
        """Return once it is ready for work."""

    @abstractmethod
    def stop(self) -> None:
        """Return once it has ended."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.stop)


_TAIL_LINES = 20
_TAIL_BYTES = 16_384


def answering_pid(address: Address) -> int:
    """The pid of the server that is ready for work at *address*.

    PING alone is not enough, because another server may have taken the port. INFO alone is not
    enough either, because a server answers it while it still loads its data.
    """
    with RedisConnection(address) as connection:
        connection.ask("PING")
        return int(fields(connection.ask("INFO", "server")).get("process_id", "0"))


class ServerProcess:
    """A started server program. The method that first sees its end reaps it."""

    def __init__(
        self, argv: Sequence[str], *, directory: Path, log: Path, keep: Sequence[int] = ()
    ) -> None:
        self._log = log
        self._log_start = log.stat().st_size if log.exists() else 0
        self._child = launch(argv, directory=directory, log=log, keep=keep)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def alive(self) -> bool:
        return self._child.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Its exit code, or the negative number of the signal that ended it; None while alive."""
        return self._child.poll()

    def send(self, number: signal.Signals) -> None:
        self._child.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL, which also ends a paused process. Returns when it has ended."""
        self._child.kill()
        self._child.wait()

    def stop(self, *, within: float) -> None:
        """Send SIGTERM, also to a paused process; kill it if it has not ended in time."""
        self.send(signal.SIGTERM)
        self.send(signal.SIGCONT)
        try:
            self._child.wait(within)
        except subprocess.TimeoutExpired:
            self.kill()

    def wait_for_answer(self, address: Address, *, within: float) -> None:
        """Return once this very process answers at *address*. Raises ServerDidNotStart."""
        self.wait_until_ready(lambda: self._answers(address), within=within)

    def wait_until_ready(self, ready: Callable[[], bool], *, within: float) -> None:
        """Return once *ready* is true. Raises ServerDidNotStart if the process ends first, or takes
        too long.
        """
        done = wait_until(lambda: not self.alive or ready(), within=within)
        if not self.alive:
            raise self._start_error(f"the server ended with code {self._child.returncode}")
        if not done:
            self.kill()
            raise self._start_error(f"the server gave no answer within {within:g} s")

    def _answers(self, address: Address) -> bool:
        try:
            return answering_pid(address) == self.pid
        except OSError:
            return False
        except CommandRefused as refusal:
            # LOADING: not ready yet. NOAUTH: ready, and the options ask for a password.
            return refusal.said.startswith("NOAUTH")

    def _start_error(self, reason: str) -> ServerDidNotStart:
        return ServerDidNotStart(reason, self._log, self.log_tail())

    def log_tail(self) -> str:
        """The last lines that this process wrote to its log."""
        with self._log.open("rb") as log:
            size = log.seek(0, 2)
            log.seek(max(self._log_start, size - _TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
        return "\n".join(lines[-_TAIL_LINES:])


class Owned(Startable):
    """A server that belongs to this process, and ends with it at the latest."""

    def __init__(self) -> None:
        self._process: ServerProcess | None = None
        self._owner = os.getpid()

    def restart(self) -> None:
        """Stop it if it runs, and start it again at the same address."""
        self.stop()
        self.start()

    @property
    def running(self) -> bool:
        """Whether its process is alive."""
        return self._process is not None and self._process.alive

    @property
    def pid(self) -> int:
        """The id of its process, while it runs."""
        return self._running_process().pid

    def _running_process(self) -> ServerProcess:
        if self._process is None or not self._process.alive:
            raise ServerNotRunning
        return self._process

    def _own(self) -> None:
        self._owner = os.getpid()
        atexit.register(self._stop_at_exit)

    def _disown(self) -> None:
        self._process = None
        atexit.unregister(self._stop_at_exit)

    def _stop_at_exit(self) -> None:
        # A forked child has a copy of this object, but does not own the server.
        if os.getpid() == self._owner:
            self.stop()
