"""How the engine waits: the one place where an event loop and plain threads differ.

The functions of the engine are `async def` in both forms. On an event loop they suspend as usual.
In a thread without one they are driven by `blocking.run_to_end`, and what they await never
suspends: it blocks the thread instead. Whatever else would suspend goes through this port.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Protocol, TypeVar

from towpath.clock import Duration
from towpath.engine.channel import Channel
from towpath.engine.connection import Connection, Endpoint
from towpath.engine.node import Node
from towpath.engine.resp import TROUBLE, ConnectionLost
from towpath.engine.time_limit import SharedTimeLimit, TimeLimit
from towpath.supervise import detached, retrieve_error
from towpath.telemetry.logs import Log

T = TypeVar("T")
Running = dict[str, "asyncio.Task[T]"]
"""Tasks that several callers wait for, by key."""
ProbeOn = Callable[[Channel, str], Awaitable[None]]
"""Checks on a channel that the Redis server of a key answers. Raises ServerError."""


class Port(Protocol):
    """What the two forms of waiting have in common."""

    in_threads: bool
    """Whether callers are threads without an event loop."""

    def connection(self, endpoint: Endpoint) -> Connection:
        """A connection to that server, not yet made."""
        ...

    def time_limit(self, limit: Duration, silence: Callable[[], None]) -> TimeLimit:
        """The limit for each reply; *silence* is called while a call waits for one."""
        ...

    def node(
        self, name: str, new_channel: Callable[[], Channel], count: int, probe: ProbeOn, log: Log
    ) -> Node:
        """A Redis server, with up to *count* channels to it."""
        ...

    async def pause(self, seconds: float) -> None: ...

    def within(self, seconds: float) -> AbstractAsyncContextManager[object]:
        """A block whose replies raise TimeoutError after that time."""
        ...

    async def every(self, asks: Sequence[Callable[[], Coroutine[Any, Any, T]]]) -> list[Any]:
        """All answers, in order; an error is in its place."""
        ...

    async def first(self, asks: Sequence[Callable[[], Awaitable[T]]], every: float) -> T:
        """The first good answer. Raises ConnectionLost if there is none."""
        ...

    async def share(
        self, running: Running[T], key: str, work: Callable[[], Coroutine[Any, Any, T]]
    ) -> T:
        """The result of *work*, which callers on an event loop share while it runs."""
        ...

    def detach(
        self,
        name: str,
        work: Callable[[], Coroutine[Any, Any, None]],
        before: asyncio.Task[None] | None,
    ) -> asyncio.Task[None] | None:
        """Run *work* in the background, unless the task *before* still runs. Without an event loop,
        run it now.
        """
        ...


class LoopPort:
    """Waits on the running event loop."""

    in_threads = False

    def connection(self, endpoint: Endpoint) -> Connection:
        return Connection(endpoint)

    def time_limit(self, limit: Duration, silence: Callable[[], None]) -> TimeLimit:
        return SharedTimeLimit(limit, silence)

    def node(
        self, name: str, new_channel: Callable[[], Channel], count: int, probe: ProbeOn, log: Log
    ) -> Node:
        channels = [new_channel() for _ in range(count)]
        return Node(name, channels, partial(probe, new_channel()), log)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def within(self, seconds: float) -> AbstractAsyncContextManager[object]:
        return asyncio.timeout(seconds)

    async def every(self, asks: Sequence[Callable[[], Coroutine[Any, Any, T]]]) -> list[Any]:
        return await asyncio.gather(*(ask() for ask in asks), return_exceptions=True)

    async def first(self, asks: Sequence[Callable[[], Awaitable[T]]], every: float) -> T:
        """Start the next of *asks* after *every* seconds, or as soon as one fails."""
        left, running = iter(asks), set[asyncio.Task[T]]()
        trouble: BaseException | None = None
        try:
            while True:
                ask = next(left, None)
                if ask is not None:
                    running.add(asyncio.create_task(_await_ask(ask)))
                elif not running:
                    raise ConnectionLost(
                        f"no server tells who is responsible: {trouble}"
                    ) from trouble
                limit = None if ask is None else every
                done, running = await asyncio.wait(
                    running, timeout=limit, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    trouble = task.exception()
                    if trouble is None:
                        return task.result()
                    if not isinstance(trouble, TROUBLE):
                        raise trouble
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def share(
        self, running: Running[T], key: str, work: Callable[[], Coroutine[Any, Any, T]]
    ) -> T:
        task, me = running.get(key), asyncio.current_task()
        if task is None:
            task = running[key] = asyncio.create_task(work())
            task.add_done_callback(lambda _: running.pop(key))
            task.add_done_callback(retrieve_error)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and me is not None and not me.cancelling():
                raise ConnectionLost("the engine was closed") from None
            raise

    def detach(
        self,
        name: str,
        work: Callable[[], Coroutine[Any, Any, None]],
        before: asyncio.Task[None] | None,
    ) -> asyncio.Task[None] | None:
        is_running = before is not None and not before.done()
        return before if is_running else detached(name, work())


async def _await_ask(ask: Callable[[], Awaitable[T]]) -> T:
    return await ask()
