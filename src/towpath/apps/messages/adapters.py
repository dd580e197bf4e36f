"""The connections for pushes and callbacks, and the handlers that use them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Self

from towpath.app.app import Towpath
from towpath.apps.messages.handlers import add_callbacks, add_push
from towpath.apps.messages.options import MessagesOptions
from towpath.calls.caller import Caller, Resolver


class MessageAdapters:
    """Connections for pushes and for callbacks. Enter it where the handlers run.

    The operator sets the worker's URL, so its host may be private. Senders set the URLs of
    callbacks, so these reach only public addresses and what the options allow. *resolve* replaces
    the system's resolver.
    """

    def __init__(self, options: MessagesOptions, *, resolve: Resolver | None = None) -> None:
        host = options.worker_host
        self.push = Caller(
            allow=(host, *options.allow) if host else options.allow,
            timeout=options.push_within,
            resolve=resolve,
        )
        self.callback = Caller(
            allow=options.allow, timeout=options.callback_within, resolve=resolve
        )
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._open.enter_async_context(self.push)
        await self._open.enter_async_context(self.callback)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()


class MessagesConsumers:
    """The handlers that the options ask for beside a server: pushes, callbacks, both or none."""

    def __init__(self, options: MessagesOptions) -> None:
        self._options = options

    @asynccontextmanager
    async def added(self, app: Towpath) -> AsyncGenerator[None]:
        """Add the handlers to *app*, and keep their connections open while the body runs."""
        async with MessageAdapters(self._options) as out:
            if self._options.worker_url:
                add_push(app, out.push, self._options)
            if self._options.secrets:
                add_callbacks(app, out.callback, self._options)
            yield
