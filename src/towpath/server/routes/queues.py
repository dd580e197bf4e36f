"""Queues: counts, pause, many jobs at once, dead jobs, and their events as a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Sequence
from datetime import UTC
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import Field
from sse_starlette import EventSourceResponse

from towpath.app.jobs import LARGEST_STEP, AllJobs, JobFilter, ManyStep
from towpath.clock import days, hours
from towpath.engine.history import History
from towpath.engine.inspect import ErrorGroup, ErrorGroups
from towpath.engine.model import JobRef, job_ref
from towpath.engine.states import State
from towpath.errors import JobError, JobHasRecord
from towpath.ids import queue_name
from towpath.server.models import CountsOut, JobOut, PageOut, QueuesOut, StateOut
from towpath.server.routes.jobs import After, Size, job_out, page_out
from towpath.web.audit import audited
from towpath.web.auth import CanAdmin, CanRead
from towpath.web.bodies import BodyRoute
from towpath.web.dependencies import TheEngine, TheJobs
from towpath.web.fields import (
    Answer,
    Body,
    Id,
    InSeconds,
    Instant,
    Lane,
    Queue,
    Text,
    answer_from,
    example,
)
from towpath.web.problems import documented
from towpath.web.streams import (
    check_last_id,
    queue_events,
    refuse_if_full,
    refuse_if_many,
    start_stream,
    stream,
)

router = APIRouter(prefix="/api/v1/queues", tags=["queues"], route_class=BodyRoute)
_DELETED_MOST = 10_000


@router.get("", response_model=QueuesOut, responses=documented())
async def queues(engine: TheEngine, key: CanRead) -> QueuesOut:
    """List the queues that the key covers, with their counts."""
    known = await engine.queues.names()
    names = sorted(name for name in known if key.covers(name))
    found = await engine.inspect.counts_of(names)
    return QueuesOut(
        queues=[CountsOut.of(name, counts) for name, counts in found.items()],
        unreadable=[name for name in names if name not in found],
    )


@router.get("/{queue}", response_model=CountsOut, responses=documented())
async def counts(queue: Queue, engine: TheEngine, _: CanRead) -> CountsOut:
    """Count the jobs of the queue by state. A queue that does not exist is empty."""
    return CountsOut.of(queue_name(queue), await engine.inspect.counts(queue))


class HistoryOut(answer_from(History)):
    """The counts of a queue over time. Each list has one number per step, oldest first."""

    step: InSeconds
    """Length of a step in seconds: 60 or 3600."""


_LAST = {"hour": hours(1), "day": hours(24), "month": days(30)}


@router.get("/{queue}/history", response_model=HistoryOut, responses=documented())
async def history(
    queue: Queue,
    engine: TheEngine,
    _: CanRead,
    last: Annotated[
        Literal["hour", "day", "month"],
        Query(description="The period: an hour or a day in minutes, or a month in hours."),
    ] = "hour",
) -> HistoryOut:
    """Read the queue's counts over time. They are kept for the first 1,000 queues."""
    found = await engine.inspect.history(queue, last=_LAST[last])
    return HistoryOut.model_validate(found)


@router.post("/{queue}/pause", status_code=204, response_class=Response, responses=documented())
@audited()
async def pause(queue: Queue, engine: TheEngine, _: CanAdmin) -> None:
    """Hand out no jobs of the queue until it is resumed. Everything else goes on."""
    await engine.queues.pause(queue)


@router.post("/{queue}/resume", status_code=204, response_class=Response, responses=documented())
@audited()
async def resume(queue: Queue, engine: TheEngine, _: CanAdmin) -> None:
    """Hand out the jobs of a paused queue again."""
    await engine.queues.resume(queue)


class MatchIn(Body):
    """Which jobs of the queue to change; a value that is left out fits every job. One request looks
    at up to `size` jobs: repeat it with the `after` of its answer until that is null.
    """

    model_config = example(states=["ready", "delayed"], handler="send_mail")

    handler: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """Only jobs of this handler."""
    lane: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """Only jobs of this lane."""
    submitted_before: Instant | None = None
    """Only jobs that were submitted before this time."""
    count_only: Annotated[bool, Field(strict=True)] = False
    """Count the jobs, and change nothing."""
    after: Annotated[str, Field(min_length=1, max_length=2048)] | None = None
    """The `after` value returned with the previous answer."""
    size: Annotated[int, Field(ge=1, le=LARGEST_STEP, strict=True)] = LARGEST_STEP
    """Maximum number of jobs to look at."""

    def filter(self, states: Sequence[State]) -> JobFilter:
        before = self.submitted_before
        return JobFilter(
            states=tuple(dict.fromkeys(states)),
            handler=self.handler,
            lane=self.lane,
            # A time without a time zone means UTC.
            submitted_before=before
            if before is None or before.tzinfo
            else before.replace(tzinfo=UTC),
        )


