"""Events: a capped stream per queue, one entry per script call, read once for all followers.

A `_Feed` reads the events of one queue for the whole process, with a single blocking read. It
passes them on in two ways: through a log of the last events, in which each `Follower` has a
position, and through an index of jobs, by which each `Watch` learns of its own jobs. The feed
remembers its place in the stream, the last entry that it read, and checks that the entry is still
there. If not, events may have been missed, and all followers and watches learn that. Nothing is
awaited between checking who follows and acting on it, so no follower can join or leave in between.

Events are written only while somebody wants them (`Wanted`). A feed asks Redis for them before it
takes its place in the stream, and again every 20 s. Redis answers with the name of the period for
which all such events were written. If the name differs from the last one, some may not have been
written. Redis also reports if the queue's options are `events="none"` now. Then every follower gets
QueueHasNoEvents once, and the feed goes on asking, in case the options are changed back.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from enum import StrEnum
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple, Self, TypeVar

import msgspec

from towpath.backoff import Backoff
from towpath.clock import Duration, seconds, steady
from towpath.engine.channel import Channel
from towpath.engine.cluster import Cluster
from towpath.engine.keys import keys_of
from towpath.engine.model import JobRef
from towpath.engine.resp import TROUBLE
from towpath.engine.store import Store
from towpath.engine.time_limit import wait_within
from towpath.errors import FellBehind, QueueHasNoEvents, ServerUnreachable, TowpathError
from towpath.ids import JobId, QueueName
from towpath.supervise import Background

T = TypeVar("T")
ENDS = frozenset({"complete", "dead", "cancel", "delete"})
"""The verbs that end a job, as `publish.lua` knows them."""
_BLOCK = seconds(5)
_SLACK = 3.0
_PAGE = 100
_UNREAD_MOST = 10_000
"""Events that the log keeps. A follower that is further behind gets FellBehind."""
_LINGER = 1.0
"""Seconds that a feed goes on without followers: otherwise a caller that waits for one job after
the other would connect again for each."""
_START = b"0-0"
_FEW = 10
"""A stream that was empty a moment ago and has fewer entries than this was not trimmed since."""
_CHECK_EVERY = 12
"""Reads without an event after which the place is checked nevertheless."""
_WANTED_MS, _WANTED_AGAIN = 90_000, 20.0
"""For how long Redis writes events after a request for them, and the seconds after which a feed
requests them again. So events are written for at least a minute after the last follower has left.
"""
_GAP = b"gap"
"""The verb of an entry that marks a gap: events before it were not written."""


class Wanted(StrEnum):
    """Which events are wanted. A value names the queue's field with the time until which they are
    written.
    """

    ALL = "watched"
    ENDS = "awaited"
    """The ends of jobs: complete, dead, cancel, delete."""


class FollowReply(NamedTuple):
    """What Redis answers to a request for events."""

    name: str
    """The name of the period for which they were written without a gap; empty if the queue does not
    exist.
    """
    newest: bytes
    """The id of the last entry of the stream."""
    is_refused: bool
    """Whether the queue's options are `events="none"`: nobody can follow it."""


class Event(msgspec.Struct, frozen=True):
    """Something that happened to a job. *verb* is the change; `dead` stands for a death."""

    cursor: str
    """Its place in the stream; pass it as `after` to get later events."""
    verb: str
    job: JobRef


Entry = tuple[bytes, list[bytes]]
"""An entry of the stream: its id, and verbs, each followed by the ids of its jobs, one per line."""


def read_entries(queue: QueueName, entries: list[Entry]) -> list[Event]:
    """The events in the entries of a stream, in order."""
    found: list[Event] = []
    for cursor, flat in entries:
        for i in range(0, len(flat), 2):
            for id in flat[i + 1].decode().split("\n") if flat[i] != _GAP else ():
                ref = JobRef(queue, JobId(id))
                found.append(Event(cursor.decode(), flat[i].decode(), ref))
    return found


def is_gap(entry: Entry) -> bool:
    """Whether the entry marks a gap."""
    return entry[1][:1] == [_GAP]


