"""Events: a capped stream per queue, one entry per script call, and who follows it live."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

import msgspec

from towpath.clock import seconds
from towpath.engine.connect import Line, Link
from towpath.engine.keys import keys_of
from towpath.engine.layout import TROUBLE
from towpath.engine.model import JobRef
from towpath.errors import FellBehind
from towpath.ids import JobId, QueueName

_BLOCK = seconds(5)
_SLACK = 3.0
_PAGE = 100
_UNREAD_MOST = 10_000
"""A follower that is further behind loses its place and is told so."""


class Event(msgspec.Struct, frozen=True):
    """Something that happened to a job. *verb* is the verb that did it; `dead` names a death."""

    cursor: str
    """Where in the stream: ask for what came after it."""
    verb: str
    job: JobRef


def read_entries(queue: QueueName, entries: list[Any]) -> list[Event]:
    """The events behind the entries of a stream, in order."""
    found: list[Event] = []
    for cursor, flat in entries:
        for i in range(0, len(flat), 2):
            for id in flat[i + 1].decode().split("\n"):
                ref = JobRef(queue, JobId(id))
                found.append(Event(cursor.decode(), flat[i].decode(), ref))
    return found


class Followers:
    """Live events: one blocking read per queue, however many follow it."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._readers: dict[QueueName, _Reader] = {}

    @asynccontextmanager
    async def follow(self, queue: QueueName) -> AsyncGenerator[AsyncIterator[Event]]:
        """What happens in *queue* from the moment this is entered."""
        reader = self._readers.get(queue)
        if reader is None:
            reader = self._readers[queue] = _Reader(self._link.line(), queue)
        inbox = _Inbox()
        await reader.add(inbox)
        try:
            yield inbox
        finally:
            await reader.remove(inbox)

    async def close(self) -> None:
        for reader in self._readers.values():
            await reader.close()


class _Inbox:
    """The events that one follower has not read yet."""

    def __init__(self) -> None:
        self._unread: asyncio.Queue[Event | FellBehind] = asyncio.Queue()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        event = await self._unread.get()
        if isinstance(event, FellBehind):
            raise event
        return event

    def put(self, events: list[Event]) -> None:
        if self._unread.qsize() + len(events) > _UNREAD_MOST:
            while not self._unread.empty():
                self._unread.get_nowait()
            self._unread.put_nowait(FellBehind("events came faster than they were read"))
            return
        for event in events:
            self._unread.put_nowait(event)


class _Reader:
    """The blocking read of one queue's events, under way while somebody follows."""

    def __init__(self, line: Line, queue: QueueName) -> None:
        self._line, self._queue = line, queue
        self._key = keys_of(queue).events
        self._inboxes: list[_Inbox] = []
        self._task: asyncio.Task[None] | None = None

    async def add(self, inbox: _Inbox) -> None:
        self._inboxes.append(inbox)
        if self._task is None or self._task.done():
            reading = asyncio.Event()
            self._task = asyncio.create_task(self._read(reading))
            await reading.wait()

    async def remove(self, inbox: _Inbox) -> None:
        self._inboxes.remove(inbox)
        if not self._inboxes:
            await self.close()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
            self._task = None
        await self._line.hang_up()

    async def _read(self, reading: asyncio.Event) -> None:
        last: bytes | None = None
        block_ms = int(_BLOCK.total_seconds() * 1000)
        while True:
            try:
                async with asyncio.timeout(_BLOCK.total_seconds() + _SLACK):
                    if last is None:
                        last = await self._newest()
                    reading.set()
                    answer: Any = await self._line.send(
                        "XREAD", "COUNT", _PAGE, "BLOCK", block_ms, "STREAMS", self._key, last
                    )
            except TROUBLE:
                await self._line.hang_up()
                await asyncio.sleep(0.1)
                continue
            if answer:
                entries: list[Any] = answer[0][1]
                last = entries[-1][0]
                self._deliver(read_entries(self._queue, entries))

    async def _newest(self) -> bytes:
        entries = await self._line.send("XREVRANGE", self._key, "+", "-", "COUNT", 1)
        return entries[0][0] if entries else b"0-0"

    def _deliver(self, events: list[Event]) -> None:
        for inbox in self._inboxes:
            inbox.put(events)
