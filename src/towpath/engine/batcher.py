"""The micro-batcher: submits that come at the same time travel in one script call, in order.

A lone submit waits for nobody: it is sent in the same turn of the event loop. Of one queue there
is one call under way: what comes meanwhile is gathered and sent together. So nothing overtakes
what was submitted before it, not even when a reply is lost and its call is sent again. (Two calls
at a time swapped whole blocks of a lane; they gained nothing, because the server takes turns.)
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from towpath.engine.codec import too_large
from towpath.engine.durability import Durability
from towpath.engine.model import Call, Complete, NewJob, Settlement
from towpath.engine.store import Store
from towpath.engine.time_limit import Deadline
from towpath.errors import ScriptDefect, ServerUnreachable
from towpath.ids import QueueName

T = TypeVar("T")

LARGEST_BATCH = 500
"""Jobs in one script call. A longer list of submits becomes several calls."""
_LARGEST_CALL_BYTES = 8 * 1024 * 1024

Written = Callable[[], None]
"""Called when the server has taken a batch in, if its confirmation is still to come."""
_Entry = tuple[
    list[NewJob], int, Durability | None, Call | None, Deadline, "asyncio.Future[list[Any]]"
]
"""What one caller submits in one go: jobs, their bytes, class and name, when the caller gives up,
and where the answers go. A tuple, because there is one per job: an object of its own costs a tenth
of a submit."""


def _entry(
    jobs: list[NewJob], durability: Durability | None, call: Call | None, deadline: Deadline
) -> _Entry:
    size = len(jobs[0].payload) if len(jobs) == 1 else sum(len(job.payload) for job in jobs)
    return jobs, size, durability, call, deadline, asyncio.get_running_loop().create_future()


class _Line:
    """The submits to one queue, first come, first sent."""

    __slots__ = ("busy", "crowded", "pending", "queue")

    def __init__(self, queue: QueueName) -> None:
        self.queue = queue
        self.pending: deque[_Entry] = deque()
        self.busy = False
        """Whether a call is under way that nothing may overtake."""
        self.crowded = True
        """Whether others came at the same time as the last one that could have gone alone."""


class Batcher:
    """Joins concurrent submits to the queues of *store*."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lines: dict[QueueName, _Line] = {}
        self._flights: set[asyncio.Task[None]] = set()
        self._landed = asyncio.Event()

    async def submit(
        self,
        queue: QueueName,
        jobs: list[NewJob],
        durability: Durability | None,
        call: Call | None = None,
    ) -> list[Any]:
        """The raw answers to *jobs*, in order. Up to LARGEST_BATCH of them are one step."""
        line = self._lines.get(queue)
        if line is None:
            line = self._lines[queue] = _Line(queue)
        if line.busy or line.pending or _is_confirmed(durability):
            deadline = self._store.calls.new_deadline()
            return await self._join(line, _entry(jobs, durability, call, deadline))
        line.busy = True
        try:
            if line.crowded:
                # One turn of the loop, in which those that come at the same time show up.
                await asyncio.sleep(0)
                line.crowded = bool(line.pending)
            if not line.pending:
                if durability is None and self._store.takes(queue, jobs):
                    return await self._store.write("submit", queue, lambda _: jobs, call)
                return await _send_jobs(self._store, queue, jobs, durability, call)
            entry = _entry(jobs, durability, call, self._store.calls.new_deadline())
            line.pending.appendleft(entry)
        finally:
            self._land(line)
        return await entry[-1]

    def _join(self, line: _Line, entry: _Entry) -> asyncio.Future[list[Any]]:
        line.pending.append(entry)
        line.crowded = True
        self._take_off(line)
        return entry[-1]

    def _take_off(self, line: _Line) -> None:
        """Send what is pending, unless it gathers behind a call that is under way."""
        if line.pending and not line.busy:
            line.busy = True
            self._begin(self._fly(line))

    def _begin(self, work: Any) -> asyncio.Task[None]:
        flight: asyncio.Task[None] = asyncio.create_task(work)
        self._flights.add(flight)
        flight.add_done_callback(self._end)
        return flight

    def _end(self, flight: asyncio.Task[None]) -> None:
        self._flights.discard(flight)
        self._landed.set()

    async def close(self) -> None:
        """Wait for what is under way."""
        while self._flights or any(line.busy for line in self._lines.values()):
            self._landed.clear()
            await self._landed.wait()

    def _land(self, line: _Line) -> None:
        line.busy = False
        self._take_off(line)
        self._landed.set()

    async def _fly(self, line: _Line) -> None:
        try:
            while line.pending:
                entries = _next_batch(line.pending)
                if not _is_confirmed(entries[0][2]):
                    await self._carry(line, entries, _nobody_waits)
                    continue
                # Whoever comes next need not wait for a confirmation, only for the order.
                written = asyncio.Event()
                carried = self._begin(self._carry(line, entries, written.set))
                carried.add_done_callback(lambda _, written=written: written.set())
                await written.wait()
        finally:
            self._land(line)

    async def _carry(self, line: _Line, entries: list[_Entry], written: Written) -> None:
        jobs = [job for entry in entries for job in entry[0]]
        _, _, durability, call, deadline, _ = entries[0]
        behind = len(line.pending)
        try:
            # The first has waited the longest, perhaps behind another call.
            answers = await _send_jobs(
                self._store, line.queue, jobs, durability, call, written=written, deadline=deadline
            )
        except BaseException as error:
            if isinstance(error, ServerUnreachable):
                # Who waited all the while has waited for as long as a call may take.
                waited = min(behind, len(line.pending))
                entries += [line.pending.popleft() for _ in range(waited)]
            for *_, future in entries:
                if not future.done():
                    future.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        at = 0
        for mine, *_, future in entries:
            before, at = at, at + len(mine)
            if not future.done():
                future.set_result(answers[before:at])


