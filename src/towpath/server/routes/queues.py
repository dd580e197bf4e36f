"""Queues: counts, pause and resume, dead jobs, and their events as a stream."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from sse_starlette import EventSourceResponse

from towpath.engine.engine import Engine
from towpath.engine.model import JobRef, job_ref
from towpath.engine.states import State
from towpath.errors import JobError
from towpath.ids import queue_name
from towpath.server.models import CountsOut, JobOut, PageOut, PurgedOut, QueuesOut, StateOut
from towpath.server.routes.jobs import After, Size
from towpath.web.auth import CanAdmin, CanRead, Kind
from towpath.web.fields import Id, Queue
from towpath.web.parts import TheEngine, TheFollowed, TheSessions
from towpath.web.problems import documented
from towpath.web.streams import begun, check_last_id, queue_events, stream

router = APIRouter(prefix="/api/v1/queues", tags=["queues"])
_PURGE_MOST = 10_000


@router.get("", response_model=QueuesOut, responses=documented())
async def queues(engine: TheEngine, key: CanRead) -> QueuesOut:
    """Every queue that the key may see, with its counts."""
    known = await engine.queues()
    names = sorted(name for name in known if key.covers(name))
    counts = await asyncio.gather(*(engine.counts(name) for name in names))
    return QueuesOut(
        queues=[CountsOut.of(name, it) for name, it in zip(names, counts, strict=True)]
    )


@router.get("/{queue}", response_model=CountsOut, responses=documented())
async def counts(queue: Queue, engine: TheEngine, _: CanRead) -> CountsOut:
    """How many jobs of the queue are where. A queue that nobody used is empty."""
    return CountsOut.of(queue_name(queue), await engine.counts(queue))


@router.post("/{queue}/pause", status_code=204, response_class=Response, responses=documented())
async def pause(queue: Queue, engine: TheEngine, _: CanAdmin) -> None:
    """Hand out no jobs until resumed; everything else goes on."""
    await engine.pause(queue)


@router.post("/{queue}/resume", status_code=204, response_class=Response, responses=documented())
async def resume(queue: Queue, engine: TheEngine, _: CanAdmin) -> None:
    """Hand out jobs again."""
    await engine.resume(queue)


@router.get("/{queue}/dead", response_model=PageOut, responses=documented())
async def dead(
    queue: Queue, engine: TheEngine, _: CanRead, after: After = None, size: Size = 100
) -> PageOut:
    """A page of the dead jobs, with their reasons."""
    page = await engine.list(queue, State.DEAD, after=after, size=size)
    return PageOut(jobs=[JobOut.of(job) for job in page.jobs], after=page.after)


@router.post("/{queue}/dead/{id}/retry", response_model=StateOut, responses=documented(404, 409))
async def retry(queue: Queue, id: Id, engine: TheEngine, _: CanAdmin) -> StateOut:
    """Give a dead job its attempts back."""
    return StateOut(id=id, state=await engine.retry(job_ref(queue, id)))


@router.delete("/{queue}/dead", response_model=PurgedOut, responses=documented())
async def purge(
    queue: Queue,
    engine: TheEngine,
    _: CanAdmin,
    most: Annotated[int, Query(ge=1, le=_PURGE_MOST, description="At most so many.")] = 1000,
) -> PurgedOut:
    """Remove dead jobs, oldest first; `left` says how many remain."""
    deleted = 0
    while deleted < most:
        page = await engine.list(queue, State.DEAD, size=min(100, most - deleted))
        outcomes = await asyncio.gather(*(_deleted(engine, job.ref) for job in page.jobs))
        if not any(outcomes):
            break
        deleted += sum(outcomes)
    return PurgedOut(deleted=deleted, left=(await engine.counts(queue)).dead)


async def _deleted(engine: Engine, job: JobRef) -> bool:
    """Whether it was there to be deleted: somebody may have retried it meanwhile."""
    try:
        await engine.delete(job)
    except JobError:
        return False
    return True


# ── events ───────────────────────────────────────────────────────────────────────────────

events_router = APIRouter(prefix="/api/v1/queues/{queue}", tags=["events"])

LastEventId = Annotated[
    str | None,
    Header(max_length=100, description="The id of the last event that was seen: goes on there."),
]


@events_router.get(
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
