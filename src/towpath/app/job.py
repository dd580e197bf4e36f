"""A submitted job: reads its result, its progress and its state, and cancels it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    NamedTuple,
    Protocol,
    TypeVar,
    cast,
    overload,
)

import msgspec

from towpath.app.backend import Backend
from towpath.app.jobs import AllJobs, info_of
from towpath.clock import DurationLike, duration, format_duration, seconds, steady
from towpath.engine.explain import Explanation
from towpath.engine.model import JobInfo, JobRef
from towpath.engine.states import State
from towpath.errors import JobNotFound, JobUnfinished, PayloadInvalid, ServerError, StillOpen
from towpath.ids import JobId, QueueName
from towpath.ledger.errors import RecordNotFound, RecordUncommitted
from towpath.worker.payload import PayloadForm, Raw, form

if TYPE_CHECKING:
    from towpath.ledger.records.record import Record

R = TypeVar("R")
P = TypeVar("P")
T = TypeVar("T")
_LOOK_EVERY = 0.1
"""Poll interval in seconds, used when Redis does not know the job."""


class Job(msgspec.Struct, Generic[R], frozen=True):
    """A submitted job: what `handler.submit` and `handler.job(id)` return.

    A Job holds no state: each method reads the job as it is now.
    """

    ref: JobRef
    """Its queue and its id, as the methods of the engine take them."""
    _backend: Backend
    _form: PayloadForm[Any]
    existed: bool = False
    """Whether the job existed before this submit, under the same id."""

    def __repr__(self) -> str:
        return f"<job {self.ref}>"

    @property
    def id(self) -> JobId:
        """The job's id."""
        return self.ref.id

    @property
    def queue(self) -> QueueName:
        """The queue of the job."""
        return self.ref.queue

    @property
    def _jobs(self) -> AllJobs:
        return self._backend.jobs(recorded=False)

    async def state(self) -> State:
        """The state of the job now. GONE if it ended and is no longer kept, or never existed."""
        return await self._jobs.state(self.ref)

    async def info(self) -> JobInfo:
        """Everything known about the job now. Raises JobNotFound."""
        return await self._jobs.get(self.ref)

    async def explain(self) -> Explanation:
        """Why the job is not running, as a word and a sentence. Raises JobNotFound."""
        why, _ = await self._jobs.explain(self.ref)
        return why

    @overload
    async def progress(self) -> Any: ...
    @overload
    async def progress(self, kind: type[P]) -> P | None: ...
    async def progress(self, kind: Any = Any) -> Any:
        """The handler's last `ctx.progress` note, or None if there is none yet.

        The note is decoded from JSON, to a *kind* if one is given: `await job.progress(Step)`
        returns a `Step`. Bytes that are not JSON are returned as they are. Raises JobNotFound, and
        PayloadInvalid if the note is not of that kind.
        """
        return _decode_note((await self.info()).progress, kind)

    async def cancel(self) -> State:
        """Cancel the job. Returns CANCELLED, or LEASED while its worker is asked to stop.

        Raises JobNotFound, and JobDone or JobDead if the job has ended.
        """
        return await self._jobs.cancel(self.ref)

    async def move(
        self, *, due: datetime | None = None, delay: DurationLike | None = None
    ) -> State:
        """Give the waiting job another due time: *due*, or *delay* from now. Returns its state.

        Raises JobNotFound, and JobNotWaiting if the job is leased or has ended.
        """
        return await self._jobs.move(self.ref, due=due, delay=delay)

    async def retry(self) -> State:
        """Give the dead job new attempts; with a record, a cancelled one too. Returns its state.

        Raises JobNotFound, JobNotDead.
        """
        return await self._jobs.retry(self.ref)

    async def delete(self) -> None:
        """Delete the job, which must have ended, and its record if it has one. Raises JobNotFound,
        JobOpen.
        """
        await self._jobs.delete(self.ref)

    async def result(self, *, within: DurationLike) -> R:
        """Wait until the job has ended, and return what its handler returned. Does not poll.

        Raises StillOpen if the job has not ended *within* that time, JobUnfinished if it died or
        was cancelled, JobNotFound if it is gone.
        """
        job = await self._backend.engine.events.ended(self.ref, within=within)
        if job.state is not State.DONE:
            raise JobUnfinished(job.ref, job.state, job.reason)
        return self._value(job.result)

    def _value(self, data: bytes | None) -> R:
        # An empty result means None, unless the handler returns bytes.
        there = data or isinstance(self._form, Raw)
        return cast("R", self._form.decode(data or b"") if there else None)


