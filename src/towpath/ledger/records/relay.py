"""The relay: queues every open record in Redis, also after failures.

A relay cares for all queues that have records. Each queue has a `QueueSync` of its own, so that a
queue whose Redis server fails does not delay the others.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from itertools import groupby
from random import uniform
from typing import TYPE_CHECKING, Self

import msgspec

from towpath.clock import Duration, duration_ms, minutes, seconds, steady
from towpath.engine.engine import Engine
from towpath.engine.model import Bury, Complete, JobRef, Lease, Release, Settlement
from towpath.engine.options import ATTEMPTS, QueueOptions
from towpath.engine.schedule import SCHEDULED
from towpath.errors import JobError, ServerError, TowpathError
from towpath.ids import QueueName
from towpath.ledger.database.coalescer import Coalescer
from towpath.ledger.errors import LedgerClosed, LedgerError
from towpath.ledger.outbox.outgoing import hold
from towpath.ledger.records.attempts import Beginning, Ending, Standing
from towpath.ledger.records.jobs import Jobs
from towpath.ledger.records.open_records import (
    OpenRecord,
    open_queues,
    rows_of_places,
    unseen_queues,
)
from towpath.ledger.records.queue_sync import QueueSync, SyncCounts
from towpath.ledger.records.record import (
    NOT_RUN,
    RECORD_MISSING,
    NewRecord,
    Record,
    RecordState,
    new_record,
)
from towpath.supervise import Background
from towpath.telemetry import events
from towpath.telemetry.logs import Log

if TYPE_CHECKING:
    from collections.abc import Callable

    from towpath.ledger.ledger import Ledger


LOOK_EVERY = seconds(1)
RECONCILE_EVERY = seconds(30)
"""How often one of the relays checks all open records. If it dies, another one does so next time.
"""
TRIM_EVERY = minutes(5)
_TRIMMED_AT_ONCE = 100
_TURN = "(relay)"
"""Used in place of a sink's name for the lease of the relay that checks all records."""


class Relay:
    """Keeps Redis filled from the ledger while it is entered. Any number may run, on any host.

    *connect* returns the engine, or raises ServerError while there is none.
    """

    def __init__(
        self,
        ledger: Ledger,
        connect: Callable[[], Engine],
        *,
        log: Log,
        look_every: Duration = LOOK_EVERY,
        reconcile_every: Duration = RECONCILE_EVERY,
    ) -> None:
        self._ledger, self._connect, self._log = ledger, connect, log
        self._look_every = look_every.total_seconds()
        self._reconcile_every = reconcile_every
        self._me = secrets.token_hex(8)
        self._syncs: dict[QueueName, QueueSync] = {}
        self._reconciled_at = self._trimmed_at = float("-inf")
        self._read = Coalescer(self._read_many)
        self._trouble = ""
        self._running = Background("relay", self.run, log=log)

    async def __aenter__(self) -> Self:
        self._ledger.jobs.fastpath = self
        self._running.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._ledger.jobs.fastpath is self:
            self._ledger.jobs.fastpath = None
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

    async def bring(self, records: Sequence[Record]) -> None:
        """Queue records that were just created. If this fails, the next look does it."""
        # Delays are computed from the time of creation, which was just now.
        await self._bring([OpenRecord(record, record.created_at) for record in records])

    async def bring_made(self, seqs: Sequence[int]) -> None:
        """Queue those of these records that exist and are open. If this fails, a look does it."""
        await self._bring(seqs)

    async def _bring(self, those: Sequence[OpenRecord] | Sequence[int]) -> None:
        try:
            rows = await self._read(those)
        except LedgerError:
            return  # the next look queues them
        # In parallel, so that a queue whose Redis server hangs does not delay others. All `bring`
        # are called before anything is awaited, so that records stay in the order of the reads.
        groups = groupby(sorted(rows, key=_by_queue), key=_by_queue)
        await asyncio.gather(*(self._sync_of(queue).bring(list(some)) for queue, some in groups))

    async def _read_many(
        self, several: list[Sequence[OpenRecord] | Sequence[int]]
    ) -> list[list[OpenRecord]]:
        """Read the records of numbers (`seq`); records pass unchanged. All calls take this way in
        their order, so that none overtakes another.
        """
        places = [place for some in several for place in some if isinstance(place, int)]
        found: dict[int, OpenRecord] = {}
        if places:
            rows = await self._ledger.read(lambda connection: rows_of_places(connection, places))
            found = {at.record.seq: at for at in rows}
        return [
            [
                at
                for asked in some
                if (at := found.get(asked) if isinstance(asked, int) else asked) is not None
            ]
            for some in several
        ]

    def watch(self, queues: Iterable[QueueName]) -> None:
        """Check these queues from now on, even if other processes created all their records."""
        for queue in queues:
            self._sync_of(queue)

    async def catch_up(self, queues: Collection[QueueName]) -> None:
        """Check these queues now: jobs in them are missing or out of order."""
        for queue in queues:
            with suppress(ServerError, LedgerError):
                await self._sync_of(queue).look()

    async def options(self, queues: Iterable[QueueName]) -> dict[QueueName, QueueOptions]:
        """The options of these queues, except of those whose Redis does not answer."""
        found: dict[QueueName, QueueOptions] = {}
        for queue in queues:
            with suppress(ServerError):
                found[queue] = await self._connect().queues.known_options(queue)
        return found

    @property
    def timely(self) -> bool:
        """Whether Redis goes by a real clock, as the database does."""
        try:
            return self._connect().goes_by_server_clock
        except ServerError:
            return True

    async def stop(self, record: Record) -> None:
        """Notify the worker of a record that was cancelled."""
        with suppress(ServerError, JobError):  # the job has ended, or is gone
            await self._connect().cancel(JobRef(record.queue, record.job), by_record=True)

    async def forget(self, job: JobRef) -> None:
        """Remove a job whose record has another id by now. If this fails, a worker that claims the
        job ends it.
        """
        with suppress(ServerError, JobError):
            await self._connect().cancel(job, by_record=True)
        with suppress(ServerError, JobError):
            await self._connect().delete(job, by_record=True)

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
                lambda connection: hold(connection, _TURN, self._me, period)
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
            self._syncs[queue] = QueueSync(self._ledger, queue, self._connect, self._log)
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


