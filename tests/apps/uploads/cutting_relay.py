"""A relay in front of a server, which cuts connections after some bytes of requests."""

import socket
import struct
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress


class CuttingRelay:
    """Forwards bytes, and resets the connection on which a limit is reached."""

    def __init__(self, port: int, limits: Sequence[int]) -> None:
        self._port, self._limits = port, list(limits)
        self._passed, self.cuts = 0, 0
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def run(self) -> None:
        """Run until the relay is closed."""
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                self._open += [client, server]
                for source, to in ((client, server), (server, client)):
                    pair = (source, to, source is client)
                    threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def close(self) -> None:
        for found in (self._listener, *self._open):
            with suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)
            found.close()

    def _pass(self, source: socket.socket, to: socket.socket, is_request: bool) -> None:  # noqa: FBT001 -- a thread's
        with suppress(OSError):
            while data := source.recv(65_536):
                to.sendall(data)
                if is_request and self._reached(len(data)):
                    for end in (source, to):
                        now = struct.pack("ii", 1, 0)
                        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, now)
                    break
        for end in (source, to):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _reached(self, size: int) -> bool:
        with self._lock:
            self._passed += size
            if not self._limits or self._passed < self._limits[0]:
                return False
            self._limits.pop(0)
            self.cuts += 1
            return True


@contextmanager
def cutting_relay(port: int, limits: Sequence[int]) -> Generator[CuttingRelay]:
    relay = CuttingRelay(port, limits)
    threading.Thread(target=relay.run, daemon=True).start()
    try:
        yield relay
    finally:
        relay.close()
