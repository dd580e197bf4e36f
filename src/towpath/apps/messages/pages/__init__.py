"""Messages in the dashboard: who waits, and one user's queue"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from fastapi import Query, Response

from towpath.apps.messages.http import CanLook, TheMessages, visible_to
from towpath.apps.messages.model import MESSAGES
from towpath.apps.messages.service import Messages
from towpath.apps.owners import Access
from towpath.engine.engine import Engine
from towpath.engine.model import JobInfo, job_ref
from towpath.engine.states import State
from towpath.errors import JobNotFound
from towpath.web.dependencies import TheEngine
from towpath.web.pages import DashboardPage, Pages, ThePage, pages_router

router = pages_router()
_SHOWN = 100
_OPEN = (State.LEASED, State.READY, State.DELAYED, State.WAITING)


@router.get("/ui/messages")
async def messages(
    page: ThePage,
    service: TheMessages,
    engine: TheEngine,
    key: CanLook,
    user: Annotated[str, Query(max_length=512)] = "",
) -> Response:
    """List users with waiting messages; or, with *user*, the messages of one user."""
    access = visible_to(service, key)
    if user:
        return await _one_user(page, service, engine, access, user)
    found = [await engine.inspect.list(MESSAGES, state, size=_SHOWN) for state in _OPEN]
    jobs = [job for listed in found for job in listed.jobs if access.may_use(job.owner)]
    lanes = [job.lane for job in jobs if job.lane]
    users = list(dict.fromkeys(lanes))[:_SHOWN]
    queues = await asyncio.gather(*(service.user(user, access) for user in users))
    return page.show(
        "messages/users.html",
        load=await service.load(),
        alone=(await engine.inspect.counts(MESSAGES)).no_worker,
        users=dict(zip(users, queues, strict=True)),
        more=any(listed.after for listed in found),
        live=MESSAGES,
    )


async def _one_user(
    page: DashboardPage, service: Messages, engine: Engine, access: Access, user: str
) -> Response:
    queue, lane = await service.user(user, access), await engine.inspect.lane(MESSAGES, user)
    waiting = await engine.inspect.list(MESSAGES, State.WAITING, lane=user, size=_SHOWN)
    current, first = queue.current_message_id, list[JobInfo]()
    if lane.head and lane.head != current:
        with suppress(JobNotFound):  # it ended meanwhile
            first = [await engine.inspect.job(job_ref(MESSAGES, lane.head))]
    return page.show(
        "messages/user.html",
        user=user,
        queue=queue,
        head=await service.get(current) if current else None,
        jobs=[job for job in (*first, *waiting.jobs) if access.may_use(job.owner)],
        more=waiting.after,
        live=MESSAGES,
    )


PAGES = Pages(
    router=router,
    links=(("Messages", "/ui/messages"),),
    queue=MESSAGES,
    folder=Path(__file__).parent,
)
