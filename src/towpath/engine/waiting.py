"""Waiting without polling: a blocking read tells who waits that there is work.

A script that makes work visible pushes a token to the queue's wake list, at most one; the read
takes it and one waiter looks. A claim that leaves work behind pushes it again, so that waiters
wake one after the other. A lost token costs seconds, never for ever: nobody waits longer than
the cap without looking.

Connections are bounded, whatever the number of queues. The first queues that are waited on have a
read each, so that one whose read fails is no trouble of the others. All beyond share a few reads,
each of which is called back to take in another queue: for those it is one more command. In a
cluster a read can't span slots: there, and beyond what reads can carry, nobody reads for them.
Who has no read of his own is also looked after by a glance at all of them together (`glance.py`).
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from towpath.clock import Clock, Duration, DurationLike, seconds
from towpath.engine import codec
from towpath.engine.batcher import LARGEST_BATCH
from towpath.engine.check import whole
from towpath.engine.connect import Line, Link
from towpath.engine.glance import Glances, Waiters
from towpath.engine.keys import keys_of, recall_key
from towpath.engine.layout import TROUBLE
from towpath.engine.model import Call, Release
from towpath.engine.options import QueueOptions
from towpath.errors import TowpathError
from towpath.ids import QueueName, lane_key, worker_name
from towpath.supervise import detached

Body = Callable[[QueueOptions], Any]
Write = Callable[[str, QueueName, Body, Call], Awaitable[Any]]
Command = Callable[..., Awaitable[Any]]
"""Sends a plain command that may be repeated. Raises ServerError."""

WAIT_CAP, GLANCED_CAP = seconds(5), seconds(60)
"""How long somebody waits without looking himself: with a read of his own, and with a glance that
looks every 5 s for him."""
_SLACK = 3.0
"""A server's blocking time-outs fire late; a reply later than this is no reply."""


_OWN_MOST = 16
"""Queues with a read of their own."""
_SHARED, _SHARED_FEW, _SHARED_MOST = 8, 100, 1000
"""Reads that are shared, how many queues each has before there is another, and at most: a read is
sent again, with the names of all its queues, for each token that it takes."""
_IDLE = 10.0
"""Seconds after which the connection of a read that nobody needs is closed."""
_AFTER_TROUBLE = 0.05
_RECALL_KEPT_MS = 60_000
_UNDO_TRIES = 30

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


def wish_of(
    worker: str, lease: DurationLike, count: int, lane: str | None, *, least: int = 1
) -> list[Any]:
    """What a claim asks for: the arguments of its script."""
    return [
        worker_name(worker),
        codec.lease_ms(lease),
        whole("count", count, least, LARGEST_BATCH),
        lane_key(lane) if lane is not None else "",
    ]


class Claims:
    """Calls that claim. One that its caller has not named gets a name here, so that it can be
    asked for what it claimed if the caller goes away: that is given back, for nobody else would
    run it before its lease ends.
    """

    def __init__(self, write: Write, settle: Callable[[list[Release]], Awaitable[object]]) -> None:
        self._write, self._settle = write, settle
        self._idle: list[Iterator[Call]] = []
        self._undoing: set[asyncio.Task[None]] = set()

    async def ask(
        self, verb: str, queue: QueueName, worker: str, body: Body, call: Call | None
    ) -> Any:
        """The answer to *verb*, which is claim or exchange."""
        if call is not None:
            return await self._write(verb, queue, body, call)
        names = self._idle.pop() if self._idle else _names()
        call = next(names)
        try:
            return await self._write(verb, queue, body, call)
        except asyncio.CancelledError:
            task = detached("giving back of a claim", self._undo(verb, queue, worker, body, call))
            self._undoing.add(task)
            task.add_done_callback(self._undoing.discard)
            names = _names()  # the last answer under the old ones is still to be asked for
            raise
        finally:
            self._idle.append(names)

    async def close(self) -> None:
        """Wait a moment for what is under way; a server that is away stops nobody."""
        if self._undoing:
            await asyncio.wait(self._undoing, timeout=_SLACK)
        for task in self._undoing:
            task.cancel()

    async def _undo(self, verb: str, queue: QueueName, worker: str, body: Body, call: Call) -> None:
        """Tried for a while; what is not given back comes back when its lease ends."""
        for _ in range(_UNDO_TRIES):
            with suppress(TowpathError):
                answer = await self._write(verb, queue, body, call)
                leases = answer[1] if verb == "exchange" else answer[0]
                await self._settle([Release(codec.lease(queue, worker, it)) for it in leases])
                return
            await asyncio.sleep(1)


def _names() -> Iterator[Call]:
    channel = secrets.token_hex(8)
    return (Call(channel, number) for number in itertools.count(1))


