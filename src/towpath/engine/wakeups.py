"""Waiting for work without polling: a blocking read on a list receives wake-ups.

A script that makes work visible pushes a wake-up to the queue's wake list, which has at most one.
The read takes it, and one waiter looks for work. A claim that leaves work behind pushes another, so
that waiters wake one after the other. A lost wake-up costs seconds at most: no waiter waits longer
than the cap without looking for work itself.

Connections are bounded, whatever the number of queues. The first queues that are waited on have a
read each, so that a read that fails does not affect other queues. All further queues share a few
reads. A shared read is ended by a push to its recall list and sent again when a queue is added: one
more command. In a cluster a read can't span slots: there, and beyond the capacity of the reads,
queues have no read.

Queues without a read of their own are checked all together: if the waiters of a thousand idle
queues claimed every few seconds, Redis and the process would be busy for nothing. Instead, one
message per Redis server asks which of these queues have jobs at all. Waiters claim only from those
that can give a job. So a job is found even if its wake-up was lost.

A waiter for some selectors waits on a list for each of them, so that it takes no wake-up of other
selectors. All such waiters of a process for one queue share a read, because the keys of a queue are
in one slot.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from towpath.clock import Clock, Duration, ServerClock, duration_ms, seconds, steady
from towpath.engine.channel import Channel
from towpath.engine.cluster import Cluster
from towpath.engine.connection import Place
from towpath.engine.keys import keys_of, recall_key
from towpath.engine.resp import TROUBLE
from towpath.engine.store import Store
from towpath.errors import TowpathError
from towpath.ids import QueueName
from towpath.supervise import detached

WAIT_CAP, CHECKED_CAP = seconds(5), seconds(60)
"""How long a waiter waits at most without looking for work itself: with a read of its own, and with
a periodic check every 5 s."""
WAIT_CAP_MS = duration_ms("wait", WAIT_CAP)
_SLACK = 3.0
"""Seconds that a reply may be late, because a server's blocking time-outs fire late."""


_OWN_MOST = 16
"""Maximum number of queues with a read of their own."""
_SHARED, _SHARED_FEW, _SHARED_MOST = 8, 100, 1000
"""Maximum number of shared reads; how many queues each has before another read is opened; and at
most. A read is sent again, with the keys of all its queues, after each wake-up that it takes."""
_IDLE = 10.0
"""Seconds after which the connection of a read without waiters is closed."""
_AFTER_TROUBLE = 0.05
_TURNS_S = 0.001
"""The last seconds of a wait, in which each turn of the event loop checks the clock."""
_RECALL_KEPT_MS = 60_000
_SELECTING, _SELECTORS_MOST = 8, 1000
"""Maximum number of queues with a read for waiters of some selectors, and of selectors in each."""
_UNREAD, _AT_LIMIT = seconds(0.5), seconds(1)
"""How often a waiter looks for work itself: without a read, and if it holds as many jobs as it
may."""

_QUEUES_PER_COMMAND = 50
"""Queues in one command of a periodic check."""
_CHECK_ANSWER_S = 5.0