class Batch:
    """The events of one read, or a gap."""

    def __init__(self, queue: QueueName, entries: list[Entry]) -> None:
        self._queue, self.entries = queue, entries
        self.size = sum(ids.count(b"\n") + 1 for _, flat in entries for ids in flat[1::2])
        self._formatted: object = None

    @property
    def gap(self) -> str:
        """The cursor of the gap; empty if these are events."""
        return self.entries[-1][0].decode() if is_gap(self.entries[-1]) else ""

    @cached_property
    def events(self) -> list[Event]:
        return read_entries(self._queue, self.entries)

    def put(self, into_words: Callable[[Batch], T]) -> T:
        """What *into_words* makes of the batch, made once for all followers."""
        if self._formatted is None:
            self._formatted = into_words(self)
        return self._formatted  # pyright: ignore[reportReturnType] -- there is one way to put them


class Watch:
    """Some jobs of a queue whose events a caller wants to know of: events of *verbs*, none = all.

    A watch learns that something happened to a job, or may have, but not what: its caller looks at
    the job. So a thousand watches cost a set of ids each, and an event costs a look-up. *changed*
    is called with the job's id; without it, the ids are collected for `change`.
    """

    def __init__(
        self,
        index: dict[str, set[Watch]],
        verbs: frozenset[str],
        changed: Callable[[str], None] | None = None,
    ) -> None:
        self._index, self.verbs, self._changed = index, verbs, changed or self._collect
        self._ids: dict[str, None] = {}
        self._collected: set[str] = set()
        self._refused_queue: str | None = None
        self._flag = asyncio.Event()

    @property
    def wanted(self) -> Wanted:
        return Wanted.ENDS if self.verbs and self.verbs <= ENDS else Wanted.ALL

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
        """The jobs to which something happened since the last call; empty if nothing did *within*
        the time.

        Raises QueueHasNoEvents, once, when the queue's options are changed to write none.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(within.total_seconds() if within else None):
                await self._flag.wait()
        queue, self._refused_queue = self._refused_queue, None
        if queue is not None:
            raise QueueHasNoEvents(queue)
        changed, self._collected = self._collected, set()
        self._flag.clear()
        return changed

    def _collect(self, id: str) -> None:
        self._collected.add(id)
        self._flag.set()

    def note_event(self, verb: str, id: str) -> None:
        if not self.verbs or verb in self.verbs:
            self._changed(id)

    def refuse(self, queue: QueueName) -> None:
        """The queue writes no events from now on."""
        self._refused_queue = queue
        self._flag.set()
        self.tell_all()

    def tell_all(self) -> None:
        """Report every job as changed, because events may be missing."""
        for id in list(self._ids):
            self._changed(id)


class Feeds:
    """The feeds of an engine: one blocking read for each queue that has followers."""

    def __init__(
        self, cluster: Cluster, store: Store, *, give_up: Duration, block: Duration = _BLOCK
    ) -> None:
        self._cluster, self._store = cluster, store
        self._give_up_s, self._block_s = give_up.total_seconds(), block.total_seconds()
        self._feeds: dict[QueueName, _Feed] = {}
        self._spare_channels: list[Channel] = []

    def __len__(self) -> int:
        return len(self._feeds)

    def __contains__(self, queue: QueueName) -> bool:
        return queue in self._feeds

    async def want(self, queue: QueueName, wanted: Wanted) -> FollowReply:
        """Request that such events of *queue* are written for the next one and a half minutes.

        A caller does this before it remembers a place in the stream, and before it looks at a job
        whose events it will wait for. Raises ServerError.
        """
        answer = await self._store.read("follow", queue, wanted, _WANTED_MS, secrets.token_hex(8))
        return FollowReply(answer[0].decode(), answer[1], answer[2] == b"none")

    def watch(
        self, queue: QueueName, verbs: frozenset[str], changed: Callable[[str], None]
    ) -> Watch:
        """A watch, of no job yet, until `leave`. *changed* is called for each of its jobs when the
        reading begins, and whenever events may be missing.
        """
        return self._feed(queue).add_watch(verbs, changed)

    def leave(self, queue: QueueName, watch: Watch) -> None:
        """End a watch."""
        if (feed := self._feeds.get(queue)) is not None:
            feed.drop_watch(watch)

    @asynccontextmanager
    async def watching(self, queue: QueueName, verbs: frozenset[str]) -> AsyncGenerator[Watch]:
        """A watch that misses nothing from the moment this is entered. Raises QueueHasNoEvents,
        ServerError.
        """
        feed = self._feed(queue)
        watch = feed.add_watch(verbs)
        try:
            await self._wait_for_reading(queue, feed)
            if feed.is_refused or feed.should_ask(watch.wanted):
                await feed.ask(watch.wanted)
            yield watch
        finally:
            feed.drop_watch(watch)

    @asynccontextmanager
    async def follow(self, queue: QueueName) -> AsyncGenerator[Follower]:
        """A follower of *queue*, from the moment this is entered. Raises QueueHasNoEvents,
        ServerError.
        """
        feed = self._feed(queue)
        feed.add_reader()
        try:
            await self._wait_for_reading(queue, feed)
            while True:
                # The feed may still read older events: `after` leaves them out.
                at = feed.log.end
                reply = await feed.ask(Wanted.ALL)
                if at >= feed.log.start:  # else the log was cleared meanwhile, for other followers
                    break
            yield Follower(queue, feed.log, at, after=reply.newest)
        finally:
            feed.drop_reader()

    async def close(self) -> None:
        for feed in list(self._feeds.values()):
            await feed.close()
        self._feeds.clear()

    async def _wait_for_reading(self, queue: QueueName, feed: _Feed) -> None:
        try:
            await wait_within(self._give_up_s, feed.reading.wait)
        except TimeoutError as error:
            text = f"the events of queue {queue} could not be read for {self._give_up_s} s"
            raise ServerUnreachable(text) from error

    def _feed(self, queue: QueueName) -> _Feed:
        feed = self._feeds.get(queue)
        if feed is None:
            channel = (
                self._spare_channels.pop() if self._spare_channels else self._cluster.channel()
            )
            feed = self._feeds[queue] = _Feed(
                queue, channel, self._block_s, self.want, self._remove_feed
            )
        return feed

    def _remove_feed(self, queue: QueueName, channel: Channel) -> None:
        del self._feeds[queue]
        self._spare_channels.append(channel)


class _Feed:
    """The blocking read of one queue's events, which runs while the queue has followers."""

    def __init__(
        self,
        queue: QueueName,
        channel: Channel,
        block_s: float,
        want: Callable[[QueueName, Wanted], Awaitable[FollowReply]],
        remove_feed: Callable[[QueueName, Channel], None],
    ) -> None:
        self._queue, self._channel, self._block_s = queue, channel, block_s
        self._want, self._remove_feed = want, remove_feed
        self._key = keys_of(queue).events
        self._index: dict[str, set[Watch]] = {}
        self._watches: set[Watch] = set()
        self._wanted: Counter[Wanted] = Counter()
        """How many followers and watches want which events."""
        self._requests: dict[Wanted, tuple[str, float]] = {}
        """For the events that were requested: the name of the period without a gap, and when to
        request them again."""
        self._readers = 0
        """The number of followers that read the log."""
        self._left_at = 0.0
        self._place: bytes | None = None
        self._is_sure = True
        """Whether the place was in the stream when last checked, on the same connection."""
        self._empty_reads = 0
        self._has_missed = False
        """Whether events were lost and followers do not know yet: the connection may break in
        between.
        """
        self.is_refused = False
        """Whether the queue's options were `events="none"` at the last request for events."""
        self.log = _Log()
        self.reading = asyncio.Event()
        self._running = Background(f"reader of {queue}'s events", self._run).start()

    def add_watch(
        self, verbs: frozenset[str], changed: Callable[[str], None] | None = None
    ) -> Watch:
        watch = Watch(self._index, verbs, changed)
        self._watches.add(watch)
        self._wanted[watch.wanted] += 1
        return watch

    def drop_watch(self, watch: Watch) -> None:
        watch.only(())
        self._watches.discard(watch)
        self._leave(watch.wanted)

    def add_reader(self) -> None:
        self._readers += 1
        self._wanted[Wanted.ALL] += 1

    def drop_reader(self) -> None:
        self._readers -= 1
        self._leave(Wanted.ALL)
        if not self._readers:
            self.log.lose()

    def _leave(self, wanted: Wanted) -> None:
        self._wanted[wanted] -= 1
        self._left_at = steady()
        if not self._wanted[Wanted.ALL]:
            # Events that are not written from now on are no loss for later followers.
            self._requests.pop(Wanted.ALL, None)

    async def close(self) -> None:
        await self._running.stop()
        await self._channel.hang_up()
        self._report_loss()

    def should_ask(self, wanted: Wanted) -> bool:
        """Whether it is time to request such events again."""
        return all(
            steady() >= self._requests.get(known, ("", 0.0))[1] for known in (wanted, Wanted.ALL)
        )

    async def ask(self, wanted: Wanted) -> FollowReply:
        """Request that such events are written. If some may not have been, all followers and
        watches learn that. Raises QueueHasNoEvents, ServerError.
        """
        reply, is_lost = await self._ask(wanted)
        if is_lost:
            self._report_loss()
        if reply.is_refused:
            self._requests.pop(wanted, None)  # `_read` then asks again soon, and ends all followers
            raise QueueHasNoEvents(self._queue)
        return reply

    async def _ask(self, wanted: Wanted) -> tuple[FollowReply, bool]:
        """Returns the reply, and whether some events may not have been written.

        That the queue refuses followers is noted only by `_read`, after it has passed on the events
        that were written before.
        """
        reply = await self._want(self._queue, wanted)
        before, _ = self._requests.get(wanted, ("", 0.0))
        self._requests[wanted] = reply.name, steady() + _WANTED_AGAIN
        if reply.is_refused:
            return reply, False
        was_refused, self.is_refused = self.is_refused, False
        return reply, was_refused or (bool(before) and reply.name != before)

    def _refuse(self) -> None:
        """Notify all that the queue writes no events; once, until it has events again."""
        if not self.is_refused:
            self.is_refused = True
            self.log.refuse()
            for watch in list(self._watches):
                watch.refuse(self._queue)

    async def _run(self) -> None:
        backoff = Backoff(0.05, 1.0)
        self._is_sure = False  # an earlier run may have ended in the middle of a read
        while not self._is_abandoned():
            try:
                await self._read()
                backoff.reset()
            except (*TROUBLE, TowpathError):
                self._is_sure = False
                await self._channel.hang_up()
                await asyncio.sleep(backoff.next_pause())
            if self._is_abandoned():
                self._is_sure = False  # a follower that joins meanwhile needs a new connection
                await self._channel.hang_up()
        self._running.retire()
        self._remove_feed(self._queue, self._channel)

    def _is_abandoned(self) -> bool:
        return not self._is_followed and steady() - self._left_at >= _LINGER

    async def _read(self) -> None:
        """Read the next events, once. The place is updated before events are passed on."""
        wanted = self._most_wanted
        if not self._is_sure or (self._is_followed and self.should_ask(wanted)):
            reply, is_lost = await self._ask(wanted)
            self._has_missed |= is_lost
            if not self._is_sure and (self._place is None or not await self._is_gapless(())):
                self._place, self._has_missed = reply.newest, True
            if self._has_missed:
                self._has_missed = False
                self._report_loss()
            if reply.is_refused:
                self._refuse()
            self.reading.set()
        self._is_sure = True
        entries = await self._read_next(self._place or _START)
        if entries:
            is_lost, is_refused = not await self._is_gapless(entries), self.is_refused
            wanted, gaps = self._most_wanted, any(map(is_gap, entries))
            known = any(name for name, _ in self._requests.values())
            # While the options are `none`, each request is followed by a gap; an event shows that
            # the options were changed back.
            if not known or (not all(map(is_gap, entries)) if is_refused else gaps):
                # The queue is new, or events were not requested for a while: request them before
                # passing on the entries, as watches then look at their jobs.
                if not self._is_followed:
                    self._left_at -= _LINGER
                    return
                reply, is_unmarked = await self._ask(wanted)
                is_refused = reply.is_refused
                is_lost |= is_unmarked or (gaps and not known and not is_refused)
            self._place = entries[-1][0]
            if is_lost:
                self._report_loss()
            if is_lost or is_refused:
                entries = [entry for entry in entries if not is_gap(entry)]
            self._pass_on(entries)
            if is_refused:
                self._refuse()
        # If the stream was created again while a clock was set back, its entries come before our
        # place, and reads find none: so the place is checked after some empty reads.
        self._empty_reads = 0 if entries else self._empty_reads + 1
        self._is_sure = self._empty_reads % _CHECK_EVERY != _CHECK_EVERY - 1

    async def _read_next(self, place: bytes) -> list[Entry]:
        block_ms = int(self._block_s * 1000)
        async with asyncio.timeout(self._block_s + _SLACK):
            answer: Any = await self._channel.send(
                "XREAD", "COUNT", _PAGE, "BLOCK", block_ms, "STREAMS", self._key, place
            )
        return answer[0][1] if answer else []

    async def _is_gapless(self, entries: list[Entry] | tuple[()]) -> bool:
        """Whether no event between the place and *entries*, which were read after it, was dropped.

        Streams are trimmed from the front: while the entry of the place is there, so are all behind
        it.
        """
        if self._place == _START:
            return len(entries) < _FEW
        async with asyncio.timeout(_SLACK):
            command = ("XRANGE", self._key, self._place, self._place, "COUNT", 1)
            return bool(await self._channel.send(*command))

    @property
    def _most_wanted(self) -> Wanted:
        return Wanted.ALL if self._wanted[Wanted.ALL] else Wanted.ENDS

    @property
    def _is_followed(self) -> bool:
        return bool(self._watches or self._readers)

    def _pass_on(self, entries: list[Entry]) -> None:
        for _, some in groupby(entries, is_gap):
            batch = Batch(self._queue, list(some))
            if self._readers:
                self.log.add(batch)
            if self._index and not batch.gap:
                self._notify_watches(batch.entries)

    def _notify_watches(self, entries: list[Entry]) -> None:
        for _, flat in entries:
            for i in range(0, len(flat), 2):
                verb = flat[i].decode()
                for id in flat[i + 1].decode().split("\n"):
                    for watch in tuple(self._index.get(id, ())):
                        watch.note_event(verb, id)

    def _report_loss(self) -> None:
        self.log.lose()
        self._notify_all_watches()

    def _notify_all_watches(self) -> None:
        for watch in list(self._watches):
            watch.tell_all()


