"""The search in all queues: jobs by id, lane, handler, state and error, and queues by name.

Ids, queues, lanes and states are looked up. Handlers and errors are found by reading jobs, at most
10,000 for a search; the page says how many of all jobs were read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from typing import Annotated, NamedTuple, TypeVar
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from towpath.app.jobs import AllJobs
from towpath.dashboard.engine_pages import LOOKED_AT_MOST, STATES, snapshots_of
from towpath.engine.engine import Engine
from towpath.engine.inspect import LARGEST_PAGE, Counts, Lane
from towpath.engine.model import JobInfo, job_ref
from towpath.engine.states import State
from towpath.errors import InvalidName, InvalidOption, JobNotFound, closest_name
from towpath.ledger.keys.key import KeyInfo
from towpath.web.auth import CanRead
from towpath.web.dependencies import TheEngine, TheJobs
from towpath.web.fields import PAGES
from towpath.web.pages import PageRoute, ThePage
from towpath.web.problems import Refused

router = APIRouter(prefix=PAGES.rstrip("/"), route_class=PageRoute, include_in_schema=False)
KINDS = {
    "": "anything",
    "id": "job id",
    "queue": "queue",
    "lane": "lane",
    "handler": "handler",
    "state": "state",
    "error": "error of dead jobs",
}
"""What can be searched for, with its name in the form."""
SHOWN = 50
_AT_ONCE = 32
_ROUND, _ROUNDS_MOST = 10, 50
"""Number of queues whose errors are searched at the same time, and limit of rounds of a search."""
_FEWEST = 20
"""Minimum number of jobs that are read per queue and state, however many queues there are."""
_WALKED = ("leased", "ready", "delayed", "waiting", "dead")

T = TypeVar("T")
A = TypeVar("A")


class SearchResult(NamedTuple):
    """The jobs that a search found, and how many it has read."""

    jobs: list[JobInfo]
    """At most 50."""
    looked: int
    """The number of jobs that were read."""
    whole: int
    """The number of all jobs."""


NOT_SEARCHED = SearchResult([], 0, 0)


@router.get("/search")
async def search_page(
    page: ThePage,
    request: Request,
    engine: TheEngine,
    jobs: TheJobs,
    key: CanRead,
    *,
    q: Annotated[str, Query(max_length=2000)] = "",
    by: Annotated[str, Query(max_length=20)] = "",
) -> Response:
    """Everything with this id, name, handler, state or error, in all queues."""
    if by not in KINDS:
        raise Refused(422, "invalid_input", f"by must be one of {', '.join(filter(None, KINDS))}")
    text = q.strip()
    seen = (await snapshots_of(request).read()).seen_by(key) if text else {}
    asked = (by,) if by else tuple(KINDS)
    found = await _jobs_of(jobs, seen, text, key) if "id" in asked and text else []
    if len(found) == 1:
        ref = found[0].ref
        return RedirectResponse(f"{PAGES}queues/{ref.queue}/jobs/{quote(ref.id, safe='')}", 303)
    lanes = await _lanes_of(engine, seen, text) if "lane" in asked else {}
    queues = [name for name in seen if text.casefold() in name] if "queue" in asked else []
    state = text.casefold() if "state" in asked and text.casefold() in STATES else ""
    # Reading jobs costs more: unless the user chose it, only if nothing else was found.
    through = seen if by or not (found or lanes or queues or state) else {}
    return page.show(
        "search.html",
        text=text,
        by=by,
        kinds=KINDS,
        states=STATES,
        jobs=found,
        lanes=lanes,
        queues=queues,
        near=closest_name(text.partition("/")[0], seen) if by in ("", "id", "queue") else None,
        state=state,
        in_state={name: n for name, counts in seen.items() if (n := _count(counts, state))},
        handled=await handled_by(jobs, through, text) if "handler" in asked else NOT_SEARCHED,
        failed=await failed_with(jobs, through, text) if "error" in asked else NOT_SEARCHED,
        every=seen,
        shown_most=SHOWN,
        limit=LOOKED_AT_MOST,
    )


def _count(counts: Counts, state: str) -> int:
    if not state:
        return 0
    if state in _ENDS:
        return min(counts.kept, counts.totals[_ENDS[state]])
    return int(getattr(counts, state))


_ENDS = {"done": "completed", "cancelled": "cancelled"}
"""Jobs of these states are counted together while they are kept; this total limits each."""


async def _jobs_of(
    jobs: AllJobs, queues: Collection[str], text: str, key: KeyInfo
) -> list[JobInfo]:
    """The jobs with the id *text*, in all queues. `queue/id` names one job, also in a queue that is
    newer than the shared snapshot of all queues.
    """
    found: list[JobInfo] = []
    first, slash, rest = text.partition("/")
    if slash and key.covers(first):
        with suppress(InvalidName, JobNotFound):
            found.append(await jobs.get(job_ref(first, rest)))
    with suppress(InvalidName):
        found += await jobs.find(text, queues)
    return found


async def _lanes_of(engine: Engine, seen: Mapping[str, Counts], text: str) -> dict[str, Lane]:
    """The lanes with the name *text* that have jobs, by queue."""
    names = [name for name, counts in seen.items() if counts.lanes]
    found = await _each(names, lambda name: engine.inspect.lane(name, text))
    return {name: lane for name, lane in zip(names, found, strict=True) if lane and lane.head}


async def handled_by(every: AllJobs, seen: Mapping[str, Counts], text: str) -> SearchResult:
    """Jobs for the handler *text*, among the first jobs of each queue and state."""
    places = [
        (name, State(state), count)
        for name, counts in seen.items()
        for state in _WALKED
        if (count := _count(counts, state))
    ]
    whole = sum(count for _, _, count in places)
    share = max(LOOKED_AT_MOST // max(len(places), 1), _FEWEST)
    size = min(share, LARGEST_PAGE)
    pages = await _each(
        places[: LOOKED_AT_MOST // size],
        lambda place: every.list(place[0], place[1], size=size),
    )
    looked_at = [job for page in pages if page for job in page.jobs]
    fitting = [job for job in looked_at if job.headers.get("handler") == text]
    return SearchResult(fitting[:SHOWN], len(looked_at), max(whole, len(looked_at)))


async def failed_with(every: AllJobs, seen: Mapping[str, Counts], text: str) -> SearchResult:
    """Dead jobs whose error contains *text*, the newest of each queue first. Begins with the queues
    that have most dead jobs.
    """
    dead = {name: counts.dead for name, counts in seen.items() if counts.dead}
    open_ = sorted(dead, key=lambda name: -dead[name])
    come, jobs = dict.fromkeys(open_, 0), list[JobInfo]()
    for _ in range(_ROUNDS_MOST):
        part = open_[:_ROUND]
        if not part or len(jobs) >= SHOWN or sum(come.values()) >= LOOKED_AT_MOST:
            break
        found = await _each(part, lambda name: every.search_dead(name, text, looked=come[name]))
        open_ = open_[_ROUND:]
        for name, step in zip(part, found, strict=True):
            if step is not None:
                jobs += step.jobs
                come[name] = step.looked
                open_ += [name] if not step.is_over and step.looked < dead[name] else []
    looked = sum(come.values())
    return SearchResult(jobs[:SHOWN], looked, max(sum(dead.values()), looked))


async def _each(things: list[A], ask: Callable[[A], Awaitable[T]]) -> list[T | None]:
    """The results of *ask* for *things*; None for one that does not exist or is invalid."""

    async def one(thing: A) -> T | None:
        try:
            return await ask(thing)
        except (JobNotFound, InvalidName, InvalidOption):
            return None

    found: list[T | None] = []
    for start in range(0, len(things), _AT_ONCE):
        found += await asyncio.gather(*map(one, things[start : start + _AT_ONCE]))
    return found
