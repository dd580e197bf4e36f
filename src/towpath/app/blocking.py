"""Submit, look up and wait from code without an event loop: scripts, Django views, notebooks.

    with BlockingEngine("redis://localhost") as engine:
        job = engine.submit("thumbnails", b"cat.png")
        print(engine.ended(job.job, within=seconds(30)).result)

One background thread runs one event loop with one Engine; calls from any number of threads go
through it and share its round trips. There is no second implementation of anything.

Threads do not survive a fork: a forked child needs a BlockingEngine of its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, Self, TypeVar, Unpack

from towpath.clock import Clock, DurationLike
from towpath.engine.channel import Limits
from towpath.engine.durability import Durability, ServerFacts
from towpath.engine.engine import Engine
from towpath.engine.explain import Explanation, Position
from towpath.engine.inspect import Counts, Page
from towpath.engine.model import JobInfo, JobOptions, JobRef, NewJob, Placed, Submitted
from towpath.engine.options import QueueOptions
from towpath.engine.states import State
from towpath.errors import EngineClosed, TowpathError

T = TypeVar("T")
_FORKED = "the engine was entered before this process was forked: enter another one in it"


class _Loop(asyncio.SelectorEventLoop):
    """A loop that is closed to forked children.

    Its epoll is shared with them: a connection that is dropped there, at the latest when the
    child ends, would take itself off it, and the parent would never hear of it again.
    """

    def __init__(self) -> None:
        super().__init__()
        self._home = os.getpid()

    def is_closed(self) -> bool:
        return super().is_closed() or self._home != os.getpid()


class BlockingEngine:
    """The engine for code that blocks. Enter it once per process and share it.

    Every call of a process that was forked off since raises EngineClosed.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        limits: Limits | None = None,
        declared: Durability | None = None,
    ) -> None:
        self._life = self._engine = Engine(url, clock=clock, limits=limits, declared=declared)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._home = os.getpid()

    @classmethod
    def around(cls, engine: Engine, *, life: AbstractAsyncContextManager[Any]) -> Self:
        """The same on an engine that nobody has entered, which *life* enters."""
        made = cls.__new__(cls)
        made._life, made._engine, made._loop, made._home = life, engine, None, os.getpid()  # noqa: SLF001 -- its own class
        return made

    def __enter__(self) -> Self:
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
            # Its thread, its loop and its connection are the parent's, which still uses them.
            return
        try:
            self._run(self._life.__aexit__(None, None, None))
        finally:
            self._stop()

    @property
    def here(self) -> bool:
        """Whether this is the process that entered it, not one forked off since."""
        return self._home == os.getpid()

    @property
    def facts(self) -> ServerFacts:
        """What the server said about itself when it was last asked."""
        return self._engine.facts

    def check(self) -> ServerFacts:
        """Ask the server about itself now. Raises ServerUnreachable, EvictionUnsafe."""
        return self._run(self._engine.check())

    def configure(self, queue: str, options: QueueOptions) -> None:
        """Use *queue* with these options. Raises QueueDiffers if it has others."""
        self._run(self._engine.configure(queue, options))

    def submit(
        self,
        queue: str,
        payload: bytes,
        *,
        durability: Durability | None = None,
        **options: Unpack[JobOptions],
    ) -> Submitted:
        """Take a job in, as Engine.submit does; submits of several threads share round trips."""
        return self._run(self._engine.submit(queue, payload, durability=durability, **options))

    def submit_many(
        self, queue: str, jobs: Iterable[NewJob], *, durability: Durability | None = None
    ) -> list[Submitted | TowpathError]:
        """Take many jobs in, answered one by one."""
        return self._run(self._engine.submit_many(queue, jobs, durability=durability))

    def cancel(self, job: JobRef) -> State:
        """End a job that has not ended: CANCELLED, or LEASED if its worker was asked to stop."""
        return self._run(self._engine.cancel(job))

    def move(
        self, job: JobRef, *, due: datetime | None = None, delay: DurationLike | None = None
    ) -> State:
        """Like Engine.move."""
        return self._run(self._engine.move(job, due=due, delay=delay))

    def set(
        self,
        queue: str,
        payload: bytes,
        *,
        durability: Durability | None = None,
        **options: Unpack[JobOptions],
    ) -> Placed:
        """Like Engine.set."""
        return self._run(self._engine.set(queue, payload, durability=durability, **options))

    def job(self, job: JobRef) -> JobInfo:
        """The job as it is now. Raises JobNotFound."""
        return self._run(self._engine.job(job))

    def state(self, job: JobRef) -> State:
        """The job's state; GONE if it is no longer kept, or never was."""
        return self._run(self._engine.state(job))

    def position(self, job: JobRef) -> Position | None:
        """How many run before this job, and about how long that takes."""
        return self._run(self._engine.position(job))

    def explain(self, job: JobRef) -> Explanation:
        """Why the job is not running."""
        return self._run(self._engine.explain(job))

    def list(self, queue: str, state: State, *, after: str | None = None, size: int = 100) -> Page:
        """A page of the jobs in *state*."""
        return self._run(self._engine.list(queue, state, after=after, size=size))

    def counts(self, queue: str) -> Counts:
        """How many jobs are where."""
        return self._run(self._engine.counts(queue))

    def ended(self, job: JobRef, *, within: DurationLike) -> JobInfo:
        """The job once it has ended, with its result. Raises StillOpen when the time is over."""
        return self._run(self._engine.ended(job, within=within))

    def run(self, ask: Callable[[Engine], Coroutine[Any, Any, T]]) -> T:
        """What *ask* comes to with the engine, in the engine's own loop."""
        return self._run(ask(self._engine))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            work.close()
            raise RuntimeError("the engine was not entered: use `with BlockingEngine(…)`")
        if not self.here:
            work.close()
            raise EngineClosed(_FORKED)
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            # Ctrl-C while waiting: nobody is left to take the answer.
            future.cancel()
            raise

    def _stop(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()
            loop.close()
