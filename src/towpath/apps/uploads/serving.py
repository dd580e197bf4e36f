"""Set up uploads: in the server, in workers, in your own programs, on the command line."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from towpath.apps.uploads.lifecycle import Lifecycle
from towpath.apps.uploads.measures import Measures
from towpath.apps.uploads.options import UploadsOptions
from towpath.apps.uploads.parts import add_uploads
from towpath.apps.uploads.service import UploadService
from towpath.apps.uploads.stores.options import new_store
from towpath.engine.engine import Engine

if TYPE_CHECKING:
    from towpath.app.app import Towpath
    from towpath.apps.application import Host
    from towpath.ledger.ledger import Ledger
    from towpath.telemetry.metrics import Metrics


@asynccontextmanager
async def open_uploads(
    engine: Engine,
    ledger: Ledger,
    options: UploadsOptions,
    *,
    metrics: Metrics | None = None,
) -> AsyncGenerator[UploadService]:
    """The uploads of an engine and a ledger that has their tables; both are entered before use.

    Parts are stored by workers with `parts.add_uploads`, or by any server with these options.
    """
    async with AsyncExitStack() as stack:
        store = new_store(options)
        if store is not None:
            await stack.enter_async_context(store)
        url = options.chunks_url
        chunks = await stack.enter_async_context(Engine(url).tolerant()) if url else None
        yield UploadService(
            Lifecycle(
                engine=engine,
                chunks=chunks,
                ledger=ledger,
                store=store,
                options=options,
                measures=Measures(metrics),
            )
        )


def serving(host: Host) -> AbstractAsyncContextManager[UploadService]:
    """The service of uploads in a server."""
    return open_uploads(host.engine, host.ledger, host.options, metrics=host.metrics)


def tasks(service: UploadService) -> Mapping[str, Callable[[], Awaitable[None]]]:
    """The background tasks of the server."""
    return {"sweep": service.sweeping.keep_on} if service.is_on else {}


class UploadsConsumers:
    """The handlers of the application, if the options name an object store."""

    def __init__(self, options: UploadsOptions) -> None:
        self._options, self._store = options, new_store(options)

    @asynccontextmanager
    async def added(self, app: Towpath) -> AsyncGenerator[None]:
        """Add the handlers to *app*, which must have a ledger; the object store stays open."""
        if self._store is None:
            yield
            return
        async with AsyncExitStack() as stack:
            store = await stack.enter_async_context(self._store)
            other = self._options.chunks_url
            chunks = await stack.enter_async_context(Engine(other).tolerant()) if other else None
            add_uploads(app, store, self._options, chunks=chunks)
            yield
