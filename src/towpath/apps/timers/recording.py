"""Timers with a record: their row in the database decides, whatever Redis says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from towpath.app.jobs import state_of
from towpath.apps.owners import Access
from towpath.apps.timers.errors import TimerDiffers, TimerEnded, TimerTaken
from towpath.apps.timers.model import (
    ENDED,
    NewTimer,
    Timer,
    TimerPayload,
    TypeKey,
    When,
    decoded,
    due_of,
)
from towpath.engine.model import JobRef
from towpath.engine.states import State
from towpath.ledger.errors import LedgerMissing, RecordNotFound

if TYPE_CHECKING:
    from towpath.ledger.records.jobs import Jobs
    from towpath.ledger.records.record import Record


class TimerRecords:
    """The records of timers. *jobs* are the ledger's jobs; None = there is no ledger."""

    def __init__(self, jobs: Jobs | None) -> None:
        self._jobs = jobs

    @property
    def has_ledger(self) -> bool:
        """Whether there is a ledger."""
        return self._jobs is not None

    @property
    def jobs(self) -> Jobs:
        """The ledger's jobs. Raises LedgerMissing."""
        if self._jobs is None:
            raise LedgerMissing
        return self._jobs

    async def submit(self, queue: str, timer: NewTimer, task_id: str, access: Access) -> Timer:
        """Create the record. Raises TimerTaken, TimerEnded or TimerDiffers if another one has its
        id.
        """
        data = timer.packed()
        made = await self.jobs.submit(queue, data, **timer.options(task_id, recorded=True))
        found = as_timer(timer.key, made.record, existed=made.existed)
        if made.existed and not access.owns(found.owner):
            raise TimerTaken(JobRef(made.record.queue, made.record.id))
        if made.existed and found.state in ENDED:
            raise TimerEnded(JobRef(made.record.queue, made.record.id), found.state)
        if made.existed and made.record.payload != data:
            raise TimerDiffers(JobRef(made.record.queue, made.record.id))
        return found

    async def set(self, queue: str, timer: NewTimer, task_id: str) -> Timer:
        """Create the record, or replace the one that waits under its id."""
        options = timer.options(task_id, recorded=True)
        made = await self.jobs.set(queue, timer.packed(), **options)
        return as_timer(timer.key, made.record, existed=made.replaced)

    async def move(self, key: TypeKey, ref: JobRef, when: When) -> Timer:
        return as_timer(key, await self.jobs.move(ref.queue, ref.id, **when.job_time()))

    async def cancel(self, key: TypeKey, ref: JobRef) -> Timer:
        return as_timer(key, await self.jobs.cancel(ref.queue, ref.id))

    async def get(self, key: TypeKey, ref: JobRef) -> Timer:
        """Raises RecordNotFound."""
        return as_timer(key, await self.jobs.get(ref.queue, ref.id))

    async def queued_as(self, ref: JobRef) -> JobRef:
        """Returns the timer's job in Redis, which has another id each time it is queued again."""
        return JobRef(ref.queue, (await self.jobs.get(ref.queue, ref.id)).job)

    async def find(self, key: TypeKey, ref: JobRef) -> Timer | None:
        """Returns the recorded timer of that id; None if there is no record, or no ledger."""
        try:
            return await self.get(key, ref) if self.has_ledger else None
        except RecordNotFound:
            return None

    async def find_equal(self, timer: NewTimer, ref: JobRef) -> Timer | None:
        """Returns the recorded timer of that id if it has the content of *timer*, else None. (Its
        job in Redis has no payload to compare.)
        """
        if not self.has_ledger:
            return None
        try:
            record = await self.jobs.get(ref.queue, ref.id)
        except RecordNotFound:
            return None
        same = record.payload == timer.packed()
        return as_timer(timer.key, record, existed=True) if same else None


def as_timer(key: TypeKey, record: Record, *, existed: bool = False) -> Timer:
    """Returns *record* as a timer."""
    packed = TimerPayload.read(record.payload)
    state = state_of(record, None)
    due = record.due_at or due_of(packed, record.created_at)
    next_try_at = record.next_try_at if record.open and state is not State.LEASED else None
    return Timer(
        task_id=record.id,
        task_type=key.task_type,
        app=key.app,
        state=state,
        due=due,
        next_try_at=next_try_at,
        params=decoded(packed.params),
        attempts=record.attempts,
        submitted_at=record.created_at,
        started_at=record.started_at,
        ended_at=record.finished_at,
        reason=record.last_error,
        record=True,
        existed=existed,
        owner=record.owner or "",
    )
