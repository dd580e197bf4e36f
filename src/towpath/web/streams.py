"""Event streams (SSE): a queue's events, replayed from where the client left off, then live.

All clients of one queue share the engine's follower: each event is encoded once, and a client costs
only a position in the follower's log, and a socket.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import groupby
from typing import NamedTuple

import msgspec
from fastapi import Request
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Message, Receive, Scope, Send

from towpath.engine.engine import Engine
from towpath.engine.events import Batch, Event, Follower
from towpath.errors import FellBehind, InvalidOption, QueueHasNoEvents, ServerError
from towpath.ids import QueueName
from towpath.web.open_requests import Hold, OpenKind, OpenRequests
from towpath.web.problems import Refused

PING_S = 15
_PAGE = 1000
_QUEUES_MOST = 500
"""Maximum number of queues that are followed at once: each needs a connection to Redis."""
Chunk = bytes | ServerSentEvent


# ── streaming responses ──────────────────────────────────────────────────────────────────


async def stream(events: AsyncGenerator[Chunk], request: Request) -> EventSourceResponse:
    """A response that streams *events* until its credential ends. Raises Refused (429, 503) if too
    many streams are open.
    """
    try:
        return _CountedStream(events, _open_requests(request).open(request, OpenKind.STREAM))
    except Refused:
        await events.aclose()
        raise


def refuse_if_full(request: Request) -> None:
    """Raises Refused (429, 503) if too many streams are open. Call it before work that `stream`
    would waste.
    """
    _open_requests(request).refuse_if_full(request, OpenKind.STREAM)


def _open_requests(request: Request) -> OpenRequests:
    return request.app.state.open_requests


class _CountedStream(EventSourceResponse):
    """A response that counts as an open stream until it ends, and always ends with a last chunk."""

    def __init__(self, events: AsyncGenerator[Chunk], hold: Hold) -> None:
        super().__init__(events, ping=PING_S, headers={"Cache-Control": "no-store"})  # pyright: ignore[reportUnknownMemberType] -- the library does not type it
        self._hold = hold

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun, open_ended = False, True

        async def note_message(message: Message) -> None:
            nonlocal begun, open_ended
            begun, open_ended = True, message.get("more_body", open_ended)
            await send(message)

        until, loop = asyncio.timeout(None), asyncio.get_running_loop()
        try:
            async with until:
                self._hold.on_end(lambda: until.reschedule(loop.time()))
                await super().__call__(scope, receive, note_message)
        except TimeoutError:
            if not until.expired():
                raise
        finally:
            self._hold.close()
        if begun and open_ended:
            # The server stops or the credential has ended: send the client a proper end.
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def start_stream(events: AsyncGenerator[Chunk]) -> AsyncGenerator[Chunk]:
    """Returns *events* once the first of them is there: from then on the client misses nothing."""
    first = await anext(events)

    async def all_chunks() -> AsyncGenerator[Chunk]:
        async with aclosing(events):
            yield first
            async for event in events:
                yield event

    return all_chunks()


# ── the events of a queue ────────────────────────────────────────────────────────────────


class _EncodedEvent(NamedTuple):
    """An event, encoded for a stream."""

    order: tuple[int, int, int]
    cursor: str
    place: int
    text: bytes


class _Page(NamedTuple):
    """A batch of events, encoded once for all clients."""

    events: list[_EncodedEvent]
    text: bytes

    @classmethod
    def of(cls, batch: Batch) -> _Page:
        events = [_encode_event(event, place) for place, event in _number_events(batch.events)]
        return cls(events, b"".join(event.text for event in events))


def refuse_if_many(engine: Engine, queue: QueueName) -> None:
    """Raises Refused (503) if too many queues are followed."""
    if engine.events.is_new(queue, _QUEUES_MOST):
        raise Refused(
            503,
            "too_many_streams",
            f"the limit of {_QUEUES_MOST} followed queues on this server is reached",
            remedy="Follow fewer queues, or start another server.",
            headers={"Retry-After": "5"},
        )


async def queue_events(
    engine: Engine, queue: QueueName, last_id: str | None
) -> AsyncGenerator[Chunk]:
    """Yields the events of *queue*: first the kept ones after *last_id*, then new ones.

    If events are missing, the client gets `fell_behind`, and then the events that are kept. If the
    queue's options are changed to write no events, the client gets `queue_has_no_events`, and the
    stream ends.
    """
    async with engine.events.follow_batches(queue) as live:
        # The follower may not have read all older events yet.
        seen = _place(last_id) if last_id else (live.after, _LAST_PLACE)
        yield ServerSentEvent(comment="following")
        is_told = False
        while True:
            try:
                async for event in _read_kept(engine, queue, *seen):
                    seen, is_told = (event.cursor, event.place), False
                    yield event.text
                is_told = False
                while True:
                    page = (await _next_batch(live, seen)).put(_Page.of)
                    last, after = page.events[-1], _order(*seen)
                    if after >= last.order:
                        continue
                    whole = after < page.events[0].order
                    seen = last.cursor, last.place
                    yield (
                        page.text
                        if whole
                        else b"".join(event.text for event in page.events if event.order > after)
                    )
            except FellBehind as gap:
                # Redis may have kept what the follower lost; if not, reading finds the gap again.
                seen = (gap.cursor, _LAST_PLACE) if gap.cursor else seen
                if not is_told:
                    yield _fell_behind(gap)
                is_told = not gap.cursor
            except QueueHasNoEvents as end:
                yield ServerSentEvent(event=end.code, data=str(end))
                return
            except ServerError:
                return  # the client reconnects with the last id, and gets the error then


async def _next_batch(live: Follower, seen: tuple[str, int]) -> Batch:
    """The next batch of *live*. Raises FellBehind, unless the gap is before *seen*."""
    while True:
        try:
            return await live.batch()
        except FellBehind as gap:
            if not gap.cursor or _order(gap.cursor, 0) > _order(*seen):
                raise


async def _read_kept(
    engine: Engine, queue: QueueName, cursor: str, index: int
) -> AsyncGenerator[_EncodedEvent]:
    """Yields the kept events after *cursor* and *index*: an entry may hold several events."""
    after = _order(cursor, index)
    page = await engine.events.rest(queue, cursor, size=_PAGE)
    while page:
        for place, event in _number_events(page):
            if _order(event.cursor, place) > after:
                yield _encode_event(event, place)
        page = await engine.events.list(queue, after=page[-1].cursor, size=_PAGE)


def _fell_behind(gap: FellBehind) -> ServerSentEvent:
    """The `fell_behind` event. Its id is behind the gap, so that a client that reconnects does not
    get it again.
    """
    id = f"{gap.cursor}.0" if gap.cursor else None
    return ServerSentEvent(event="fell_behind", data=str(gap), id=id)


def _number_events(events: list[Event]) -> list[tuple[int, Event]]:
    return [
        numbered for _, entry in groupby(events, key=lambda event: event.cursor)
        for numbered in enumerate(entry)
    ]  # fmt: skip


def _encode_event(event: Event, place: int) -> _EncodedEvent:
    data = msgspec.json.encode({"verb": event.verb, "job": event.job.id}).decode()
    sent = ServerSentEvent(event=event.verb, id=f"{event.cursor}.{place}", data=data)
    return _EncodedEvent(_order(event.cursor, place), event.cursor, place, sent.encode())


def check_last_id(last_id: str | None) -> None:
    """Raises InvalidOption if *last_id* is not the id of an event."""
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
