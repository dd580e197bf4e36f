"""Where Prometheus fetches the metrics of a process."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from prometheus_client import CollectorRegistry, start_http_server

LOCAL = "127.0.0.1"


class Endpoint:
    """`/metrics` over HTTP in a thread of its own, from now until it is closed.

    Whoever reaches it learns the names of queues and handlers; there is no password. Port 0 takes
    a free one. Raises OSError if the port is taken.
    """

    def __init__(self, registry: CollectorRegistry, *, port: int, addr: str) -> None:
        self._server, self._thread = start_http_server(port, addr, registry=registry)
        self.addr = addr
        self.port = self._server.server_port

    def __str__(self) -> str:
        return f"{self.addr}:{self.port}"

    def close(self) -> None:
        """Answer no more and give the port back; without effect the second time."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