class _Log:
    """The last events of a queue, kept once for all its followers. Each has a position in it."""

    def __init__(self) -> None:
        self._batches: deque[Batch] = deque()
        self._size = 0
        self._news = asyncio.Event()
        self.end = 0
        """The number that the next batch gets."""
        self.refusals = 0
        """How often the queue's options were changed to write no events."""

    @property
    def start(self) -> int:
        """The number of the oldest batch that is kept."""
        return self.end - len(self._batches)

    @property
    def middle(self) -> int:
        """The number of the oldest batch from which on at most half of _UNREAD_MOST events are
        left.
        """
        number, size = self.end, 0
        for batch in reversed(self._batches):
            size += batch.size
            if size > _UNREAD_MOST // 2:
                break
            number -= 1
        return number

    def __getitem__(self, number: int) -> Batch:
        return self._batches[number - self.end]

    def add(self, batch: Batch) -> None:
        self._batches.append(batch)
        self._size += batch.size
        self.end += 1
        while self._size > _UNREAD_MOST and len(self._batches) > 1:
            self._size -= self._batches.popleft().size
        self._wake()

    def lose(self) -> None:
        # A number without a batch: followers that have not passed it see that events are missing.
        self._batches.clear()
        self._size = 0
        self.end += 1
        self._wake()

    def refuse(self) -> None:
        """The queue writes no events from now on."""
        self.refusals += 1
        self._wake()

    async def news(self) -> None:
        """Return when the log changes."""
        await self._news.wait()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