class Waker:
    """Wakes callers that wait for work."""

    def __init__(self, cluster: Cluster, clock: Clock, store: Store) -> None:
        self._cluster, self._clock = cluster, clock
        self._pushes = _Pushes(store)
        self._own: list[_Listener] = []
        self._shared: list[_Listener] = []
        self._unread = Waiters()
        """Waiters without a read."""
        self._checks: dict[Waiters, PeriodicCheck] = {}
        self._selector_listeners: dict[QueueName, _Listener] = {}

    async def wait(self, queue: QueueName, pause: Duration) -> bool:
        """Wait until there may be work in *queue*, at most for *pause* on the clock.

        Returns True if a wake-up came: the caller looks for work, or passes it on (`hand_on`).
        """
        called: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        pause = self._enlist(queue, called, pause)
        return bool(await self._await_wakeup(called, pause, lambda _: self.hand_on(queue)))

    def watch(
        self, queue: QueueName, pause: Duration, since: float, act: Callable[[bool], None]
    ) -> WorkWatch:
        """Call *act* once, when there may be work in *queue*, at the latest after *pause* on the
        clock, counted from *since*. It runs in the step of the event loop that reads the wake-up,
        without a task.

        *act* gets True if a wake-up came.
        """
        watch = WorkWatch(act)
        pause = self._enlist(queue, watch, pause)
        watch.end_after(pause, since, self._clock)
        return watch

    def _enlist(self, queue: QueueName, waiter: Waiter, pause: Duration) -> Duration:
        """Add *waiter* to those of *queue*. Returns how long it may wait without looking itself."""
        listener = self._find_listener(queue)
        if listener is None:
            self._unread.add(waiter, queue)
        else:
            listener.enlist(waiter, queue)
        if listener in self._own:
            return min(pause, WAIT_CAP)
        self._start_check(self._unread if listener is None else listener.waiters)
        return pause

    async def wait_on(
        self, queue: QueueName, selectors: Sequence[str], left: int, pause: Duration
    ) -> str:
        """As `wait`, for a claim that got nothing: of these selectors, if it named any.

        Returns the selector whose wake-up came, or ''. A worker that holds as many jobs as it may
        (*left* below 0) gets no wake-up: it could only pass it on.
        """
        if left < 0:
            await self._clock.sleep(min(pause, _AT_LIMIT))
        elif selectors:
            return await self._wait_for_selectors(queue, selectors, pause)
        else:
            await self.wait(queue, pause)
        return ""

    async def _wait_for_selectors(
        self, queue: QueueName, selectors: Sequence[str], pause: Duration
    ) -> str:
        listener = self._selector_listeners.get(queue)
        if listener is None and len(self._selector_listeners) < _SELECTING:
            listener = self._selector_listeners[queue] = self._new_selector_listener(queue)
        if listener is None or len(listener.waiters) + len(selectors) > _SELECTORS_MOST:
            await self._clock.sleep(min(pause, _UNREAD))
            return ""
        called: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        listener.enlist(called, *selectors)
        return await self._await_wakeup(
            called, min(pause, WAIT_CAP), partial(self._hand_on_selector, queue)
        )

    async def _await_wakeup(
        self, called: asyncio.Future[str], pause: Duration, hand_on: Callable[[str], None]
    ) -> str:
        """The name whose wake-up the caller got; '' = none came within *pause*."""

        def end() -> None:
            if not called.done():
                called.set_result("")

        stop_timer = _call_after(self._clock, pause, steady(), end)
        try:
            return await called
        except asyncio.CancelledError:
            if called.done() and not called.cancelled() and called.result():
                hand_on(called.result())
            raise
        finally:
            stop_timer()

    def _new_queue_listener(self, recall: str | None = None) -> _Listener:
        def give_back(queue: str) -> None:
            self._pushes.push(_wake_key(queue))

        return _Listener(
            self._cluster.channel(), self._pushes, recall, key_of=_wake_key, give_back=give_back
        )

    def _new_selector_listener(self, queue: QueueName) -> _Listener:
        keys = keys_of(queue)
        return _Listener(
            self._cluster.channel(),
            self._pushes,
            keys.recall(secrets.token_hex(8)),
            key_of=keys.wakes,
            give_back=lambda selector: self._pushes.push_for_selector(queue, selector),
        )

    def _hand_on_selector(self, queue: QueueName, selector: str) -> None:
        if not self._selector_listeners[queue].waiters.call_one(selector):
            self._pushes.push_for_selector(queue, selector)

    def hand_on(self, queue: QueueName) -> None:
        """Pass on a wake-up whose caller went away without looking, or can't take a job."""
        listeners = [
            listener.waiters
            for listener in (*self._own, *self._shared)
            if listener.listens_for(queue)
        ]
        if not any(waiters.call_one(queue) for waiters in (*listeners, self._unread)):
            self._pushes.push(keys_of(queue).wake)

    async def close(self) -> None:
        for check in self._checks.values():
            await check.close()
        for listener in (*self._own, *self._shared, *self._selector_listeners.values()):
            await listener.close()
        await self._pushes.close()

    def _start_check(self, waiters: Waiters) -> None:
        """Start the periodic check for these waiters: wake-ups may be lost, or have no read."""
        if waiters not in self._checks:
            every = _unread_every if waiters is self._unread else _shared_every
            self._checks[waiters] = PeriodicCheck(self._cluster, self._clock, waiters, every)
        self._checks[waiters].begin()

    def _find_listener(self, queue: QueueName) -> _Listener | None:
        """The listener that reads for *queue*, or has room for it; None = too many queues."""
        mine = next(
            (listener for listener in (*self._own, *self._shared) if listener.listens_for(queue)),
            None,
        )
        if mine is not None:
            return mine
        mine = next((listener for listener in self._own if listener.free), None)
        if mine is None and len(self._own) < _OWN_MOST:
            mine = self._new_queue_listener()
            self._own.append(mine)
        if mine is not None or self._cluster.in_slots:
            return mine
        fewest = min(self._shared, key=lambda listener: len(listener.waiters), default=None)
        if fewest is None or (len(fewest.waiters) >= _SHARED_FEW and len(self._shared) < _SHARED):
            fewest = self._new_queue_listener(recall_key(secrets.token_hex(8)))
            self._shared.append(fewest)
        return fewest if len(fewest.waiters) < _SHARED_MOST else None


