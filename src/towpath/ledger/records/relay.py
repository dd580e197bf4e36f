"""The relay: queues every open record in Redis, also after failures.

A relay cares for all queues that have records. Each queue has a `QueueSync` of its own, so that a
queue whose Redis server fails does not delay the others. `Ledger.relayed` starts one.

New records are queued at once (`enqueue`). Records that this missed are found by their `relay_at`
within seconds. And all open records of a queue are checked when the relay starts, regularly, and
after the queue's data in Redis was lost or the Redis server restarted.

Queueing a record again is harmless: its id makes it one job, and the row decides who may run it and
when. So everything here is the same step, `QueueSync._queue`, for different records.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from itertools import groupby
from random import uniform
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

import msgspec

from towpath.clock import Duration, duration_ms, minutes, seconds, steady
from towpath.engine.batcher import LARGEST_BATCH
from towpath.engine.engine import Engine
from towpath.engine.model import JobRef, NewJob, Submitted
from towpath.engine.states import State
from towpath.errors import JobError, JobNotFound, QueueFull, ServerError, TowpathError
from towpath.ids import QueueName
from towpath.ledger.errors import LedgerClosed, LedgerError
from towpath.ledger.outbox.leases import take_lease
from towpath.ledger.records.insert import QUEUED_WITHIN
from towpath.ledger.records.open_records import (
    OpenRecord,
    as_read,
    claim_due,
    highest_fence,
    open_queues,
    page_of,
    release,
    rows_of_places,
    unseen_queues,
    write_down,
)
from towpath.ledger.records.record import (
    NOT_RUN,
    RECORD_MISSING,
    Record,
    RecordState,
    as_job,
    next_name,
    spoilt,
)
from towpath.supervise import Background
from towpath.telemetry import events
from towpath.telemetry.logs import Log

if TYPE_CHECKING:
    from towpath.ledger.ledger import Ledger


LOOK_EVERY = seconds(1)
RECONCILE_EVERY = seconds(30)
"""How often one of the relays checks all open records. If it dies, another one does so next time.
"""
TRIM_EVERY = minutes(5)
_TRIMMED_AT_ONCE = 100
_TURN = "(relay)"
"""Used in place of a sink's name for the lease of the relay that checks all records."""
_LATER = 5_000
"""Milliseconds until a record that Redis refused for now is tried again."""
_QUEUED = {State.READY, State.DELAYED, State.WAITING, State.LEASED}
_ENDS = {State.DONE: RecordState.COMPLETED, State.CANCELLED: RecordState.CANCELLED,
         State.DEAD: RecordState.DEAD}  # fmt: skip


# ── all queues ───────────────────────────────────────────────────────────────────────────


