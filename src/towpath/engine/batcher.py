"""The micro-batcher: submits that come at the same time travel in one script call, in order.

A submit that is alone is sent at once, in the same turn of the event loop. Each queue has at most
one submit call in flight; submits that come meanwhile are gathered and sent together. So no submit
overtakes an earlier one, not even when a reply is lost and its call is sent again. (Two calls at a
time swapped whole blocks of a lane, and gained nothing: Redis runs one script at a time.)
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
"""Called when Redis has stored a batch whose confirmation by replicas is still to come."""
_Entry = tuple[
    list[NewJob], int, Durability | None, Call | None, Deadline, "asyncio.Future[list[Any]]"
]
"""One caller's submit: the jobs, their payload bytes, the durability, the caller's name for the
call, the deadline, and the future that gets the answers. A tuple, because every waiting submit has
one: an object would cost a tenth of a submit."""


def _new_entry(
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
        """Whether a submit call is in flight that no other may overtake."""
        self.crowded = True
        """Whether submits came at the same time lately: then the next one that finds the line free
        waits for one turn of the event loop, so that others can join it.
        """


class Batcher:
    """Joins concurrent submits to the queues of *store*."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lines: dict[QueueName, _Line] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._work_ended = asyncio.Event()

    async def submit(
        self,
        queue: QueueName,
        jobs: list[NewJob],
        durability: Durability | None,
        call: Call | None = None,
    ) -> list[Any]:
        """The raw answers to *jobs*, in order. Up to LARGEST_BATCH jobs are one atomic step."""
        line = self._lines.get(queue)
        if line is None:
            line = self._lines[queue] = _Line(queue)
        if line.busy or line.pending or _is_confirmed(durability):
            deadline = self._store.calls.new_deadline()
            return await self._join(line, _new_entry(jobs, durability, call, deadline))
        line.busy = True
        try:
            if line.crowded:
                # Submits that are made at the same time join in this one turn of the loop.
                await asyncio.sleep(0)
                line.crowded = bool(line.pending)
            if not line.pending:
                if durability is None and self._store.takes(queue, jobs):
                    return await self._store.write("submit", queue, lambda _: jobs, call)
                return await _send_jobs(self._store, queue, jobs, durability, call)
            entry = _new_entry(jobs, durability, call, self._store.calls.new_deadline())
            line.pending.appendleft(entry)
        finally:
            self._free_line(line)
        return await entry[-1]

    def _join(self, line: _Line, entry: _Entry) -> asyncio.Future[list[Any]]:
        line.pending.append(entry)
        line.crowded = True
        self._start_sending(line)
        return entry[-1]

    def _start_sending(self, line: _Line) -> None:
        """Send the pending submits, unless a call is in flight: then they go on gathering."""
        if line.pending and not line.busy:
            line.busy = True
            self._start_task(self._send_pending(line))

    def _start_task(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget_task)
        return task

    def _forget_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._work_ended.set()

    async def close(self) -> None:
        """Wait for the calls in flight."""
        while self._tasks or any(line.busy for line in self._lines.values()):
            self._work_ended.clear()
            await self._work_ended.wait()

    def _free_line(self, line: _Line) -> None:
        line.busy = False
        self._start_sending(line)
        self._work_ended.set()

    async def _send_pending(self, line: _Line) -> None:
        try:
            while line.pending:
                entries = _next_batch(line.pending)
                if not _is_confirmed(entries[0][2]):
                    await self._send_batch(line, entries, _do_nothing)
                    continue
                # To keep the order, the next batch waits for the write, not for its confirmation.
                written = asyncio.Event()
                sending = self._start_task(self._send_batch(line, entries, written.set))
                sending.add_done_callback(lambda _, written=written: written.set())
                await written.wait()
        finally:
            self._free_line(line)

    async def _send_batch(self, line: _Line, entries: list[_Entry], written: Written) -> None:
        jobs = [job for entry in entries for job in entry[0]]
        _, _, durability, call, deadline, _ = entries[0]
        behind = len(line.pending)
        try:
            # The first caller has waited longest, perhaps behind another call: its deadline counts.
            answers = await _send_jobs(
                self._store, line.queue, jobs, durability, call, written=written, deadline=deadline
            )
        except BaseException as error:
            if isinstance(error, ServerUnreachable):
                # Callers that were pending before this call have waited as long as a call may take.
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

    Each submit is a call of its own. A thread waits for its call before it makes the next one, so
    its submits keep their order; between threads there is no order to keep.
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
        """The raw answers to *jobs*, in order. Up to LARGEST_BATCH jobs are one atomic step."""
        if durability is None and self._store.takes(queue, jobs):
            return await self._store.write("submit", queue, lambda _: jobs, call)
        return await _send_jobs(self._store, queue, jobs, durability, call)

    async def close(self) -> None:
        """There is nothing to wait for: each call has a thread that waits for it."""


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
    """The answers to *jobs*. A job that is too large for the queue is refused without being sent.

    With a caller's *call*, all jobs are sent: it may be a repeat, and only Redis knows its answer.
    """
    answers: list[Any] = []
    for portion in submit_portions(jobs):
        largest = max([len(job.payload) for job in portion])
        limit = await store.largest_payload(queue, largest)
        fits = largest <= limit or call is not None
        sent = portion if fits else [job for job in portion if len(job.payload) <= limit]
        is_last = len(answers) + len(portion) == len(jobs)
        if not sent:
            replies: list[Any] = []
        elif durability is None:
            replies = await store.write(
                "submit", queue, lambda _, sent=sent: sent, call, deadline=deadline
            )
        else:
            replies = await store.write_confirmed(
                "submit", queue, lambda _, sent=sent: sent, call,
                durability=durability, written=written if written and is_last else _do_nothing,
                deadline=deadline,
            )  # fmt: skip
        if len(replies) != len(sent):
            raise ScriptDefect(f"{len(sent)} jobs were submitted, {len(replies)} answered")
        answers += replies if fits else with_refusals(portion, replies, limit)
    return answers


