"""Messages in the dashboard: who waits, and one user's queue"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

from fastapi import Query, Response

from towpath.apps.messages.http import CanLook, TheMessages
from towpath.apps.messages.model import MESSAGES
from towpath.engine.states import State
from towpath.web.pages import Pages, ThePage, pages_router
from towpath.web.parts import TheEngine

router = pages_router()
_SHOWN = 100


@router.get("/ui/messages")
async def messages(
    page: ThePage,
    service: TheMessages,
    engine: TheEngine,
    _: CanLook,
    user: Annotated[str, Query(max_length=512)] = "",
) -> Response:
    """Users whose messages wait; of one user, what is in process and what waits."""
    waiting = await engine.inspect.list(MESSAGES, State.WAITING, lane=user or None, size=_SHOWN)
    leased = await engine.inspect.list(MESSAGES, State.LEASED, size=_SHOWN)
    if user:
        queue = await service.user(user)
        current = queue.current_message_id
        head = await service.look(current) if current else None
        return page.show(
            "messages/user.html", user=user, queue=queue, head=head, jobs=waiting.jobs,
            more=waiting.after, live=MESSAGES,
        )  # fmt: skip
    lanes = [job.lane for job in [*leased.jobs, *waiting.jobs] if job.lane]
    users = list(dict.fromkeys(lanes))[:_SHOWN]
    found = await asyncio.gather(*map(service.user, users))
    return page.show(
        "messages/users.html",
        load=await service.load(),
        users=dict(zip(users, found, strict=True)),
        more=waiting.after or leased.after,
        live=MESSAGES,
    )


PAGES = Pages(router=router, links=(("Messages", "/ui/messages"),), folder=Path(__file__).parent)