class CancelIn(MatchIn):
    """Which open jobs of the queue to cancel."""

    states: Annotated[
        list[Literal["waiting", "delayed", "ready", "leased"]], Field(min_length=1, max_length=4)
    ] = Field(default=["waiting", "delayed", "ready", "leased"])
    """Only jobs in these states."""


class PurgeIn(MatchIn):
    """Which jobs of the queue to delete. Running jobs are not deleted: cancel them first."""

    states: Annotated[
        list[Literal["waiting", "delayed", "ready", "dead", "done", "cancelled"]],
        Field(min_length=1, max_length=6),
    ] = Field(default=["waiting", "delayed", "ready", "dead", "done", "cancelled"])
    """Only jobs in these states."""
    before_delete: Annotated[bool, Field(strict=True)] = False
    """Refuse with 409, and change nothing, if the queue could not be deleted afterwards: it has
    running jobs or schedules."""


class MatchedOut(Answer):
    """How many jobs a request counted or changed."""

    model_config = example(jobs=12, states={"ready": 10, "leased": 2}, after=None)

    jobs: int
    """Number of jobs that matched: they were changed, or with `count_only` only counted."""
    states: dict[str, int]
    """The same by the state that they were in."""
    after: str | None
    """Pass it as `after` to continue; null if no job is left to look at."""

    @classmethod
    def of(cls, step: ManyStep) -> MatchedOut:
        found = {str(state): count for state, count in step.jobs.items()}
        return cls(jobs=step.total, states=found, after=step.after)


@router.post("/{queue}/cancel", response_model=MatchedOut, responses=documented(404, 409))
@audited("states", "handler", "lane", "submitted_before", "count_only", answer=("jobs",))
async def cancel_many(queue: Queue, body: CancelIn, jobs: TheJobs, _: CanAdmin) -> MatchedOut:
    """Cancel the open jobs that match, or count them. Leased jobs are asked to stop."""
    wanted = body.filter([State(state) for state in body.states])
    change = jobs.count_matching if body.count_only else jobs.cancel_matching
    return MatchedOut.of(await change(queue, wanted, after=body.after, size=body.size))


@router.post("/{queue}/purge", response_model=MatchedOut, responses=documented(404, 409))
@audited("states", "handler", "lane", "submitted_before", "count_only", answer=("jobs",))
async def purge(queue: Queue, body: PurgeIn, jobs: TheJobs, _: CanAdmin) -> MatchedOut:
    """Delete the jobs that match, with their payloads, results and records; or count them. Jobs
    that are running stay.
    """
    wanted = body.filter([State(state) for state in body.states])
    if body.before_delete and body.after is None:
        await jobs.require_deletable(queue)
    change = jobs.count_matching if body.count_only else jobs.purge
    return MatchedOut.of(await change(queue, wanted, after=body.after, size=body.size))


@router.delete("/{queue}", status_code=204, response_class=Response, responses=documented(404, 409))
@audited()
async def delete_queue(queue: Queue, jobs: TheJobs, _: CanAdmin) -> None:
    """Delete a queue without jobs and schedules: its options, its counts, and the ids that it
    remembers. A queue that holds any is refused with 409, which has what it `held`. The next use
    creates the queue again.
    """
    await jobs.delete_queue(queue)


Group = Annotated[
    str | None,
    Query(min_length=1, max_length=40, description="Only jobs of this error group."),
]


@router.get("/{queue}/dead", response_model=PageOut, responses=documented())
async def dead(
    queue: Queue,
    jobs: TheJobs,
    request: Request,
    key: CanRead,
    *,
    group: Group = None,
    after: After = None,
    size: Size = 100,
) -> PageOut:
    """List dead jobs with their reasons, optionally those of one error group."""
    page = await jobs.list(queue, State.DEAD, group=group, after=after, size=size)
    return page_out(page, request, key)


