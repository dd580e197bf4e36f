"""The way to the server that an app's handlers share."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from weakref import WeakSet

from towpath.blocking import BlockingEngine
from towpath.engine.engine import Engine
from towpath.engine.model import Submitted
from towpath.errors import (
    EngineClosed,
    LedgerMissing,
    RetryAdvice,
    ServerError,
    ServerUnreachable,
)
from towpath.recording import Recording
from towpath.telemetry.events import JOB_SUBMITTED
from towpath.telemetry.logs import Log
from towpath.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from towpath.ledger.ledger import Ledger


_A_MOMENT, _TRY_EVERY = 2.0, 1.0


class Way:
    """The way to the server that an app's handlers share."""

    def __init__(
        self,
        connect: Callable[[], Engine],
        metrics: Callable[[], Metrics],
        recording: Recording | None = None,
    ) -> None:
        self._connect, self._metrics, self._recording = connect, metrics, recording
        self._engine: Engine | None = None
        self._arrival: asyncio.Task[None] | None = None
        """With a ledger: connects in the background, until it has."""
        self._trouble: ServerError | None = None
        self._entered = 0
        self._blocking: BlockingEngine | None = None
        self._entering, self._connecting = asyncio.Lock(), threading.Lock()
        self._log = Log()
        _ways.add(self)

    def restart(self) -> None:
        """A forked child has none of its parent's threads and must not use its connections."""
        # Kept: what is dropped would close itself, in a loop that the parent still runs.
        self._inherited = self._engine, self._blocking
        self._engine, self._entered, self._blocking = None, 0, None
        self._arrival = None
        self._entering, self._connecting = asyncio.Lock(), threading.Lock()

    async def enter(self) -> None:
        async with self._entering:
            if self._entered == 0:
                if self._recording is None:
                    await self._arrive()
                else:
                    await self._enter_with_ledger(self._recording)
            self._entered += 1

    async def _enter_with_ledger(self, recording: Recording) -> None:
        """Records are taken in while the server is away: nobody waits for it for long."""
        self._arrival = asyncio.create_task(self._keep_arriving())
        try:
            done, _ = await asyncio.wait((self._arrival,), timeout=_A_MOMENT)
            for arrival in done:
                arrival.result()
            # Then: a relay that finds no server waits a while before it looks again.
            await recording.enter()
        except BaseException:
            await self._go(recording)
            raise

    async def _arrive(self) -> None:
        engine = self._connect()
        await engine.__aenter__()
        self._engine = engine

    async def _keep_arriving(self) -> None:
        """Connect; a server that is away is tried again, one that is wrong is not."""
        while self._engine is None:
            try:
                await self._arrive()
            except ServerError as error:
                if error.retry is not RetryAdvice.LATER:
                    raise
                self._trouble = error
                await asyncio.sleep(_TRY_EVERY)

    async def leave(self) -> None:
        self._entered = max(0, self._entered - 1)
        if self._entered == 0:
            await self._go(self._recording)

    async def _go(self, recording: Recording | None) -> None:
        arrival, self._arrival = self._arrival, None
        if arrival is not None:
            arrival.cancel()
            await asyncio.gather(arrival, return_exceptions=True)
        if recording is not None:
            await recording.leave()
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.__aexit__()

    async def arrived(self) -> None:
        """Return once the server has answered. Raises ServerUnreachable if it does not in time."""
        while self._engine is None and self._arrival is not None and not self._arrival.done():
            if self._trouble is not None:
                raise self._trouble
            await asyncio.wait((self._arrival,), timeout=_A_MOMENT)

    @property
    def ledger(self) -> Ledger:
        if self._recording is None:
            raise LedgerMissing
        return self._recording.ledger

    @property
    def engine(self) -> Engine:
        if self._arrival is not None and self._engine is None:
            if self._arrival.done():
                self._arrival.result()
            raise ServerUnreachable("the server has not answered yet") from self._trouble
        if self._engine is None:
            raise EngineClosed("the app is not connected: use `async with app`, or `.blocking`")
        return self._engine

    @property
    def blocking(self) -> BlockingEngine:
        """Connected at first use, anew in a forked child; closed when the program ends."""
        with self._connecting:
            if self._blocking is None or not self._blocking.here:
                blocking = BlockingEngine.around(self._connect())
                blocking.__enter__()
                atexit.register(blocking.__exit__)
                self._blocking = blocking
            return self._blocking

    @contextmanager
    def anew(self) -> Generator[None]:
        """As if nobody had connected, until the end of the block; then as it was before."""
        before = self._engine, self._entered, self._blocking, self._entering, self._arrival
        self._engine, self._entered, self._blocking, self._arrival = None, 0, None, None
        self._entering = asyncio.Lock()
        try:
            yield
        finally:
            if self._blocking is not None:
                atexit.unregister(self._blocking.__exit__)
                self._blocking.__exit__()
            self._engine, self._entered, self._blocking, self._entering, self._arrival = before

    def tell(self, submitted: Submitted, handler: str) -> None:
        """Count a job that is new, and log it for those who want to see each."""
        if not submitted.existed:
            job = submitted.job
            self._metrics().of(job.queue, handler).submitted.inc()
            self._log.emit(JOB_SUBMITTED, job=job.id, queue=job.queue, handler=handler)


_ways: WeakSet[Way] = WeakSet()


def _restart_ways() -> None:
    for way in list(_ways):
        way.restart()


os.register_at_fork(after_in_child=_restart_ways)
