"""The recorder of workers: begins and ends attempts in the records of their jobs."""

from __future__ import annotations

import msgspec

from towpath.engine.model import Bury, Complete, Lease, Release, Settlement
from towpath.engine.options import ATTEMPTS
from towpath.engine.schedule import SCHEDULED
from towpath.ledger.records.attempts import Beginning, Ending, Standing
from towpath.ledger.records.jobs import Jobs
from towpath.ledger.records.record import (
    NOT_RUN,
    RECORD_MISSING,
    NewRecord,
    RecordState,
    new_record,
)


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