class Waker:
    """Whom to wake when there is work."""

    def __init__(self, link: Link, clock: Clock, command: Command) -> None:
        self._link, self._clock = link, clock
        self._pushes = _Pushes(command)
        self._own: list[_Listener] = []
        self._shared: list[_Listener] = []
        self._unread = Waiters()
        """Those for whom there is no read."""
        self._glances: dict[Waiters, Glances] = {}

    async def wait(self, queue: QueueName, pause: Duration) -> bool:
        """Return when there may be work in *queue*, at the latest after *pause* on the clock.

        True = the caller was called: it looks, or lets another one do so (`hand_on`).
        """
        listener = self._listener(queue)
        if listener in self._own:
            pause = min(pause, WAIT_CAP)
        else:
            self._glance(self._unread if listener is None else listener.waiters)
        called = self._unread.add(queue) if listener is None else listener.enlist(queue)
        timer = asyncio.ensure_future(self._clock.sleep(pause))
        try:
            await asyncio.wait((called, timer), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if called.done():
                self.hand_on(queue)
            raise
        finally:
            timer.cancel()
            called.cancel()
        return not called.cancelled()

    def hand_on(self, queue: QueueName) -> None:
        """Who was called went away without looking, or can't take a job: another must look."""
        listeners = [it.waiters for it in (*self._own, *self._shared) if it.listens_for(queue)]
        if not any(it.call_one(queue) for it in (*listeners, self._unread)):
            self._pushes.push(keys_of(queue).wake)

    async def close(self) -> None:
        for glances in self._glances.values():
            await glances.close()
        for listener in (*self._own, *self._shared):
            await listener.close()
        await self._pushes.close()

    def _glance(self, waiters: Waiters) -> None:
        """See that somebody looks after those now and then: tokens may be lost, or not be read."""
        if waiters not in self._glances:
            every = _unread_every if waiters is self._unread else _shared_every
            self._glances[waiters] = Glances(self._link, self._clock, waiters, every)
        self._glances[waiters].begin()

    def _listener(self, queue: QueueName) -> _Listener | None:
        """Who listens for *queue*, or can; None = there are too many."""
        mine = next((it for it in (*self._own, *self._shared) if it.listens_for(queue)), None)
        if mine is not None:
            return mine
        mine = next((it for it in self._own if it.free), None)
        if mine is None and len(self._own) < _OWN_MOST:
            mine = _Listener(self._link.line(), self._pushes)
            self._own.append(mine)
        if mine is not None or self._link.in_slots:
            return mine
        fewest = min(self._shared, key=lambda it: len(it.waiters), default=None)
        if fewest is None or (len(fewest.waiters) >= _SHARED_FEW and len(self._shared) < _SHARED):
            fewest = _Listener(self._link.line(), self._pushes, recall_key(secrets.token_hex(8)))
            self._shared.append(fewest)
        return fewest if len(fewest.waiters) < _SHARED_MOST else None


class _Pushes:
    """Tokens that are put into lists, each by itself: one whose server is silent delays no other.

    Not on a listener's connection: that may be blocked.
    """

    def __init__(self, command: Command) -> None:
        self._command = command
        self._under_way: set[asyncio.Task[None]] = set()

    def push(self, key: str, *, keep_ms: int | None = None) -> None:
        """Put a token into the list *key*, soon; one that is lost costs whoever waits seconds."""
        task = detached("token for who waits", self._send(key, keep_ms))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def close(self) -> None:
        under_way = list(self._under_way)
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    async def _send(self, key: str, keep_ms: int | None) -> None:
        with suppress(TowpathError):
            await self._command("RPUSH", key, "1")
            if keep_ms is not None:
                await self._command("PEXPIRE", key, keep_ms)


class _Listener:
    """A blocking read, under way while somebody waits.

    With a list *recall*, whose token ends the read, it serves many queues: it is called back when
    one comes that it does not listen for yet.
    """

    def __init__(self, line: Line, pushes: _Pushes, recall: str | None = None) -> None:
        self._line, self._pushes, self._recall = line, pushes, recall
        self.waiters = Waiters()
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._read: Mapping[str, None] = {}
        """The lists that the read under way waits for."""
        self._recalled = False

    # ── for those who wait ───────────────────────────────────────────────────────────────

    @property
    def free(self) -> bool:
        """Whether nobody waits and no read is under way."""
        return not self._read and not self.waiters.queues()

    def listens_for(self, queue: QueueName) -> bool:
        return queue in self.waiters or keys_of(queue).wake in self._read

    def enlist(self, queue: QueueName) -> asyncio.Future[None]:
        waiter = self.waiters.add(queue)
        self._wanted.set()
        if self._task is None or self._task.done():
            self._task = detached("listener for work", self._listen())
        elif self._read and keys_of(queue).wake not in self._read:
            self._call_back()
        return waiter

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        await self._line.close()

    # ── the read ─────────────────────────────────────────────────────────────────────────

    def _call_back(self) -> None:
        if not self._recalled and self._recall is not None:
            self._recalled = True
            self._pushes.push(self._recall, keep_ms=_RECALL_KEPT_MS)

    async def _listen(self) -> None:
        while await self._is_wanted():
            try:
                await self._read_once()
            except TROUBLE:
                # Whoever waits looks for himself, and meets the trouble or finds it over.
                await self._line.hang_up()
                self.waiters.call_all()
                await asyncio.sleep(_AFTER_TROUBLE)

    async def _is_wanted(self) -> bool:
        """Return as soon as somebody waits; False if nobody did for a while."""
        while not self.waiters.queues():
            self._wanted.clear()
            try:
                async with asyncio.timeout(_IDLE):
                    await self._wanted.wait()
            except TimeoutError:
                await self._line.close()
                if not self.waiters.queues():
                    return False
        return True

    async def _read_once(self) -> None:
        """Wait for a token, and let one look who waits for it."""
        block = WAIT_CAP.total_seconds()
        queues = {keys_of(queue).wake: queue for queue in self.waiters.queues()}
        recall = () if self._recall is None else (self._recall,)
        self._read = {**dict.fromkeys(recall), **dict.fromkeys(queues)}
        try:
            async with asyncio.timeout(block + _SLACK):
                answer = await self._line.send("BLPOP", *self._read, block)
        finally:
            self._read, self._recalled = {}, False
        if answer:
            queue = queues.get(answer[0].decode())
            if queue is not None and not self.waiters.call_one(queue):
                # Taken for nobody: somebody elsewhere may wait for it.
                self._pushes.push(keys_of(queue).wake)


def _shared_every(_: int) -> float:
    return WAIT_CAP.total_seconds()


def _unread_every(count: int) -> float:
    """Seconds: often where there are few, and at most a thousand questions a second."""
    return max(0.5, count / 1000)