class WorkWatch:
    """A caller that waits without a task: it is called back once."""

    __slots__ = ("_act", "_is_over", "_stop_timer")

    def __init__(self, act: Callable[[bool], None]) -> None:
        self._act, self._is_over = act, False
        self._stop_timer: Callable[[], object] | None = None

    def end_after(self, pause: Duration, since: float, clock: Clock) -> None:
        """Call back when *pause* is over, counted from *since*, unless a wake-up comes first."""
        if not self._is_over:
            act = partial(self._end, was_called=False)
            self._stop_timer = _call_after(clock, pause, since, act)

    def done(self) -> bool:
        """Whether it waits no longer."""
        return self._is_over

    def set_result(self, name: str) -> None:
        """Take a wake-up: there may be work."""
        self._end(was_called=bool(name))

    def cancel(self) -> None:
        """Stop waiting, without calling back."""
        self._is_over = True
        if self._stop_timer is not None:
            self._stop_timer()
            self._stop_timer = None

    def _end(self, *, was_called: bool) -> None:
        if not self._is_over:
            self.cancel()
            self._act(was_called)


def _call_after(
    clock: Clock, pause: Duration, since: float, act: Callable[[], None]
) -> Callable[[], object]:
    """Call *act* when *pause* is over, counted from *since*; on the clock of a test, from now on.
    Returns a function that prevents the call.
    """
    if isinstance(clock, ServerClock):
        return _ExactTimer(since + pause.total_seconds(), act).cancel
    sleeping = detached("timer of a wait", clock.sleep(pause))
    sleeping.add_done_callback(lambda slept: None if slept.cancelled() else act())
    return sleeping.cancel


class _ExactTimer:
    """Calls *act* at *at* on the steady clock.

    Event loops round their timers to milliseconds, as much as a claim takes. So a timer waits for
    the whole milliseconds, and for the rest each turn of the loop checks the clock.
    """

    __slots__ = ("_act", "_at", "_handle", "_loop")

    def __init__(self, at: float, act: Callable[[], None]) -> None:
        self._at, self._act, self._loop = at, act, asyncio.get_running_loop()
        self._handle: asyncio.Handle = self._loop.call_later(
            _whole_ms(at - steady()), self._check_clock
        )

    def cancel(self) -> None:
        self._handle.cancel()

    def _check_clock(self) -> None:
        left = self._at - steady()
        if left <= 0:
            self._act()
        elif left < _TURNS_S:
            self._handle = self._loop.call_soon(self._check_clock)
        else:
            self._handle = self._loop.call_later(_whole_ms(left), self._check_clock)


def _whole_ms(left: float) -> float:
    """*left* seconds rounded down to whole milliseconds, but up if a tenth or less is missing: a
    pause of whole milliseconds, which is a bit shorter by now, needs no turns of the loop.
    """
    return max(int(left * 1000 + 0.1) / 1000, 0)


