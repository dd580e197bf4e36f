"""A submitted job: where to ask for what becomes of it."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar, cast

import msgspec

from towpath.app.connection import Connection
from towpath.clock import DurationLike, duration, seconds, steady
from towpath.engine.model import Job, JobRef, Submitted
from towpath.engine.states import State
from towpath.errors import EngineClosed, JobNotFound, JobUnfinished, ServerError, StillOpen
from towpath.ids import JobId
from towpath.ledger.errors import RecordNotFound, RecordUncommitted
from towpath.worker.payload import Form, Raw

if TYPE_CHECKING:
    from towpath.ledger.records.record import Record

R = TypeVar("R")
_LOOK_EVERY = 0.1
"""Seconds, where nobody tells."""


class Ticket(msgspec.Struct, Generic[R], frozen=True):
    """A submitted job: where to ask for what becomes of it."""

    submitted: Submitted
    _connection: Connection
    _form: Form[Any]

    @property
    def job(self) -> JobRef:
        return self.submitted.job

    @property
    def id(self) -> JobId:
        return self.submitted.job.id

    @property
    def existed(self) -> bool:
        """Whether an earlier submit under the same id had made it."""
        return self.submitted.existed

    async def state(self) -> State:
        """Its state now; GONE if it ended and is no longer kept."""
        return await self._connection.engine.state(self.job)

    async def cancel(self) -> State:
        """End it: CANCELLED, or LEASED if its worker was asked to stop."""
        return await self._connection.engine.cancel(self.job)

    async def move(
        self, *, due: datetime | None = None, delay: DurationLike | None = None
    ) -> State:
        """Give it another due time while it waits: *due*, or *delay* from now.

        Raises JobNotFound, and JobNotWaiting once it is worked on or has ended; for a job with a
        record these are RecordNotFound and RecordNotWaiting.
        """
        return await self._connection.engine.move(self.job, due=due, delay=delay)

    async def result(self, *, within: DurationLike) -> R:
        """What its handler returned, once it has.

        Raises StillOpen when the time is over, JobUnfinished if it died or was cancelled,
        JobNotFound if it is gone. Does not poll.
        """
        return self._value(await self._connection.engine.ended(self.job, within=within))

    def wait(self, *, within: DurationLike) -> R:
        """The same for code without an event loop."""
        return self._value(self._connection.blocking.ended(self.job, within=within))

    def _value(self, job: Job) -> R:
        if job.state is not State.DONE:
            raise JobUnfinished(job.ref, job.state, job.reason)
        data = job.result or b""
        # No bytes are None, unless bytes are what the handler returns.
        return cast("R", self._form.decode(data) if data or isinstance(self._form, Raw) else None)


class Transaction(Protocol):
    """Active until it has been committed or rolled back."""

    @property
    def is_active(self) -> bool: ...


class Uncommitted(NamedTuple):
    """A record as it was made in a transaction of the caller's."""

    record: Record
    transaction: Transaction


class RecordTicket(Ticket[R], frozen=True):
    """The same for a job whose record is the ledger: the row answers.

    As long as the transaction is open that the job was submitted in, its state is PENDING; after a
    rollback it is GONE.
    """

    _record_id: JobId
    _made: Uncommitted | None = None

    async def record(self) -> Record:
        """Its row now. Raises RecordNotFound if it ended long ago, or was rolled back."""
        pending = self._pending  # first: what is committed after this is found below
        try:
            return await self._connection.ledger.jobs.get(self.job.queue, self._record_id)
        except RecordNotFound:
            if pending is None:
                raise
            return pending

    @property
    def _pending(self) -> Record | None:
        """The record as it was made, as long as its transaction is open."""
        made = self._made
        return made.record if made is not None and made.transaction.is_active else None

    async def state(self) -> State:
        try:
            record = await self.record()
        except RecordNotFound:
            return State.GONE
        return State.PENDING if record is self._pending else STATES[record.state]

    async def cancel(self) -> State:
        await self._check_committed()
        record = await self._connection.ledger.jobs.cancel(self.job.queue, self._record_id)
        return STATES[record.state]

    async def move(
        self, *, due: datetime | None = None, delay: DurationLike | None = None
    ) -> State:
        await self._check_committed()
        moved = self._connection.ledger.jobs.move
        record = await moved(self.job.queue, self._record_id, due=due, delay=delay)
        return STATES[record.state]

    async def _check_committed(self) -> None:
        if self._pending is not None and await self.record() is self._pending:
            raise RecordUncommitted(self.job.queue, self._record_id)

    async def result(self, *, within: DurationLike) -> R:
        limit = duration("within", within)
        until = steady() + limit.total_seconds()
        while (record := await self.record()).open:
            left = until - steady()
            if left <= 0:
                raise StillOpen(self.job, limit)
            if record is self._pending:
                await asyncio.sleep(min(left, _LOOK_EVERY))
            else:
                await self._until_moved(JobRef(record.queue, record.job), min(left, 1.0))
        if record.state == "completed":
            data = record.result or b""
            form = self._form
            return cast("R", form.decode(data) if data or isinstance(form, Raw) else None)
        raise JobUnfinished(self.job, record.state, record.last_error)

    async def _until_moved(self, ref: JobRef, wait: float) -> None:
        """The server tells when it ends; where it does not know the job, look again soon."""
        try:
            await self._connection.engine.ended(ref, within=seconds(wait))
        except StillOpen:
            pass
        except (JobNotFound, ServerError):
            await asyncio.sleep(min(wait, _LOOK_EVERY))

    def wait(self, *, within: DurationLike) -> R:
        raise EngineClosed("a record is waited for in its app's event loop: `await .result(…)`")


STATES = {
    "pending": State.READY,
    "running": State.LEASED,
    "failed": State.DELAYED,
    "completed": State.DONE,
    "dead": State.DEAD,
    "cancelled": State.CANCELLED,
    "superseded": State.CANCELLED,
}
