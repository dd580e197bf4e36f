"""Issues in the dashboard: which are handed out, who holds what, and why others wait"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fastapi import Query, Response

from towpath.apps.issues.http import CanRead, InPath, Repository, TheIssues
from towpath.apps.issues.model import ISSUES
from towpath.clock import instant
from towpath.web.pages import Pages, ThePage, pages_router

router = pages_router()
Text = Annotated[str, Query(max_length=512)]


@router.get("/ui/issues")
async def issues(
    page: ThePage, service: TheIssues, _: CanRead, agent: Text = "", after: Text = ""
) -> Response:
    """A page of issues, by repository and number."""
    found = await service.list(agent=agent or None, after=after or None)
    return page.show("issues/list.html", found=found, agent=agent, at=instant, live=ISSUES)


@router.get("/ui/issues/{repository}/{number}")
async def issue(
    repository: Repository, number: InPath, page: ThePage, service: TheIssues, _: CanRead
) -> Response:
    """An issue, who holds it, or why nobody does."""
    found = await service.get(repository, number)
    why = await service.explain(repository, number)
    return page.show("issues/issue.html", issue=found, why=why, at=instant, live=ISSUES)


PAGES = Pages(
    router=router, links=(("Issues", "/ui/issues"),), queue=ISSUES, folder=Path(__file__).parent
)
