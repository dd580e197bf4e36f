"""Following a queue: its events as they happen, and waiting for the end of jobs.

Events only say when to look: the outcome of a job is read from the job itself. A waiter looks at
its job when it begins to wait, after an event of the job, when events may be missing, every few
seconds in any case, and once more at its time limit. The looks of all waiters of one queue share
their calls.
"""

from __future__ import annotations

import asyncio
import builtins
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any

from towpath.clock import Duration, DurationLike, duration, format_duration, seconds, steady
from towpath.engine.check import integer
from towpath.engine.events import (
    ENDS,
    Entry,
    Event,
    Feeds,
    Follower,
    Wanted,
    Watch,
    is_gap,
    read_entries,
)
from towpath.engine.inspect import ended_job
from towpath.engine.keys import keys_of
from towpath.engine.model import JobInfo, JobRef
from towpath.engine.options import EventPolicy
from towpath.engine.store import Store
from towpath.errors import (
    FellBehind,
    InvalidOption,
    JobNotFound,
    QueueHasNoEvents,
    ServerUnreachable,
    StillOpen,
    TowpathError,
)
from towpath.ids import JobId, QueueName, queue_name

if TYPE_CHECKING:
    from towpath.engine.blocking_ends import BlockingEnds

LARGEST_PAGE = 1000
LOOK_EVERY = seconds(5)
"""How often a waiter looks in any case: Redis writes no events while its memory is full."""
_AT_ONCE = 500
_ROOM = 2**20
"""Bytes of payloads and results after which Redis answers `later` for further jobs that ended."""
_NO_ROOM = 0
"""With no room, Redis answers `later` for every job that has ended."""
_LAST = 1.0
"""Extra seconds for the last look of a wait."""