class Relay:
    """Keeps Redis filled from the ledger while it is entered. Any number may run, on any host.

    The records go to the Redis of *engine*.
    """

    def __init__(
        self,
        ledger: Ledger,
        engine: Engine,
        *,
        log: Log,
        look_every: Duration = LOOK_EVERY,
        reconcile_every: Duration = RECONCILE_EVERY,
    ) -> None:
        self._ledger, self.engine, self._log = ledger, engine, log
        self._look_every = look_every.total_seconds()
        self._reconcile_every = reconcile_every
        self._me = secrets.token_hex(8)
        self._syncs: dict[QueueName, QueueSync] = {}
        self._reconciled_at = self._trimmed_at = float("-inf")
        self._last_handed_over: asyncio.Event | None = None
        """Set when the records of the latest `enqueue` were handed over to the engine."""
        self._trouble = ""
        self._running = Background("relay", self.run, log=log)

    async def __aenter__(self) -> Self:
        self._running.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._running.stop()

    async def run(self) -> None:
        """Check the records repeatedly, until cancelled."""
        looks: dict[QueueSync, asyncio.Task[SyncCounts]] = {}
        try:
            while True:
                await self._turn(looks)
                await asyncio.sleep(self._look_every * uniform(0.75, 1.25))  # noqa: S311 -- jitter
        finally:
            for task in looks.values():
                task.cancel()
            await asyncio.gather(*looks.values(), return_exceptions=True)

    async def _turn(self, looks: dict[QueueSync, asyncio.Task[SyncCounts]]) -> None:
        """Start a look at each queue whose last look has ended. A queue whose Redis server hangs
        does not delay the others.
        """
        try:
            for sync, whole in await self._list_syncs():
                if sync not in looks:
                    looks[sync] = asyncio.create_task(sync.look(whole=whole))
            if looks:
                await asyncio.wait(looks.values(), timeout=self._look_every)
            ended = [sync for sync, task in looks.items() if task.done()]
            troubles = [looks.pop(sync).exception() for sync in ended]
            self._raise_first(troubles)
            await self._trim()
        except LedgerClosed:
            return  # the program is ending
        except (ServerError, LedgerError) as error:
            self._log_outage(error)
        else:
            self._log_outage(None)

    # ── at once ──────────────────────────────────────────────────────────────────────────

    async def enqueue(self, records: Sequence[Record]) -> None:
        """Queue records that were just created. If this fails, the next look does it.

        Records get into a queue in the order of the calls, whether or not the callers wait.
        """
        # Delays are computed from the time of creation, which was just now.
        await self._enqueue([OpenRecord(record, record.created_at) for record in records])

    async def enqueue_stored(self, seqs: Sequence[int]) -> None:
        """Queue those of these records that exist and are open, like `enqueue`."""
        await self._enqueue(seqs)

    async def _enqueue(self, records: Sequence[OpenRecord] | Sequence[int]) -> None:
        before, handed_over = self._last_handed_over, asyncio.Event()
        self._last_handed_over = handed_over
        try:
            open_records = await self._read(records)
            if before is not None:
                await before.wait()
            # In parallel, so that a queue whose Redis server hangs does not delay others.
            groups = groupby(sorted(open_records, key=_queue_of), key=_queue_of)
            tasks = [
                asyncio.ensure_future(self._sync_of(queue).enqueue(list(some)))
                for queue, some in groups
            ]
        except LedgerError:
            return  # the next look queues them
        finally:
            handed_over.set()
            if self._last_handed_over is handed_over:
                self._last_handed_over = None
        await asyncio.gather(*tasks)

    async def _read(self, records: Sequence[OpenRecord] | Sequence[int]) -> Sequence[OpenRecord]:
        """Read the records of numbers (`seq`), in their order. Records are returned unchanged."""
        seqs = [record for record in records if isinstance(record, int)]
        if not seqs:
            return cast("Sequence[OpenRecord]", records)
        rows = await self._ledger.read(lambda connection: rows_of_places(connection, seqs))
        found = {row.record.seq: row for row in rows}
        return [found[seq] for seq in seqs if seq in found]

    def watch(self, queues: Iterable[QueueName]) -> None:
        """Check these queues from now on, even if other processes created all their records."""
        for queue in queues:
            self._sync_of(queue)

    async def sync_now(self, queues: Collection[QueueName]) -> None:
        """Check these queues now: jobs in them are missing or out of order."""
        for queue in queues:
            with suppress(ServerError, LedgerError):
                await self._sync_of(queue).look()

    async def cancel_job(self, record: Record) -> None:
        """Notify the worker of a record that was cancelled."""
        with suppress(ServerError, JobError):  # the job has ended, or is gone
            await self.engine.cancel(JobRef(record.queue, record.job), by_record=True)

    async def remove_job(self, job: JobRef) -> None:
        """Remove a job whose record has another id by now. If this fails, a worker that claims the
        job ends it.
        """
        with suppress(ServerError, JobError):
            await self.engine.cancel(job, by_record=True)
        with suppress(ServerError, JobError):
            await self.engine.delete(job, by_record=True)

    # ── repeatedly ───────────────────────────────────────────────────────────────────────

    async def look(self) -> int:
        """Queue the records that are missing in Redis. Returns how many."""
        looks = [sync.look(whole=whole) for sync, whole in await self._list_syncs()]
        found = await asyncio.gather(*looks, return_exceptions=True)
        self._raise_first(found)
        await self._trim()
        return sum(outcome.queued for outcome in found if isinstance(outcome, SyncCounts))

    async def reconcile(self) -> dict[QueueName, SyncCounts | TowpathError]:
        """Check all open records now. Returns the counts of each queue, or its error."""
        self.watch(await self._ledger.read(open_queues))
        syncs = list(self._syncs.values())
        looks = [sync.look(whole=True) for sync in syncs]
        found = await asyncio.gather(*looks, return_exceptions=True)
        outcomes: dict[QueueName, SyncCounts | TowpathError] = {}
        for sync, outcome in zip(syncs, found, strict=True):
            if not isinstance(outcome, SyncCounts | TowpathError):
                raise outcome
            outcomes[sync.queue] = outcome
        return outcomes

    async def _list_syncs(self) -> list[tuple[QueueSync, bool]]:
        """Return all queues known to have records, and whether to check all their open records."""
        self.watch(await self._ledger.read(unseen_queues))
        whole = steady() - self._reconciled_at >= self._reconcile_every.total_seconds()
        if whole:
            self.watch(await self._ledger.read(open_queues))
            period = duration_ms("reconcile_every", self._reconcile_every)
            whole = await self._ledger.write(
                lambda connection: take_lease(connection, _TURN, self._me, period)
            )
            self._reconciled_at = steady()
        return [(sync, whole) for sync in self._syncs.values()]

    async def _trim(self) -> None:
        """Delete some of the records that ended long ago: a few at a time, besides other work."""
        if steady() - self._trimmed_at < TRIM_EVERY.total_seconds():
            return
        if await self._ledger.jobs.trim(limit=_TRIMMED_AT_ONCE) < _TRIMMED_AT_ONCE:
            self._trimmed_at = steady()

    def _sync_of(self, queue: QueueName) -> QueueSync:
        if queue not in self._syncs:
            self._syncs[queue] = QueueSync(self._ledger, queue, self.engine, self._log)
        return self._syncs[queue]

    @staticmethod
    def _raise_first(found: Iterable[SyncCounts | BaseException | None]) -> None:
        """Raise one of the errors of the looks, if any: defects before errors of Redis or the
        ledger.
        """
        troubles = [trouble for trouble in found if isinstance(trouble, BaseException)]
        troubles.sort(key=lambda trouble: isinstance(trouble, ServerError | LedgerError))
        if troubles:
            raise troubles[0]

    def _log_outage(self, error: TowpathError | None) -> None:
        """Log when an outage begins, and when it is over, each once."""
        name = type(error).__qualname__ if error else ""
        if name and not self._trouble:
            self._log.emit(events.RELAY_BLOCKED, error=name, reason=str(error))
        elif self._trouble and not name:
            self._log.emit(events.RELAY_RECOVERED)
        self._trouble = name


