"""A way to the server for those who can do something without it: connected in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self

from towpath.clock import steady
from towpath.engine.engine import Engine
from towpath.errors import ServerError, ServerUnreachable
from towpath.telemetry import events
from towpath.telemetry.logs import Log

_A_MOMENT, _TRY_EVERY = 2.0, 1.0


class Gateway:
    """One engine for many. While it can't connect, they are refused and it tries on.

    Entering waits for the server, but not for long.
    """

    def __init__(self, connect: Callable[[], Engine], *, log: Log) -> None:
        self._connect, self._log = connect, log
        self._engine: Engine | None = None
        self._away_since = 0.0
        self._connecting: asyncio.Task[None] | None = None
        self.trouble: ServerError | None = None
        """Why the last try failed, as long as there is no engine."""

    async def __aenter__(self) -> Self:
        self._connecting = asyncio.create_task(self._keep_trying())
        await asyncio.wait((self._connecting,), timeout=_A_MOMENT)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        if self._engine is not None:
            await self._engine.__aexit__()

    @property
    def engine(self) -> Engine:
        """The engine. While there is none, raises why: ServerUnreachable, or what the server said
        that waiting can't mend (EvictionUnsafe, ServerRefused, …).
        """
        if self._engine is not None:
            return self._engine
        if self.trouble is None or isinstance(self.trouble, ServerUnreachable):
            # Without the address: those who are told it here may be anybody.
            raise ServerUnreachable("the server is not connected") from self.trouble
        raise self.trouble.with_traceback(None)

    async def connected(self) -> None:
        """Return once there is an engine. Raises the ServerError of a try that failed."""
        while self._engine is None and self._connecting is not None:
            if self.trouble is not None:
                raise self.trouble
            await asyncio.wait((self._connecting,), timeout=_TRY_EVERY)

    async def probe(self) -> None:
        """See that the server takes a write and evicts no jobs. Raises ServerError."""
        await self.engine.try_write()
        await self.engine.check()

    async def _keep_trying(self) -> None:
        while not await self._try():  # noqa: ASYNC110 -- nobody tells when a server is back
            await asyncio.sleep(_TRY_EVERY)

    async def _try(self) -> bool:
        engine, began = self._connect(), steady()
        try:
            await engine.__aenter__()
        except ServerError as error:
            if self.trouble is None:
                self._away_since = began
                self._log.emit(
                    events.SERVER_UNREACHABLE,
                    server=str(engine.url),
                    error=type(error).__qualname__,
                    reason=str(error),
                )
            self.trouble = error
            return False
        if self.trouble is not None:
            away = steady() - self._away_since
            self._log.emit(events.SERVER_BACK, server=str(engine.url), away=away)
        self._engine, self.trouble = engine, None
        return True