class Events:
    """The events of queues, and waiting for the end of a job: `engine.events`."""

    def __init__(self, store: Store, feeds: Feeds, blocking: BlockingEnds | None = None) -> None:
        """*blocking* waits for ends in threads without an event loop."""
        self._store, self._feeds, self._blocking = store, feeds, blocking
        self._ends: dict[QueueName, _EndWaits] = {}

    async def list(self, queue: str, *, after: str = "0-0", size: int = 100) -> list[Event]:
        """Events that are still kept, oldest first; *after* is the cursor of an event, or `0-0`.

        Raises FellBehind if events behind *after* are missing; its `cursor` is where to go on. If a
        caller lists again within a minute, no event is missing: listing keeps events being written.
        """
        name, size = queue_name(queue), integer("size", size, 1, LARGEST_PAGE)
        await self._feeds.want(name, Wanted.ALL)
        _, behind = await self._read_kept(name, _check_cursor(after), size)
        return read_entries(name, behind)

    async def rest(self, queue: QueueName, cursor: str, *, size: int = 100) -> list[Event]:
        """Internal: as `list`, but with the events of the entry *cursor* itself, of which a client
        may have got only some.
        """
        await self._feeds.want(queue, Wanted.ALL)
        own, behind = await self._read_kept(queue, _check_cursor(cursor), size, with_own=True)
        return read_entries(queue, [*own, *behind])

    async def _read_kept(
        self, queue: QueueName, after: str, size: int, *, with_own: bool = False
    ) -> tuple[list[Entry], list[Entry]]:
        """The entry *after*, and the entries behind it up to the next gap. Raises FellBehind if the
        entry is gone, or if a gap follows it at once; but not for such a gap *with_own*, when the
        entry's own events are to be returned first.
        """
        key, own = keys_of(queue).events, list[Entry]()
        command = ("XRANGE", key, after, "+", "COUNT", size + 1)
        found: list[Entry] = await self._store.command(*command)
        if after != _START:
            if not found or found[0][0].decode() != after:
                older = await self._store.command("XREVRANGE", key, after, "-", "COUNT", 1)
                text = f"the event {after} is no longer kept, nor are some of those behind it"
                raise FellBehind(text, cursor=older[0][0].decode() if older else _START)
            own = [found.pop(0)]
        is_first = not (with_own and own and not is_gap(own[0]))
        if found and is_gap(found[0]) and is_first:
            text = f"events of queue {queue} were not written, because nobody followed it"
            raise FellBehind(text, cursor=found[0][0].decode())
        return own, list(takewhile(lambda entry: not is_gap(entry), found[:size]))

    @asynccontextmanager
    async def follow(self, queue: str) -> AsyncGenerator[AsyncIterator[Event]]:
        """The events of *queue*, from the moment this is entered, as they happen.

        One blocking read per queue and process, however many follow. A follower that is too far
        behind, or whose events Redis has lost, gets FellBehind. Raises QueueHasNoEvents; the
        follower raises it too, once, when the queue's options are changed to write no events.
        """
        async with self.follow_batches(queue) as live:
            yield live

    @asynccontextmanager
    async def follow_batches(self, queue: str) -> AsyncGenerator[Follower]:
        """Internal: as `follow`, but with the events of one read as a batch."""
        name = queue_name(queue)
        await self.require(name)
        async with self._feeds.follow(name) as live:
            yield live

    def is_new(self, queue: QueueName, most: int) -> bool:
        """Internal: whether *queue* is not followed yet, and *most* other queues are."""
        return queue not in self._feeds and len(self._feeds) >= most

    async def newest(self, queue: str) -> str:
        """The cursor of the latest event of *queue*; `0-0` = none yet. A caller that lists the
        events behind it within a minute misses none.
        """
        return (await self._feeds.want(queue_name(queue), Wanted.ALL)).newest.decode()

    @asynccontextmanager
    async def watch(self, queue: str, verbs: frozenset[str] = frozenset()) -> AsyncGenerator[Watch]:
        """Watch some jobs of *queue*, for these *verbs* or for all. Nothing is missed from the
        moment this is entered. Raises QueueHasNoEvents, ServerUnreachable.
        """
        name = queue_name(queue)
        await self.require(name)
        async with self._feeds.watching(name, verbs) as watch:
            yield watch

    async def ended(self, job: JobRef, *, within: DurationLike) -> JobInfo:
        """Wait until the job has ended, and return it: done with its result, dead with its reason,
        or cancelled.

        Raises StillOpen if it has not ended *within* that time, and JobNotFound if it is gone; with
        `keep` = 0, the queue does not keep finished jobs. Does not poll; thousands may wait at
        once. Goes on waiting while Redis is unreachable, and raises ServerUnreachable if it still
        is at the end.
        """
        limit, since = duration("within", within), steady()
        with suppress(ServerUnreachable):  # Redis may answer again before the time is up
            await self.require(job.queue, within=limit.total_seconds() + _LAST)
        if self._blocking is not None:
            return await self._blocking.ended(job, limit, since=since)
        ends = self._ends.get(job.queue)
        if ends is None:
            ends = self._ends[job.queue] = _EndWaits(job.queue, self._feeds, self._look_at_ends)
        wait = ends.enter(job.id)
        try:
            return await wait.end(job, limit, since=since)
        finally:
            ends.leave(wait)
            if ends.is_empty:
                # Nothing is awaited in between, so no other caller can use `ends` after its end.
                ends.close()
                self._ends.pop(job.queue, None)

    async def find_ended(self, queue: str, ids: Iterable[str]) -> builtins.list[str]:
        """Internal: the ids of the jobs that have ended and are kept. One round trip per 500
        ids.
        """
        wanted, found = [*ids], builtins.list[str]()
        for start in range(0, len(wanted), _AT_ONCE):
            some = wanted[start : start + _AT_ONCE]
            answers = await self._store.read("ended", queue_name(queue), _NO_ROOM, "\n".join(some))
            found += [id for id, answer in zip(some, answers, strict=True) if answer == b"later"]
        return found

    async def require(self, queue: QueueName, *, within: float | None = None) -> None:
        """Raises QueueHasNoEvents if *queue* has no events."""
        store, none = self._store, EventPolicy.NONE
        known = await store.known_options(queue, within=within)
        if known.events is none and (await store.options(queue, within=within)).events is none:
            raise QueueHasNoEvents(queue)

    async def _look_at_ends(self, queue: QueueName, ids: list[JobId]) -> list[Any]:
        return await self._store.read("ended", queue, _ROOM, "\n".join(ids))


class _Wait:
    """A waiter for the end of a job."""

    __slots__ = ("_look", "found", "id", "over", "trouble")

    def __init__(self, id: JobId, look: Callable[[JobId], None]) -> None:
        self.id, self._look = id, look
        self.found: asyncio.Future[JobInfo | None] = asyncio.get_running_loop().create_future()
        """The job that has ended; None = it is open, and the time is over."""
        self.over = False
        """Whether the time is over; the next look is the last."""
        self.trouble: TowpathError | None = None
        """Why the last look failed."""

    async def end(self, ref: JobRef, within: Duration, *, since: float) -> JobInfo:
        """The job, once it has ended. Raises StillOpen."""
        left = max(since + within.total_seconds() - steady(), 0)
        await asyncio.wait((self.found,), timeout=left)
        if not self.found.done():
            self.over = True
            self._look(self.id)
            await asyncio.wait((self.found,), timeout=_LAST)
        job = self.found.result() if self.found.done() else None
        if job is not None:
            return job
        raise self.trouble or StillOpen(ref, format_duration(within))


