"""Calling the engine from code without an event loop: scripts, Django views, notebooks.

    with Blocking(Engine("redis://localhost")) as blocking:
        job = blocking.run(lambda engine: engine.submit("thumbnails", b"cat.png")).job
        done = blocking.run(lambda engine: engine.events.ended(job, within=seconds(30)))

One background thread runs one event loop with one Engine; calls from any number of threads go
through it and share its round trips.

Threads do not survive a fork: a forked child needs a Blocking of its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Self, TypeVar

from towpath.engine.engine import Engine
from towpath.engine.green import patching_library
from towpath.errors import EngineClosed, ThreadsPatched

T = TypeVar("T")
_FORKED = "the engine was opened before this process was forked: open a new engine after the fork"


class _Loop(asyncio.SelectorEventLoop):
    """An event loop that counts as closed in forked children.

    Parent and child share its epoll: when the child drops a connection, at the latest at its exit,
    the connection would be removed from the epoll, and the parent would get no more events for it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._home = os.getpid()

    def is_closed(self) -> bool:
        return super().is_closed() or self._home != os.getpid()


class Blocking:
    """Runs calls of an engine for code that blocks. Enter it once per process and share it.

    *life* is entered instead of the engine, if it is given. In a process that was forked off
    since, every call raises EngineClosed. Entering raises ThreadsPatched with gevent and eventlet:
    their threads all run in one thread, which the event loop would block.
    """

    def __init__(
        self, engine: Engine, *, life: AbstractAsyncContextManager[Any] | None = None
    ) -> None:
        self._engine, self._life = engine, engine if life is None else life
        self._loop: asyncio.AbstractEventLoop | None = None
        self._home = os.getpid()

    def __enter__(self) -> Self:
        if (library := patching_library()) is not None:
            raise ThreadsPatched(library, "and an event loop would stop all others")
        if self._loop is None:
            self._home = os.getpid()
        elif not self.here:
            raise EngineClosed(_FORKED)
        self._loop = _Loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="towpath", daemon=True)
        self._thread.start()
        try:
            self._run(self._life.__aenter__())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if not self.here:
            # The parent still uses the thread, the loop and the connection.
            return
        try:
            self._run(self._life.__aexit__(None, None, None))
        finally:
            self._stop()

    @property
    def here(self) -> bool:
        """Whether it was entered in this process, and not in a parent before a fork."""
        return self._home == os.getpid()

    def run(self, ask: Callable[[Engine], Coroutine[Any, Any, T]]) -> T:
        """Call *ask* with the engine, in the engine's own loop; returns its result."""
        return self._run(ask(self._engine))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            work.close()
            raise RuntimeError("the engine is not open: use `with Blocking(…)`")
        if not self.here:
            work.close()
            raise EngineClosed(_FORKED)
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            # Ctrl-C while waiting: the result is not needed any more.
            future.cancel()
            raise

    def _stop(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()
            loop.close()
