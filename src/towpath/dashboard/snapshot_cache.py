"""A cached snapshot of all queues, shared by all pages, and the stream that reports its changes.

However many pages are open, Redis is read once a second, and less often if there are very many
queues. While no page is open, nothing is read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeVar
from zlib import crc32

import msgspec
from fastapi import Request
from sse_starlette import ServerSentEvent

from towpath.clock import instant, steady, wall_ms
from towpath.engine.engine import Engine
from towpath.engine.history import QUEUES_MOST, History
from towpath.engine.inspect import Counts
from towpath.errors import TowpathError
from towpath.ledger.keys.key import KeyInfo
from towpath.recent import RecentCache
from towpath.supervise import retrieve_error

T = TypeVar("T")
EVERY = 1.0
_QUEUES_EACH_SECOND = 500
_AT_ONCE = 32
_RATE_OVER = 60.0
_SHARED_MOST = 1_000
_PAST_EVERY, _PAST_WAITED = 60.0, 0.15
"""Seconds until histories are read again, and for which a page waits for the first time."""


class Snapshot(NamedTuple):
    """All queues at about one moment."""

    at: float
    """The time of the monotonic clock."""
    queues: dict[str, Counts]
    rates: dict[str, dict[str, float]]
    """Jobs submitted, completed, failed and died per minute, lately, by queue; empty until there
    are two snapshots to compare."""
    schedules: str
    """A text that differs after each change of a schedule."""
    unreadable: tuple[str, ...] = ()
    """Queues whose data in Redis can't be read; they are not in `queues`."""

    def unreadable_by(self, key: KeyInfo) -> list[str]:
        return [name for name in self.unreadable if key.covers(name)]

    def seen_by(self, key: KeyInfo) -> dict[str, Counts]:
        return {name: counts for name, counts in self.queues.items() if key.covers(name)}


class SnapshotCache:
    """The shared snapshot of all queues, and a cache of other results for pages."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._last: Snapshot | None = None
        self._schedules = ""
        self._reading: asyncio.Task[Snapshot] | None = None
        self._before: deque[Snapshot] = deque()
        self._past: dict[str, History] = {}
        self._past_reading: asyncio.Task[None] | None = None
        self._past_at = 0.0
        self._cached = RecentCache[Any, asyncio.Future[Any]](_SHARED_MOST)

    async def read(self) -> Snapshot:
        """A snapshot that is at most a second old, or older if there are very many queues. Raises
        ServerError.
        """
        last = self._last
        if last is not None and steady() - last.at < self._pause(last):
            return last
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_all())
            self._reading.add_done_callback(retrieve_error)
        return await asyncio.shield(self._reading)

    async def read_with(self, queue: str) -> Snapshot:
        """The same, but read again if *queue* is missing: it may have been created just now."""
        snapshot = await self.read()
        if queue not in snapshot.queues:
            self._last = None
            snapshot = await self.read()
        return snapshot

    async def cached(
        self, what: Any, read: Callable[[], Awaitable[T]], *, lasts: float = EVERY
    ) -> T:
        """The result of *read*, cached for *lasts* seconds under the key *what*.

        *what* begins with the time of the snapshot that the result is shown with, so that the
        result is not older than that.
        """
        result = self._cached.get(what)
        if result is None:
            result = asyncio.ensure_future(read())
            result.add_done_callback(retrieve_error)
            self._cached.put(what, result, lasts=lasts)
        try:
            return await asyncio.shield(result)
        except TowpathError:
            self._cached.pop(what)
            raise

    async def histories(self) -> Mapping[str, History]:
        """The last hour of all queues, at most a minute old. Waits only briefly: the result is
        empty while the first histories are being read.
        """
        reading = self._past_reading
        if reading is None or (reading.done() and steady() - self._past_at >= _PAST_EVERY):
            self._past_at = steady()
            reading = self._past_reading = asyncio.create_task(self._read_past())
        await asyncio.wait((reading,), timeout=0 if self._past else _PAST_WAITED)
        return self._past

    async def _read_past(self) -> None:
        engine, found = self._engine, dict[str, History]()
        try:
            names = sorted(await engine.queues.names())[:QUEUES_MOST]
            for start in range(0, len(names), _AT_ONCE):
                found |= await engine.inspect.histories(names[start : start + _AT_ONCE])
        except TowpathError:
            return  # the page reports the error with its counts
        self._past = found

    def _pause(self, last: Snapshot) -> float:
        return max(EVERY, len(last.queues) / _QUEUES_EACH_SECOND)

    async def _read_all(self) -> Snapshot:
        engine, at = self._engine, steady()
        names = sorted(await engine.queues.names())
        found, changed = await asyncio.gather(
            engine.inspect.counts_of(names), engine.schedules.changes(self._schedules)
        )
        self._schedules = changed.last
        while self._before and at - self._before[0].at > _RATE_OVER:
            self._before.popleft()
        rates = _rates(self._before[0], found, at) if self._before else {}
        unreadable = tuple(name for name in names if name not in found)
        self._last = Snapshot(at, found, rates, changed.last, unreadable)
        if not self._before or at - self._before[-1].at >= 5 * EVERY:
            self._before.append(self._last)
        return self._last


def _rates(before: Snapshot, now: Mapping[str, Counts], at: float) -> dict[str, dict[str, float]]:
    minutes = (at - before.at) / 60
    if minutes <= 0:
        return {}
    return {
        name: {
            total: max(counts.totals[total] - before.queues[name].totals[total], 0) / minutes
            for total in ("submitted", "completed", "failed", "died")
        }
        for name, counts in now.items()
        if name in before.queues
    }


def checksum_of(snapshot: Snapshot, key: KeyInfo, queue: str) -> str:
    """A checksum of what a page of *queue*, or of all, shows: it differs after each change."""
    seen = snapshot.seen_by(key)
    if queue:
        seen = {queue: seen[queue]} if queue in seen else {}
    facts: list[tuple[object, ...]] = []
    if not queue:
        facts = [(snapshot.schedules, *snapshot.unreadable_by(key))]
    facts += [
        (name, now.ready, now.delayed, now.waiting, now.leased, now.dead, now.kept, now.paused,
         now.no_worker,
         *now.totals.values())
        for name, now in seen.items()
    ]  # fmt: skip
    return f"{crc32(repr(facts).encode()):08x}"


async def changes(
    snapshots: SnapshotCache, request: Request, key: KeyInfo, queue: str, mark: str
) -> AsyncGenerator[ServerSentEvent]:
    """Yield an event whenever what a page of *queue*, or of all queues, shows has changed.

    *mark* is the checksum of what the page shows first: a change since then is reported at once.
    """
    stopping: asyncio.Event = request.app.state.stopping
    last, was_away = mark, False
    yield ServerSentEvent(comment="following")
    while not stopping.is_set():
        try:
            found = checksum_of(await snapshots.read(), key, queue)
        except TowpathError as error:
            if not was_away:
                was_away = True
                yield ServerSentEvent(event="away", data=error.code)
        else:
            if was_away or found != last:
                fields = {"at": instant(wall_ms()).isoformat()}
                yield ServerSentEvent(event="changed", data=msgspec.json.encode(fields).decode())
            last, was_away = found, False
        try:
            async with asyncio.timeout(EVERY):
                await stopping.wait()
        except TimeoutError:
            continue
