"""Events of a queue, as a stream."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Request
from sse_starlette import EventSourceResponse

from towpath.ids import queue_name
from towpath.web.auth import CanRead
from towpath.web.parts import TheEngine, TheFollowed, TheSessions
from towpath.web.paths import Queue
from towpath.web.problems import documented
from towpath.web.sessions import Kind
from towpath.web.streams import begun, check_last_id, queue_events, stream

router = APIRouter(prefix="/api/v1/queues/{queue}", tags=["events"])

LastEventId = Annotated[
    str | None,
    Header(max_length=100, description="The id of the last event that was seen: goes on there."),
]


@router.get(
    "/events",
    response_class=EventSourceResponse,
    responses={
        200: {
            "description": "Server-sent events: `id`, `event` = the verb, `data` = {verb, job}.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
        **documented(409),
    },
)
async def events(
    queue: Queue,
    *,
    request: Request,
    engine: TheEngine,
    sessions: TheSessions,
    followed: TheFollowed,
    _: CanRead,
    last_event_id: LastEventId = None,
) -> EventSourceResponse:
    """What happens in the queue, as it happens; with `Last-Event-ID` first what was missed."""
    name = queue_name(queue)
    check_last_id(last_event_id)
    await engine.require_events(name)
    sessions.refuse_if_full(request, Kind.STREAM)
    told = await begun(queue_events(engine, followed, name, last_event_id))
    return await stream(told, sessions, request)