def _queue_of(at: OpenRecord) -> QueueName:
    return at.record.queue


# ── one queue ────────────────────────────────────────────────────────────────────────────


class SyncCounts(NamedTuple):
    """The counts of one check of a queue."""

    open: int = 0
    """Open records that were checked."""
    queued: int = 0
    """Records that were missing in Redis, and were queued."""
    ended: int = 0
    """Open records that were ended because their jobs had ended in Redis."""

    def and_(self, other: SyncCounts) -> SyncCounts:
        """Return the sums of both."""
        return SyncCounts(*map(sum, zip(self, other, strict=True)))


class QueueSync:
    """Keeps *queue* in the Redis of *engine* filled."""

    def __init__(self, ledger: Ledger, queue: QueueName, engine: Engine, log: Log) -> None:
        self._ledger, self.queue, self._engine, self._log = ledger, queue, engine, log
        self._life = ""
        """The incarnation of the queue's data (`Queues.incarnation`) in which all records were
        checked."""
        self._behind = False
        """Whether a record could not be queued at once. Newer records then wait for the next look,
        which queues them all in order."""
        self._turn = asyncio.Lock()

    # ── at once ──────────────────────────────────────────────────────────────────────────

    async def enqueue(self, records: Sequence[OpenRecord]) -> None:
        """Queue records that were just created, in the order of the calls: the engine batches
        concurrent calls. If this fails, the next look does it.
        """
        if self._behind or self._turn.locked():
            self._behind = True
            return
        try:
            # Not `seen`: new records have no cancelled jobs. And a worker may have begun them
            # already, so a note in their rows that they are in Redis would be wasted.
            await self._queue(records, seen=False)
        except (ServerError, LedgerError):
            self._behind = True

    # ── repeatedly ───────────────────────────────────────────────────────────────────────

    async def look(self, *, whole: bool = False) -> SyncCounts:
        """Queue the records that are missing in Redis; with *whole*, check all open records.

        Raises ServerError, LedgerError.
        """
        async with self._turn:
            found = SyncCounts()
            try:
                renewed = await self._engine.queues.incarnation(self.queue) != self._life
                if whole or renewed:
                    found = await self._reconcile(renewed=renewed)
                while True:
                    early, self._behind = self._behind, False
                    found = found.and_(await self._queue_missed(early=early))
                    if not self._behind:  # no record was created meanwhile and left to a look
                        return found
            except BaseException:
                self._behind = True
                raise

    async def _reconcile(self, *, renewed: bool) -> SyncCounts:
        """Check all open records, in bounded steps."""
        # New fencing tokens must be higher than those in the rows, whatever the clock says.
        floor = await self._ledger.read(lambda connection: highest_fence(connection, self.queue))
        life = await self._read_incarnation(floor)
        found, after = SyncCounts(), 0
        while rows := await self._ledger.read(
            lambda connection, seq=after: page_of(connection, self.queue, seq)
        ):
            began = steady()
            found = found.and_(await self._queue(rows))
            after = rows[-1].record.seq
            if len(rows) < LARGEST_BATCH:
                break
            if not renewed:
                # Not urgent, as nothing is known to be lost: leave half of the time to others.
                await asyncio.sleep(steady() - began)
        self._life = life
        self._log_queued(found, "reconciled")
        return found

    async def _read_incarnation(self, floor: int) -> str:
        """Make new fencing tokens higher than *floor*. Returns the life of the queue's data."""
        return await self._engine.queues.incarnation(self.queue, floor=floor)

    async def _queue_missed(self, *, early: bool) -> SyncCounts:
        """Queue records that their creator has not queued in time; with *early*, also those that
        the creator may still queue.
        """
        found, within = SyncCounts(), QUEUED_WITHIN if early else 0
        while rows := as_read(
            await self._ledger.write(lambda connection: claim_due(connection, self.queue, within))
        ):
            try:
                found = found.and_(await self._queue(rows))
            except ServerError:
                seqs = [at.record.seq for at in rows]
                await self._ledger.write(lambda connection, seqs=seqs: release(connection, seqs))
                raise
            if len(rows) < LARGEST_BATCH:
                break
        self._log_queued(found, "missed")
        return found

    def _log_queued(self, found: SyncCounts, reason: str) -> None:
        if found.queued:
            self._log.emit(
                events.RECORDS_QUEUED, queue=self.queue, jobs=found.queued, reason=reason
            )

    # ── the step that queues records ─────────────────────────────────────────────────────

    async def _queue(self, records: Sequence[OpenRecord], *, seen: bool = True) -> SyncCounts:
        """Queue these records, and update their rows by the replies of Redis.

        With *seen*, also note in the rows that the jobs are in Redis, and cancel the jobs of
        cancelled records.
        """
        if seen:
            await self._stop_cancelled(records)
        found, named = SyncCounts(open=len(records)), sorted(records, key=lambda at: at.record.seq)
        while named:
            answers = await self._submit(named)
            changes = [(at, await self._change(at.record, answer)) for at, answer in answers]
            submitted = [answer for _, answer in answers if isinstance(answer, Submitted)]
            queued = sum(not answer.existed for answer in submitted)
            ended = sum("finished_at" in change for _, change in changes if change)
            found = found.and_(SyncCounts(queued=queued, ended=ended))
            named = await self._note(changes, seen=seen)
        return found

    async def _stop_cancelled(self, records: Sequence[OpenRecord]) -> None:
        """Cancel the jobs of cancelled records: Redis may not have been notified yet."""
        for at in records:
            if at.record.cancel_requested:
                with suppress(JobError):  # the job has ended, or is gone
                    ref = JobRef(self.queue, at.record.job)
                    await self._engine.cancel(ref, by_record=True)

    async def _submit(self, records: list[OpenRecord]) -> list[tuple[OpenRecord, _Answer]]:
        """Submit the jobs of *records*. Returns the reply of Redis or the error for each."""
        timely = self._engine.goes_by_server_clock
        made: list[tuple[OpenRecord, NewJob]] = []
        answers: list[tuple[OpenRecord, _Answer]] = []
        for at in records:
            try:
                made.append((at, as_job(at.record, now=at.now, timely=timely)))
            except (ValueError, TowpathError, msgspec.MsgspecError) as error:
                answers.append((at, spoilt(error)))
        # `_reconcile` considers the tokens of open records only. A record that had ended, and was
        # then retried, must not begin with a lower token than before either, even if Redis lost
        # data or its clock was set back.
        if floor := max((at.record.fence for at, _ in made), default=0):
            await self._read_incarnation(floor)
        submitted = await self._engine.submit_many(self.queue, [job for _, job in made])
        return answers + [(at, answer) for (at, _), answer in zip(made, submitted, strict=True)]

    async def _note(
        self, changes: Sequence[tuple[OpenRecord, dict[str, Any] | None]], *, seen: bool
    ) -> list[OpenRecord]:
        """Store *changes*. Returns the records that got a new id, to be queued under it."""
        # Rows that already say that their job is in Redis, as most do, are not written.
        there = [at.record for at, change in changes if change is None and seen and at.unseen]
        others = [(at.record, change) for at, change in changes if change is not None]
        if not there and not others:
            return []
        tell = self._ledger.jobs.tell
        return as_read(
            await self._ledger.decide(
                lambda connection: write_down(connection, there, others, tell)
            )
        )

    async def _change(self, record: Record, answer: _Answer) -> dict[str, Any] | None:
        """Return how the row must change after *answer*, with times relative to now; None = the job
        is queued.
        """
        match answer:
            case Submitted(existed=False):
                return None
            case Submitted(state=state) if state in _QUEUED:
                return None
            case Submitted(state=state) if state in _ENDS:
                return await self._change_after_end(record, state)
            case Submitted():
                return _renamed(record)
            case QueueFull():
                return {"relay_at": _LATER}
            case _:
                return _dead(str(answer))

    async def _change_after_end(self, record: Record, state: State) -> dict[str, Any]:
        """Return how the row of an open record must change if its job has ended in Redis.

        Causes: the job was changed without the ledger, no attempt reached the row, or the row is
        from an older backup.
        """
        ref = JobRef(record.queue, record.job)
        try:
            job = await self._engine.inspect.job(ref)
        except JobNotFound:
            return {"relay_at": 0}  # the job was just deleted: look again now
        if state is State.DEAD and (job.reason or "").startswith(RECORD_MISSING):
            # The job never ran, because the row was missing. It is back, so queue it again.
            with suppress(JobError):
                await self._engine.delete(ref, by_record=True)
            return _renamed(record)
        if state is State.DEAD:
            return _dead(job.reason or "dead in Redis")
        if state is State.DONE and (job.result or b"").startswith(NOT_RUN):
            if job.result != NOT_RUN + RecordState.CANCELLED.encode():
                return _renamed(record)
            state = State.CANCELLED
        change = {"state": _ENDS[state], "finished_at": 0, "relay_at": None}
        return change | ({"result": job.result or None} if state is State.DONE else {})


_Answer = Submitted | TowpathError | str


def _renamed(record: Record) -> dict[str, Any]:
    return {"job": next_name(record.id, record.job)}


def _dead(reason: str) -> dict[str, Any]:
    ended = {"state": RecordState.DEAD, "finished_at": 0, "relay_at": None}
    return ended | {"last_error": reason.replace("\0", "")}
