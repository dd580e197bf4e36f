"""A private Valkey or Redis server: what `towpath up` and the tests start."""

import os
import signal
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Self
from urllib.parse import quote

from towpath.embedded.errors import ServerDidNotStart
from towpath.embedded.home import (
    DURABLE,
    LOOPBACK,
    NO_EVICTION,
    VOLATILE,
    Home,
    Listen,
    ServerBinary,
    find_server,
    free_port,
    place,
    rendered,
)
from towpath.embedded.lock import Holder, Lock, locked
from towpath.embedded.process import Address, Owned, Reply, ServerProcess, Word, ask

_START_WITHIN = 60.0
_STOP_WITHIN = 10.0
_PORT_TRIES = 10
ANY_FREE_PORT = 0


class EmbeddedServer(Owned):
    """A Redis or Valkey server that belongs to this process; reachable only from this machine.

    With *data*, a directory, every acknowledged write is on disk (`appendfsync always`), and no
    second server can use the directory. Without it, nothing is kept. *listen* chooses a Unix
    socket, a TCP port or both, *port* the port (0 = a free one). *options* are lines of the
    server's configuration and override ours: ``{"maxmemory": "50mb"}``. *binary* is the server to
    run; default: the one that is found.

    The address stays the same for the life of the object, over any number of restarts. The server
    ends with this process, even if this process is killed. `start` and `stop` may be called twice.
    Use it as a context manager, with ``with`` or ``async with``.
    """

    def __init__(
        self,
        *,
        data: Path | None = None,
        listen: Listen = Listen.SOCKET,
        port: int = ANY_FREE_PORT,
        options: Mapping[str, str] | None = None,
        binary: ServerBinary | None = None,
    ) -> None:
        super().__init__()
        self.binary = binary or find_server()
        self._home = Home(data)
        self._keeps_data = data is not None
        self._listen = listen
        self._port = port
        self._may_choose_port = listen.on_port and port == ANY_FREE_PORT
        self._options = dict(options or {})

    # -- start and stop --------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the server. Returns once it answers, usually in less than 0.1 s.

        Raises ServerDidNotStart with the end of its log, or DataDirectoryInUse.
        """
        if not self.running:
            self._own()
            with locked(self._home) if self._keeps_data else nullcontext() as lock:
                self._start_on_some_port(lock)
        return self

    def stop(self, *, within: float = _STOP_WITHIN) -> None:
        """Stop the server; kill it after *within* seconds. Returns when it has ended."""
        if self._process is not None and self._process.alive:
            self._process.stop(within=within)
        self._disown()

    def kill(self) -> None:
        """Send SIGKILL, as in a crash. Returns when the server has ended."""
        self._running_process().kill()

    def pause(self) -> None:
        """Send SIGSTOP: connections stay open and nothing answers, as on a frozen machine."""
        self._running_process().send(signal.SIGSTOP)

    def unpause(self) -> None:
        """Send SIGCONT: the server continues."""
        self._running_process().send(signal.SIGCONT)

    # -- facts -----------------------------------------------------------------------------------

    @property
    def log(self) -> Path:
        """The server's log. A private directory is deleted with this object."""
        return self._home.log

    @property
    def directory(self) -> Path:
        """The directory of the server's files: *data*, or a private one."""
        return self._home.path

    @property
    def socket(self) -> Path:
        """The path of the Unix socket, if the server listens on one."""
        return self._home.socket

    @property
    def port(self) -> int:
        """The TCP port; 0 if the server listens on none, or has not chosen one yet."""
        return self._port

    @property
    def address(self) -> Address:
        """The socket if there is one, else host and port."""
        return self.socket if self._listen.on_socket else (LOOPBACK, self._port)

    @property
    def url(self) -> str:
        """`unix:///…` if the server listens on a socket, else `redis://127.0.0.1:…`."""
        return f"unix://{quote(str(self.socket))}" if self._listen.on_socket else self.tcp_url

    @property
    def tcp_url(self) -> str:
        """`redis://127.0.0.1:port`."""
        return f"redis://{LOOPBACK}:{self._port}"

    def ask(self, *words: Word) -> Reply:
        """Send one raw command on a new connection. Raises CommandRefused for an error reply."""
        return ask(self.address, *words)

    # -- internals -------------------------------------------------------------------------------

    def _start_on_some_port(self, lock: Lock | None) -> None:
        """Start the server. If another process takes a port that was chosen here, try another."""
        tries = _PORT_TRIES if self._may_choose_port else 1
        for left in reversed(range(tries)):
            if self._may_choose_port:
                self._port = free_port()
            try:
                self._start_once(lock)
            except ServerDidNotStart as failure:
                if not left or "ddress already in use" not in failure.tail:
                    raise
            else:
                self._may_choose_port = False
                return

    def _start_once(self, lock: Lock | None) -> None:
        self._write_config()
        keep = [lock.descriptor] if lock else []
        process = ServerProcess(
            self._command(), directory=self._home.path, log=self._home.log, keep=keep
        )
        self._process = process
        if lock:
            socket = str(self.socket) if self._listen.on_socket else ""
            holder = Holder(os.getpid(), server=process.pid, socket=socket, port=self._port)
            lock.sign(holder)
        process.wait_for_answer(self.address, within=_START_WITHIN)

    def _command(self) -> list[str]:
        return [str(self.binary.path), str(self._home.config)]

    def _write_config(self) -> None:
        self._home.write_config(self._config_text())

    def _config_text(self) -> str:
        storage = DURABLE if self._keeps_data else VOLATILE
        return rendered(self._place(), NO_EVICTION, storage, self._options)

    def _place(self) -> dict[str, str]:
        return place(self._home, self._listen, self._port)