def with_refusals(jobs: list[NewJob], replies: list[Any], limit: int) -> list[Any]:
    """The answers to all of *jobs*: *replies* has those that fit, the others are refused here."""
    answers = iter(replies)
    return [
        next(answers) if (size := len(job.payload)) <= limit else too_large(size, limit)
        for job in jobs
    ]


def _do_nothing() -> None:
    """No submit waits for this write itself, only for the answer."""


def _is_confirmed(durability: Durability | None) -> bool:
    return durability is not None and durability.replicas > 0


def _next_batch(pending: deque[_Entry]) -> list[_Entry]:
    """Take the first of *pending*, and the entries behind it that may share its call."""
    batch = [pending.popleft()]
    jobs, size, durability, call, *_ = batch[0]
    jobs_left, bytes_left = LARGEST_BATCH - len(jobs), _LARGEST_CALL_BYTES - size
    while pending and call is None:
        jobs, size, wanted, call, *_ = pending[0]
        jobs_left -= len(jobs)
        bytes_left -= size
        if jobs_left < 0 or bytes_left < 0 or call is not None or wanted != durability:
            break
        batch.append(pending.popleft())
    return batch


def submit_portions(jobs: list[NewJob]) -> Iterator[list[NewJob]]:
    """*jobs* in portions of one script call each."""
    return _portions(jobs, [len(job.payload) for job in jobs])


def settlement_portions(
    settlements: Sequence[T], of: Callable[[T], Settlement]
) -> Iterator[list[T]]:
    """*settlements* in portions of one script call each; *of* takes the settlement of an item."""
    return _portions(list(settlements), [_bytes_in(of(settlement)) for settlement in settlements])


def _bytes_in(settlement: Settlement) -> int:
    return len(settlement.result) if isinstance(settlement, Complete) else 0


def _portions(items: list[T], sizes: list[int]) -> Iterator[list[T]]:
    """*items* in portions that are bounded in number and in bytes."""
    start = size = 0
    for i, more in enumerate(sizes):
        size += more
        if i - start == LARGEST_BATCH or (i > start and size > _LARGEST_CALL_BYTES):
            yield items[start:i]
            start, size = i, more
    if start < len(items):
        yield items[start:]