class GroupOut(answer_from(ErrorGroup)):
    """Dead jobs that died of the same error."""

    model_config = example(
        group="9a1f0c37e2b4",
        error="HTTP # from api.example",
        count=12,
        first="2026-01-01T12:00:00Z",
        last="2026-01-01T12:05:00Z",
    )


class GroupsOut(answer_from(ErrorGroups)):
    """Dead jobs grouped by error, the largest group first."""

    groups: list[GroupOut]


@router.get("/{queue}/dead/groups", response_model=GroupsOut, responses=documented())
async def groups(queue: Queue, engine: TheEngine, _: CanRead) -> GroupsOut:
    """Count dead jobs by error."""
    return GroupsOut.model_validate(await engine.inspect.dead_groups(queue))


class FoundOut(Answer):
    """Dead jobs whose reason contains the text, newest first."""

    jobs: list[JobOut]
    looked: int
    """Number of dead jobs searched so far; pass it as `looked` to continue."""
    is_over: bool
    """Whether the search has ended. It covers the newest 10,000 dead jobs of the queue."""


@router.get("/{queue}/dead/search", response_model=FoundOut, responses=documented())
async def search(
    queue: Queue,
    *,
    jobs: TheJobs,
    request: Request,
    key: CanRead,
    text: Annotated[str, Query(min_length=1, max_length=200, description="Text to search for.")],
    looked: Annotated[int, Query(ge=0, le=10_000, description="The last answer's `looked`.")] = 0,
) -> FoundOut:
    """Search the reasons of the newest 10,000 dead jobs, 1,000 at a time."""
    found = await jobs.search_dead(queue, text, looked=looked)
    made = [job_out(job, request, key) for job in found.jobs]
    return FoundOut(jobs=made, looked=found.looked, is_over=found.is_over)


@router.post("/{queue}/dead/{id}/retry", response_model=StateOut, responses=documented(404, 409))
@audited(answer=("state",))
async def retry(queue: Queue, id: Id, jobs: TheJobs, _: CanAdmin) -> StateOut:
    """Give a dead job new attempts."""
    return StateOut(id=id, state=await jobs.retry(job_ref(queue, id)))


class RetryIn(Body):
    """Which dead jobs to retry: those in `ids`; or the first ones that are in the error `group` and
    whose reason contains `text`.
    """

    model_config = example(text="disk is full", most=100)

    ids: Annotated[list[Text], Field(min_length=1, max_length=1000)] | None = None
    """The ids of the jobs; `group`, `text` and `most` are then ignored."""
    group: Annotated[str, Field(min_length=1, max_length=40)] | None = None
    """Only jobs of this error group."""
    text: Annotated[str, Field(max_length=200)] = ""
    """Only jobs whose reason contains this text; case does not matter."""
    most: Annotated[int, Field(ge=1, le=_DELETED_MOST, strict=True)] = 1000
    """Maximum number of jobs to retry."""


class RetriedOut(Answer):
    """How many dead jobs got new attempts."""

    model_config = example(retried=12, left=0)

    retried: int
    """Number of jobs that got new attempts."""
    left: int
    """Number of dead jobs that remain."""


@router.post("/{queue}/dead/retry", response_model=RetriedOut, responses=documented())
@audited("ids", "group", "text", "most", answer=("retried", "left"))
async def retry_many(
    queue: Queue, body: RetryIn, engine: TheEngine, jobs: TheJobs, _: CanAdmin
) -> RetriedOut:
    """Give several dead jobs new attempts. Jobs that are no longer dead are skipped."""
    retried = 0
    async for refs in _select_dead(jobs, queue, body):
        retried += sum(await asyncio.gather(*(_try_change(jobs.retry(ref)) for ref in refs)))
    return RetriedOut(retried=retried, left=(await engine.inspect.counts(queue)).dead)


async def _select_dead(jobs: AllJobs, queue: str, body: RetryIn) -> AsyncGenerator[list[JobRef]]:
    """Yields the dead jobs that *body* selects, some at a time."""
    if body.ids is not None:
        refs = [job_ref(queue, id) for id in body.ids]
        for start in range(0, len(refs), 100):
            yield refs[start : start + 100]
        return
    text, left, after = body.text.casefold(), body.most, None
    while left:
        page = await jobs.list(queue, State.DEAD, group=body.group, after=after, size=100)
        fit = [job.ref for job in page.jobs if text in (job.reason or "").casefold()][:left]
        left -= len(fit)
        yield fit
        if page.after is None:
            return
        after = page.after


