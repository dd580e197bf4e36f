"""Watching some jobs of a queue: one reader of its events per process, and who asks for which.

A watch is told that something happened, not what: it looks for itself. So a thousand watches cost
a set of ids each, and an event costs a look-up, not a thousand deliveries.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager, suppress

from towpath.clock import Duration
from towpath.engine.engine import Engine
from towpath.engine.events import Entry, Wanted, read_entries
from towpath.ids import queue_name

ENDINGS = frozenset({"complete", "dead", "cancel"})
"""The verbs that end a job."""


class Watch:
    """What somebody wants to know: which jobs, and which verbs (none named = all)."""

    def __init__(self, index: dict[str, set[Watch]], verbs: frozenset[str]) -> None:
        self._index, self._verbs = index, verbs
        self._ids: dict[str, None] = {}
        self._changed: set[str] = set()
        self._flag = asyncio.Event()

    def only(self, ids: Iterable[str]) -> None:
        """Watch these jobs, and no others."""
        wanted = set(ids)
        for id in self._ids.keys() - wanted:
            self.drop(id)
        for id in wanted - self._ids.keys():
            self.add(id)

    def add(self, id: str) -> None:
        self._ids[id] = None
        self._index.setdefault(id, set()).add(self)

    def drop(self, id: str) -> None:
        self._ids.pop(id, None)
        watches = self._index.get(id, set())
        watches.discard(self)
        if not watches:
            self._index.pop(id, None)

    def keep_newest(self, most: int) -> None:
        """Watch no more than *most*; the oldest go first."""
        while len(self._ids) > most:
            self.drop(next(iter(self._ids)))

    async def change(self, *, within: Duration | None = None) -> set[str]:
        """The jobs to which something happened since the last call; none in time = empty."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within.total_seconds() if within else None):
                await self._flag.wait()
        changed, self._changed = self._changed, set()
        self._flag.clear()
        return changed

    def tell(self, verb: str, id: str) -> None:
        if not self._verbs or verb in self._verbs:
            self._changed.add(id)
            self._flag.set()

    def tell_all(self) -> None:
        self._changed |= self._ids.keys()
        self._flag.set()


class Watching:
    """The watches of one process; it listens to *queue* while there are any."""

    def __init__(self, engine: Engine, queue: str) -> None:
        self._engine, self._queue = engine, queue_name(queue)
        self._index: dict[str, set[Watch]] = {}
        self._watches: set[Watch] = set()

    @asynccontextmanager
    async def watch(self, verbs: frozenset[str] = frozenset()) -> AsyncGenerator[Watch]:
        """A watch that misses nothing from the moment it is entered.

        Raises QueueHasNoEvents, ServerUnreachable.
        """
        watch = Watch(self._index, verbs)
        self._watches.add(watch)
        try:
            wanted = Wanted.ENDS if verbs and verbs <= ENDINGS else Wanted.ALL
            async with self._engine.events.listen(self._queue, self, wanted):
                yield watch
        finally:
            self._watches.discard(watch)
            watch.only(())

    def tell(self, entries: list[Entry]) -> None:
        for event in read_entries(self._queue, entries):
            for watch in self._index.get(event.job.id, ()):
                watch.tell(event.verb, event.job.id)

    def lost(self) -> None:
        for watch in self._watches:
            watch.tell_all()
