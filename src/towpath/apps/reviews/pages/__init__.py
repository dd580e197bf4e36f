"""Reviews in the dashboard: the list, and one review with its text"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

from fastapi import Query, Response

from towpath.apps.reviews.http import CanRead, TheReviews
from towpath.apps.reviews.model import REVIEWS, ReviewState
from towpath.errors import ServerError
from towpath.web.dependencies import TheEngine
from towpath.web.fields import Id
from towpath.web.pages import Pages, ThePage, pages_router

router = pages_router()
Text = Annotated[str, Query(max_length=512)]
_COMMENTS_SHOWN = 100


@router.get("/ui/reviews")
async def reviews(
    page: ThePage,
    service: TheReviews,
    engine: TheEngine,
    _: CanRead,
    state: Annotated[ReviewState | None, Query()] = None,
    after: Text = "",
) -> Response:
    """A page of reviews, newest first."""
    found = await service.list(state=state, after=after or None)
    states = list(ReviewState)
    alone = False
    # the list comes from the database, so it is shown even if Redis is unreachable
    with suppress(ServerError):
        alone = (await engine.inspect.counts(REVIEWS)).no_worker
    return page.show(
        "reviews/list.html", found=found, state=state, states=states, alone=alone, live=REVIEWS
    )


@router.get("/ui/reviews/{id}")
async def review(id: Id, page: ThePage, service: TheReviews, _: CanRead) -> Response:
    """A review as it is now."""
    found = await service.get(id)
    return page.show(
        "reviews/review.html", review=found, comments_shown=_COMMENTS_SHOWN, live=REVIEWS
    )


PAGES = Pages(
    router=router, links=(("Reviews", "/ui/reviews"),), queue=REVIEWS, folder=Path(__file__).parent
)