def _by_queue(at: OpenRecord) -> QueueName:
    return at.record.queue


# ── the recorder of workers ──────────────────────────────────────────────────────────────


def _record_of_firing(lease: Lease) -> NewRecord:
    return new_record(
        lease.queue,
        lease.payload,
        id=lease.id,
        priority=lease.priority,
        lane=lease.lane,
        max_attempts=lease.max_attempts,
        retry=lease.retry,
        headers=lease.headers,
    )


def _without_running(lease: Lease, begun: Beginning) -> Settlement:
    """Return how to settle a job whose record has ended, or has another job by now."""
    if begun.state is RecordState.DEAD:
        return Bury(lease, f"{begun.reason or 'dead'} (its record is dead: retry the record)")
    if begun.state is RecordState.COMPLETED:
        return Complete(lease, begun.result or b"")
    # If the row is later restored from a backup, this end must not count as that of its work.
    return Complete(lease, NOT_RUN + (begun.state or "").encode())


class LedgerRecorder:
    """The `Recorder` of workers: begins and ends attempts in the ledger."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    async def begin(self, lease: Lease, *, most: int = ATTEMPTS) -> Lease | Settlement | None:
        """Begin an attempt. Returns the lease with payload and attempt of the row, or how to settle
        the job instead of running it; None if the lease is stale.
        """
        begun = await self._jobs.begin(msgspec.structs.replace(lease, max_attempts=most))
        match begun.standing:
            case Standing.BEGUN:
                return msgspec.structs.replace(
                    lease,
                    payload=begun.payload,
                    attempt=begun.attempt,
                    max_attempts=begun.max_attempts or most,
                    due_ms=begun.due_ms,
                )
            case Standing.ENDED | Standing.EARLY:
                return _without_running(lease, begun)
            case Standing.NOT_DUE:
                return Release(lease, begun.due_in)
            case Standing.STALE:
                return None
            case Standing.MISSING:
                return await self._without_record(lease)

    async def _without_record(self, lease: Lease) -> Settlement:
        if SCHEDULED not in lease.headers:
            return Bury(lease, f"{RECORD_MISSING}: the ledger has no record of this job")
        # A schedule submits its jobs in Redis; their records are created here, once.
        await self._jobs.submit_new(_record_of_firing(lease))
        return Release(lease)

    async def end(
        self, lease: Lease, settlement: Settlement, *, cancelled: bool
    ) -> Settlement | None:
        """End an attempt. Returns how to settle the job in Redis; None if the attempt was stale."""
        match await self._jobs.end(Ending(lease, settlement, cancelled)):
            case None:
                return None
            case RecordState.CANCELLED:
                # If Redis knows of the cancellation, it cancels a released job. If not, the next
                # claim ends the job by its row.
                return Release(lease)
            case RecordState.COMPLETED:
                # The settlement differs if the answer to an earlier `end` was lost.
                return settlement if isinstance(settlement, Complete) else Complete(lease)
            case RecordState.FAILED | RecordState.PENDING if isinstance(settlement, Complete):
                return Release(lease)  # an earlier `end` counts; the row says when the job runs
            case _:
                return settlement
