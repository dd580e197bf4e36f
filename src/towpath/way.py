"""The way to the server that an app's handlers share."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Generator
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING
from weakref import WeakSet

from towpath.blocking import BlockingEngine
from towpath.engine.engine import Engine
from towpath.engine.model import Submitted
from towpath.errors import EngineClosed, RetryAdvice
from towpath.gateway import Gateway
from towpath.ledger.errors import LedgerMissing
from towpath.recording import Recording
from towpath.telemetry.events import JOB_SUBMITTED
from towpath.telemetry.logs import Log
from towpath.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from towpath.ledger.ledger import Ledger
    from towpath.ledger.sessions import Transactions


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
        self._gateway: Gateway | None = None
        """Instead of an engine, for an app that can do without one for a while."""
        self._life: AsyncExitStack | None = None
        self._entered = 0
        self._blocking: BlockingEngine | None = None
        self._entering, self._connecting = asyncio.Lock(), threading.Lock()
        self._log = Log()
        _ways.add(self)

    def restart(self) -> None:
        """A forked child has none of its parent's threads and must not use its connections."""
        # Kept: what is dropped would close itself, in a loop that the parent still runs.
        self._inherited = self._life, self._engine, self._gateway, self._blocking
        self._life = self._engine = self._gateway = self._blocking = None
        self._entered = 0
        self._entering, self._connecting = asyncio.Lock(), threading.Lock()

    async def enter(self) -> None:
        async with self._entering:
            if self._entered == 0:
                await self._go_in()
            self._entered += 1

    async def _go_in(self) -> None:
        async with AsyncExitStack() as life:
            life.callback(self._forget)
            if self._recording is None:
                self._engine = await life.enter_async_context(self._connect())
            else:
                # Records are taken in while the server is away: nobody waits for it for long.
                gateway = await life.enter_async_context(Gateway(self._connect, log=self._log))
                if gateway.trouble is not None and gateway.trouble.retry is not RetryAdvice.LATER:
                    raise gateway.trouble
                self._gateway = gateway
                # After it: a relay that finds no server waits a while before it looks again.
                await self._recording.enter()
                life.push_async_callback(self._recording.leave)
            self._life = life.pop_all()

    async def leave(self) -> None:
        self._entered = max(0, self._entered - 1)
        if self._entered == 0:
            life, self._life = self._life, None
            if life is not None:
                await life.aclose()

    def _forget(self) -> None:
        self._engine = self._gateway = None

    async def connected(self) -> None:
        """Return once the server has answered. Raises ServerUnreachable if it does not in time."""
        if self._gateway is not None:
            await self._gateway.connected()

    @property
    def ledger(self) -> Ledger:
        if self._recording is None:
            raise LedgerMissing
        return self._recording.ledger

    @property
    def transactions(self) -> Transactions:
        """Records in callers' own transactions, entered or not."""
        if self._recording is None:
            raise LedgerMissing
        return self._recording.at_hand.transactions

    @property
    def engine(self) -> Engine:
        if self._gateway is not None:
            return self._gateway.engine
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
        before = self._life, self._engine, self._gateway
        counted = self._entered, self._blocking, self._entering
        self._life = self._engine = self._gateway = self._blocking = None
        self._entered, self._entering = 0, asyncio.Lock()
        try:
            yield
        finally:
            if self._blocking is not None:
                atexit.unregister(self._blocking.__exit__)
                self._blocking.__exit__()
            self._life, self._engine, self._gateway = before
            self._entered, self._blocking, self._entering = counted

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