class Follower:
    """The events of a queue as they happen, for one follower.

    Raises FellBehind if events are missing; all of those happened before it was raised. Then it
    goes on with the events that are there, which may begin before the gap. Raises QueueHasNoEvents
    once when the queue's options are changed to write no events. If they are changed back, it goes
    on, after FellBehind.
    """

    def __init__(self, queue: QueueName, log: _Log, at: int, *, after: bytes) -> None:
        self._queue, self._log, self._position = queue, log, at
        self._refusals = log.refusals
        self._unread: deque[Event] = deque()
        self.after = after.decode()
        """The cursor after which its events begin. The first batch may have some before that."""

    async def batch(self) -> Batch:
        """The next batch. Raises FellBehind, QueueHasNoEvents."""
        while True:
            while self._position == self._log.end:
                if self._refusals != self._log.refusals:
                    self._refusals = self._log.refusals
                    raise QueueHasNoEvents(self._queue)
                await self._log.news()
            if self._position < self._log.start:
                # If it was too slow, it gets a lead of half the log, or it would fall behind again.
                self._position, self.after = self._log.middle, ""
                raise FellBehind("events came faster than they were read, or Redis lost some")
            batch = self._log[self._position]
            self._position += 1
            if not batch.gap:
                return batch
            if not self.after or _parse_cursor(batch.gap) > _parse_cursor(self.after):
                self.after = ""
                raise FellBehind("events were not written for a while", cursor=batch.gap)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._unread:
            events = (await self.batch()).events
            if self.after:
                after = _parse_cursor(self.after)
                events = [event for event in events if _parse_cursor(event.cursor) > after]
                self.after = "" if events else self.after
            self._unread.extend(events)
        return self._unread.popleft()


def _parse_cursor(cursor: str) -> tuple[int, int]:
    ms, _, number = cursor.partition("-")
    return int(ms), int(number)
