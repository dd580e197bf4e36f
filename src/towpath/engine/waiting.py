"""Waiting without polling: one blocking read per queue tells who waits that there is work.

A script that makes work visible pushes a token to the queue's wake list, at most one; the read
takes it and one waiter looks. A claim that leaves work behind pushes it again, so that waiters
wake one after the other. A lost token costs seconds, never for ever: nobody waits longer than
the cap without looking.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

from towpath.clock import Clock, Duration, seconds
from towpath.engine.check import whole
from towpath.engine.connect import Line, Link
from towpath.engine.keys import keys_of
from towpath.engine.layout import TROUBLE
from towpath.engine.model import Call
from towpath.ids import QueueName

WAIT_CAP = seconds(5)
_SLACK = 3.0
"""A server's blocking time-outs fire late; a reply later than this is no reply."""


_LOOKS_MOST = 2**20
_NUMBER_MOST = 2**53 // _LOOKS_MOST - 1


class Looks:
    """The names of a waiting claim's looks: each is a call, all of them belong to the caller's one.

    A claim that is repeated begins with the first look and is told that the channel is further:
    then it asks for the last one's answer.
    """

    def __init__(self, call: Call) -> None:
        whole("call.number", call.number, 1, _NUMBER_MOST)
        self._channel = call.channel
        self._first = self._number = call.number * _LOOKS_MOST

    def next(self) -> Call:
        """The name of the next look."""
        self._number += 1
        return Call(self._channel, self._number)

    def again(self, last: int) -> bool:
        """Whether *last* was a look of this claim; then it is the next one again."""
        mine = self._number <= last < self._first + _LOOKS_MOST
        self._number = last - 1
        return mine


class Waker:
    """Whom to wake when there is work."""

    def __init__(self, link: Link, clock: Clock) -> None:
        self._link, self._clock = link, clock
        self._listeners: dict[QueueName, _Listener] = {}

    async def wait(self, queue: QueueName, pause: Duration) -> None:
        """Return when there may be work in *queue*, at the latest after *pause* on the clock."""
        listener = self._listeners.get(queue)
        if listener is None:
            listener = self._listeners[queue] = _Listener(self._link.line(), keys_of(queue).wake)
        called = listener.enlist()
        timer = asyncio.ensure_future(self._clock.sleep(pause))
        try:
            await asyncio.wait((called, timer), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if called.done():
                listener.hand_on()
            raise
        finally:
            timer.cancel()
            called.cancel()

    async def close(self) -> None:
        for listener in self._listeners.values():
            await listener.close()


class _Listener:
    """The blocking read of one queue, under way while somebody waits."""

    def __init__(self, line: Line, wake: str) -> None:
        self._line, self._wake = line, wake
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._task: asyncio.Task[None] | None = None

    def enlist(self) -> asyncio.Future[None]:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._listen())
        return waiter

    def hand_on(self) -> None:
        """Who was called went away without looking: another must, here or elsewhere."""
        if not self._call_one():
            self._task = asyncio.create_task(self._give_back(self._task))

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        await self._line.hang_up()

    async def _listen(self) -> None:
        block = WAIT_CAP.total_seconds()
        while self._anybody():
            try:
                async with asyncio.timeout(block + _SLACK):
                    token = await self._line.send("BLPOP", self._wake, block)
                if token and not self._call_one():
                    await self._push()
            except TROUBLE:
                # Whoever waits looks for himself, and meets the trouble or finds it over.
                await self._line.hang_up()
                while self._call_one():
                    pass

    async def _give_back(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait((before,))
        with suppress(*TROUBLE):
            async with asyncio.timeout(_SLACK):
                await self._push()
        await self._listen()

    async def _push(self) -> None:
        # Taken for nobody: somebody elsewhere may wait for it.
        await self._line.send("RPUSH", self._wake, "1")

    def _anybody(self) -> bool:
        while self._waiters and self._waiters[0].done():
            self._waiters.popleft()
        return bool(self._waiters)

    def _call_one(self) -> bool:
        if not self._anybody():
            return False
        self._waiters.popleft().set_result(None)
        return True
