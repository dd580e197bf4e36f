"""Events: a capped stream per queue, one entry per script call, read once for all who listen.

A `Feed` is the one blocking read of a queue. It knows its place in the stream and sees whether
that is still there: if not, something may have been missed, and all who listen are told so.
Coming and going takes no time: nothing is awaited between a look at who listens and what is done
about it, so that nobody can come or go unnoticed.

Events are written only while somebody wants them (`Wanted`): a feed says so to Redis before it
takes its place in the stream, and again every 20 s. Redis answers with the name of the time since
which all such events were written. Another name than before means that some may not have been.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from enum import StrEnum
from itertools import groupby
from typing import Any, NamedTuple, Protocol, Self

import msgspec

from towpath.clock import Duration, seconds, steady
from towpath.engine.connect import Line, Link
from towpath.engine.keys import keys_of
from towpath.engine.model import JobRef
from towpath.engine.resp import TROUBLE
from towpath.engine.store import Store
from towpath.engine.time_limit import wait_within
from towpath.errors import FellBehind, ServerUnreachable, TowpathError
from towpath.ids import JobId, QueueName
from towpath.supervise import Background

_BLOCK = seconds(5)
_SLACK = 3.0
_PAGE = 100
_UNREAD_MOST = 10_000
"""A follower that is further behind loses its place and is told so."""
_LINGER = 1.0
"""Seconds that a feed goes on without listeners: whoever waits for one job after the other would
connect anew for each."""
_START = b"0-0"
_FEW = 10
"""A stream that was empty a moment ago and has fewer entries than this was not cut since."""
_CHECK_EVERY = 12
"""Reads without an event after which the place is checked all the same."""
_WANTED_MS, _WANTED_AGAIN = 90_000, 20.0
"""How long events are written after somebody wanted them, and after how many seconds a feed says so
again: together at least a minute after the last follower has left."""
_GAP = b"gap"
"""The verb of an entry that stands for events that were not written."""


class Wanted(StrEnum):
    """Which events somebody wants: the field of the queue that says until when."""

    ALL = "watched"
    ENDS = "awaited"
    """The ends of jobs: complete, dead, cancel, delete."""


class Asked(NamedTuple):
    """What Redis answers to somebody who wants events."""

    name: str
    """Of the time since which they were written without a gap; empty if there is no such queue."""
    newest: bytes
    """The last entry of the stream."""


class Event(msgspec.Struct, frozen=True):
    """Something that happened to a job. *verb* is the change; `dead` stands for a death."""

    cursor: str
    """Its place in the stream; pass it as `after` to get later events."""
    verb: str
    job: JobRef


Entry = tuple[bytes, list[bytes]]
"""An entry of the stream: its id; verbs, each followed by the ids of its jobs, one per line."""


def read_entries(queue: QueueName, entries: list[Entry]) -> list[Event]:
    """The events behind the entries of a stream, in order."""
    found: list[Event] = []
    for cursor, flat in entries:
        for i in range(0, len(flat), 2):
            for id in flat[i + 1].decode().split("\n") if flat[i] != _GAP else ():
                ref = JobRef(queue, JobId(id))
                found.append(Event(cursor.decode(), flat[i].decode(), ref))
    return found


def is_gap(entry: Entry) -> bool:
    """Whether the entry stands for events that were not written."""
    return entry[1][:1] == [_GAP]


class EventListener(Protocol):
    """Who is told what happens in a queue."""

    def tell(self, entries: list[Entry]) -> None:
        """These came, in this order."""
        ...

    def lost(self) -> None:
        """From here on events are told; of those before, some may not have been."""
        ...


class Feeds:
    """What the queues tell: one blocking read for each to which anybody listens."""

    def __init__(
        self, link: Link, store: Store, *, give_up: Duration, block: Duration = _BLOCK
    ) -> None:
        self._link, self._store = link, store
        self._give_up_s, self._block_s = give_up.total_seconds(), block.total_seconds()
        self._feeds: dict[QueueName, _Feed] = {}
        self._lines: list[Line] = []

    async def want(self, queue: QueueName, wanted: Wanted) -> Asked:
        """Have such events of *queue* written for the next one and a half minutes.

        Whoever remembers a place in the stream, or looks at a job and then waits for its events,
        does this before. Raises ServerError.
        """
        answer = await self._store.read("follow", queue, wanted, _WANTED_MS, secrets.token_hex(8))
        return Asked(answer[0].decode(), answer[1])

    @asynccontextmanager
    async def listening(
        self, queue: QueueName, listener: EventListener, wanted: Wanted
    ) -> AsyncGenerator[None]:
        """Tell *listener* all events that it wants, from the moment this is entered.

        Raises ServerUnreachable.
        """
        feed = self._feed(queue)
        feed.enter(listener, wanted)
        try:
            try:
                await wait_within(self._give_up_s, feed.reading.wait)
            except TimeoutError as error:
                text = f"the events of queue {queue} could not be read for {self._give_up_s} s"
                raise ServerUnreachable(text) from error
            if feed.should_ask(wanted):
                await feed.ask(wanted)
            yield
        finally:
            feed.leave(listener, wanted)

    def enter(self, queue: QueueName, listener: EventListener) -> None:
        """Tell *listener* the ends of jobs; `lost` first, once the reading has begun."""
        self._feed(queue).enter(listener, Wanted.ENDS)

    def leave(self, queue: QueueName, listener: EventListener) -> None:
        """Tell it no more, once it has left as often as it has entered: `lost` is the last word."""
        if (feed := self._feeds.get(queue)) is not None:
            feed.leave(listener, Wanted.ENDS)

    @asynccontextmanager
    async def follow(self, queue: QueueName) -> AsyncGenerator[Follower]:
        """Who follows *queue*, from the moment this is entered. Raises ServerError."""
        feed = self._feed(queue)
        async with self.listening(queue, feed.tape, Wanted.ALL):
            # The feed may not have read all yet that was there before.
            at = feed.tape.end
            yield Follower(feed.tape, at, after=(await feed.ask(Wanted.ALL)).newest)

    async def close(self) -> None:
        for feed in list(self._feeds.values()):
            await feed.close()
        self._feeds.clear()

    def _feed(self, queue: QueueName) -> _Feed:
        feed = self._feeds.get(queue)
        if feed is None:
            line = self._lines.pop() if self._lines else self._link.line()
            feed = self._feeds[queue] = _Feed(queue, line, self._block_s, self.want, self._over)
        return feed

    def _over(self, queue: QueueName, line: Line) -> None:
        del self._feeds[queue]
        self._lines.append(line)


class _Feed:
    """The blocking read of one queue's events, under way while anybody listens."""

    def __init__(
        self,
        queue: QueueName,
        line: Line,
        block_s: float,
        want: Callable[[QueueName, Wanted], Awaitable[Asked]],
        over: Callable[[QueueName, Line], None],
    ) -> None:
        self._queue, self._line, self._block_s = queue, line, block_s
        self._want, self._over = want, over
        self._key = keys_of(queue).events
        self._listeners: Counter[EventListener] = Counter()
        self._wanted: Counter[Wanted] = Counter()
        self._asked: dict[Wanted, tuple[str, float]] = {}
        """By what was asked for: the name of the time that it is written for, and when to ask
        again."""
        self._left_at = 0.0
        self._place: bytes | None = None
        self._sure = True
        """Whether the place was there when last asked for, on the same connection."""
        self._quiet = 0
        self.tape = _Tape(queue)
        self.reading = asyncio.Event()
        self._running = Background(f"reader of {queue}'s events", self._run).start()

    def enter(self, listener: EventListener, wanted: Wanted) -> None:
        self._listeners[listener] += 1
        self._wanted[wanted] += 1

    def leave(self, listener: EventListener, wanted: Wanted) -> None:
        self._wanted[wanted] -= 1
        self._listeners[listener] -= 1
        if not self._listeners[listener]:
            del self._listeners[listener]
            listener.lost()
        self._left_at = steady()

    async def close(self) -> None:
        await self._running.stop()
        await self._line.hang_up()
        self._lost()

    def should_ask(self, wanted: Wanted) -> bool:
        """Whether it is time to say again that such events are wanted."""
        return steady() >= self._asked.get(wanted, ("", 0.0))[1]

    async def ask(self, wanted: Wanted) -> Asked:
        """Have such events written. Listeners are told if some were not. Raises ServerError."""
        asked, is_lost = await self._ask(wanted)
        if is_lost:
            self._lost()
        return asked

    async def _ask(self, wanted: Wanted) -> tuple[Asked, bool]:
        """The same; whether some were not written."""
        asked = await self._want(self._queue, wanted)
        before, _ = self._asked.get(wanted, ("", 0.0))
        self._asked[wanted] = asked.name, steady() + _WANTED_AGAIN
        return asked, bool(before) and asked.name != before

    async def _run(self) -> None:
        pause, self._sure = 0.0, False  # it may have been interrupted anywhere
        while not self._alone():
            try:
                await self._read()
                pause = 0.0
            except (*TROUBLE, TowpathError):
                self._sure = False
                await self._line.hang_up()
                pause = min(pause * 2 or 0.05, 1.0)
                await asyncio.sleep(pause)
            if self._alone():
                self._sure = False  # who comes now reads on another connection
                await self._line.hang_up()
        self._running.retire()
        self._over(self._queue, self._line)

    def _alone(self) -> bool:
        return not self._listeners and steady() - self._left_at >= _LINGER

    async def _read(self) -> None:
        """Read on, once. What is told is told after the place in the stream was seen to."""
        wanted = self._most_wanted
        if not self._sure or (self._listeners and self.should_ask(wanted)):
            asked, is_lost = await self._ask(wanted)
            if not self._sure and (self._place is None or not await self._held(())):
                self._place, is_lost = asked.newest, True
            if is_lost:
                self._lost()
            self.reading.set()
        self._sure = True
        entries = await self._next(self._place or _START)
        if entries:
            is_lost = not await self._held(entries)
            if not self._asked.get(wanted, ("", 0.0))[0] or any(map(is_gap, entries)):
                # The queue is new, or nobody had asked for a while. Whoever is told looks at jobs.
                if not self._listeners:
                    self._left_at -= _LINGER
                    return
                is_lost |= (await self._ask(wanted))[1]
            self._place = entries[-1][0]
            if is_lost:
                self._lost()
            self._tell(entries)
        # A stream that was made anew while a clock was set back has its entries before our place.
        self._quiet = 0 if entries else self._quiet + 1
        self._sure = self._quiet % _CHECK_EVERY != _CHECK_EVERY - 1

    async def _next(self, place: bytes) -> list[Entry]:
        block_ms = int(self._block_s * 1000)
        async with asyncio.timeout(self._block_s + _SLACK):
            answer: Any = await self._line.send(
                "XREAD", "COUNT", _PAGE, "BLOCK", block_ms, "STREAMS", self._key, place
            )
        return answer[0][1] if answer else []

    async def _held(self, entries: list[Entry] | tuple[()]) -> bool:
        """Whether nothing between the place and *entries*, which were read after it, was dropped.

        Streams are cut from the front: while the entry of the place is there, so is all behind it.
        """
        if self._place == _START:
            return len(entries) < _FEW
        async with asyncio.timeout(_SLACK):
            command = ("XRANGE", self._key, self._place, self._place, "COUNT", 1)
            return bool(await self._line.send(*command))

    @property
    def _most_wanted(self) -> Wanted:
        return Wanted.ALL if self._wanted[Wanted.ALL] else Wanted.ENDS

    def _tell(self, entries: list[Entry]) -> None:
        for gap, some in groupby(entries, is_gap):
            if gap:
                self._lost()
            else:
                told = list(some)
                for listener in list(self._listeners):
                    listener.tell(told)

    def _lost(self) -> None:
        for listener in list(self._listeners):
            listener.lost()


