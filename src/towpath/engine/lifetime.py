"""The life of an engine: created, entered, checked and left; and the parts that it opens."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Self

from towpath.clock import Clock, ServerClock
from towpath.engine.batcher import Batcher, Unbatched
from towpath.engine.blocking import BlockingPort, run_to_end
from towpath.engine.blocking_ends import BlockingEnds
from towpath.engine.channel import Limits
from towpath.engine.claiming import Claims
from towpath.engine.cluster import open_cluster
from towpath.engine.durability import Durability, ServerFacts
from towpath.engine.events import Feeds
from towpath.engine.follow import Events
from towpath.engine.inspect import Inspector
from towpath.engine.keys import PROBE
from towpath.engine.model import Outcome, Settlement
from towpath.engine.port import LoopPort, Port
from towpath.engine.queues import Queues
from towpath.engine.schedules import Schedules
from towpath.engine.script import Scripts
from towpath.engine.space import Spaces
from towpath.engine.store import Store
from towpath.engine.url import parse_url
from towpath.engine.wakeups import Waker
from towpath.engine.worker_registry import Workers
from towpath.telemetry.logs import Log

_NOT_ENTERED = "the engine is not open: use `async with Engine(…)`"
_PARTS = ("queues", "inspect", "events", "schedules")


class Lifetime(Spaces):
    """The base of `Engine`: how it is entered and left, and its parts, without its verbs."""

    queues: Queues
    """Queues: which exist, their options, pause and resume."""
    inspect: Inspector
    """Jobs, counts and lists, as they are now."""
    events: Events
    """Events of queues, and waiting for the end of a job."""
    schedules: Schedules
    """Schedules: created, changed, fired."""

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        limits: Limits | None = None,
        declared: Durability | None = None,
        scripts: Scripts | None = None,
        log: Log | None = None,
    ) -> None:
        self.url = parse_url(url)
        self._clock, self._limits = clock or ServerClock(), limits or Limits()
        in_url = Durability.parse(self.url.durability) if self.url.durability else None
        self._declared, self._scripts = declared or in_url, scripts or shipped_scripts()
        self._log = log or Log()
        self._is_entered = self._is_tolerant = False
        self._port: Port = LoopPort()
        self._spaces = {}
        self.workers = Workers(self.worker_index)

    def tolerant(self) -> Self:
        """Internal: let this engine be entered although its server is unfit. Each call then raises
        the error until the server is fixed. Call it before entering; returns the same engine.
        """
        self._is_tolerant = True
        return self

    def in_threads(self) -> Self:
        """Internal: let threads without an event loop use this engine: `run_to_end` drives its
        methods. What needs tasks is missing: waiting claims and events. Waiting for the end of a
        job works. Call it before entering; returns the same engine.
        """
        self._port, self._home = BlockingPort(), os.getpid()
        return self

    async def __aenter__(self) -> Self:
        self._cluster = open_cluster(self.url, self._port)
        self._store = Store(
            self._cluster,
            clock=self._clock,
            limits=self._limits,
            scripts=self._scripts,
            declared=self._declared,
            log=self._log,
        )
        call_for = partial(self._store.plain, "wake")
        self._waker = Waker(self._cluster, self._clock, self._store.command, call_for)
        self._claims = Claims(self._store.write, self.settle)
        self._feeds = Feeds(self._cluster, self._store, give_up=self._limits.give_up)
        in_threads = self._port.in_threads
        self._batcher = Unbatched(self._store) if in_threads else Batcher(self._store)
        self.queues, self.inspect = Queues(self._store), Inspector(self._store, self.workers)
        give_up, self._blocking_ends = self._limits.give_up, None
        if isinstance(self._port, BlockingPort):
            ends = BlockingEnds(self._cluster, self._store, self._port, give_up=give_up)
            self._blocking_ends = ends
        self.events = Events(self._store, self._feeds, self._blocking_ends)
        self.schedules = Schedules(self._store, self.schedule_index, self.queues.list)
        try:
            await self._store.connect(tolerant=self._is_tolerant)
        except BaseException:
            await self._store.close()
            await self._cluster.close()
            raise
        self._is_entered = True
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._batcher.close()
        await self._claims.close()
        await self._store.close()
        if self._blocking_ends is not None:
            await self._blocking_ends.close()
        await self._feeds.close()
        await self._waker.close()
        await self._cluster.close()

    def close_here(self) -> None:
        """Internal: leave an engine entered `in_threads`. Does nothing in a forked child."""
        if self._home == os.getpid():
            run_to_end(self.__aexit__())

    def close_at_exit(self) -> None:
        """Internal: as `close_here`, at the end of the program. Threads that wait for a job are not
        woken: only daemon threads are left by then.
        """
        if self._home == os.getpid() and self._blocking_ends is not None:
            self._blocking_ends.leave_at_exit()
        self.close_here()

    @property
    def facts(self) -> ServerFacts:
        """What the server said about itself when it was last asked: on entering, after each
        reconnect, and by `check`. Raises ServerUnreachable if it has never answered.
        """
        if not self._is_entered:
            raise RuntimeError(_NOT_ENTERED)
        return self._store.facts

    @property
    def goes_by_server_clock(self) -> bool:
        """Internal: whether due times are by the server's clock, not by that of a test."""
        return isinstance(self._clock, ServerClock)

    async def check(self) -> ServerFacts:
        """Ask the server about itself now, for at most two seconds; on a cluster, every master.

        Raises ServerUnreachable, EvictionUnsafe, DurabilityUnknown, ServerRefused.
        """
        return await self._store.check()

    async def current_facts(self) -> ServerFacts:
        """What the server said about itself at most a second ago; it is asked again if need be.

        Settings may be changed while it runs. Raises as `check` does.
        """
        return await self._store.current_facts()

    async def try_write(self) -> None:
        """Check that the server accepts a write. Leaves nothing behind. One round trip.

        On a cluster, checks the server of one slot. Raises ServerError.
        """
        await self._store.command("SET", PROBE, "1", "PX", 1)

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        """Settle leases of any queues: see `Engine`."""
        raise NotImplementedError

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            if name in _PARTS:
                raise RuntimeError(_NOT_ENTERED)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


@lru_cache(maxsize=1)
def shipped_scripts() -> Scripts:
    """The scripts as they are shipped: composed once in a process, which takes some 50 ms."""
    return Scripts()
