"""Event streams (SSE): a queue's events, replayed from where the client left off, then live.

All clients of one queue share one reader: what happens is put into words once, and a client costs
a list of what it has not been sent yet, and a socket.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from itertools import groupby
from typing import NamedTuple

import msgspec
from fastapi import Request
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Message, Receive, Scope, Send

from towpath.engine.engine import Engine
from towpath.engine.events import Event
from towpath.errors import FellBehind, InvalidOption, ServerError
from towpath.ids import QueueName
from towpath.supervise import look_at_error
from towpath.web.open_requests import Hold, OpenKind, OpenRequests
from towpath.web.problems import Refused

PING_S = 15
_PAGE = 1000
_UNSENT_MOST = 10_000
"""Events that wait for a client that reads slowly; one that is further behind is told so."""
_QUEUES_MOST = 500
"""Queues that are followed at once: each takes a connection to the store."""
Chunk = bytes | ServerSentEvent


# ── answers that go on ───────────────────────────────────────────────────────────────────


async def stream(events: AsyncGenerator[Chunk], request: Request) -> EventSourceResponse:
    """An answer that goes on until its credential ends. 429, 503 if too many are open."""
    try:
        return _Counted(events, _open_requests(request).open(request, OpenKind.STREAM))
    except Refused:
        await events.aclose()
        raise


def refuse_if_full(request: Request) -> None:
    """429, 503 if too many streams are open: for a stream that costs something to begin."""
    _open_requests(request).refuse_if_full(request, OpenKind.STREAM)


def _open_requests(request: Request) -> OpenRequests:
    return request.app.state.open_requests


class _Counted(EventSourceResponse):
    """Counted from the first byte to the last, whoever ends it; ended in good form."""

    def __init__(self, events: AsyncGenerator[Chunk], hold: Hold) -> None:
        super().__init__(events, ping=PING_S, headers={"Cache-Control": "no-store"})  # pyright: ignore[reportUnknownMemberType] -- as the library has it
        self._hold = hold

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun, open_ended = False, True

        async def noted(message: Message) -> None:
            nonlocal begun, open_ended
            begun, open_ended = True, message.get("more_body", open_ended)
            await send(message)

        until, loop = asyncio.timeout(None), asyncio.get_running_loop()
        try:
            async with until:
                self._hold.on_end(lambda: until.reschedule(loop.time()))
                await super().__call__(scope, receive, noted)
        except TimeoutError:
            if not until.expired():
                raise
        finally:
            self._hold.close()
        if begun and open_ended:
            # A server that stops, or a credential that has ended: the client should see an end.
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def begun(events: AsyncGenerator[Chunk]) -> AsyncGenerator[Chunk]:
    """*events* after the first of them: so the answer begins when nothing can be missed."""
    first = await anext(events)

    async def all_of_them() -> AsyncGenerator[Chunk]:
        async with aclosing(events):
            yield first
            async for event in events:
                yield event

    return all_of_them()


# ── one reader for all who follow a queue ────────────────────────────────────────────────


class _Told(NamedTuple):
    """An event in the words of a stream."""

    order: tuple[int, int, int]
    cursor: str
    place: int
    text: bytes


class _Batch(NamedTuple):
    """What came at once, put together once for all."""

    events: list[_Told]
    text: bytes


class _Unsent:
    """What one client has not been sent yet."""

    def __init__(self) -> None:
        self._batches: deque[_Batch] = deque()
        self._size = 0
        self._news = asyncio.Event()
        self._behind: BaseException | None = None

    def put(self, batch: _Batch) -> None:
        self._batches.append(batch)
        self._size += len(batch.events)
        if self._size > _UNSENT_MOST:
            self.lose(FellBehind("events came faster than they were read"))
        self._news.set()

    def lose(self, why: BaseException) -> None:
        """Nothing of what waits is sent; the client is told why."""
        self._batches.clear()
        self._size, self._behind = 0, why
        self._news.set()

    async def next(self) -> _Batch:
        """What comes next. Raises FellBehind, and whatever ended the reading."""
        while not self._batches:
            if self._behind is not None:
                behind, self._behind = self._behind, None
                raise behind
            self._news.clear()
            await self._news.wait()
        batch = self._batches.popleft()
        self._size -= len(batch.events)
        return batch


class Followed:
    """The queues that somebody follows, each read once."""

    def __init__(self) -> None:
        self._readers: dict[str, _Reader] = {}

    @asynccontextmanager
    async def unsent(self, engine: Engine, queue: str) -> AsyncGenerator[_Unsent]:
        """What happens in *queue* from now on, for one client. Raises what
        `engine.events.follow` does; 503 if too many queues are followed.
        """
        reader = self._readers.get(queue)
        if reader is None or reader.over or reader.engine is not engine:
            if len(self._readers) >= _QUEUES_MOST:
                raise Refused(
                    503,
                    "too_many_streams",
                    f"the limit of {_QUEUES_MOST} followed queues on this server is reached",
                    remedy="Follow fewer queues, or start another server.",
                    headers={"Retry-After": "5"},
                )
            reader = self._readers[queue] = _Reader(engine, queue)
        mine = _Unsent()
        reader.clients.append(mine)
        try:
            await asyncio.shield(reader.reading)
            yield mine
        finally:
            reader.clients.remove(mine)
            if not reader.clients:
                if self._readers.get(queue) is reader:
                    del self._readers[queue]
                await reader.close()


class _Reader:
    """Reads a queue's events while somebody follows it."""

    def __init__(self, engine: Engine, queue: str) -> None:
        self.engine, self._queue = engine, queue
        self.clients: list[_Unsent] = []
        self.reading: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.reading.add_done_callback(look_at_error)
        self._pending: list[_Told] = []
        self._task = asyncio.create_task(self._read())
        self._task.add_done_callback(self._is_over)

    @property
    def over(self) -> bool:
        """Whether it reads no more: who comes then needs another."""
        return self._task.done()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait((self._task,))

    async def _read(self) -> None:
        async with self.engine.events.follow(self._queue) as live:
            self.reading.set_result(None)
            while True:
                try:
                    await self._tell(live)
                except FellBehind as behind:
                    self._flush()
                    for client in self.clients:
                        client.lose(behind)

    async def _tell(self, live: AsyncIterator[Event]) -> None:
        """Put events together until there is none to be had at once, and tell all."""
        loop = asyncio.get_running_loop()
        async for event, place in _placed(live):
            if not self._pending:
                # Called when this task waits: by then all that was there is in.
                loop.call_soon(self._flush)
            self._pending.append(_told(event, place))

    def _flush(self) -> None:
        events, self._pending = self._pending, []
        if events:
            batch = _Batch(events, b"".join(event.text for event in events))
            for client in self.clients:
                client.put(batch)

    def _is_over(self, task: asyncio.Task[None]) -> None:
        """Whatever ended it is told to all who follow."""
        error = None if task.cancelled() else task.exception()
        if error is None:
            self.reading.cancel()
            return
        if not self.reading.done():
            self.reading.set_exception(error)
        for client in self.clients:
            client.lose(error)