class _Tape:
    """The last events of a queue, kept once for all who follow it: each has a place on it."""

    def __init__(self, queue: QueueName) -> None:
        self._queue = queue
        self._kept: deque[Event] = deque(maxlen=_UNREAD_MOST)
        self._news = asyncio.Event()
        self.end = 0
        """The number of the event that comes next."""

    @property
    def start(self) -> int:
        """The number of the oldest event that is kept."""
        return self.end - len(self._kept)

    def __getitem__(self, number: int) -> Event:
        return self._kept[number - self.end]

    def tell(self, entries: list[Entry]) -> None:
        events = read_entries(self._queue, entries)
        self._kept.extend(events)
        self.end += len(events)
        self._wake()

    def lost(self) -> None:
        # A number that nobody can read: who stands before it sees that something is missing.
        self._kept.clear()
        self.end += 1
        self._wake()

    async def news(self) -> None:
        """Return when there is more."""
        await self._news.wait()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


class Follower:
    """The events of a queue as they happen, for one who follows it.

    Raises FellBehind where some are missing, and goes on from there.
    """

    def __init__(self, tape: _Tape, at: int, *, after: bytes) -> None:
        self._tape, self._at = tape, at
        self._after: tuple[int, int] | None = _place(after)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while True:
            if self._at < self._tape.start:
                # With a lead, where it was too slow: not to fall behind again at once.
                self._at = max(self._tape.start, self._tape.end - _UNREAD_MOST // 2)
                self._after = None
                raise FellBehind("events came faster than they were read, or the server lost some")
            if self._at == self._tape.end:
                await self._tape.news()
                continue
            event = self._tape[self._at]
            self._at += 1
            if self._after is None or _place(event.cursor.encode()) > self._after:
                self._after = None
                return event


def _place(cursor: bytes) -> tuple[int, int]:
    ms, _, number = cursor.partition(b"-")
    return int(ms), int(number)
