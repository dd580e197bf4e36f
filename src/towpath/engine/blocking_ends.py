"""Waiting for the end of jobs in threads without an event loop: `Events.ended` in a thread.

The threads that wait for jobs of one queue share one blocking read of its events. One of them, the
reader, reads for all, and hands this over to another when it leaves. As on an event loop, events
only say when to look. Each thread looks at its own job: when it begins to wait, after an event of
the job, when events may be missing, every few seconds in any case, and once more at its time limit.

Ctrl-C may end a thread between any two steps. So threads are referred to weakly: a reader that is
gone is replaced by the next thread that wakes up, at the latest when it looks every few seconds.
"""

from __future__ import annotations

import secrets
import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from towpath.backoff import Backoff
from towpath.clock import Duration, format_duration, steady
from towpath.engine.channel import Channel
from towpath.engine.cluster import Cluster
from towpath.engine.events import ENDS, Entry, Wanted, is_gap
from towpath.engine.follow import LOOK_EVERY
from towpath.engine.inspect import ended_job
from towpath.engine.keys import keys_of
from towpath.engine.model import JobInfo, JobRef
from towpath.engine.resp import TROUBLE
from towpath.engine.store import Store
from towpath.engine.thread_signal import ThreadSignal
from towpath.errors import (
    EngineClosed,
    JobNotFound,
    ServerUnreachable,
    StillOpen,
    TowpathError,
)
from towpath.ids import QueueName

if TYPE_CHECKING:
    from towpath.engine.blocking import BlockingPort

READS_MOST = 8
"""Connections for blocking reads. Further queues are read every quarter of a second, over the
channels that calls use."""
_POLL_EVERY = 0.25
_AGAIN_AFTER = 0.5
"""Seconds until a thread asks again after Redis gave no answer."""
_LAST = 1.0
"""Extra seconds for the last look of a wait, and for the reply to a blocking read."""
_PAGE = 100
_ROOM = 1
"""Bytes: a reply about a single job is never cut."""
_WANTED_MS, _WANTED_AGAIN = 90_000, 20.0
"""As in `events.py`."""
_TRUSTED = 1.0
"""Seconds for which a place that was found in the stream is assumed to be there still."""
_START = b"0-0"


class _Wait:
    """A thread that waits for the end of a job."""

    __slots__ = ("__weakref__", "has_news", "id", "is_due")

    def __init__(self, id: str) -> None:
        self.id, self.has_news = id, ThreadSignal()
        self.is_due = False
        """Whether the thread should look at its job."""

    def wake(self) -> None:
        self.is_due = True
        self.has_news.set()


_WaitRef = weakref.ref[_Wait]


class _Reading:
    """How far the events of one queue were read, and the threads that wait for its jobs."""

    def __init__(self, queue: QueueName) -> None:
        self.queue, self.key = queue, keys_of(queue).events
        self._waits: dict[str, list[_WaitRef]] = {}
        self.reader: _WaitRef | None = None
        self.channel: Channel | None = None
        self.place = b""
        """The id of the last entry that was read; empty = not known."""
        self.place_seen_at = 0.0
        self.name = ""
        """The name of the period for which the ends of jobs were written without a gap; empty if
        the queue did not exist.
        """
        self.ask_again_at = 0.0
        """When to ask Redis again to write the ends of jobs."""
        self.backoff = Backoff(0.05, 1.0)

    def add(self, wait: _Wait) -> None:
        self._waits.setdefault(wait.id, []).append(weakref.ref(wait))

    def drop(self, wait: _Wait) -> None:
        left = [ref for ref in self._waits.get(wait.id, ()) if ref() not in (None, wait)]
        if left:
            self._waits[wait.id] = left
        else:
            self._waits.pop(wait.id, None)

    def waits(self) -> Iterator[_Wait]:
        """All threads that still wait."""
        for id in list(self._waits):
            yield from self.waits_for(id)

    def waits_for(self, id: str) -> Iterator[_Wait]:
        for ref in self._waits.get(id, ()):
            wait = ref()
            if wait is not None:
                yield wait

    def wake_all(self) -> None:
        for wait in self.waits():
            wait.wake()


