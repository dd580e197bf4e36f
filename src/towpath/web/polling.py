"""Long polls: a claim that waits, until there is work, the time is over, or nobody wants it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from fastapi import Request

from towpath.clock import Duration, milliseconds, seconds, steady
from towpath.engine.engine import Engine
from towpath.engine.model import Call, Lease, Release
from towpath.web.sessions import Kind, Sessions

_AT_LEAST = milliseconds(10)
"""Between two looks, whatever a due time says: so that no queue is looked at without pause."""


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker asks for."""

    queue: str
    worker: str
    lease: Duration
    count: int
    wait: Duration


class Poll:
    """One waiting claim. It ends early if the client leaves, its key ends or the server drains.

    A client that left gets nothing: what was claimed for it meanwhile is given back at once.
    """

    def __init__(
        self, engine: Engine, request: Request, draining: asyncio.Event, sessions: Sessions
    ) -> None:
        self._engine, self._request, self._draining = engine, request, draining
        self._sessions = sessions

    async def claim(self, wish: Wish) -> list[Lease]:
        """Up to `count` leases; none when the time is over."""
        async with self._ends() as (left, drains):
            leases = await self._look_until(wish, left, drains)
            if leases and left.done():
                await self._engine.settle([Release(lease) for lease in leases])
            return leases

    async def claim_named(self, wish: Wish, call: Call) -> list[Lease]:
        """The same under the caller's name. Who left may ask again, so nothing is given back."""
        async with self._ends() as (left, drains):
            claiming = asyncio.ensure_future(self._named(wish, call, wish.wait))
            await _first(claiming, left, drains)
            if claiming.done():
                return claiming.result()
            await _end(claiming)
            # It may have claimed just then: the same name tells.
            return [] if left.done() else await self._named(wish, call, milliseconds(1))

    async def _named(self, wish: Wish, call: Call, wait: Duration) -> list[Lease]:
        return await self._engine.claim(
            wish.queue,
            worker=wish.worker,
            lease=wish.lease,
            count=wish.count,
            wait=wait,
            call=call,
        )

    async def _look_until(
        self, wish: Wish, left: asyncio.Future[None], drains: asyncio.Future[Any]
    ) -> list[Lease]:
        until = steady() + wish.wait.total_seconds()
        while True:
            found = await self._engine.exchange(
                wish.queue, [], worker=wish.worker, lease=wish.lease, count=wish.count
            )
            rest = seconds(max(until - steady(), 0))
            if found.leases or not rest or left.done() or drains.done():
                return found.leases
            pause = rest if found.due_in is None else min(rest, max(found.due_in, _AT_LEAST))
            waiting = self._engine.wait_for_work(wish.queue, within=pause)
            woken = asyncio.ensure_future(waiting)
            try:
                await _first(woken, left, drains)
            finally:
                await _end(woken)

    @asynccontextmanager
    async def _ends(self) -> AsyncGenerator[tuple[asyncio.Future[None], asyncio.Future[Any]]]:
        """What ends a poll before its time: the client leaves, the server drains.

        Whose key has ended is shown out, and counts as one that left. 429, 503.
        """
        session = self._sessions.open(self._request, Kind.WAIT)
        left = asyncio.ensure_future(self._client_left())
        session.on_end(left.cancel)
        drains = asyncio.ensure_future(self._draining.wait())
        try:
            yield left, drains
        finally:
            session.close()
            await _end(left)
            await _end(drains)

    async def _client_left(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass


async def _first(*tasks: asyncio.Future[Any]) -> None:
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


async def _end(task: asyncio.Future[Any]) -> None:
    """Nobody waits for *task* any more; what it raised is the next call's to meet."""
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()
