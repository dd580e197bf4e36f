"""Pages for operators: schedules, workers, keys, the audit log; and the search."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from towpath.clock import instant, wall_ms
from towpath.dashboard.charts import marks
from towpath.dashboard.engine_pages import STATES, After, pulse_of
from towpath.dashboard.pulse import mark_of
from towpath.engine.engine import Engine
from towpath.engine.inspect import Lane
from towpath.engine.model import JobInfo, JobRef, job_ref
from towpath.errors import InvalidName, JobNotFound
from towpath.ledger.keys.key import KeyInfo
from towpath.ledger.ledger import Ledger
from towpath.web.auth import CanAdmin, CanRead
from towpath.web.fields import PAGES
from towpath.web.pages import PageRoute, ThePage
from towpath.web.parts import TheEngine
from towpath.web.problems import Refused

router = APIRouter(prefix=PAGES.rstrip("/"), route_class=PageRoute, include_in_schema=False)
_AT_ONCE = 32


# ── schedules, keys, the audit log ───────────────────────────────────────────────────────


@router.get("/schedules")
async def schedules_page(
    page: ThePage, request: Request, engine: TheEngine, key: CanRead, after: After = ""
) -> Response:
    """Schedules, what they were last fired for and what comes next."""
    snapshot = await pulse_of(request).now()
    names = [name for name in await engine.queues.names() if key.covers(name)]
    found = await engine.schedules.list(queues=names, after=after or None, size=100)
    nexts = [(it.next, it.queue, it.name) for it in found.schedules if it.next is not None]
    coming, until = marks(nexts, instant(wall_ms()))
    return page.show(
        "schedules.html",
        found=found,
        coming=coming,
        until=until,
        live="*",
        mark=mark_of(snapshot, key, ""),
    )


@router.get("/workers")
async def workers_page(page: ThePage, engine: TheEngine, key: CanRead) -> Response:
    """Workers that are alive, on which host, and what they run."""
    found = [
        (name, since, it, [queue for queue in it.queues if key.covers(queue)])
        for name, since, it in await engine.workers.list()
    ]
    seen = [it for it in found if it[3]]
    return page.show("workers.html", workers=seen, covers=key.covers, live="*")


@router.get("/keys")
async def keys_page(page: ThePage, request: Request, key: CanAdmin) -> Response:
    """All keys."""
    _require_all(key)
    ledger: Ledger = request.app.state.ledger
    return page.show("keys.html", keys=await ledger.keys.list())


@router.get("/audit")
async def audit_page(
    page: ThePage,
    request: Request,
    key: CanAdmin,
    after: Annotated[int | None, Query(ge=0, le=2**62)] = None,
) -> Response:
    """What was done here: who, what, when."""
    _require_all(key)
    ledger: Ledger = request.app.state.ledger
    return page.show("audit.html", found=await ledger.audit.list(after=after, size=100))


def _require_all(key: KeyInfo) -> None:
    if "*" not in key.queues:
        raise Refused(
            403,
            "queue_forbidden",
            "the key covers only some queues; this request is about all of them",
        )


# ── search ───────────────────────────────────────────────────────────────────────────────


@router.get("/search")
async def search_page(
    page: ThePage,
    request: Request,
    engine: TheEngine,
    key: CanRead,
    q: Annotated[str, Query(max_length=2000)] = "",
) -> Response:
    """Jobs of an id, queues and lanes of a name; and where to look on."""
    text = q.strip()
    snapshot = await pulse_of(request).now()
    seen = snapshot.seen_by(key)
    jobs = await _jobs_of(engine, seen, text, key) if text else []
    if len(jobs) == 1:
        ref = jobs[0].ref
        return RedirectResponse(f"{PAGES}queues/{ref.queue}/jobs/{quote(ref.id, safe='')}", 303)
    lanes = await _lanes_of(engine, [it for it in seen if seen[it].lanes], text) if text else {}
    return page.show(
        "search.html",
        text=text,
        jobs=jobs,
        lanes=lanes,
        queues=[name for name in seen if text and text.casefold() in name],
        state=text if text in STATES else "",
        every=seen,
    )


async def _jobs_of(engine: Engine, queues: Iterable[str], text: str, key: KeyInfo) -> list[JobInfo]:
    """The jobs whose id *text* is, in whatever queue; `queue/id` asks for one, also in a queue that
    is newer than the shared look at all of them.
    """
    refs: list[JobRef] = []
    names = list(queues)
    first, slash, rest = text.partition("/")
    with suppress(InvalidName):
        refs += [job_ref(first, rest)] if slash and key.covers(first) else []
    with suppress(InvalidName):
        refs += [job_ref(name, text) for name in names]
    return [it for it in await _each(refs, engine.inspect.job) if it is not None]


async def _lanes_of(engine: Engine, queues: Iterable[str], text: str) -> dict[str, Lane]:
    """By queue: the lane of that name, where it has jobs."""
    names = list(queues)
    found = await _each(names, lambda name: engine.inspect.lane(name, text))
    return {name: it for name, it in zip(names, found, strict=True) if it and it.head}


async def _each(things: list[Any], ask: Callable[[Any], Any]) -> list[Any]:
    """What *ask* answers for each; None for what there is not."""

    async def one(thing: Any) -> Any:
        try:
            return await ask(thing)
        except (JobNotFound, InvalidName):
            return None

    found: list[Any] = []
    for start in range(0, len(things), _AT_ONCE):
        found += await asyncio.gather(*map(one, things[start : start + _AT_ONCE]))
    return found
