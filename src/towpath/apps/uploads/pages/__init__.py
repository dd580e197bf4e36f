"""Uploads in the dashboard: files are sent from the page in chunks, and all uploads are listed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fastapi import Query, Response

from towpath.apps.uploads.http.owning import CanRead, TheUploads, listed_owner
from towpath.apps.uploads.model import UPLOADS
from towpath.web.pages import Pages, ThePage, pages_router

router = pages_router()
_SIZE = 50


@router.get("/ui/uploads")
async def uploads(
    page: ThePage,
    service: TheUploads,
    key: CanRead,
    after: Annotated[str, Query(max_length=128)] = "",
) -> Response:
    """The page that sends files and lists the user's uploads, newest first."""
    owner = listed_owner(service, key)
    found = await service.list(owner=owner, after=after or None, size=_SIZE)
    last = found[-1].upload_id if len(found) == _SIZE else None
    return page.show("uploads/list.html", found=found, after=last, live=UPLOADS)


PAGES = Pages(
    router=router, links=(("Uploads", "/ui/uploads"),), queue=UPLOADS, folder=Path(__file__).parent
)