class BlockingEnds:
    """The threads of one engine that wait for the end of jobs."""

    def __init__(
        self, cluster: Cluster, store: Store, port: BlockingPort, *, give_up: Duration
    ) -> None:
        self._cluster, self._store, self._port = cluster, store, port
        self._give_up_s = give_up.total_seconds()
        # Reentrant: a signal handler may wait for a job while its own thread is in here.
        self._lock = threading.RLock()
        self._readings: dict[QueueName, _Reading] = {}
        self._spare: list[Channel] = []
        """Channels that no queue uses for its read; at most one of them is connected."""
        self._is_at_exit = False

    async def ended(self, job: JobRef, within: Duration, *, since: float) -> JobInfo:
        """Wait until the job has ended, and return it. The time limit *within* counts from *since*.
        Raises what `Events.ended` raises.
        """
        wait = _Wait(job.id)
        reading = self._enter(job.queue, wait)
        try:
            return await self._wait_for(job, within, since, reading, wait)
        except EngineClosed:
            if self._is_at_exit and threading.current_thread().daemon:
                threading.Event().wait()  # a traceback of a daemon thread would be noise
            raise
        finally:
            await self._leave(reading, wait)

    async def _wait_for(
        self, job: JobRef, within: Duration, since: float, reading: _Reading, wait: _Wait
    ) -> JobInfo:
        until = since + within.total_seconds()
        while True:
            trouble: ServerUnreachable | None = None
            is_last = steady() >= until
            wait.has_news.clear()
            wait.is_due = False  # before the look, so that later events make it due again
            try:
                found = await self._look(job, reading, until)
            except ServerUnreachable as error:
                trouble = error
            else:
                if found is not None:
                    return found
            if is_last or (trouble is not None and steady() >= until):
                raise trouble or StillOpen(job, format_duration(within))
            if trouble is None:
                again_at = min(until, steady() + LOOK_EVERY.total_seconds())
                await self._wait_for_news(reading, wait, again_at)
            else:
                wait.has_news.wait(min(max(until - steady(), 0), _AGAIN_AFTER))

    async def close(self) -> None:
        """Make every waiting thread raise EngineClosed. The engine refuses calls by now."""
        if self._is_at_exit:
            return
        with self._lock:
            readings = list(self._readings.values())
        for reading in readings:
            reading.wake_all()
            if reading.channel is not None:
                for connection in list(reading.channel.connections.values()):
                    connection.cut()

    def leave_at_exit(self) -> None:
        """Let daemon threads go on waiting: they end with the program."""
        self._is_at_exit = True

    # ── which thread reads ───────────────────────────────────────────────────────────────

    def _enter(self, queue: QueueName, wait: _Wait) -> _Reading:
        with self._lock:
            reading = self._readings.get(queue)
            if reading is None:
                reading = self._readings[queue] = _Reading(queue)
            reading.add(wait)
            return reading

    async def _leave(self, reading: _Reading, wait: _Wait) -> None:
        closing: Channel | None = None
        with self._lock:
            reading.drop(wait)
            heir = next(reading.waits(), None)
            if heir is None:
                closing = self._forget(reading)
            elif reading.reader is not None and reading.reader() in (None, wait):
                # Set before it is woken: if the heir leaves now, it hands the reading over in turn.
                reading.reader = weakref.ref(heir)
                heir.has_news.set()
        if closing is not None:
            await closing.close()
            self._spare.append(closing)

    def _forget(self, reading: _Reading) -> Channel | None:
        """Forget a queue for which no thread waits. Returns its channel if it must be closed:
        another spare channel is connected already.
        """
        if self._readings.get(reading.queue) is reading:
            del self._readings[reading.queue]
        channel, reading.channel = reading.channel, None
        if channel is not None:
            if any(spare.connections for spare in self._spare):
                return channel
            self._spare.append(channel)
        return None

    def _is_reader(self, reading: _Reading, wait: _Wait) -> bool:
        """Whether the thread is the reader. It becomes the reader if there is none."""
        with self._lock:
            reader = None if reading.reader is None else reading.reader()
            if reader is None:
                reader, reading.reader = wait, weakref.ref(wait)
            return reader is wait

    def _channel_for(self, reading: _Reading) -> Channel | None:
        """The channel for the blocking read; None if READS_MOST queues have one already."""
        with self._lock:
            if reading.channel is None:
                for other in list(self._readings.values()):
                    if next(other.waits(), None) is None:  # the last thread was ended by Ctrl-C
                        self._spare += filter(None, (self._forget(other),))
                channels = sum(other.channel is not None for other in self._readings.values())
                if channels < READS_MOST:
                    # Sorted so that `pop` takes the connected one, if there is one.
                    self._spare.sort(key=lambda channel: bool(channel.connections))
                    reading.channel = self._spare.pop() if self._spare else self._cluster.channel()
            return reading.channel

    # ── looking ──────────────────────────────────────────────────────────────────────────

    async def _look(self, job: JobRef, reading: _Reading, until: float) -> JobInfo | None:
        """The job if it has ended. Also asks Redis to write the ends of jobs, if that is due."""
        while True:
            now = steady()
            is_asking = not reading.place or now >= reading.ask_again_at
            asked: list[tuple[Any, ...]] = [("ended", _ROOM, job.id)]
            if is_asking:
                asked.insert(0, ("follow", Wanted.ENDS, _WANTED_MS, secrets.token_hex(8)))
            within = min(max(until - now, 0) + _LAST, self._give_up_s)
            answers = await self._store.read_in_turn(job.queue, asked, within=within)
            [answer] = answers[-1]
            if answer == b"gone":
                raise JobNotFound(job)
            if answer != b"open":
                return ended_job(job, *answer)
            if not is_asking:
                return None
            # The third value, whether the queue's options refuse followers now, is ignored: threads
            # look every few seconds in any case.
            name, newest, _ = answers[0]
            if self._note_place(reading, name, newest, now=now):
                return None

    def _note_place(self, reading: _Reading, name: bytes, newest: bytes, *, now: float) -> bool:
        """Note the reply to `follow`: the *name* of the period without a gap, and the *newest*
        entry.

        Returns False if the reading was beyond *newest* already: then it may have skipped an event
        of the job, so the job must be looked at again.
        """
        with self._lock:
            is_first, before = not reading.place, reading.name
            reading.name, reading.ask_again_at = name.decode(), now + _WANTED_AGAIN
            if is_first:
                reading.place, reading.place_seen_at = newest, now
                return True
            if _parse_cursor(newest) < _parse_cursor(reading.place):
                # A thread that asked later was answered sooner, or Redis lost the events.
                reading.place = newest
                reading.wake_all()
                return False
            if before and before != reading.name:
                reading.wake_all()  # events between the two periods may be missing
            return True

    # ── reading ──────────────────────────────────────────────────────────────────────────

    async def _wait_for_news(self, reading: _Reading, wait: _Wait, again_at: float) -> None:
        """Return when the thread should look at its job again, at the latest at *again_at*."""
        while not wait.is_due and (left := again_at - steady()) > 0:
            if not self._is_reader(reading, wait):
                wait.has_news.wait(left)  # it may become the reader meanwhile
                continue
            if not reading.place:
                return
            channel = self._channel_for(reading)
            try:
                if channel is not None:
                    await self._read(reading, channel, left)
                else:
                    wait.has_news.wait(min(left, _POLL_EVERY))
                    await self._read_now(reading)
            except (*TROUBLE, TowpathError):
                if channel is not None:
                    await channel.hang_up()
                reading.ask_again_at = reading.place_seen_at = 0.0
                wait.has_news.wait(min(left, reading.backoff.next_pause()))
                return

    async def _read(self, reading: _Reading, channel: Channel, seconds: float) -> None:
        """Read the next events, once; block for up to *seconds* until there are some."""
        key, place, answer = reading.key, reading.place, None
        block = ("BLOCK", max(int(seconds * 1000), 1))
        with self._port.long_read(seconds + _LAST):
            is_held = steady() - reading.place_seen_at < _TRUSTED or place == _START
            if is_held or (is_held := bool(await channel.send(*_entry_command(key, place)))):
                answer = await channel.send(*_READ, *block, "STREAMS", key, place)
        self._note_entries(reading, place, answer, is_held=is_held)

    async def _read_now(self, reading: _Reading) -> None:
        """Read the next events without blocking, over a channel that calls use."""
        key, place = reading.key, reading.place
        is_held = place == _START or bool(await self._store.command(*_entry_command(key, place)))
        answer = await self._store.command(*_READ, "STREAMS", key, place)
        self._note_entries(reading, place, answer, is_held=is_held)

    def _note_entries(self, reading: _Reading, place: bytes, answer: Any, *, is_held: bool) -> None:
        entries: list[Entry] = answer[0][1] if answer else []
        reading.backoff.reset()
        with self._lock:
            # No events were missed if the place is still in the stream, there is no gap, and the
            # queue existed when events were asked for (else there is no name). A stream that was
            # empty may have been trimmed since, which does not show.
            is_sure = is_held and bool(reading.name) and not any(map(is_gap, entries))
            if not is_held or (entries and (not is_sure or place == _START)):
                reading.wake_all()
            if not is_held or (entries and not is_sure):
                reading.place, reading.ask_again_at = b"", 0.0
            elif entries:
                # otherwise `_note_place` has moved the place back meanwhile
                if reading.place == place:
                    reading.place = entries[-1][0]
                for verb, id in _ended_jobs(entries):
                    for wait in reading.waits_for(id) if verb in ENDS else ():
                        wait.wake()
            reading.place_seen_at = steady()


_READ = ("XREAD", "COUNT", _PAGE)


def _entry_command(key: str, place: bytes) -> tuple[Any, ...]:
    """The command that reads the entry at *place*. Streams are trimmed from the front: while that
    entry is there, so are all behind it.
    """
    return ("XRANGE", key, place, place, "COUNT", 1)


def _ended_jobs(entries: list[Entry]) -> Iterator[tuple[str, str]]:
    for _, flat in entries:
        for at in range(0, len(flat), 2):
            verb = flat[at].decode()
            for id in flat[at + 1].decode().split("\n"):
                yield verb, id


def _parse_cursor(cursor: bytes) -> tuple[int, int]:
    ms, _, number = cursor.partition(b"-")
    return int(ms), int(number)
