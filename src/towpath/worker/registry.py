"""What a worker needs to know of the app whose handlers it runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, Self

from towpath.engine.channel import Limits
from towpath.engine.engine import Engine
from towpath.telemetry.logs import Log
from towpath.telemetry.metrics import Metrics
from towpath.worker.handler import Handler
from towpath.worker.middleware import Middleware
from towpath.worker.recorded import Recorder


class Registry(Protocol):
    """An app: handlers, and the way to the server."""

    version: str
    metrics: Metrics
    middleware: tuple[Middleware, ...]

    @property
    def handlers(self) -> Sequence[Handler[Any, Any, Any]]:
        """All of them."""
        ...

    @property
    def engine(self) -> Engine:
        """The app's own, while it is entered."""
        ...

    def new_engine(self, limits: Limits | None = None) -> Engine:
        """Another way to the same server, for another thread."""
        ...

    @property
    def recorder(self) -> Recorder:
        """Where records are kept, for handlers that have them."""
        ...

    async def keep_firing(self, queues: Iterable[str], log: Log) -> None:
        """Fire the recurring work of *queues* until cancelled."""
        ...

    async def fire_due(self, queues: Iterable[str], log: Log) -> None:
        """Fire those of them that are due now."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...
