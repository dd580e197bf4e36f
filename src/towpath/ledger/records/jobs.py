"""Jobs whose record is the database: `ledger.jobs`.

A record is stored first, and then queued in Redis. If Redis is unreachable, a relay queues it
later; if Redis loses its data, the relay queues all open records again.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, Unpack

from sqlalchemy import delete, select
from sqlalchemy.engine import Connection

from towpath.clock import DurationLike, days, duration_ms, seconds
from towpath.engine.check import integer
from towpath.engine.codec import due_or_delay
from towpath.engine.model import JobRef, Lease
from towpath.engine.options import QueueOptions
from towpath.errors import InvalidOption, ServerError
from towpath.ids import QueueName, job_id, queue_name
from towpath.ledger.database.schema import jobs, moment
from towpath.ledger.database.writing import Decide, Write
from towpath.ledger.records.attempts import Beginning, Ending, Standing, begin, end
from towpath.ledger.records.changes import (
    cancel,
    delete_record,
    move,
    retry,
    row_of,
    set_record,
)
from towpath.ledger.records.insert import submit
from towpath.ledger.records.open_records import counted, newest, oldest, page, rows_of_ids
from towpath.ledger.records.record import (
    OPEN,
    RESTING,
    NewRecord,
    PlacedRecord,
    Record,
    Recorded,
    RecordOptions,
    RecordPage,
    RecordState,
    Row,
    as_record,
    ends,
    new_record,
    nothing,
)
from towpath.supervise import detached

if TYPE_CHECKING:
    from towpath.ledger.ledger import Ledger
    from towpath.ledger.records.relay import Relay
    from towpath.ledger.records.transactions import Transaction

T = TypeVar("T")

QUEUE_WAIT = seconds(0.25)
"""How long a change waits for Redis to have it."""
_QUEUES_AT_ONCE = 500
KEEP = days(30)
"""How long an ended record is kept."""


class _Claimed(NamedTuple):
    """A lease whose attempt is to begin."""

    lease: Lease
    options: QueueOptions | None
    """The options of its queue; None if they are not known."""
    timely: bool
    """Whether Redis goes by a real clock, as the database does."""


class Jobs:
    """The records of jobs: `ledger.jobs`."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._insert = ledger.decide_together(self._decide_inserts, self._queue_inserted)
        self._begin = ledger.decide_together(self._decide_beginnings, self._queue_early)
        self.end = ledger.decide_together(self._decide_endings, list[RecordState | None])
        """End an attempt; None if its lease is stale. Concurrent calls share a transaction."""
        self._queueing: set[asyncio.Task[None]] = set()
        self.relay: Relay | None = None
        """Queues records in Redis at once, if this process runs a relay (see `Ledger.relayed`)."""
        self.checks: list[Callable[[str], None]] = []
        """Checks by apps for records without a handler's name: each raises if records of the queue
        need one."""

    async def close(self) -> None:
        """Internal: wait briefly for records that are being queued in Redis."""
        if self._queueing:
            await asyncio.wait(self._queueing, timeout=QUEUE_WAIT.total_seconds())
        for task in self._queueing:
            task.cancel()

    # ── a record's life ──────────────────────────────────────────────────────────────────

    async def submit(
        self, queue: str, payload: bytes, **options: Unpack[RecordOptions]
    ) -> Recorded:
        """Create a record. Returns once it is stored on disk; the job will run.

        The same *id* twice is one record: the second answer says `existed`. If Redis is
        unreachable, the record waits for it. Records created at the same time share a transaction.
        *options* are those of a job, and `subject`, `version`, `revision` and `follows`. Raises
        InvalidName, InvalidOption, LedgerError.
        """
        return await self.submit_new(self._check_new(queue, payload, options))

    async def submit_new(self, new: NewRecord) -> Recorded:
        """Internal: like `submit`, for a record that has already been checked."""
        recorded, queueing = await self._insert(new)
        await _wait_briefly(queueing)
        return recorded

    async def submit_in(
        self,
        transaction: Transaction,
        queue: str,
        payload: bytes,
        **options: Unpack[RecordOptions],
    ) -> Recorded:
        """Create a record in the caller's transaction: an AsyncSession or AsyncConnection on this
        database. The record exists once that commits. Does not wait for Redis.
        """
        wanted = [self._check_new(queue, payload, options)]
        return (await self._ledger.transactions.submit(transaction, wanted)).recorded[0]

    def submitting(
        self, connection: Connection, queue: str, payload: bytes, **options: Unpack[RecordOptions]
    ) -> Write[Recorded]:
        """Create a record as a part of your own change, inside `ledger.jobs.decide`.

        Returns a function that creates the record when the change calls it with its connection; the
        record exists once the change commits. Does not wait for Redis.
        """
        wanted = [self._check_new(queue, payload, options)]
        insert = submit(connection, wanted, self.tell, queued=self.relay is not None)

        def write(connection: Connection) -> Recorded:
            [recorded] = insert(connection)()
            return recorded

        return write

    async def decide(self, decide: Decide[tuple[T, Sequence[Recorded]]]) -> T:
        """Make a change that creates records with `submitting`, like `ledger.decide`.

        The change returns its answer, and the records, which are queued in Redis once it has
        committed. Returns the answer.
        """
        answer, created = await self._ledger.decide(decide)
        self.queue(created)
        return answer

    def queue(self, created: Sequence[Recorded]) -> None:
        """Internal: queue records in Redis whose transactions have committed, in this order."""
        if self.relay is not None and created:
            self._start(self.relay.enqueue_stored([each.record.seq for each in created]))

    def _check_new(self, queue: str, payload: bytes, options: RecordOptions) -> NewRecord:
        """Check the values of a record to create. Raises if no handler could run the job."""
        new = new_record(queue, payload, **options)
        if "handler" not in (options.get("headers") or {}):
            for check in self.checks:
                check(new.queue)
        return new

    async def cancel(self, queue: str, id: str, *, for_owner: str | None = None) -> Record:
        """Cancel a record that has not ended: at once, or when its worker stops. Returns the
        record.

        Safe to repeat. Raises RecordNotFound, NotOwned if it has another owner than *for_owner*,
        and RecordEnded if it ended otherwise.
        """
        ref = queue_name(queue), job_id(id)

        record = as_record(
            await self._ledger.decide(
                lambda connection: cancel(connection, *ref, self.tell, for_owner=for_owner)
            )
        )
        if self.relay is not None:
            await _wait_briefly(self._start(self.relay.cancel_job(record)))
        return record

    async def retry(self, queue: str, id: str) -> Record:
        """Give a dead or cancelled record new attempts; run a failed one now. Returns the record.

        Raises RecordNotFound, RecordNotDead.
        """
        ref = queue_name(queue), job_id(id)

        rows = await self._ledger.decide(lambda connection: retry(connection, *ref))
        return await self._requeue(*map(as_record, rows))

    async def move(
        self, queue: str, id: str, *, due: datetime | None = None, delay: DurationLike | None = None
    ) -> Record:
        """Give a waiting record another due time: *due*, or *delay* from now. Returns the record.

        The row decides, even while Redis is unreachable: a claim before the new time starts
        nothing. Attempts and the place in the lane do not change. Raises RecordNotFound, and
        RecordNotWaiting if it runs or has ended.
        """
        ref, at = (queue_name(queue), job_id(id)), due_or_delay(due, delay)
        queued = bool(self.relay)
        rows = await self._ledger.decide(
            lambda connection: move(connection, *ref, *at, queued=queued)
        )
        return await self._requeue(*map(as_record, rows))

    async def delete(self, queue: str, id: str) -> Record:
        """Delete a record that has ended, and its job in Redis. Returns the record as it was.

        Raises RecordNotFound, RecordOpen.
        """
        ref = queue_name(queue), job_id(id)
        row = await self._ledger.decide(lambda connection: delete_record(connection, *ref))
        record = as_record(row)
        if self.relay is not None:
            job = JobRef(record.queue, record.job)
            await _wait_briefly(self._start(self.relay.remove_job(job)))
        return record

    async def set(
        self, queue: str, payload: bytes, **options: Unpack[RecordOptions]
    ) -> PlacedRecord:
        """Create a record under an *id*, or replace the one that waits or has ended there.

        The new record has all its attempts and goes behind the others of its lane. Raises
        RecordNotWaiting if it is running, and InvalidOption without an *id* or with a *subject*.
        """
        id, subject = options.get("id"), options.get("subject")
        if id is None:
            raise InvalidOption("id", id, rule="is required: it names the record to set")
        if subject is not None:
            raise InvalidOption("subject", subject, rule="a record about a subject cannot be set")
        new, queued = self._check_new(queue, payload, options), self.relay is not None
        build_records = await self._ledger.decide(
            lambda connection: set_record(connection, new, self.tell, queued=queued)
        )
        before, record = build_records()
        await self._requeue(before, record)
        return PlacedRecord(record, before is not None and before.state in RESTING)

    async def _requeue(self, before: Record | None, record: Record) -> Record:
        """Queue a record under its new id in Redis, and remove its old job."""
        if self.relay is not None and before is not None:
            # The job under the old id still waits in Redis, or is dead there.
            self._start(self.relay.remove_job(JobRef(before.queue, before.job)))
        await _wait_briefly(self._start_queueing([Recorded(record, existed=True)]))
        return record

    # ── reading ──────────────────────────────────────────────────────────────────────────

    async def get(self, queue: str, id: str) -> Record:
        """The record as it is now. Raises RecordNotFound."""
        ref = queue_name(queue), job_id(id)
        return await self._ledger.read(lambda connection: as_record(row_of(connection, *ref)))

    async def find(self, queue: str, ids: Collection[str]) -> dict[str, Record]:
        """Return those of these records that exist, by id, without payloads and results."""
        found = await self._ledger.read(
            lambda connection: rows_of_ids(connection, queue_name(queue), ids)
        )
        return {row["id"]: as_record(row) for row in found}

    async def find_everywhere(self, id: str, queues: Collection[str]) -> builtins.list[Record]:
        """Return the records with this id in these queues."""
        wanted = select(jobs).where(jobs.c.id == job_id(id))
        found: builtins.list[Record] = []
        names = sorted(map(queue_name, queues))
        for start in range(0, len(names), _QUEUES_AT_ONCE):
            query = wanted.where(jobs.c.queue.in_(names[start : start + _QUEUES_AT_ONCE]))
            found += await self._ledger.read(
                lambda connection, query=query: [
                    as_record(row) for row in connection.execute(query).mappings()
                ]
            )
        return found

    async def list(
        self,
        queue: str,
        *,
        state: RecordState | None = None,
        subject: str | Sequence[str] | None = None,
        prefix: str | Sequence[str] | None = None,
        after: str | None = None,
        size: int = 50,
    ) -> RecordPage:
        """Return a page of records, newest first, without results. *state* selects a state,
        *subject* one or several subjects, *prefix* subjects that begin with one of these texts.
        Raises InvalidOption.
        """
        query = newest(queue, state=state, subject=subject, prefix=prefix, after=after, size=size)
        found = await self._ledger.read(
            lambda connection: connection.execute(query).mappings().all()
        )
        return page([as_record(row) for row in found], size)

    async def find_oldest(
        self, queue: str, states: Sequence[str], *, after: int = 0, size: int = 500
    ) -> builtins.list[Record]:
        """Return the oldest records of *queue* in *states* whose `seq` is greater than *after*,
        without payloads and results. If there are fewer than *size*, they are the last ones.
        """
        query = oldest(queue, states, after, size)
        found = await self._ledger.read(
            lambda connection: connection.execute(query).mappings().all()
        )
        return [as_record(row) for row in found]

    async def counts(self, queue: str) -> dict[RecordState, int]:
        """Count the records in each state. Reads an index entry per record of the queue, which
        takes tens of milliseconds for 200,000 records. Meant for people, not for background tasks.
        """
        name = queue_name(queue)
        return await self._ledger.read(lambda connection: counted(connection, name))

    async def trim(self, *, keep: DurationLike = KEEP, limit: int = 1000) -> int:
        """Delete records that ended longer ago than *keep*, at most *limit*. Returns how many."""
        most, before = integer("limit", limit, 1, 10_000), moment() - duration_ms("keep", keep)
        ended = jobs.c.state.not_in(OPEN), jobs.c.finished_at < before
        old = select(jobs.c.seq).where(*ended).order_by(jobs.c.finished_at).limit(most)

        def decide(connection: Connection) -> Write[int]:
            # Two statements: with a subquery, PostgreSQL may read the whole table for the delete.
            found = list(connection.scalars(old))
            gone = delete(jobs).where(jobs.c.seq.in_(found), jobs.c.state.not_in(OPEN))
            return lambda writer: writer.execute(gone).rowcount if found else 0

        return await self._ledger.decide(decide)

    # ── attempts, for workers ────────────────────────────────────────────────────────────

    async def begin(self, lease: Lease) -> Beginning:
        """Begin an attempt with the fencing token of *lease*. Concurrent calls share a
        transaction.
        """
        options, timely = None, True
        if self.relay is not None:
            self.relay.watch((lease.queue,))
            timely = self.relay.engine.goes_by_server_clock
            with suppress(ServerError):
                options = await self.relay.engine.queues.known_options(lease.queue)
        return await self._begin(_Claimed(lease, options, timely))

    def _decide_beginnings(
        self, connection: Connection, claimed: list[_Claimed]
    ) -> Write[tuple[list[Lease], list[Beginning]]]:
        leases = [each.lease for each in claimed]
        options = {each.lease.queue: each.options for each in claimed if each.options is not None}
        timely = all(each.timely for each in claimed)
        write = begin(connection, leases, self.tell, options=options, timely=timely)
        return lambda writer: (leases, write(writer))

    def _queue_early(self, begun: tuple[list[Lease], list[Beginning]]) -> list[Beginning]:
        """Check the queues in which a lease came before others of its lane. Returns the answers."""
        leases, beginnings = begun
        early = {
            lease.queue
            for lease, beginning in zip(leases, beginnings, strict=True)
            if beginning.standing is Standing.EARLY
        }
        if early and self.relay is not None:
            self._start(self.relay.sync_now(early))
        return beginnings

    def _decide_endings(
        self, connection: Connection, endings: list[Ending]
    ) -> Write[list[RecordState | None]]:
        return end(connection, endings, self.tell)

    # ── creating and queueing ────────────────────────────────────────────────────────────

    def _decide_inserts(
        self, connection: Connection, wanted: list[NewRecord]
    ) -> Write[Callable[[], list[Recorded]]]:
        return submit(connection, wanted, self.tell)

    def _queue_inserted(
        self, build_answers: Callable[[], list[Recorded]]
    ) -> list[tuple[Recorded, asyncio.Task[None] | None]]:
        """Start to queue the records of a transaction. Returns each with the task that does it."""
        created = build_answers()
        # Each queue has a task of its own, so that no caller waits for another queue's Redis
        # server. Existing records are queued too: Redis may have lost or never got them.
        by_queue: dict[QueueName, list[Recorded]] = {}
        for recorded in created:
            by_queue.setdefault(recorded.record.queue, []).append(recorded)
        tasks = {queue: self._start_queueing(some) for queue, some in by_queue.items()}
        return [(recorded, tasks[recorded.record.queue]) for recorded in created]

    def tell(self, rows: Sequence[Row]) -> Callable[[Connection], None]:
        """Internal: prepare events for those of *rows* that have ended, if there are sinks."""
        return self._ledger.outbox.putting(ends(rows)) if self._ledger.outbox.sinks else nothing

    def _start_queueing(self, created: Sequence[Recorded]) -> asyncio.Task[None] | None:
        """Start to queue the open records of *created* in Redis. Returns the task, if any."""
        still_open = [recorded for recorded in created if recorded.record.open]
        if self.relay is None or not still_open:
            return None
        new = [recorded.record for recorded in still_open if not recorded.existed]
        existing = [recorded.record.seq for recorded in still_open if recorded.existed]
        return self._start(_enqueue(self.relay, new, existing))

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task that tells Redis of a change. If it fails, the relay does its work later."""
        task = detached("queueing of records", work)
        self._queueing.add(task)
        task.add_done_callback(self._queueing.discard)
        return task


async def _enqueue(relay: Relay, new: Sequence[Record], existing: Sequence[int]) -> None:
    """Queue new records as they are, and read existing ones again, with the database's time."""
    if new:
        await relay.enqueue(new)
    if existing:
        await relay.enqueue_stored(existing)


async def _wait_briefly(queueing: asyncio.Task[None] | None) -> None:
    """Wait briefly for Redis. The change is stored, and if this fails, a relay does it."""
    if queueing is not None:
        await asyncio.wait((queueing,), timeout=QUEUE_WAIT.total_seconds())
