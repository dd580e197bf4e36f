"""The pages of the engine: overview, queues, jobs, dead jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Annotated, NamedTuple

import msgspec
from fastapi import APIRouter, Query, Request, Response
from sse_starlette import EventSourceResponse

from towpath.app.jobs import AllJobs
from towpath.clock import instant, parse_duration, seconds, wall_ms
from towpath.dashboard.charts import SPANS, Charts, charts
from towpath.dashboard.snapshot_cache import Snapshot, SnapshotCache, changes, checksum_of
from towpath.engine.diagnosis import examine
from towpath.engine.durability import ServerFacts
from towpath.engine.engine import Engine
from towpath.engine.findings import SAME_DATABASE, Finding, Grade, findings, of_records
from towpath.engine.history import History, sum_columns
from towpath.engine.inspect import LARGEST_PAGE, Counts, ErrorGroups, Lane
from towpath.engine.model import JobInfo, job_ref
from towpath.engine.states import State
from towpath.errors import TowpathError
from towpath.ids import QueueName, queue_name
from towpath.ledger.keys.key import KeyInfo
from towpath.web.auth import CanRead
from towpath.web.dependencies import TheEngine, TheJobs, readable
from towpath.web.fields import PAGES, Id, Queue
from towpath.web.pages import (
    HEADERS,
    SHOWN_MOST,
    DashboardPage,
    PageRoute,
    ThePage,
    refuse_unknown,
)
from towpath.web.problems import Refused
from towpath.web.streams import refuse_if_full, start_stream, stream

router = APIRouter(prefix=PAGES.rstrip("/"), route_class=PageRoute, include_in_schema=False)
SIZE = 50
LOOKED_AT_MOST = 10_000
"""Maximum number of jobs that a filter reads; the page says where it stopped."""
_PAGE = 1000
_EXAMINED_EVERY = 30.0
_DRAWN_EVERY = 10.0
STATES = ("ready", "leased", "delayed", "waiting", "dead", "done", "cancelled")

Text = Annotated[str, Query(max_length=512)]
After = Annotated[str, Query(max_length=2048)]


def snapshots_of(request: Request) -> SnapshotCache:
    return request.app.state.snapshots


# ── all queues ───────────────────────────────────────────────────────────────────────────


async def overview(page: DashboardPage, key: KeyInfo, request: Request) -> Response:
    """All queues, the durability of Redis, and the findings of its checks."""
    snapshots, engine = snapshots_of(request), request.app.state.engine
    # At the same time: the reader waits for the slowest of the four, not for each.
    snapshot, known, found, facts = await asyncio.gather(
        snapshots.read(),
        snapshots.histories(),
        _findings(snapshots, request, key),
        _facts(engine, key),
    )
    seen = snapshot.seen_by(key)
    return page.show(
        "overview.html",
        queues=seen,
        unreadable=snapshot.unreadable_by(key),
        rates=snapshot.rates,
        past=await _overview_charts(snapshots, known, seen),
        findings=found,
        facts=facts,
        sums={name: sum(getattr(counts, name) for counts in seen.values()) for name in _COUNTED},
        live="*",
        mark=checksum_of(snapshot, key, ""),
    )


async def _require_readable(
    engine: Engine, key: KeyInfo, queue: QueueName, snapshot: Snapshot
) -> None:
    """Raises Refused (404) for a queue that does not exist, ServerRefused for one that can't be
    read.
    """
    if queue in snapshot.unreadable and key.covers(queue):
        await engine.inspect.counts(queue)  # raises the reason
    refuse_unknown(key, queue, snapshot.queues)


async def _overview_charts(
    snapshots: SnapshotCache, known: Mapping[str, History], seen: Collection[str]
) -> Charts | None:
    """The charts of the last hour of all *seen* queues; None while the histories are being read."""
    names = tuple(name for name in known if name in seen)

    async def drawn() -> Charts | None:
        whole = sum_columns(known[name] for name in names)
        return charts(whole) if whole else None

    return await snapshots.cached(("past", names), drawn, lasts=_DRAWN_EVERY)


_COUNTED = ("ready", "leased", "delayed", "waiting", "dead")


async def _facts(engine: Engine, key: KeyInfo) -> ServerFacts | None:
    """The facts about Redis, at most a second old; None while it does not answer."""
    if "*" not in key.queues:
        return None
    with suppress(TowpathError):
        return await engine.current_facts()
    return None


async def _findings(snapshots: SnapshotCache, request: Request, key: KeyInfo) -> list[Finding]:
    """Findings of the checks that are not OK. They are about all queues, so only for keys that
    cover all.
    """
    if "*" not in key.queues:
        return []
    state = request.app.state
    found = await snapshots.cached("doctor", lambda: _examine(state.engine), lasts=_EXAMINED_EVERY)
    found = [*found, *of_records(await state.elsewhere.find())]
    return [finding for finding in found if finding.verdict is not Grade.OK]


async def _examine(engine: Engine) -> list[Finding]:
    """The findings of the checks. A failure of the checks is a finding, too, so that the page
    opens.
    """
    try:
        checkup = await examine(engine.url, within=seconds(2))
        return findings(checkup, engine.url, engine.facts.durability)
    except TowpathError as error:
        return [Finding("checks", Grade.WARN, str(error), error.remedy)]


@router.get("/live")
async def live(
    request: Request, key: CanRead, queue: Text = "", mark: Text = ""
) -> EventSourceResponse:
    """Notify an open page when what it shows has changed."""
    refuse_if_full(request)
    events = await start_stream(changes(snapshots_of(request), request, key, queue, mark))
    return await stream(events, request)


# ── one queue ────────────────────────────────────────────────────────────────────────────


class Filter(NamedTuple):
    """Which jobs of a state to show."""

    lane: str = ""
    handler: str = ""
    text: str = ""
    older: str = ""
    """Only jobs that were submitted longer ago than this, such as `2h`."""

    @property
    def before(self) -> datetime | None:
        """The jobs must be submitted before this time; None = at any time. Raises InvalidOption."""
        if not self.older:
            return None
        return instant(wall_ms()) - parse_duration("older", self.older)

    def choose(self, jobs: Iterable[JobInfo]) -> list[JobInfo]:
        """The *jobs* that fit the filter. Raises InvalidOption."""
        before = self.before
        return [
            job
            for job in jobs
            if (not self.lane or job.lane == self.lane)
            and (not self.handler or job.headers.get("handler") == self.handler)
            and (not self.text or self.text.casefold() in (job.reason or "").casefold())
            and (before is None or job.submitted_at < before)
        ]


class JobsFound(NamedTuple):
    """A page of jobs, and how many jobs were read for it."""

    jobs: list[JobInfo]
    after: str | None
    looked_at: int


async def walk(every: AllJobs, queue: str, state: State, wanted: Filter, after: str) -> JobsFound:
    """The next jobs in *state* that fit *wanted*; reads at most 10,000 jobs."""
    if not any(wanted):
        page = await every.list(queue, state, after=after or None, size=SIZE)
        return JobsFound(page.jobs, page.after, len(page.jobs))
    if wanted.lane and state is State.WAITING:
        found = await every.list(queue, state, lane=wanted.lane, after=after or None, size=SIZE)
        return JobsFound(wanted.choose(found.jobs), found.after, len(found.jobs))
    if state is State.DEAD and wanted == Filter(text=wanted.text):
        return await _search_dead(every, queue, wanted.text)
    jobs: list[JobInfo] = []
    looked_at, place = 0, after or None
    while looked_at < LOOKED_AT_MOST and len(jobs) < SIZE:
        page = await every.list(queue, state, after=place, size=_PAGE)
        looked_at, place = looked_at + len(page.jobs), page.after
        jobs += wanted.choose(page.jobs)
        if place is None:
            break
    return JobsFound(jobs, place, looked_at)


async def _search_dead(every: AllJobs, queue: str, text: str) -> JobsFound:
    """Dead jobs with *text* in their reason, newest first, among the newest 10,000."""
    jobs: list[JobInfo] = []
    looked_at, over = 0, False
    while not over and len(jobs) < SIZE:
        found = await every.search_dead(queue, text, looked=looked_at)
        jobs += found.jobs
        looked_at, over = found.looked, found.is_over
    return JobsFound(jobs[:_PAGE], None, looked_at)


@router.get("/queues/{queue}")
async def queue_page(
    queue: Queue,
    *,
    page: ThePage,
    request: Request,
    engine: TheEngine,
    jobs: TheJobs,
    key: CanRead,
    state: Text = "ready",
    lane: Text = "",
    handler: Text = "",
    text: Text = "",
    older: Text = "",
    last: Text = "hour",
    after: After = "",
) -> Response:
    """One queue: its counts now and over time, and its jobs in one state."""
    snapshots, name = snapshots_of(request), queue_name(queue)
    wanted = Filter(lane, handler, text, older)
    snapshot = await snapshots.read_with(name)
    await _require_readable(engine, key, name, snapshot)
    refuse_others({"state": (state, STATES), "last": (last, SPANS)})
    found = await snapshots.cached(
        (snapshot.at, name, state, wanted, after),
        lambda: walk(jobs, name, State(state), wanted, after),
    )
    return page.show(
        "queue.html",
        queue=name,
        counts=snapshot.queues[name],
        kept_by_end=await _kept_by_end(snapshots, engine, name, snapshot.queues[name]),
        rates=snapshot.rates.get(name, {}),
        options=await snapshots.cached((name, "options"), lambda: engine.queues.options(name)),
        past=await _queue_charts(snapshots, engine, name, last),
        spans={name: name == last for name in SPANS},
        state=state,
        states=STATES,
        wanted=wanted,
        matching=_matching(state, wanted),
        found=found,
        heads=await _heads(engine, name, found.jobs if state == "waiting" else []),
        after=after,
        limit=LOOKED_AT_MOST,
        live=name,
        mark=checksum_of(snapshot, key, name),
    )


def _matching(state: str, wanted: Filter) -> str:
    """The body of a request that changes all jobs in *state* that fit *wanted*."""
    before = wanted.before
    fields = {
        "lane": wanted.lane,
        "handler": wanted.handler,
        "submitted_before": before.isoformat() if before else "",
    }
    body = {"states": [state]} | {name: value for name, value in fields.items() if value}
    return msgspec.json.encode(body).decode()


class KeptCount(NamedTuple):
    """The number of kept jobs that are done, or cancelled."""

    most: int
    is_exact: bool


async def _kept_by_end(
    snapshots: SnapshotCache, engine: Engine, queue: str, counts: Counts
) -> dict[str, KeptCount]:
    """The numbers of kept done and cancelled jobs. Redis counts both together. If they are few,
    the cancelled ones are listed; otherwise the totals of the queue are upper limits.
    """
    ends = {"done": counts.totals["completed"], "cancelled": counts.totals["cancelled"]}
    most = {state: min(counts.kept, ended) for state, ended in ends.items()}
    if sum(most.values()) == counts.kept:
        return {state: KeptCount(number, True) for state, number in most.items()}
    if counts.kept < LARGEST_PAGE:
        found = await snapshots.cached(
            (queue, "cancelled", counts.kept, counts.totals["cancelled"]),
            lambda: engine.inspect.list(queue, State.CANCELLED, size=LARGEST_PAGE),
            lasts=_DRAWN_EVERY,
        )
        if found.after is None:
            cancelled = min(len(found.jobs), counts.kept)
            return {
                "done": KeptCount(counts.kept - cancelled, True),
                "cancelled": KeptCount(cancelled, True),
            }
    return {state: KeptCount(number, False) for state, number in most.items()}


def refuse_others(asked: Mapping[str, tuple[str, Collection[str]]]) -> None:
    """Raises Refused (422) for a value that is not one of the known ones."""
    for what, (value, known) in asked.items():
        if value not in known:
            raise Refused(422, "invalid_input", f"{what} must be one of {', '.join(known)}")


async def _queue_charts(snapshots: SnapshotCache, engine: Engine, queue: str, last: str) -> Charts:
    async def drawn() -> Charts:
        return charts(await engine.inspect.history(queue, last=SPANS[last]))

    return await snapshots.cached((queue, "past", last), drawn, lasts=_DRAWN_EVERY)


async def _heads(engine: Engine, queue: str, jobs: Iterable[JobInfo]) -> dict[str, Lane]:
    """The lanes of *jobs*, by name; each has the head that its jobs wait for."""
    names = list(dict.fromkeys(job.lane for job in jobs if job.lane))
    found = await asyncio.gather(*(engine.inspect.lane(queue, name) for name in names))
    return dict(zip(names, found, strict=True))


# ── one job ──────────────────────────────────────────────────────────────────────────────


@router.get("/queues/{queue}/jobs/{id}")
async def job_page(
    queue: Queue,
    id: Id,
    *,
    page: ThePage,
    request: Request,
    engine: TheEngine,
    jobs: TheJobs,
    key: CanRead,
) -> Response:
    """One job: its content, its history, and why it is not running."""
    ref, snapshot = job_ref(queue, id), await snapshots_of(request).read()
    whole = await jobs.get(ref)
    job = readable(request, key, whole)
    why, position = await jobs.explain(ref)
    elsewhere = (await request.app.state.elsewhere.find()).get(queue)
    return page.show(
        "job.html",
        queue=queue,
        job=job,
        content_hidden=job is not whole,
        elsewhere=elsewhere,
        no_row=job.record is not None and not await jobs.has_row(job),
        same_database=SAME_DATABASE,
        why=why,
        position=position,
        heads=await _heads(engine, queue, [job] if job.state is State.WAITING else []),
        options=await engine.queues.known_options(queue),
        steps=_steps(job),
        shown_most=SHOWN_MOST,
        open=job.state in _OPEN,
        movable=job.state in _MOVABLE,
        live=queue,
        mark=checksum_of(snapshot, key, queue),
    )


_MOVABLE = {State.READY, State.DELAYED, State.WAITING}
_OPEN = _MOVABLE | {State.LEASED}


class Step(NamedTuple):
    """A moment of a job's life."""

    at: datetime
    name: str
    tone: str
    """The state of the job from then on; a class of the stylesheet."""
    more: str = ""