@router.delete(
    "/{queue}/dead/{id}",
    status_code=204,
    response_class=Response,
    responses=documented(404, 409),
)
@audited()
async def delete(queue: Queue, id: Id, jobs: TheJobs, _: CanAdmin) -> None:
    """Delete a job that has ended: dead, done or cancelled."""
    await jobs.delete(job_ref(queue, id))


class LaneOut(Answer):
    """A lane in which jobs wait, and the job that they wait for."""

    model_config = example(lane="ann", head="mail-17", head_state="leased", behind=3)

    lane: str
    head: str | None
    """The job at the head of the lane."""
    head_state: str | None
    """The state of that job."""
    behind: int
    """Number of jobs that wait behind it."""


class LanesOut(Answer):
    """A page of lanes."""

    lanes: list[LaneOut]
    after: str | None
    """Pass it as `after` to get the next page; null on the last page."""


@router.get("/{queue}/lanes", response_model=LanesOut, responses=documented())
async def lanes(
    queue: Queue,
    engine: TheEngine,
    jobs: TheJobs,
    _: CanRead,
    after: After = None,
    size: Size = 100,
) -> LanesOut:
    """List the lanes in which jobs wait, each with the job at its head. The page size counts
    waiting jobs: a page may have fewer lanes, and a lane may appear on several pages.
    """
    page = await jobs.list(queue, State.WAITING, after=after, size=size)
    names = list(dict.fromkeys(job.lane for job in page.jobs if job.lane is not None))
    found = await asyncio.gather(*(engine.inspect.lane(queue, name) for name in names))
    made = [
        LaneOut(lane=name, head=lane.head, head_state=lane.head_state, behind=lane.behind)
        for name, lane in zip(names, found, strict=True)
    ]
    return LanesOut(lanes=made, after=page.after)


@router.post("/{queue}/lanes/{lane}/drop", response_model=StateOut, responses=documented(404, 409))
@audited(answer=("id",))
async def drop(queue: Queue, lane: Lane, engine: TheEngine, _: CanAdmin) -> StateOut:
    """Let a parked lane continue without the dead job at its head. That job stays dead."""
    dropped = await engine.drop(queue, lane)
    return StateOut(id=dropped.id, state=State.DEAD)


class DeletedOut(Answer):
    """How many dead jobs were deleted."""

    model_config = example(deleted=12, left=0)

    deleted: int
    left: int
    """Number of dead jobs that remain."""


@router.delete("/{queue}/dead", response_model=DeletedOut, responses=documented())
@audited("group", "text", "most", answer=("deleted", "left"))
async def delete_many(
    queue: Queue,
    engine: TheEngine,
    jobs: TheJobs,
    _: CanAdmin,
    *,
    group: Group = None,
    text: Annotated[
        str, Query(max_length=200, description="Only jobs whose reason contains this text.")
    ] = "",
    most: Annotated[
        int, Query(ge=1, le=_DELETED_MOST, description="Maximum number of jobs.")
    ] = 1000,
) -> DeletedOut:
    """Delete dead jobs, oldest first; `left` says how many remain."""
    deleted = 0
    async for refs in _select_dead(jobs, queue, RetryIn(group=group, text=text, most=most)):
        deleted += sum(await asyncio.gather(*(_try_change(jobs.delete(ref)) for ref in refs)))
    return DeletedOut(deleted=deleted, left=(await engine.inspect.counts(queue)).dead)


async def _try_change(change: Awaitable[object]) -> bool:
    """Await *change*. Returns False if the job was retried or deleted meanwhile."""
    try:
        await change
    except JobHasRecord:
        raise
    except JobError:
        return False
    return True


# ── events ───────────────────────────────────────────────────────────────────────────────

events_router = APIRouter(prefix="/api/v1/queues/{queue}", tags=["events"])

LastEventId = Annotated[
    str | None,
    Header(
        max_length=100, description="The id of the last event seen; the stream continues after it."
    ),
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
    _: CanRead,
    last_event_id: LastEventId = None,
) -> EventSourceResponse:
    """Follow the events of the queue. With `Last-Event-ID`, missed events come first."""
    name = queue_name(queue)
    check_last_id(last_event_id)
    await engine.events.require(name)
    refuse_if_full(request)
    refuse_if_many(engine, name)
    chunks = await start_stream(queue_events(engine, name, last_event_id))
    return await stream(chunks, request)