class Unbatched:
    """Submits of threads without an event loop.

    A thread waits for its call before it makes the next one, so nothing overtakes what it submitted
    before; between threads there is no order to keep. So each submit is a call of its own.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    async def submit(
        self,
        queue: QueueName,
        jobs: list[NewJob],
        durability: Durability | None,
        call: Call | None = None,
    ) -> list[Any]:
        """The raw answers to *jobs*, in order. Up to LARGEST_BATCH of them are one step."""
        if durability is None and self._store.takes(queue, jobs):
            return await self._store.write("submit", queue, lambda _: jobs, call)
        return await _send_jobs(self._store, queue, jobs, durability, call)

    async def close(self) -> None:
        """Nothing is under way but what a thread waits for."""


async def _send_jobs(
    store: Store,
    queue: QueueName,
    jobs: list[NewJob],
    durability: Durability | None,
    call: Call | None,
    *,
    written: Written | None = None,
    deadline: Deadline | None = None,
) -> list[Any]:
    """The answers to *jobs*. One that is too large for the queue is not sent.

    Under a caller's name all are: it may be a repeat, whose answer only the server knows.
    """
    answers: list[Any] = []
    for portion in submits(jobs):
        largest = max([len(job.payload) for job in portion])
        limit = await store.largest_payload(queue, largest)
        fits = largest <= limit or call is not None
        sent = portion if fits else [job for job in portion if len(job.payload) <= limit]
        is_last = len(answers) + len(portion) == len(jobs)
        if not sent:
            told: list[Any] = []
        elif durability is None:
            told = await store.write(
                "submit", queue, lambda _, sent=sent: sent, call, deadline=deadline
            )
        else:
            told = await store.write_confirmed(
                "submit", queue, lambda _, sent=sent: sent, call,
                durability=durability, written=written if written and is_last else _nobody_waits,
                deadline=deadline,
            )  # fmt: skip
        if len(told) != len(sent):
            raise ScriptDefect(f"{len(sent)} jobs were submitted, {len(told)} answered")
        answers += told if fits else with_refusals(portion, told, limit)
    return answers


def with_refusals(jobs: list[NewJob], told: list[Any], limit: int) -> list[Any]:
    """The answers to all of *jobs*, where only those that fit were sent."""
    answers = iter(told)
    return [
        next(answers) if (size := len(job.payload)) <= limit else too_large(size, limit)
        for job in jobs
    ]


def _nobody_waits() -> None:
    """There is no confirmation to come: the answer says it."""


def _is_confirmed(durability: Durability | None) -> bool:
    return durability is not None and durability.replicas > 0


def _next_batch(pending: deque[_Entry]) -> list[_Entry]:
    """The first of *pending*, and those behind it that may share its call."""
    batch = [pending.popleft()]
    jobs, size, durability, call, *_ = batch[0]
    room, left = LARGEST_BATCH - len(jobs), _LARGEST_CALL_BYTES - size
    while pending and call is None:
        jobs, size, wanted, call, *_ = pending[0]
        room -= len(jobs)
        left -= size
        if room < 0 or left < 0 or call is not None or wanted != durability:
            break
        batch.append(pending.popleft())
    return batch


def submits(jobs: list[NewJob]) -> Iterator[list[NewJob]]:
    """*jobs* in portions that are one script call each."""
    return _portions(jobs, [len(job.payload) for job in jobs])


def settling(settlements: Sequence[T], of: Callable[[T], Settlement]) -> Iterator[list[T]]:
    """The same for what is settled; *of* tells the settlement."""
    return _portions(list(settlements), [_bytes_in(of(settlement)) for settlement in settlements])


def _bytes_in(settlement: Settlement) -> int:
    return len(settlement.result) if isinstance(settlement, Complete) else 0


def _portions(items: list[T], sizes: list[int]) -> Iterator[list[T]]:
    """*items* in portions that one call carries: bounded in number and in bytes."""
    start = size = 0
    for i, more in enumerate(sizes):
        size += more
        if i - start == LARGEST_BATCH or (i > start and size > _LARGEST_CALL_BYTES):
            yield items[start:i]
            start, size = i, more
    if start < len(items):
        yield items[start:]