def _steps(job: JobInfo) -> list[Step]:
    """The past and expected events of the job, in order of time."""
    first = "waiting" if job.lane else "ready"
    steps = [Step(job.submitted_at, "submitted", "delayed" if job.due_at else first)]
    if job.due_at:
        steps.append(Step(job.due_at, "due", "ready"))
    if job.next_try_at:
        steps.append(Step(job.next_try_at, "next try", "ready"))
    if job.claimed_at:
        who = f"by {job.worker}" if job.worker else ""
        # A released job has no attempt: its claim is known, but the attempt did not count.
        what = f"claimed, attempt {job.attempts}" if job.attempts else "claimed and given back"
        steps.append(Step(job.claimed_at, what, "leased", who))
    steps += [
        Step(failure.at, "attempt failed", "failed", f"by {failure.worker}: {failure.reason}")
        for failure in job.failures
    ]
    if job.expires_at:
        steps.append(Step(job.expires_at, "lease ends", "ready", "unless its worker renews it"))
    if job.ended_at and job.state not in _OPEN:
        steps.append(Step(job.ended_at, str(job.state), str(job.state)))
    return sorted(steps, key=lambda step: step.at)


@router.get("/queues/{queue}/jobs/{id}/{part}")
async def download(
    queue: Queue, id: Id, part: str, *, request: Request, jobs: TheJobs, key: CanRead
) -> Response:
    """A payload, result or progress note, unchanged, as a download: it is never shown as a page."""
    job = await jobs.get(job_ref(queue, id))
    if readable(request, key, job) is not job:
        raise Refused(
            403,
            "scope_missing",
            "the job belongs to an application and to another owner",
            remedy="Use a key that has the scope `raw`.",
        )
    parts: dict[str, bytes | None] = {
        "payload": job.payload, "result": job.result, "progress": job.progress,
    }  # fmt: skip
    if part not in parts:
        raise Refused(404, "not_found", "there is no such part of a job")
    headers = HEADERS | {
        "Content-Disposition": f'attachment; filename="{part}.bin"',
        "Content-Security-Policy": "sandbox; default-src 'none'",
    }
    return Response(parts[part] or b"", media_type="application/octet-stream", headers=headers)


