"""From the rows to Redis: every open record is queued there, whatever happened on the way.

A relay looks after all queues that have records, each by itself (`filling.py`): one that Redis
can't take does not keep back the others.
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
from towpath.ledger.database.batching import Joined
from towpath.ledger.errors import LedgerClosed, LedgerError
from towpath.ledger.outbox.outgoing import hold
from towpath.ledger.records.attempts import Beginning, Ending, Standing
from towpath.ledger.records.filling import FillCounts, Filling
from towpath.ledger.records.jobs import Jobs
from towpath.ledger.records.open_records import At, open_queues, rows_of_places, unseen_queues
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
"""How often one of all relays goes through all open records: if it dies, another one does the next
time."""
TRIM_EVERY = minutes(5)
_TRIMMED_AT_ONCE = 100
_TURN = "(relay)"
"""In place of a sink's name: whose turn it is to go through all records."""


class Relay:
    """Keeps Redis filled from the ledger, while it is entered. Any number may run, anywhere.

    *connect* gives the engine, or raises ServerError while there is none.
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
        self._fillings: dict[QueueName, Filling] = {}
        self._reconciled_at = self._trimmed_at = float("-inf")
        self._read = Joined(self._read_many)
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
        """Look after the records until cancelled."""
        looks: dict[Filling, asyncio.Task[FillCounts]] = {}
        try:
            while True:
                await self._turn(looks)
                await asyncio.sleep(self._look_every * uniform(0.75, 1.25))  # noqa: S311 -- jitter
        finally:
            for task in looks.values():
                task.cancel()
            await asyncio.gather(*looks.values(), return_exceptions=True)

    async def _turn(self, looks: dict[Filling, asyncio.Task[FillCounts]]) -> None:
        """Begin to look where nobody is at it still: a queue whose server hangs delays no other."""
        try:
            for filling, whole in await self._to_look_at():
                if filling not in looks:
                    looks[filling] = asyncio.create_task(filling.look(whole=whole))
            if looks:
                await asyncio.wait(looks.values(), timeout=self._look_every)
            ended = [filling for filling, task in looks.items() if task.done()]
            troubles = [looks.pop(filling).exception() for filling in ended]
            self._raise_first(troubles)
            await self._trim()
        except LedgerClosed:
            return  # the program ends: whoever opens the ledger next goes on
        except (ServerError, LedgerError) as error:
            self._say(error)
        else:
            self._say(None)

    # ── at once ──────────────────────────────────────────────────────────────────────────

    async def bring(self, records: Sequence[Record]) -> None:
        """Queue records that were just made. What fails is left to the next look."""
        # Just made: what is due counts from then.
        await self._bring([At(record, record.created_at) for record in records])

    async def bring_made(self, seqs: Sequence[int]) -> None:
        """The same for records that may have been made: those that are there."""
        await self._bring(seqs)

    async def _bring(self, those: Sequence[At] | Sequence[int]) -> None:
        try:
            rows = await self._read(those)
        except LedgerError:
            return  # they are due soon
        # At the same time: a queue whose server hangs delays no other. Always so, even for one
        # queue: whoever was read first is then first in line there, too.
        groups = groupby(sorted(rows, key=_by_queue), key=_by_queue)
        await asyncio.gather(*(self._filling(queue).bring(list(some)) for queue, some in groups))

    async def _read_many(self, several: list[Sequence[At] | Sequence[int]]) -> list[list[At]]:
        """Rows for places: those that come later wait for those before, so that none overtakes."""
        places = [place for some in several for place in some if isinstance(place, int)]
        found: dict[int, At] = {}
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
        """Keep an eye on these queues: their records may all have been made by others."""
        for queue in queues:
            self._filling(queue)

    async def catch_up(self, queues: Collection[QueueName]) -> None:
        """Look at these queues now: something in them is not in its place."""
        for queue in queues:
            with suppress(ServerError, LedgerError):
                await self._filling(queue).look()

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
        """Tell the worker of a record that was cancelled."""
        with suppress(ServerError, JobError):  # it has ended, or is gone
            await self._connect().cancel(JobRef(record.queue, record.job), by_record=True)

    async def forget(self, job: JobRef) -> None:
        """Take away a job whose record has another name by now. Left alone, it would end itself."""
        for way in (self._connect().cancel, self._connect().delete):
            with suppress(ServerError, JobError):
                await way(job, by_record=True)

    # ── again and again ──────────────────────────────────────────────────────────────────

    async def look(self) -> int:
        """See that everything is where it should be; how many records were brought to Redis."""
        looks = [filling.look(whole=whole) for filling, whole in await self._to_look_at()]
        found = await asyncio.gather(*looks, return_exceptions=True)
        self._raise_first(found)
        await self._trim()
        return sum(outcome.brought for outcome in found if isinstance(outcome, FillCounts))

    async def reconcile(self) -> dict[QueueName, FillCounts | TowpathError]:
        """Go through all open records now; what was found in each queue, or why it could not be."""
        self.watch(await self._ledger.read(open_queues))
        fillings = list(self._fillings.values())
        looks = [filling.look(whole=True) for filling in fillings]
        found = await asyncio.gather(*looks, return_exceptions=True)
        told: dict[QueueName, FillCounts | TowpathError] = {}
        for filling, outcome in zip(fillings, found, strict=True):
            if not isinstance(outcome, FillCounts | TowpathError):
                raise outcome
            told[filling.queue] = outcome
        return told

    async def _to_look_at(self) -> list[tuple[Filling, bool]]:
        """All queues that are known to have records, and whether to go through all of them."""
        self.watch(await self._ledger.read(unseen_queues))
        whole = steady() - self._reconciled_at >= self._reconcile_every.total_seconds()
        if whole:
            self.watch(await self._ledger.read(open_queues))
            period = duration_ms("reconcile_every", self._reconcile_every)
            whole = await self._ledger.write(
                lambda connection: hold(connection, _TURN, self._me, period)
            )
            self._reconciled_at = steady()
        return [(filling, whole) for filling in self._fillings.values()]

    async def _trim(self) -> None:
        """Remove some of what ended long ago: little at a time, beside the work."""
        if steady() - self._trimmed_at < TRIM_EVERY.total_seconds():
            return
        if await self._ledger.jobs.trim(limit=_TRIMMED_AT_ONCE) < _TRIMMED_AT_ONCE:
            self._trimmed_at = steady()

    def _filling(self, queue: QueueName) -> Filling:
        if queue not in self._fillings:
            self._fillings[queue] = Filling(self._ledger, queue, self._connect, self._log)
        return self._fillings[queue]

    @staticmethod
    def _raise_first(found: Iterable[FillCounts | BaseException | None]) -> None:
        """All queues have had their turn: the first trouble is told. A defect comes first."""
        troubles = [trouble for trouble in found if isinstance(trouble, BaseException)]
        troubles.sort(key=lambda trouble: isinstance(trouble, ServerError | LedgerError))
        if troubles:
            raise troubles[0]

    def _say(self, error: TowpathError | None) -> None:
        """Once when it begins, once when it is over."""
        name = type(error).__qualname__ if error else ""
        if name and not self._trouble:
            self._log.emit(events.RELAY_BLOCKED, error=name, reason=str(error))
        elif self._trouble and not name:
            self._log.emit(events.RELAY_RECOVERED)
        self._trouble = name


def _by_queue(at: At) -> QueueName:
    return at.record.queue


# ── between a worker and the records of its jobs ─────────────────────────────────────────


def _fired(lease: Lease) -> NewRecord:
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
    """How the job of a row ends in Redis that has ended, or that has another job by now."""
    if begun.state is RecordState.DEAD:
        return Bury(lease, f"{begun.reason or 'dead'} (its record is dead: retry the record)")
    if begun.state is RecordState.COMPLETED:
        return Complete(lease, begun.result or b"")
    # An older backup of the row must not take this end for that of its work.
    return Complete(lease, NOT_RUN + (begun.state or "").encode())


class LedgerRecorder:
    """Asks the ledger before an attempt and tells it after: what a worker calls a Recorder."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    async def begin(self, lease: Lease, *, most: int = ATTEMPTS) -> Lease | Settlement | None:
        """The lease with payload and attempt of the row, or what to tell the server instead."""
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
        # Fired by a schedule: Redis has it first, and its record is made here, once.
        await self._jobs.submit_new(_fired(lease))
        return Release(lease)

    async def end(
        self, lease: Lease, settlement: Settlement, *, cancelled: bool
    ) -> Settlement | None:
        """What to tell the server, now that the row knows."""
        match await self._jobs.end(Ending(lease, settlement, cancelled)):
            case None:
                return None
            case RecordState.CANCELLED:
                # If the server was asked to cancel it, it does now; if not, the row says so at
                # the next claim.
                return Release(lease)
            case RecordState.COMPLETED:
                # Also where the answer to the first call was lost.
                return settlement if isinstance(settlement, Complete) else Complete(lease)
            case RecordState.FAILED | RecordState.PENDING if isinstance(settlement, Complete):
                return Release(lease)  # it has ended otherwise before: the row says when it runs
            case _:
                return settlement