class _EndWaits:
    """The waiters for the end of jobs of one queue, by job."""

    def __init__(
        self,
        queue: QueueName,
        feeds: Feeds,
        ask: Callable[[QueueName, list[JobId]], Awaitable[list[Any]]],
    ) -> None:
        self._queue, self._feeds, self._ask = queue, feeds, ask
        self._watch = feeds.watch(queue, ENDS, self._look_at)
        self._waits: dict[JobId, list[_Wait]] = {}
        self._due: dict[JobId, None] = {}
        """The jobs to look at, in the order in which they became due."""
        self._looking: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no waiter is left."""
        return not self._waits

    def enter(self, id: JobId) -> _Wait:
        wait = _Wait(id, self._look_at)
        self._waits.setdefault(id, []).append(wait)
        self._watch.add(id)
        if self._timer is None:
            self._set_timer()
        self._look_at(id)
        return wait

    def leave(self, wait: _Wait) -> None:
        self._waits[wait.id].remove(wait)
        if not self._waits[wait.id]:
            del self._waits[wait.id]
            self._watch.drop(wait.id)
            self._due.pop(wait.id, None)
        if not self._waits and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        self._feeds.leave(self._queue, self._watch)

    # ── when to look ─────────────────────────────────────────────────────────────────────

    def _set_timer(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(LOOK_EVERY.total_seconds(), self._look_regularly)

    def _look_regularly(self) -> None:
        self._set_timer()
        self._watch.tell_all()

    def _look_at(self, id: str) -> None:
        if id not in self._waits:
            return
        self._due[JobId(id)] = None
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
            self._looking.add_done_callback(self._raise_defect)

    # ── looking ──────────────────────────────────────────────────────────────────────────

    async def _look(self) -> None:
        while self._due:
            ids = list(islice(self._due, _AT_ONCE))
            for id in ids:
                del self._due[id]
            await self._look_at_some({id: list(self._waits[id]) for id in ids})
        # Nothing is awaited between the last check of `_due` and this, so no job is left due.
        self._looking = None

    def _raise_defect(self, looking: asyncio.Task[None]) -> None:
        """If the look ended with a defect, raise it in all waiters: nothing else would end them."""
        if looking.cancelled() or (defect := looking.exception()) is None:
            return
        self._looking = None
        self._due.clear()
        for wait in [wait for some in self._waits.values() for wait in some]:
            _end_wait(wait, defect)

    async def _look_at_some(self, waits: dict[JobId, list[_Wait]]) -> None:
        last = [wait for some in waits.values() for wait in some if wait.over]
        try:
            answers = await self._ask(self._queue, list(waits))
        except TowpathError as error:
            self._fail_waits(waits, last, error)
            return
        for (id, some), answer in zip(waits.items(), answers, strict=True):
            for wait in some:
                wait.trouble = None
            if answer == b"later":
                self._look_at(id)
            elif answer == b"gone":
                for wait in some:
                    _end_wait(wait, JobNotFound(JobRef(self._queue, id)))
            elif answer != b"open":
                job = ended_job(JobRef(self._queue, id), *answer)
                for wait in some:
                    _end_wait(wait, job)
        for wait in last:
            _end_wait(wait, None)

    def _fail_waits(
        self, waits: dict[JobId, list[_Wait]], last: list[_Wait], error: TowpathError
    ) -> None:
        """If Redis is unreachable, only waiters whose time is over fail: the others look again. Any
        other error fails all.
        """
        passing = isinstance(error, ServerUnreachable)
        for some in waits.values():
            for wait in some:
                wait.trouble = error
                if not passing or wait in last:
                    _end_wait(wait, error)


def _end_wait(wait: _Wait, outcome: JobInfo | BaseException | None) -> None:
    if wait.found.done():
        return
    if isinstance(outcome, BaseException):
        wait.found.set_exception(outcome)
        wait.found.exception()  # marked as retrieved, as the waiter may have left
    else:
        wait.found.set_result(outcome)


_CURSOR = re.compile(r"([0-9]{1,19})-([0-9]{1,18})")


_START = "0-0"


def _check_cursor(cursor: str) -> str:
    match = _CURSOR.fullmatch(cursor) if isinstance(cursor, str) else None  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
    if match is None:
        raise InvalidOption("after", cursor, rule="must be the cursor of an event")
    return f"{int(match[1])}-{int(match[2])}"