async def queue_events(
    engine: Engine, followed: Followed, queue: QueueName, last_id: str | None
) -> AsyncGenerator[Chunk]:
    """What happens in *queue*: after *last_id* as far as it is kept, then as it happens.

    Who reads too slowly is told so (`fell_behind`), and gets what is kept of what he missed.
    """
    async with followed.unsent(engine, queue) as unsent:
        # The reader may not have read all yet that was there before.
        seen = _place(last_id) if last_id else (await engine.events.newest(queue), _LAST_PLACE)
        yield ServerSentEvent(comment="following")
        is_told = False
        while True:
            try:
                async for event in _kept(engine, queue, *seen):
                    seen, is_told = (event.cursor, event.place), False
                    yield event.text
            except FellBehind as gap:
                seen = gap.cursor, _LAST_PLACE
                if not is_told:
                    yield _fell_behind(gap)
                is_told = True
                continue
            is_told = False
            try:
                while True:
                    batch = await unsent.next()
                    last = batch.events[-1]
                    after = _order(*seen)
                    if after >= last.order:
                        continue
                    whole = after < batch.events[0].order
                    seen = last.cursor, last.place
                    yield (
                        batch.text
                        if whole
                        else b"".join(event.text for event in batch.events if event.order > after)
                    )
            except FellBehind as behind:
                yield _fell_behind(behind)
                is_told = True
            except ServerError:
                return  # the client comes back with the last id, and is told then what is wrong


async def _kept(engine: Engine, queue: QueueName, cursor: str, index: int) -> AsyncGenerator[_Told]:
    """The rest of the entry that the client had a part of, and what came after it."""
    after = _order(cursor, index)
    page = await engine.events.rest(queue, cursor, size=_PAGE)
    while page:
        for place, event in _numbered(page):
            if _order(event.cursor, place) > after:
                yield _told(event, place)
        page = await engine.events.list(queue, after=page[-1].cursor, size=_PAGE)


def _fell_behind(gap: FellBehind) -> ServerSentEvent:
    """With the place behind the gap, so that a client that comes back is not told again."""
    id = f"{gap.cursor}.0" if gap.cursor else None
    return ServerSentEvent(event="fell_behind", data=str(gap), id=id)


def _numbered(events: list[Event]) -> list[tuple[int, Event]]:
    return [
        numbered for _, entry in groupby(events, key=lambda event: event.cursor)
        for numbered in enumerate(entry)
    ]  # fmt: skip


async def _placed(events: AsyncIterator[Event]) -> AsyncGenerator[tuple[Event, int]]:
    """Events with their place in their entry: several of one script call share a cursor."""
    cursor, place = "", 0
    async for event in events:
        place = place + 1 if event.cursor == cursor else 0
        cursor = event.cursor
        yield event, place


def _told(event: Event, place: int) -> _Told:
    data = msgspec.json.encode({"verb": event.verb, "job": event.job.id}).decode()
    sent = ServerSentEvent(event=event.verb, id=f"{event.cursor}.{place}", data=data)
    return _Told(_order(event.cursor, place), event.cursor, place, sent.encode())


def check_last_id(last_id: str | None) -> None:
    """Raises InvalidOption for what is no event's id."""
    if last_id is not None:
        _place(last_id)


_LAST_PLACE = 10**6
_ID = re.compile(r"([0-9]{1,15}-[0-9]{1,15})(?:\.([0-9]{1,6}))?")


def _place(last_id: str) -> tuple[str, int]:
    """Cursor and place behind a `Last-Event-ID`. Raises InvalidOption."""
    match = _ID.fullmatch(last_id)
    if match is None:
        raise InvalidOption("Last-Event-ID", last_id[:80], rule="must be the id of an event")
    return match[1], int(match[2] or 0)


def _order(cursor: str, place: int) -> tuple[int, int, int]:
    ms, _, number = cursor.partition("-")
    return int(ms), int(number), place
