"""Pages for operators: schedules, workers, keys, the audit log."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from towpath.clock import instant, wall_ms
from towpath.dashboard.charts import WINDOWS, coming
from towpath.dashboard.engine_pages import After, Text, refuse_others, snapshots_of
from towpath.dashboard.snapshot_cache import checksum_of
from towpath.ledger.keys.key import Scope
from towpath.ledger.ledger import Ledger
from towpath.web.auth import CanAdmin, CanRead, require_all_queues
from towpath.web.dependencies import TheEngine
from towpath.web.fields import PAGES
from towpath.web.pages import PageRoute, ThePage

router = APIRouter(prefix=PAGES.rstrip("/"), route_class=PageRoute, include_in_schema=False)


# ── schedules, keys, the audit log ───────────────────────────────────────────────────────


@router.get("/schedules")
async def schedules_page(
    page: ThePage,
    request: Request,
    engine: TheEngine,
    key: CanRead,
    *,
    after: After = "",
    within: Text = "day",
) -> Response:
    """Schedules with their last firings, and the next ones on a time line."""
    refuse_others({"within": (within, WINDOWS)})
    snapshots = snapshots_of(request)
    snapshot = await snapshots.read()
    names = tuple(snapshot.seen_by(key))
    found = await snapshots.cached(
        (snapshot.at, "schedules", names, after),
        lambda: engine.schedules.list(queues=names, after=after or None, size=100),
    )
    return page.show(
        "schedules.html",
        found=found,
        coming=coming(found.schedules, instant(wall_ms()), within),
        windows={name: name == within for name in WINDOWS},
        after=after,
        live="*",
        mark=checksum_of(snapshot, key, ""),
    )


@router.get("/workers")
async def workers_page(
    page: ThePage, request: Request, engine: TheEngine, key: CanRead
) -> Response:
    """The live workers, with their hosts and jobs."""
    workers = await snapshots_of(request).cached("workers", engine.workers.list)
    found = [
        (name, since, report, [queue for queue in report.queues if key.covers(queue)])
        for name, since, report in workers
    ]
    seen = [worker for worker in found if worker[3]]
    return page.show("workers.html", workers=seen, covers=key.covers, live="*")


_SCOPES = {
    Scope.READ: "Read jobs, queues and events.",
    Scope.SUBMIT: "Submit jobs, change those of its owner, and use the applications.",
    Scope.WORK: "Claim jobs and settle them.",
    Scope.MANAGE: "With submit: also change jobs and schedules of other owners.",
    Scope.RAW: "With submit or work: use the queues of applications directly.",
    Scope.ADMIN: "Everything.",
}


@router.get("/keys")
async def keys_page(page: ThePage, request: Request, key: CanAdmin) -> Response:
    """All keys."""
    require_all_queues(key)
    ledger: Ledger = request.app.state.ledger
    return page.show("keys.html", keys=await ledger.keys.list(), scopes=_SCOPES)


@router.get("/audit")
async def audit_page(
    page: ThePage,
    request: Request,
    admin: CanAdmin,
    *,
    key: Annotated[str, Query(max_length=64)] = "",
    after: Annotated[int | None, Query(ge=0, le=2**62)] = None,
) -> Response:
    """The audit log: who changed what, and when."""
    require_all_queues(admin)
    ledger: Ledger = request.app.state.ledger
    found = await ledger.audit.list(after=after, size=100, key=key or None)
    return page.show("audit.html", found=found, chosen=key)
