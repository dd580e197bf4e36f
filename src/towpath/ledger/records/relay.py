"""The relay: queues every open record in Redis, also after failures.

A relay cares for all queues that have records. Each queue has a `QueueSync` of its own, so that a
queue whose Redis server fails does not delay the others. `Ledger.relayed` starts one.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from itertools import groupby
from random import uniform
from typing import TYPE_CHECKING, Self, cast

from towpath.clock import Duration, duration_ms, minutes, seconds, steady
from towpath.engine.engine import Engine
from towpath.engine.model import JobRef
from towpath.errors import JobError, ServerError, TowpathError
from towpath.ids import QueueName
from towpath.ledger.errors import LedgerClosed, LedgerError
from towpath.ledger.outbox.leases import take_lease
from towpath.ledger.records.open_records import (
    OpenRecord,
    open_queues,
    rows_of_places,
    unseen_queues,
)
from towpath.ledger.records.queue_sync import QueueSync, SyncCounts
from towpath.ledger.records.record import (
    Record,
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
