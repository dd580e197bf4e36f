"""Following a queue: its events as they happen, and waiting for a job's end."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from towpath.clock import Duration
from towpath.engine.check import whole
from towpath.engine.events import Event, Followers, read_entries
from towpath.engine.inspect import Inspector, Job
from towpath.engine.keys import keys_of
from towpath.engine.model import JobRef
from towpath.engine.states import State
from towpath.errors import FellBehind, InvalidOption, QueueHasNoEvents, StillOpen
from towpath.ids import QueueName, queue_name

_ENDED = {State.DONE, State.DEAD, State.CANCELLED}
LARGEST_PAGE = 1000


class Following(Inspector):
    """What an engine offers those who watch."""

    _followers: Followers

    async def events(self, queue: str, *, after: str = "0-0", size: int = 100) -> list[Event]:
        """Events that are still kept, oldest first, after the cursor of another event."""
        name, size = queue_name(queue), whole("size", size, 1, LARGEST_PAGE)
        key, first = keys_of(name).events, _after(after)
        entries: list[Any] = await self._store.command("XRANGE", key, first, "+", "COUNT", size)
        return read_entries(name, entries)

    @asynccontextmanager
    async def follow(self, queue: str) -> AsyncGenerator[AsyncIterator[Event]]:
        """The events of *queue* from the moment this is entered, as they happen.

        One blocking read per queue and process, however many follow. A follower that is far
        behind gets FellBehind. Raises QueueHasNoEvents.
        """
        name = queue_name(queue)
        await self.require_events(name)
        async with self._followers.follow(name) as events:
            yield events

    async def ended(self, job: JobRef, *, within: Duration) -> Job:
        """The job once it has ended: done with its result, dead with its reason, or cancelled.

        Raises StillOpen when the time is over, JobNotFound if it is gone: with the queue's
        `keep` at 0 a finished job leaves nothing to look at. Does not poll.
        """
        await self.require_events(job.queue)
        try:
            async with asyncio.timeout(within.total_seconds()):
                async with self._followers.follow(job.queue) as events:
                    return await self._until_ended(job, events)
        except TimeoutError as error:
            raise StillOpen(job, within) from error

    async def _until_ended(self, ref: JobRef, events: AsyncIterator[Event]) -> Job:
        while True:
            job = await self.job(ref)
            if job.state in _ENDED:
                return job
            try:
                async for event in events:
                    if event.job == ref:
                        break
            except FellBehind:
                continue

    async def require_events(self, queue: QueueName) -> None:
        """Raises QueueHasNoEvents if nobody can follow *queue*."""
        if (await self._store.known_options(queue)).events == 0:
            raise QueueHasNoEvents(queue)


_CURSOR = re.compile(r"([0-9]{1,19})-([0-9]{1,18})")


def _after(cursor: str) -> str:
    """The first place in a stream behind *cursor*."""
    match = _CURSOR.fullmatch(cursor) if isinstance(cursor, str) else None  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
    if match is None:
        raise InvalidOption("after", cursor, rule="must be the cursor of an event")
    return f"{match[1]}-{int(match[2]) + 1}"