# ── dead jobs ────────────────────────────────────────────────────────────────────────────


@router.get("/dead")
async def dead_page(
    page: ThePage,
    request: Request,
    engine: TheEngine,
    jobs: TheJobs,
    key: CanRead,
    *,
    queue: Text = "",
    text: Text = "",
    group: Annotated[str, Query(max_length=40)] = "",
    after: After = "",
) -> Response:
    """The queues with dead jobs, and the dead jobs of one queue by error group."""
    snapshots = snapshots_of(request)
    snapshot = await snapshots.read_with(queue) if queue else await snapshots.read()
    having = {name: counts.dead for name, counts in snapshot.seen_by(key).items() if counts.dead}
    found, groups = JobsFound([], None, 0), ErrorGroups([], 0)
    chosen = queue or max(having, key=having.__getitem__, default="")
    if chosen:
        name = queue_name(chosen)
        await _require_readable(engine, key, name, snapshot)
        found = await snapshots.cached(
            (snapshot.at, name, "dead", text, group, after),
            lambda: _list_dead(jobs, name, text, group, after),
        )
        groups = await snapshots.cached(
            (snapshot.at, name, "groups"), lambda: engine.inspect.dead_groups(name)
        )
    return page.show(
        "dead.html",
        having=having,
        queue=chosen,
        groups=groups,
        group=group,
        text=text,
        found=found,
        after=after,
        limit=LOOKED_AT_MOST,
        live=chosen or "*",
        mark=checksum_of(snapshot, key, chosen),
    )


async def _list_dead(every: AllJobs, queue: str, text: str, group: str, after: str) -> JobsFound:
    """Dead jobs of one error group, those whose reason contains *text*, or all."""
    if not group:
        return await walk(every, queue, State.DEAD, Filter(text=text), after)
    page = await every.list(queue, State.DEAD, group=group, after=after or None, size=SIZE)
    return JobsFound(page.jobs, page.after, len(page.jobs))
