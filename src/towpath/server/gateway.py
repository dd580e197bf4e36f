"""The way from the server to the engine: connected in the background, tried again by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from towpath.clock import seconds, steady
from towpath.engine.channel import Limits
from towpath.engine.engine import Engine
from towpath.errors import ServerError, ServerUnreachable, TowpathError
from towpath.telemetry import events
from towpath.telemetry.logs import Log

LIMITS = Limits(answer=seconds(1), give_up=seconds(1.5), channels=16)
"""A caller over HTTP is told within two seconds that the store is away."""
_TRY_EVERY = 1.0


class Gateway:
    """One engine for all requests. While it can't connect, requests are refused and it tries on."""

    def __init__(self, connect: Callable[[Limits], Engine], *, log: Log) -> None:
        self._connect, self._log = connect, log
        self._engine: Engine | None = None
        self._trouble: TowpathError | None = None
        self._away_since = 0.0
        self._connecting: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if not await self._try():
            self._connecting = asyncio.create_task(self._keep_trying())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            with suppress(asyncio.CancelledError):
                await self._connecting
        if self._engine is not None:
            await self._engine.__aexit__()

    @property
    def engine(self) -> Engine:
        """The engine. Raises ServerUnreachable while there is none."""
        if self._engine is None:
            raise ServerUnreachable("the store is not connected") from self._trouble
        return self._engine

    async def probe(self) -> None:
        """See that the store takes a write. Raises ServerError."""
        await self.engine.try_write()

    async def _try(self) -> bool:
        engine = self._connect(LIMITS)
        try:
            await engine.__aenter__()
        except ServerError as error:
            if self._trouble is None:
                self._away_since = steady()
                self._log.emit(
                    events.SERVER_UNREACHABLE,
                    server=str(engine.url),
                    error=type(error).__qualname__,
                    reason=str(error),
                )
            self._trouble = error
            return False
        if self._trouble is not None:
            away = steady() - self._away_since
            self._log.emit(events.SERVER_BACK, server=str(engine.url), away=away)
        self._engine, self._trouble = engine, None
        return True

    async def _keep_trying(self) -> None:
        while not await self._try():  # noqa: ASYNC110 -- nobody tells when a server is back
            await asyncio.sleep(_TRY_EVERY)
