"""Timers in the dashboard: their types, who serves them, and what is due when"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fastapi import Query, Response

from towpath.apps.timers.http import CanLook, TheTimers
from towpath.apps.timers.listing import TimerQuery
from towpath.web.pages import Pages, ThePage, pages_router

router = pages_router()
Text = Annotated[str, Query(max_length=512)]


@router.get("/ui/timers")
async def timers(
    page: ThePage,
    service: TheTimers,
    key: CanLook,
    *,
    app: Annotated[str | None, Query(max_length=128)] = None,
    task_type: Text = "",
    after: Annotated[str, Query(max_length=2048)] = "",
) -> Response:
    """List the types; and the timers of one type, or of all, sorted by due time."""
    wanted = TimerQuery(app=app, task_type=task_type or None)
    found = await service.list(
        wanted, after=after or None, size=50, covers=key.covers, access=service.access(key)
    )
    return page.show(
        "timers/list.html",
        types=await service.all_types(key.covers),
        found=found,
        app=app,
        task_type=task_type,
        live="*",
    )


PAGES = Pages(router=router, links=(("Timers", "/ui/timers"),), folder=Path(__file__).parent)
