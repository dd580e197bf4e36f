"""The app's lifespan: resources that handlers share, made before the first job of a process."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, cast

from towpath.clock import DurationLike, duration, milliseconds
from towpath.errors import LifespanFailed

MakeState = Callable[[], AbstractAsyncContextManager[Any]] | Callable[[], AsyncIterator[Any]]
"""`async def resources(): … yield State(…) …`, with or without `@asynccontextmanager`."""


_MISUSED = {"generator didn't yield": "did not yield", "generator didn't stop": "yielded twice"}
"""Messages of contextlib, in plain words."""


class Lifespan:
    """Enters and leaves the context manager that the user's function makes, each within *limit*."""

    def __init__(self, make: MakeState, limit: DurationLike) -> None:
        self.limit = duration("lifespan_limit", limit, least=milliseconds(1))
        self._name = getattr(make, "__qualname__", repr(make))
        if inspect.isasyncgenfunction(make):
            make = asynccontextmanager(make)
        is_wrong = inspect.iscoroutinefunction(make) or inspect.isgeneratorfunction(make)
        if not callable(make) or is_wrong:
            raise LifespanFailed(self._name, "must be an async function with one `yield`")
        try:
            inspect.signature(make).bind()
        except TypeError:
            raise LifespanFailed(self._name, "must take no arguments") from None
        self._make = cast("Callable[[], AbstractAsyncContextManager[Any]]", make)

    @asynccontextmanager
    async def entered(self) -> AsyncGenerator[Any]:
        """Yields the state that handlers share. Raises LifespanFailed."""
        made = self._make()
        if not isinstance(made, AbstractAsyncContextManager):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
            raise LifespanFailed(self._name, "must be an async function with one `yield`")
        state = await self._within("start", made.__aenter__())
        try:
            yield state
        except BaseException as error:
            if not await self._within("end", made.__aexit__(type(error), error, None)):
                raise
        else:
            await self._within("end", made.__aexit__(None, None, None))

    async def _within(self, what: str, step: Any) -> Any:
        limit = asyncio.timeout(self.limit.total_seconds())
        try:
            async with limit:
                return await step
        except Exception as error:
            if isinstance(error, TimeoutError) and limit.expired():
                rule = f"did not {what} within {self.limit.total_seconds():g} s"
            else:
                raised = f"did not {what}: {type(error).__qualname__}: {error}"
                rule = _MISUSED.get(str(error), raised)
            raise LifespanFailed(self._name, rule) from error


class LifespanThread:
    """Runs a lifespan in a thread with its own loop, for a process without an event loop."""

    def __init__(self, lifespan: Lifespan) -> None:
        self._lifespan, self._leaving = lifespan, asyncio.Event()
        self._loop = asyncio.new_event_loop()

    def __enter__(self) -> Any:
        """Returns the state that handlers share. Raises LifespanFailed."""
        run = self._loop.run_forever
        threading.Thread(target=run, name="towpath-lifespan", daemon=True).start()
        state: Future[Any] = Future()
        self._life = asyncio.run_coroutine_threadsafe(self._live(state), self._loop)
        return state.result()

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._leaving.set)
        self._life.result()

    async def _live(self, state: Future[Any]) -> None:
        """Enter and leave the lifespan in one task, as task groups and timeouts demand."""
        try:
            async with self._lifespan.entered() as made:
                state.set_result(made)
                await self._leaving.wait()
        except LifespanFailed as error:
            if state.done():
                raise
            state.set_exception(error)
