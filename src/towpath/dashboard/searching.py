"""The search: jobs by id, lane, handler, state and error, and queues by name; in all queues.

An id, a queue, a lane and a state are looked up. For handlers and errors jobs are looked through:
at most 10,000 for a search, and the page says how many of how many that were.
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
from towpath.dashboard.engine_pages import LOOKED_AT_MOST, STATES, pulse_of
from towpath.engine.engine import Engine
from towpath.engine.inspect import LARGEST_PAGE, Counts, Lane
from towpath.engine.model import JobInfo, job_ref
from towpath.engine.states import State
from towpath.errors import InvalidName, InvalidOption, JobNotFound, closest_name
from towpath.ledger.keys.key import KeyInfo
from towpath.web.auth import CanRead
from towpath.web.fields import PAGES
from towpath.web.pages import PageRoute, ThePage
from towpath.web.parts import TheEngine, TheJobs
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
"""What a text may be, and its name in the form."""
SHOWN = 50
_AT_ONCE = 32
_ROUND, _ROUNDS_MOST = 10, 50
"""Queues whose errors are searched side by side, and how often, so that a search ends."""
_FEWEST = 20
"""Jobs of a state that are looked at, however many queues there are."""
_WALKED = ("leased", "ready", "delayed", "waiting", "dead")

T = TypeVar("T")
A = TypeVar("A")


class Looked(NamedTuple):
    """Jobs that were found by looking through some."""

    jobs: list[JobInfo]
    """At most 50."""
    looked: int
    whole: int
    """How many there were to look through."""


NOT_LOOKED = Looked([], 0, 0)


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
    """What has this id, name, handler, state or error, in whatever queue."""
    if by not in KINDS:
        raise Refused(422, "invalid_input", f"by must be one of {', '.join(filter(None, KINDS))}")
    text = q.strip()
    seen = (await pulse_of(request).now()).seen_by(key) if text else {}
    asked = (by,) if by else tuple(KINDS)
    found = await _jobs_of(jobs, seen, text, key) if "id" in asked and text else []
    if len(found) == 1:
        ref = found[0].ref
        return RedirectResponse(f"{PAGES}queues/{ref.queue}/jobs/{quote(ref.id, safe='')}", 303)
    lanes = await _lanes_of(engine, seen, text) if "lane" in asked else {}
    queues = [name for name in seen if text.casefold() in name] if "queue" in asked else []
    state = text.casefold() if "state" in asked and text.casefold() in STATES else ""
    # Looking through jobs costs more: without being asked to, only where nothing has that name.
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
        handled=await handled_by(jobs, through, text) if "handler" in asked else NOT_LOOKED,
        failed=await failed_with(jobs, through, text) if "error" in asked else NOT_LOOKED,
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
    """The jobs whose id *text* is, in whatever queue; `queue/id` asks for one, also in a queue that
    is newer than the shared look at all of them.
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
    """By queue: the lane of that name, where it has jobs."""
    names = [name for name, counts in seen.items() if counts.lanes]
    found = await _each(names, lambda name: engine.inspect.lane(name, text))
    return {name: lane for name, lane in zip(names, found, strict=True) if lane and lane.head}


async def handled_by(every: AllJobs, seen: Mapping[str, Counts], text: str) -> Looked:
    """Jobs for the handler of that name: the first of each queue and state, as they run."""
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
    return Looked(fitting[:SHOWN], len(looked_at), max(whole, len(looked_at)))


async def failed_with(every: AllJobs, seen: Mapping[str, Counts], text: str) -> Looked:
    """Dead jobs whose error has that text in it, the newest of each queue first; those queues first
    that have most.
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
    return Looked(jobs[:SHOWN], looked, max(sum(dead.values()), looked))


async def _each(things: list[A], ask: Callable[[A], Awaitable[T]]) -> list[T | None]:
    """What *ask* answers for each; None for what there is not."""

    async def one(thing: A) -> T | None:
        try:
            return await ask(thing)
        except (JobNotFound, InvalidName, InvalidOption):
            return None

    found: list[T | None] = []
    for start in range(0, len(things), _AT_ONCE):
        found += await asyncio.gather(*map(one, things[start : start + _AT_ONCE]))
    return found
