"""Between a worker and the records of its jobs."""

from __future__ import annotations

import msgspec

from towpath.engine.model import Bury, Complete, Lease, Release, Settlement
from towpath.ledger.records.attempts import Ending, Standing
from towpath.ledger.records.jobs import Jobs
from towpath.ledger.records.record import RECORD_MISSING, RecordState


class LedgerRecorder:
    """Asks the ledger before an attempt and tells it after: what a worker calls a Recorder."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    async def begin(self, lease: Lease) -> Lease | Settlement | None:
        """The lease with payload and attempt of the row, or what to tell the server instead."""
        begun = await self._jobs.begin(lease)
        match begun.standing:
            case Standing.BEGUN:
                return msgspec.structs.replace(
                    lease,
                    payload=begun.payload,
                    attempt=begun.attempt,
                    max_attempts=begun.max_attempts,
                )
            case Standing.ENDED if begun.state is RecordState.DEAD:
                return Bury(lease, f"{begun.reason or 'dead'} (its record is dead: retry that)")
            case Standing.ENDED | Standing.EARLY:
                return Complete(lease)
            case Standing.STALE:
                return None
            case Standing.MISSING:
                return Bury(lease, f"{RECORD_MISSING}: the ledger has no record of this job")

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
            case _:
                return settlement
