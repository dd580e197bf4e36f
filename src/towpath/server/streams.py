"""Event streams (SSE): a queue's events, replayed from where the client left off, then live.

All clients of one queue share one reader; a client costs an inbox and a socket.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from itertools import groupby

import msgspec
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Message, Receive, Scope, Send

from towpath.engine.engine import Engine
from towpath.engine.events import Event
from towpath.errors import FellBehind, InvalidOption
from towpath.server.limits import Streams

PING_S = 15
_PAGE = 1000


def stream(events: AsyncGenerator[ServerSentEvent], streams: Streams) -> EventSourceResponse:
    """An answer that goes on. 503 if too many are open."""
    streams.refuse_if_full()
    return _Counted(events, streams)


class _Counted(EventSourceResponse):
    """Counted from the first byte to the last, whoever ends it; ended in good form."""

    def __init__(self, events: AsyncGenerator[ServerSentEvent], streams: Streams) -> None:
        super().__init__(events, ping=PING_S, headers={"Cache-Control": "no-store"})  # pyright: ignore[reportUnknownMemberType] -- as the library has it
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        open_ended = True

        async def noted(message: Message) -> None:
            nonlocal open_ended
            open_ended = message.get("more_body", open_ended)
            await send(message)

        with self._streams.one_more():
            await super().__call__(scope, receive, noted)
            if open_ended:
                # A server that drains: the library breaks off, the client should see an end.
                await send({"type": "http.response.body", "body": b"", "more_body": False})


async def begun(events: AsyncGenerator[ServerSentEvent]) -> AsyncGenerator[ServerSentEvent]:
    """*events* after the first of them: so the answer begins when nothing can be missed."""
    first = await anext(events)

    async def all_of_them() -> AsyncGenerator[ServerSentEvent]:
        async with aclosing(events):
            yield first
            async for event in events:
                yield event

    return all_of_them()


async def queue_events(
    engine: Engine, queue: str, last_id: str | None
) -> AsyncGenerator[ServerSentEvent]:
    """What happens in *queue*: after *last_id* as far as it is kept, then as it happens.

    Who reads too slowly is told so (`fell_behind`), and gets what is kept of what he missed.
    """
    seen = None if last_id is None else _place(last_id)
    async with engine.follow(queue) as live:
        yield ServerSentEvent(comment="following")
        while True:
            if seen is not None:
                async for event, place in _kept(engine, queue, *seen):
                    seen = event.cursor, place
                    yield _sent(event, place)
            try:
                async for event, place in _placed(live):
                    if seen is None or _order(*seen) < _order(event.cursor, place):
                        seen = event.cursor, place
                        yield _sent(event, place)
            except FellBehind as behind:
                yield ServerSentEvent(event="fell_behind", data=str(behind))


async def _kept(
    engine: Engine, queue: str, cursor: str, index: int
) -> AsyncGenerator[tuple[Event, int]]:
    """The rest of the entry that the client had a part of, and what came after it."""
    before = _before(cursor)
    while page := await engine.events(queue, after=before, size=_PAGE):
        for place, event in _numbered(page):
            if _order(event.cursor, place) > _order(cursor, index):
                yield event, place
        before = page[-1].cursor


def _numbered(events: list[Event]) -> list[tuple[int, Event]]:
    return [
        numbered for _, entry in groupby(events, key=lambda it: it.cursor)
        for numbered in enumerate(entry)
    ]  # fmt: skip


async def _placed(events: AsyncIterator[Event]) -> AsyncGenerator[tuple[Event, int]]:
    """Events with their place in their entry: several of one script call share a cursor."""
    cursor, place = "", 0
    async for event in events:
        place = place + 1 if event.cursor == cursor else 0
        cursor = event.cursor
        yield event, place


def _sent(event: Event, place: int) -> ServerSentEvent:
    data = msgspec.json.encode({"verb": event.verb, "job": event.job.id}).decode()
    return ServerSentEvent(event=event.verb, id=f"{event.cursor}.{place}", data=data)


def check_last_id(last_id: str | None) -> None:
    """Raises InvalidOption for what is no event's id."""
    if last_id is not None:
        _place(last_id)


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


def _before(cursor: str) -> str:
    """A cursor just before *cursor*, so that its own entry is read too."""
    ms, number, _ = _order(cursor, 0)
    if number:
        return f"{ms}-{number - 1}"
    return f"{ms - 1}-{10**17}" if ms else "0-0"