class BlockingJob(Generic[R]):
    """A submitted job, for code without an event loop: what `handler.blocking` returns."""

    def __init__(self, job: Job[R], backend: Backend) -> None:
        self._job, self._backend = job, backend

    def __repr__(self) -> str:
        return repr(self._job)

    @property
    def ref(self) -> JobRef:
        """Its queue and its id, as the methods of the engine take them."""
        return self._job.ref

    @property
    def id(self) -> JobId:
        """The job's id."""
        return self._job.id

    @property
    def queue(self) -> QueueName:
        """The queue of the job."""
        return self._job.queue

    @property
    def existed(self) -> bool:
        """Whether the job existed before this submit, under the same id."""
        return self._job.existed

    def state(self) -> State:
        """Like `Job.state`."""
        return self._ask(lambda job: job.state())

    def info(self) -> JobInfo:
        """Like `Job.info`."""
        return self._ask(lambda job: job.info())

    def explain(self) -> Explanation:
        """Like `Job.explain`."""
        return self._ask(lambda job: job.explain())

    @overload
    def progress(self) -> Any: ...
    @overload
    def progress(self, kind: type[P]) -> P | None: ...
    def progress(self, kind: Any = Any) -> Any:
        """Like `Job.progress`."""
        return _decode_note(self.info().progress, kind)

    def cancel(self) -> State:
        """Like `Job.cancel`."""
        return self._ask(lambda job: job.cancel())

    def move(self, *, due: datetime | None = None, delay: DurationLike | None = None) -> State:
        """Like `Job.move`."""
        return self._ask(lambda job: job.move(due=due, delay=delay))

    def retry(self) -> State:
        """Like `Job.retry`."""
        return self._ask(lambda job: job.retry())

    def delete(self) -> None:
        """Like `Job.delete`."""
        self._ask(lambda job: job.delete())

    def result(self, *, within: DurationLike) -> R:
        """Like `Job.result`."""
        return self._ask(lambda job: job.result(within=within))

    def _ask(self, ask: Callable[[Job[R]], Coroutine[Any, Any, T]]) -> T:
        """Returns the result of *ask*. A job with a record is asked in the loop of `blocking`,
        because reading the record needs an event loop.
        """

        def there(backend: Backend) -> Coroutine[Any, Any, T]:
            return ask(msgspec.structs.replace(self._job, _backend=backend))

        if isinstance(self._job, RecordJob):
            return self._backend.run_blocking(there)
        return self._backend.run_here(there)


class Transaction(Protocol):
    """A transaction of SQLAlchemy: active until it is committed or rolled back."""

    @property
    def is_active(self) -> bool: ...


class Uncommitted(NamedTuple):
    """A record and the caller's transaction in which it was created."""

    record: Record
    transaction: Transaction


class RecordJob(Job[R], frozen=True):
    """A job with a record: its methods read the row.

    While the transaction of its submit is open, its state is PENDING; after a rollback it is GONE.
    """

    _made: Uncommitted | None = None

    async def record(self) -> Record:
        """The row of the job now. Raises RecordNotFound if the job ended long ago, or was rolled
        back.
        """
        pending = self._pending  # read first: a commit after this line is found below
        ledger = await self._backend.open_ledger()
        try:
            return await ledger.jobs.get(self.queue, self.id)
        except RecordNotFound:
            if pending is None:
                raise
            return pending

    @property
    def _pending(self) -> Record | None:
        """The record as it was created, while its transaction is open."""
        made = self._made
        return made.record if made is not None and made.transaction.is_active else None

    @property
    def _jobs(self) -> AllJobs:
        return self._backend.jobs(recorded=True)

    async def state(self) -> State:
        return State.PENDING if await self._uncommitted() else await super().state()

    async def info(self) -> JobInfo:
        if (record := await self._uncommitted()) is not None:
            return msgspec.structs.replace(info_of(record, None), state=State.PENDING)
        return await super().info()

    async def cancel(self) -> State:
        await self._check_committed()
        return await super().cancel()

    async def move(
        self, *, due: datetime | None = None, delay: DurationLike | None = None
    ) -> State:
        await self._check_committed()
        return await super().move(due=due, delay=delay)

    async def retry(self) -> State:
        await self._check_committed()
        return await super().retry()

    async def delete(self) -> None:
        await self._check_committed()
        await super().delete()

    async def _uncommitted(self) -> Record | None:
        """The record as it was created, if the transaction of its submit is still open."""
        pending = self._pending
        if pending is None:
            return None
        try:
            found = await self.record()
        except RecordNotFound:
            return None
        return found if found is pending else None

    async def _check_committed(self) -> None:
        if await self._uncommitted() is not None:
            raise RecordUncommitted(self.queue, self.id)

    async def result(self, *, within: DurationLike) -> R:
        limit = duration("within", within)
        until = steady() + limit.total_seconds()
        while (record := await self.record()).open:
            left = until - steady()
            if left <= 0:
                raise StillOpen(self.ref, format_duration(limit))
            if record is self._pending:
                await asyncio.sleep(min(left, _LOOK_EVERY))
            else:
                await self._wait_for_change(JobRef(record.queue, record.job), min(left, 1.0))
        if record.state == "completed":
            return self._value(record.result)
        raise JobUnfinished(self.ref, record.state, record.last_error)

    async def _wait_for_change(self, ref: JobRef, wait: float) -> None:
        """Wait until Redis reports the end of the job. If Redis does not know the job or does not
        answer, wait for the poll interval.
        """
        try:
            await self._backend.engine.events.ended(ref, within=seconds(wait))
        except StillOpen:
            pass
        except (JobNotFound, ServerError):
            await asyncio.sleep(min(wait, _LOOK_EVERY))


def _decode_note(note: bytes | None, kind: Any) -> Any:
    """A progress note as it was given to `ctx.progress`."""
    if note is None:
        return None
    try:
        return form(kind, "progress").decode(note)
    except PayloadInvalid:
        if kind is Any:
            return note
        raise