class _Pushes:
    """Pushes wake-ups, each in a task of its own: one whose server is silent delays no other.

    They do not use a listener's connection, which may be blocked.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._under_way: set[asyncio.Task[None]] = set()

    def push(self, key: str, *, keep_ms: int | None = None) -> None:
        """Push a wake-up to the list *key*, in a task. A lost one costs a waiter some seconds."""
        self._send(self._push_wakeup(key, keep_ms))

    def push_for_selector(self, queue: QueueName, selector: str) -> None:
        """Push a wake-up to the waiters for *selector*, in a task, if *queue* has a job for it."""
        self._send(self._store.plain("wake", queue, selector))

    def _send(self, sending: Awaitable[Any]) -> None:
        """Await *sending* in a task. Its errors are ignored: the wake-up is then lost."""
        task = detached("wake-up for a waiter", _ignore_errors(sending))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def close(self) -> None:
        under_way = list(self._under_way)
        for task in under_way:
            task.cancel()
        if under_way:
            await asyncio.gather(*under_way, return_exceptions=True)

    async def _push_wakeup(self, key: str, keep_ms: int | None) -> None:
        await self._store.command("RPUSH", key, "1")
        if keep_ms is not None:
            await self._store.command("PEXPIRE", key, keep_ms)


async def _ignore_errors(sending: Awaitable[Any]) -> None:
    with suppress(TowpathError):
        await sending


def _wake_key(queue: str) -> str:
    return keys_of(QueueName(queue)).wake


class _Listener:
    """A blocking read, under way while there are waiters.

    With the key of a list *recall*, it serves many queues, or many selectors of one queue: a push
    to this list ends the read, so that it is sent again with an added name. *key_of* returns the
    list with the wake-ups of a name. *give_back* pushes a wake-up again that no waiter here needed.
    """

    def __init__(
        self,
        channel: Channel,
        pushes: _Pushes,
        recall: str | None,
        *,
        key_of: Callable[[str], str],
        give_back: Callable[[str], None],
    ) -> None:
        self._channel, self._pushes, self._recall = channel, pushes, recall
        self._key_of, self._give_back = key_of, give_back
        self.waiters = Waiters()
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._read_keys: Mapping[str, None] = {}
        """The lists that the current read waits on."""
        self._recalled = False

    # ── for waiters ──────────────────────────────────────────────────────────────────────

    @property
    def free(self) -> bool:
        """Whether there are no waiters and no read is under way."""
        return not self._read_keys and not self.waiters.names()

    def listens_for(self, name: str) -> bool:
        return name in self.waiters or self._key_of(name) in self._read_keys

    def enlist(self, waiter: Waiter, *names: str) -> None:
        self.waiters.add(waiter, *names)
        self._wanted.set()
        if self._task is None or self._task.done():
            self._task = detached("listener for work", self._listen())
        elif self._read_keys and any(self._key_of(name) not in self._read_keys for name in names):
            self._end_read()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        await self._channel.close()

    # ── the read ─────────────────────────────────────────────────────────────────────────

    def _end_read(self) -> None:
        if not self._recalled and self._recall is not None:
            self._recalled = True
            self._pushes.push(self._recall, keep_ms=_RECALL_KEPT_MS)

    async def _listen(self) -> None:
        while await self._is_wanted():
            try:
                await self._read_once()
            except TROUBLE:
                # Each waiter looks for work itself, and so notices whether the trouble is over.
                await self._channel.hang_up()
                self.waiters.call_all()
                await asyncio.sleep(_AFTER_TROUBLE)

    async def _is_wanted(self) -> bool:
        """Wait until there is a waiter. Returns False if none came for a while."""
        while not self.waiters.names():
            self._wanted.clear()
            try:
                async with asyncio.timeout(_IDLE):
                    await self._wanted.wait()
            except TimeoutError:
                await self._channel.close()
                if not self.waiters.names():
                    return False
        return True

    async def _read_once(self) -> None:
        """Wait for a wake-up, and give it to one waiter."""
        block = WAIT_CAP.total_seconds()
        names = {self._key_of(name): name for name in self.waiters.names()}
        recall = () if self._recall is None else (self._recall,)
        self._read_keys = {**dict.fromkeys(recall), **dict.fromkeys(names)}
        try:
            async with asyncio.timeout(block + _SLACK):
                answer = await self._channel.send("BLPOP", *self._read_keys, block)
        finally:
            self._read_keys, self._recalled = {}, False
        name = names.get(answer[0].decode()) if answer else None
        if name is None:
            return
        if self.waiters.call_one(name):
            await asyncio.sleep(0)  # the woken waiter's claim goes before the next read
        else:
            self._give_back(name)  # another process may have a waiter


class Waiter(Protocol):
    """A waiter for work: a future, or an object that acts as soon as it is called."""

    def done(self) -> bool:
        """Whether the waiter was called, or waits no longer."""
        ...

    def set_result(self, result: str, /) -> None:
        """Call the waiter: there may be work under that name."""
        ...


class Waiters:
    """The waiters for work, by the name of a queue or selector. The oldest is called first."""

    def __init__(self) -> None:
        self._by_name: dict[str, deque[Waiter]] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def add(self, waiter: Waiter, *names: str) -> None:
        """Let *waiter* be called once, for any of *names*, unless it is done by then."""
        for name in names:
            self._by_name.setdefault(name, deque()).append(waiter)

    def call_one(self, name: str) -> bool:
        """Call the oldest waiter for *name*. Returns False if there is none."""
        waiters = self._by_name.get(name, ())
        while waiters and waiters[0].done():
            waiters.popleft()
        if not waiters:
            self._by_name.pop(name, None)
            return False
        waiters.popleft().set_result(name)
        return True

    def call_all(self) -> None:
        """Call all waiters."""
        for name in list(self._by_name):
            for waiter in self._by_name.pop(name, ()):
                if not waiter.done():
                    waiter.set_result(name)

    def names(self) -> list[str]:
        """The names that have waiters."""
        for name, waiters in list(self._by_name.items()):
            while waiters and waiters[0].done():
                waiters.popleft()
            if not waiters:
                del self._by_name[name]
        return list(self._by_name)


class PeriodicCheck:
    """Checks the queues of *waiters* for jobs while there are any. *every* gives the seconds
    between checks for a number of queues.
    """

    def __init__(
        self, cluster: Cluster, clock: Clock, waiters: Waiters, every: Callable[[int], float]
    ) -> None:
        self._cluster, self._clock, self._waiters, self._every = cluster, clock, waiters, every
        self._channel = cluster.channel()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start checking; without effect if it runs already."""
        if self._task is None or self._task.done():
            self._task = detached("check of queues without a read", self._check_repeatedly())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        await self._channel.close()

    async def _check_repeatedly(self) -> None:
        while count := len(self._waiters.names()):
            every = self._every(count)
            await asyncio.sleep(every)
            try:
                async with asyncio.timeout(_CHECK_ANSWER_S):
                    for queues in self._by_server(self._waiters.names()):
                        await self._check(queues, every)
            except TROUBLE:
                # Each waiter claims, and so notices whether the trouble is over.
                await self._channel.hang_up()
                self._waiters.call_all()
        await self._channel.close()

    def _by_server(self, names: Sequence[str]) -> list[list[QueueName]]:
        found: dict[Place | None, list[QueueName]] = {}
        for queue in map(QueueName, names):
            found.setdefault(self._cluster.owner(keys_of(queue).queue), []).append(queue)
        return list(found.values())

    async def _check(self, queues: Sequence[QueueName], every: float) -> None:
        """Call a waiter for each of these queues, all of one server, that has a job now or soon."""
        # In a cluster a command can't span slots.
        groups = list(_chunks(queues, 1 if self._cluster.in_slots else _QUEUES_PER_COMMAND))
        asked = [("EXISTS", *(key for queue in group for key in _keys(queue))) for group in groups]
        answers = await self._channel.send_all(asked)
        there = [
            name for group, some in zip(groups, answers, strict=True) if some for name in group
        ]
        if not there:
            return
        details: list[tuple[Any, ...]] = []
        for queue in there:
            ready, *times = _keys(queue)
            details += [("ZCARD", ready), *(("ZRANGE", key, 0, 0, "WITHSCORES") for key in times)]
        # The clock is read in the same message, from the server that has the queues.
        *replies, clock = await self._channel.send_all([*details, ("TIME",)])
        stamp = self._clock.stamp()
        now = int(stamp) if stamp else int(clock[0]) * 1000 + int(clock[1]) // 1000
        for queue, answer in zip(there, _chunks(replies, 3), strict=True):
            self._call_waiter(queue, _wait_ms(answer, now), every)

    def _call_waiter(self, queue: QueueName, wait_ms: float, every: float) -> None:
        if wait_ms <= 0:
            self._waiters.call_one(queue)
        elif wait_ms < every * 1000:
            loop = asyncio.get_running_loop()
            loop.call_later(wait_ms / 1000, self._waiters.call_one, queue)


def _keys(queue: QueueName) -> tuple[str, str, str]:
    keys = keys_of(queue)
    return keys.queue, keys.retry, keys.leases


def _chunks(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (items[at : at + size] for at in range(0, len(items), size))


def _wait_ms(answer: Sequence[Any], now: int) -> float:
    """Milliseconds until the queue has a job, as far as is known; 0 or less = now."""
    if any(isinstance(reply, Exception) for reply in answer):
        return 0  # a key of a wrong type, or one that has moved: a claim handles either
    ready, *firsts = answer
    if ready:
        return 0
    return min([float(first[1]) - now for first in firsts if first], default=float("inf"))


def _shared_every(_: int) -> float:
    return WAIT_CAP.total_seconds()


def _unread_every(count: int) -> float:
    """Seconds between checks: few if there are few queues, at most a thousand queries a second."""
    return max(0.5, count / 1000)
