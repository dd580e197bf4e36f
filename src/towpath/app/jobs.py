"""Reads and changes jobs, with and without a record, for every surface: Python, HTTP, commands.

A job without a record is in Redis alone. A job with a record also has a row in the database, and
the row decides: it holds the payload, counts the attempts and says whether the job has ended.
Redis knows where an open job waits, who runs it, and its progress. Callers need to know neither
whether a job has a record nor its id in Redis.
"""

from __future__ import annotations

import asyncio
import builtins
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, Unpack, cast

import msgspec

from towpath.clock import DurationLike
from towpath.engine.engine import Engine
from towpath.engine.explain import Explanation, Position, Why, explain
from towpath.engine.inspect import Look, Page, SearchStep
from towpath.engine.model import Call, Failure, JobInfo, JobOptions, JobRef, Placed, job_ref
from towpath.engine.schedule import SCHEDULED
from towpath.engine.states import State
from towpath.errors import (
    InvalidOption,
    JobDead,
    JobDone,
    JobError,
    JobHasRecord,
    JobNotDead,
    JobNotFound,
    JobNotWaiting,
    JobOpen,
    NotOwned,
    QueueNotEmpty,
    QueueNotFound,
    ServerError,
    TowpathError,
)
from towpath.ids import JobId, LaneKey, QueueName, Token, queue_name
from towpath.ledger.errors import (
    LedgerError,
    LedgerOutdated,
    RecordEnded,
    RecordError,
    RecordNotDead,
    RecordNotFound,
    RecordNotWaiting,
    RecordOpen,
)

if TYPE_CHECKING:
    from towpath.ledger.ledger import Ledger
    from towpath.ledger.records.jobs import Jobs as Records
    from towpath.ledger.records.record import Record

T = TypeVar("T")

_Change = Callable[[list[JobInfo]], Awaitable[list[JobInfo]]]
"""Changes some jobs, and returns those that it changed."""
FindLedger = Callable[[], Awaitable["Ledger | None"]]
"""Returns the ledger of this process, opened; None if it has none."""

STATES = {
    "pending": State.READY,
    "running": State.LEASED,
    "failed": State.DELAYED,
    "completed": State.DONE,
    "dead": State.DEAD,
    "cancelled": State.CANCELLED,
    "superseded": State.CANCELLED,
}
_AT_ONCE = 50
"""Maximum number of jobs that are read or changed at the same time."""
_OPEN = {State.READY, State.DELAYED, State.WAITING, State.LEASED}


ENDED = (State.DEAD, State.DONE, State.CANCELLED)
OPEN = (State.WAITING, State.DELAYED, State.READY, State.LEASED)
"""The open states in the order in which many jobs are changed. The jobs behind the head of a lane
come first: otherwise they would become ready behind the cursor in the list of ready jobs."""
PURGED = (State.WAITING, State.DELAYED, State.READY, *ENDED)
"""The states whose jobs `purge` deletes: all but those that are running."""
LARGEST_STEP = 1000
_RECORDS = "records"
"""The last list of a walk: the rows of jobs with a record, whether Redis has the job or not."""


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs of a queue to change; a value that is left out fits every job."""

    states: tuple[State, ...]
    handler: str | None = None
    lane: str | None = None
    submitted_before: datetime | None = None

    def fits(self, job: JobInfo) -> bool:
        return (
            job.state in self.states
            and self.handler in {None, job.headers.get("handler")}
            and self.lane in {None, job.lane}
            and (self.submitted_before is None or job.submitted_at < self.submitted_before)
        )


class ManyStep(msgspec.Struct, frozen=True):
    """Numbers of the jobs that one step counted or changed."""

    jobs: dict[State, int]
    """Number of jobs, by the state that they were in."""
    after: str | None
    """Pass it to make the next step; None = this was the last one."""

    @property
    def total(self) -> int:
        return sum(self.jobs.values())


class _Found(NamedTuple):
    """The row of a job and what Redis knows of the job; None for the side that does not have it."""

    record: Record | None
    look: Look | None


class AllJobs:
    """The jobs of *engine* and of the ledger that *find_ledger* returns.

    The ledger is only read for jobs that may have a record. With *recorded*, every job has one:
    then the row is read first, and answers while Redis is unreachable. All methods raise
    JobNotFound for a job that is neither in Redis nor in the ledger.
    """

    def __init__(
        self,
        engine: Engine,
        find_ledger: FindLedger,
        *,
        recorded: bool = False,
        covers: Callable[[str], bool] | None = None,
    ) -> None:
        self._engine, self._find_ledger, self._recorded = engine, find_ledger, recorded
        self._covers = covers

    def seen_by(self, covers: Callable[[str], bool]) -> AllJobs:
        """Returns the same jobs for a caller who may see only the queues that *covers* allows.
        Errors that suggest another queue name only those queues.
        """
        return AllJobs(self._engine, self._find_ledger, recorded=self._recorded, covers=covers)

    # ── reading ──────────────────────────────────────────────────────────────────────────

    async def get(self, job: JobRef) -> JobInfo:
        """Everything known about the job now. Raises JobNotFound."""
        try:
            return _info(await self._find(job))
        except JobNotFound as error:
            raise await self._explain_missing(error, job) from None

    async def state(self, job: JobRef) -> State:
        """The state of the job; GONE if it ended and is no longer kept, or never existed."""
        try:
            return _info(await self._find(job)).state
        except JobNotFound:
            return State.GONE

    async def find(self, id: str, queues: Collection[str]) -> builtins.list[JobInfo]:
        """The jobs of that id in these queues: those that Redis knows, else those with a record."""
        refs, found = [job_ref(queue, id) for queue in queues], list[JobInfo]()
        for start in range(0, len(refs), _AT_ONCE):
            some = refs[start : start + _AT_ONCE]
            looks = await asyncio.gather(*map(self._read_redis, some))
            found += [job for job in looks if job is not None]
        if found:
            return [await self.get(job.ref) if _may_have_record(job) else job for job in found]
        ledger = await self._find_ledger()
        if ledger is None:
            return []
        try:
            records = await ledger.jobs.find_everywhere(id, queues)
        except LedgerOutdated as error:
            _raise_unless_empty(error)
            return []
        return [await self.describe(record) for record in records]

    async def has_row(self, job: JobInfo) -> bool:
        """Whether the database of this process has the record of a job that Redis has. True if the
        database does not answer.
        """
        try:
            return job.id in await self._rows_of(job.ref.queue, [job])
        except LedgerError:
            return True

    async def describe(self, record: Record) -> JobInfo:
        """Everything known about the job of *record*. Reads the job in Redis, but not the row."""
        return info_of(record, await self._read_current(record))

    async def explain(self, job: JobRef) -> tuple[Explanation, Position | None]:
        """Why the job is not running, and how far it is from running. Raises JobNotFound."""
        try:
            record, look = await self._find(job)
            if record is not None and record.open and look and look.job.state not in _OPEN:
                # The job ended between the two reads: its row has ended as well by now.
                record, look = await self._find(job)
        except JobNotFound as error:
            raise await self._explain_missing(error, job) from None
        if record is not None and not record.open:
            return explain(info_of(record, look and look.job), {}), None
        if look is None or (record is not None and look.job.state not in _OPEN):
            text = "its record is stored, and Redis does not have the job yet; it is queued again"
            return Explanation(Why.NOT_QUEUED, f"{text} as soon as Redis takes it"), None
        if record is not None:
            look = Look(info_of(record, look.job), look.facts)
        return await self._engine.inspect.explain_look(look), look.position

    async def list(
        self,
        queue: str,
        state: State,
        *,
        lane: str | None = None,
        group: str | None = None,
        after: str | None = None,
        size: int = 100,
    ) -> Page:
        """A page of the jobs in *state*, as `engine.inspect.list`. Payloads are left out."""
        page = await self._engine.inspect.list(
            queue, state, lane=lane, group=group, after=after, size=size
        )
        jobs = await self._apply_rows(queue, page.jobs)
        return Page([job for job in jobs if job.state is state], page.after)

    async def search_dead(self, queue: str, text: str, *, looked: int = 0) -> SearchStep:
        """Dead jobs whose reason contains *text*, as `engine.inspect.search_dead`."""
        found = await self._engine.inspect.search_dead(queue, text, looked=looked)
        jobs = await self._apply_rows(queue, found.jobs)
        dead = [job for job in jobs if job.state is State.DEAD]
        return SearchStep(dead, found.looked, is_over=found.is_over)

    # ── changing ─────────────────────────────────────────────────────────────────────────

    async def cancel(self, job: JobRef, *, for_owner: str | None = None) -> State:
        """Cancel the job. Returns CANCELLED, or LEASED while its worker is asked to stop.

        Raises JobNotFound, NotOwned if the job has another owner than *for_owner*, and JobDone or
        JobDead if the job has ended.
        """
        try:
            return await self._change(
                job,
                lambda: self._engine.cancel(job, for_owner=for_owner),
                lambda records, id: records.cancel(job.queue, id),
                for_owner,
            )
        except RecordEnded as error:
            if STATES[error.state] is State.CANCELLED:
                return State.CANCELLED
            raise (JobDone if error.state == "completed" else JobDead)(job) from None

    async def move(
        self,
        job: JobRef,
        *,
        due: datetime | None = None,
        delay: DurationLike | None = None,
        for_owner: str | None = None,
    ) -> State:
        """Give the waiting job another due time: *due*, or *delay* from now. Returns its state.

        Raises JobNotFound, NotOwned if the job has another owner than *for_owner*, and
        JobNotWaiting if the job is leased or has ended.
        """
        return await self._change(
            job,
            lambda: self._engine.move(job, due=due, delay=delay, for_owner=for_owner),
            lambda records, id: records.move(job.queue, id, due=due, delay=delay),
            for_owner,
        )

    async def retry(self, job: JobRef) -> State:
        """Give the dead job new attempts; with a record, a cancelled one too. Returns its state.

        Raises JobNotFound, JobNotDead.
        """
        return await self._change(
            job,
            lambda: self._engine.retry(job),
            lambda records, id: records.retry(job.queue, id),
        )

    async def delete(self, job: JobRef) -> None:
        """Delete a job that has ended, and its record. Raises JobNotFound, JobOpen."""
        await self._change(
            job,
            lambda: _delete(self._engine.delete(job)),
            lambda records, id: records.delete(job.queue, id),
        )

    async def set(
        self,
        queue: str,
        payload: bytes,
        *,
        for_owner: str | None = None,
        call: Call | None = None,
        **options: Unpack[JobOptions],
    ) -> Placed:
        """Create a job under an *id*, or replace the one that waits there, as `engine.set`. One
        with a record is replaced in the database. Raises NotOwned if a job with another owner than
        *for_owner* is there.
        """
        id = options.get("id")
        if id is not None:
            ref = job_ref(queue, id)
            # The row comes first: if Redis has the record under another id, it would make a second
            # job.
            if (ledger := await self._ledger_now()) is not None and await _has_record(ledger, ref):
                await _check_owner(ledger, ref, ref.id, for_owner)
                placed = await self._translate_errors(
                    ref, ledger.jobs.set(queue, payload, **options)
                )
                state = (await self.describe(placed.record)).state
                return Placed(ref, state, replaced=placed.replaced)
        return await self._engine.set(queue, payload, for_owner=for_owner, call=call, **options)

    # ── many jobs, in steps of a bounded size ────────────────────────────────────────────

    async def count_matching(
        self, queue: str, wanted: JobFilter, *, after: str | None = None, size: int = LARGEST_STEP
    ) -> ManyStep:
        """Count the jobs that *wanted* fits, among the next *size* jobs of *queue*.

        Raises QueueNotFound.
        """

        async def count(jobs: builtins.list[JobInfo]) -> builtins.list[JobInfo]:
            return jobs

        return await self._step(queue, wanted, after, size, plain=count, recorded=count)

    async def cancel_matching(
        self, queue: str, wanted: JobFilter, *, after: str | None = None, size: int = LARGEST_STEP
    ) -> ManyStep:
        """Cancel the jobs that *wanted* fits, among the next *size* jobs of *queue*. Leased ones
        are asked to stop. Jobs that end meanwhile are left out.

        Raises QueueNotFound, InvalidOption for a state that has ended, and JobHasRecord if the
        record of a job is in another database.
        """
        _check_states(wanted, OPEN, "has ended: only open jobs can be cancelled")

        async def cancel_plain(jobs: builtins.list[JobInfo]) -> builtins.list[JobInfo]:
            return [job for job, _ in await self._cancel_plain(queue, jobs)]

        async def cancel_recorded(jobs: builtins.list[JobInfo]) -> builtins.list[JobInfo]:
            return await _keep_changed(jobs, lambda job: self.cancel(job.ref))

        return await self._step(
            queue, wanted, after, size, plain=cancel_plain, recorded=cancel_recorded
        )

    async def purge(
        self, queue: str, wanted: JobFilter, *, after: str | None = None, size: int = LARGEST_STEP
    ) -> ManyStep:
        """Delete the jobs that *wanted* fits, with their records, among the next *size* jobs of
        *queue*. Open ones are cancelled first.

        Raises QueueNotFound, InvalidOption for leased jobs, which must be cancelled before, and
        JobHasRecord if the record of a job is in another database.
        """
        _check_states(wanted, PURGED, "cannot be purged: cancel running jobs first")

        async def purge_plain(jobs: builtins.list[JobInfo]) -> builtins.list[JobInfo]:
            waiting = [job for job in jobs if job.state in OPEN]
            cancelled = [
                job
                for job, state in await self._cancel_plain(queue, waiting)
                if state is State.CANCELLED
            ]
            await self._engine.delete_many(queue, [job.ref.id for job in cancelled])
            ended = [job for job in jobs if job.state in ENDED]
            answers = await self._engine.delete_many(queue, [job.ref.id for job in ended])
            deleted: list[JobInfo] = []
            for job, answer in zip(ended, answers, strict=True):
                # the record was created meanwhile, or is in another database
                if isinstance(answer, JobHasRecord):
                    await self.delete(job.ref)
                if answer is State.GONE or isinstance(answer, JobHasRecord):
                    deleted.append(job)
            return cancelled + deleted

        async def purge_recorded(jobs: builtins.list[JobInfo]) -> builtins.list[JobInfo]:
            return await _keep_changed(jobs, self._purge_record)

        return await self._step(
            queue, wanted, after, size, plain=purge_plain, recorded=purge_recorded, stale=True
        )

    async def delete_queue(self, queue: str) -> None:
        """Delete a queue without jobs and schedules: its options, counts and events, and the ids
        that it remembers. The next use creates it again.

        Raises QueueNotFound, QueueNotEmpty.
        """
        name = await self.require_queue(queue)
        while await self._engine.queues.trim(name, 1000):  # jobs that are kept no longer
            pass
        held = await self.held_by(name)
        if any(held.values()) or not await self._engine.queues.delete(name, forced=True):
            raise QueueNotEmpty(name, held)

    async def require_deletable(self, queue: str) -> QueueName:
        """The name of a queue that can be deleted once it is purged. Raises QueueNotFound, and
        QueueNotEmpty for a queue with running jobs or schedules, which `purge` leaves alone.
        """
        name = await self.require_queue(queue)
        held = await self.held_by(name)
        if held["leased"] or held["schedules"]:
            raise QueueNotEmpty(name, held)
        return name

    async def held_by(self, queue: str) -> dict[str, int]:
        """Counts what prevents deleting *queue*: jobs by state, schedules, and open records."""
        counts = await self._engine.inspect.counts(queue)
        schedules = await self._engine.schedules.list(queues=[queue], size=1000)
        held = {str(state): getattr(counts, state) for state in (*OPEN, State.DEAD)} | {
            "kept": counts.kept,
            "schedules": len(schedules.schedules),
        }
        if (ledger := await self._ledger_with_tables()) is not None:
            rows = await ledger.jobs.counts(queue)
            known = sum(held[str(state)] for state in OPEN)
            # Redis has the jobs of most open records, too: count only the records without a job.
            unended = sum(count for state, count in rows.items() if state in _OPEN_ROWS)
            held["records"] = max(unended - known, 0)
        return held

    async def require_queue(self, queue: str) -> QueueName:
        """The name of a queue that Redis knows or that has records. Raises QueueNotFound."""
        try:
            return await self._engine.queues.require(queue, self._covers)
        except QueueNotFound:
            ledger = await self._ledger_with_tables()
            if ledger is not None and await ledger.jobs.find_oldest(queue, tuple(STATES), size=1):
                return queue_name(queue)
            raise

    async def _step(
        self,
        queue: str,
        wanted: JobFilter,
        after: str | None,
        size: int,
        *,
        plain: _Change,
        recorded: _Change,
        stale: bool = False,
    ) -> ManyStep:
        """Look at the next *size* jobs of one state in Redis, or at the next rows, and change those
        that *wanted* fits: *plain* is for jobs without a record. With *stale*, delete jobs in Redis
        that are old ids of a record.
        """
        places = [*(str(state) for state in (*OPEN, *ENDED) if state in wanted.states), _RECORDS]
        place, cursor = _read_cursor(after, places)
        if after is None:
            await self.require_queue(queue)
        if place == _RECORDS:
            return await self._step_rows(queue, wanted, int(cursor or 0), size, recorded)
        state = State(place)
        lane = wanted.lane if state is State.WAITING else None
        page = await self._engine.inspect.list(
            queue, state, lane=lane, after=cursor or None, size=size
        )
        rows = await self._rows_of(queue, page.jobs)
        changed = await plain([job for job in page.jobs if job.id not in rows and wanted.fits(job)])
        if stale:
            for job in page.jobs:
                if job.id in rows and rows[job.id].job != job.ref.id:
                    await self._delete_in_redis(job.ref)
        rest = page.after and f"{place}:{page.after}"
        return ManyStep(_by_state(changed), rest or f"{places[places.index(place) + 1]}:")

    async def _step_rows(
        self, queue: str, wanted: JobFilter, after: int, size: int, change: _Change
    ) -> ManyStep:
        ledger = await self._ledger_with_tables()
        states = {row for row, state in STATES.items() if state in wanted.states}
        if wanted.states and any(state in OPEN for state in wanted.states):
            states |= set(_OPEN_ROWS)  # only Redis knows in which of the open states a job is
        if ledger is None or not states:
            return ManyStep({}, None)
        records = await ledger.jobs.find_oldest(queue, sorted(states), after=after, size=size)
        jobs: list[JobInfo] = []
        for start in range(0, len(records), _AT_ONCE):
            jobs += await asyncio.gather(
                *map(self._describe_row, records[start : start + _AT_ONCE])
            )
        changed = await change([job for job in jobs if wanted.fits(job)])
        more = len(records) == size
        return ManyStep(_by_state(changed), f"{_RECORDS}:{records[-1].seq}" if more else None)

    async def _describe_row(self, record: Record) -> JobInfo:
        return await self.describe(record) if record.open else info_of(record, None)

    async def _cancel_plain(
        self, queue: str, jobs: builtins.list[JobInfo]
    ) -> builtins.list[tuple[JobInfo, State]]:
        """Cancels jobs without a record. Returns those that were open, with their new states."""
        answers = await self._engine.cancel_many(queue, [job.ref.id for job in jobs])
        changed: list[tuple[JobInfo, State]] = []
        for job, answer in zip(jobs, answers, strict=True):
            # the record was created meanwhile, or is in another database
            if isinstance(answer, JobHasRecord):
                changed.append((job, await self.cancel(job.ref)))
            elif isinstance(answer, State):
                changed.append((job, answer))
        return changed

    async def _purge_record(self, job: JobInfo) -> None:
        if job.state in OPEN and await self.cancel(job.ref) is State.LEASED:
            raise JobOpen(job.ref, State.LEASED)
        # The row goes last: if this process dies in between, the next purge finds the row.
        await self._delete_in_redis(JobRef(job.ref.queue, job.redis_id or job.id))
        await self.delete(job.ref)

    async def _delete_in_redis(self, job: JobRef) -> None:
        """Deletes a job in Redis that its row no longer needs: it is purged, or an old id."""
        with suppress(JobError):
            await self._engine.cancel(job, by_record=True)
        with suppress(JobError):
            await self._engine.delete(job, by_record=True)

    async def _ledger_with_tables(self) -> Ledger | None:
        """The ledger; None if there is none, or its database has no tables of Towpath."""
        ledger = await self._find_ledger()
        if ledger is None:
            return None
        try:
            await ledger.read(lambda _: None)
        except LedgerOutdated as error:
            _raise_unless_empty(error)
            return None
        return ledger

    async def _explain_missing(self, error: JobNotFound, job: JobRef) -> JobNotFound:
        """The error for a missing job, with a hint if its queue does not exist either."""
        with suppress(ServerError, LedgerError):
            try:
                await self.require_queue(job.queue)
            except QueueNotFound as no_queue:
                return JobNotFound(job, no_queue=no_queue)
        return error

    # ── how it is done ───────────────────────────────────────────────────────────────────

    async def _find(self, job: JobRef) -> _Found:
        look: Look | None = None
        trouble: TowpathError = JobNotFound(job)
        if not self._recorded:
            try:
                look = await self._engine.inspect.look(job)
            except (JobNotFound, ServerError) as error:
                trouble = error
            if look is not None and not _may_have_record(look.job):
                return _Found(None, look)
        record = await self._record(job, look and look.job)
        if record is None:
            if look is None:
                raise trouble
            return _Found(None, look)
        if look is None or look.job.ref.id != record.job:
            look = await self._look_at_current(record)
        return _Found(record, look)

    async def _record(self, job: JobRef, stored: JobInfo | None) -> Record | None:
        """The row of the job; None if there is none, or no ledger."""
        ledger = await self._find_ledger()
        if ledger is None:
            return None
        id = job.id if stored is None else stored.id
        try:
            return await ledger.jobs.get(job.queue, id)
        except RecordNotFound:
            return None
        except LedgerOutdated as error:
            _raise_unless_empty(error)
            return None

    async def _read_current(self, record: Record) -> JobInfo | None:
        """The job of a record as Redis has it; None if Redis lacks it or does not answer."""
        look = await self._look_at_current(record)
        return look and look.job

    async def _look_at_current(self, record: Record) -> Look | None:
        with suppress(ServerError, JobNotFound):
            return await self._engine.inspect.look(JobRef(record.queue, record.job))
        return None

    async def _read_redis(self, job: JobRef) -> JobInfo | None:
        with suppress(JobNotFound):
            return await self._engine.inspect.job(job)
        return None

    async def _apply_rows(self, queue: str, jobs: builtins.list[JobInfo]) -> builtins.list[JobInfo]:
        """Replaces jobs that have a record by what their rows say.

        Leaves out jobs that Redis still has under an old id of their record. If the database does
        not answer, returns the jobs as Redis has them.
        """
        try:
            records = await self._rows_of(queue, jobs)
        except LedgerError:
            return jobs
        listed: list[JobInfo] = []
        for job in jobs:
            record = records.get(job.id)
            if record is None:
                listed.append(job)
            elif record.job == job.ref.id:
                listed.append(info_of(record, job))
        return listed

    async def _rows_of(self, queue: str, jobs: builtins.list[JobInfo]) -> dict[str, Record]:
        """The rows of those of *jobs* that have a record, by id. Raises LedgerError."""
        ids = {job.id for job in jobs if _may_have_record(job)}
        ledger = await self._ledger_with_tables() if ids else None
        return {} if ledger is None else await ledger.jobs.find(queue_name(queue), ids)

    async def _change(
        self,
        job: JobRef,
        in_redis: Callable[[], Coroutine[Any, Any, State]],
        in_row: Callable[[Records, JobId], Coroutine[Any, Any, Record]],
        for_owner: str | None = None,
    ) -> State:
        """Change the job in Redis, unless it has a record: then change only the row; the ledger
        brings the change to Redis.
        """
        id, trouble = job.id, cast("TowpathError", JobNotFound(job))
        if not self._recorded:
            try:
                return await in_redis()
            except JobHasRecord as error:
                id, trouble = JobId(error.record), error
            except (JobNotFound, ServerError) as error:
                trouble = error
        ledger = await self._find_ledger()
        try:
            if ledger is None:
                raise trouble
            await _check_owner(ledger, job, id, for_owner)
            record = await self._translate_errors(job, in_row(ledger.jobs, id))
        except (RecordNotFound, JobNotFound):
            if isinstance(trouble, JobNotFound):
                raise await self._explain_missing(trouble, job) from None
            raise trouble from None
        except LedgerOutdated as error:
            _raise_unless_empty(error)
            raise trouble from None
        if record.open:
            return state_of(record, await self._read_current(record))
        return state_of(record, None)

    async def _translate_errors(self, job: JobRef, change: Awaitable[T]) -> T:
        """Awaits *change*, and raises the errors that a job without a record would raise."""
        try:
            return await change
        except (RecordNotFound, RecordEnded):
            raise
        except RecordError as error:
            raise _job_error(job, error) from None

    async def _ledger_now(self) -> Ledger | None:
        """The ledger; None if it can't be opened: jobs without a record don't need the database."""
        with suppress(LedgerError):
            return await self._find_ledger()
        return None


_OPEN_ROWS = ("pending", "running", "failed")


def _check_states(wanted: JobFilter, allowed: Collection[State], rule: str) -> None:
    for state in wanted.states:
        if state not in allowed:
            raise InvalidOption("state", state, rule=rule)


def _read_cursor(after: str | None, places: Sequence[str]) -> tuple[str, str]:
    """Where a step begins: a list of *places*, and a cursor in it. Raises InvalidOption."""
    place, _, cursor = (after or f"{places[0]}:").partition(":")
    if place not in places or (place == _RECORDS and cursor and not _is_place(cursor)):
        rule = "must be the `after` value returned with the previous step"
        raise InvalidOption("after", after, rule=rule)
    return place, cursor


def _is_place(cursor: str) -> bool:
    return cursor.isascii() and cursor.isdecimal() and int(cursor) < 2**63


def _by_state(jobs: Iterable[JobInfo]) -> dict[State, int]:
    return dict(Counter(job.state for job in jobs))


async def _keep_changed(
    jobs: builtins.list[JobInfo], change: Callable[[JobInfo], Awaitable[object]]
) -> builtins.list[JobInfo]:
    """Changes *jobs*, some at a time. Returns those that were changed; the others refused it,
    because their state changed meanwhile.
    """

    async def is_changed(job: JobInfo) -> bool:
        try:
            await change(job)
        except JobHasRecord:
            raise
        except JobError:
            return False
        return True

    changed: list[JobInfo] = []
    for start in range(0, len(jobs), _AT_ONCE):
        some = jobs[start : start + _AT_ONCE]
        answers = await asyncio.gather(*map(is_changed, some))
        changed += [job for job, answer in zip(some, answers, strict=True) if answer]
    return changed


def _raise_unless_empty(error: LedgerOutdated) -> None:
    """Raise *error*, unless the database has no tables of Towpath: then it has no records.

    DATABASE_URL may belong to the user's own program.
    """
    if error.found is not None:
        raise error


async def no_ledger() -> None:
    """Returns None: the ledger of a process without a database, where no job has a record."""


async def _has_record(ledger: Ledger, job: JobRef) -> bool:
    with suppress(LedgerError):
        return bool(await ledger.jobs.find(job.queue, {job.id}))
    return False


async def _check_owner(ledger: Ledger, job: JobRef, id: str, for_owner: str | None) -> None:
    """Raises NotOwned, RecordNotFound."""
    if for_owner is not None:
        record = await ledger.jobs.get(job.queue, id)
        if record.owner != for_owner:
            raise NotOwned(job)


async def _delete(deletion: Awaitable[None]) -> State:
    await deletion
    return State.GONE


def _job_error(job: JobRef, error: RecordError) -> JobError | RecordError:
    match error:
        case RecordNotDead(state=state):
            return JobNotDead(job, STATES[state])
        case RecordNotWaiting(state=state):
            return JobNotWaiting(job, STATES[state])
        case RecordOpen(state=state):
            return JobOpen(job, STATES[state])
        case _:
            return error


def _may_have_record(stored: JobInfo) -> bool:
    """Whether the job has a record or may get one: a job that a schedule fired gets its record when
    a worker first claims it.
    """
    return stored.record is not None or SCHEDULED in stored.headers


def _info(found: _Found) -> JobInfo:
    record, look = found
    if record is None:
        assert look is not None  # noqa: S101 -- `_find` returns at least one of them
        return look.job
    return info_of(record, look and look.job)


def info_of(record: Record, stored: JobInfo | None) -> JobInfo:
    """Merges the row of a job with what Redis knows of the job."""
    state = state_of(record, stored)
    leased = stored if state is State.LEASED else None
    token = stored.token if stored else None
    return JobInfo(
        ref=JobRef(record.queue, record.id),
        record=record.id,
        redis_id=record.job if record.job != record.id else None,
        state=state,
        payload=record.payload,
        priority=record.priority,
        lane=cast("LaneKey | None", record.lane),
        max_attempts=record.max_attempts,
        attempts=record.attempts,
        deaths=stored.deaths if stored else 0,
        submitted_at=record.created_at,
        due_at=record.due_at,
        next_try_at=_next_try(record, stored, state),
        claimed_at=record.started_at,
        expires_at=leased.expires_at if leased else None,
        ended_at=record.finished_at,
        worker=leased.worker if leased else None,
        token=token or (Token(record.fence) if record.fence else None),
        cancel_requested=record.cancel_requested
        or (leased is not None and leased.cancel_requested),
        reason=record.last_error,
        failures=_failures(record, stored),
        unhandled_since=stored.unhandled_since if stored and record.open else None,
        unhandled=stored.unhandled if stored and record.open else None,
        progress=stored.progress if stored else None,
        result=record.result,
        **record.attributes,
    )


def _next_try(record: Record, stored: JobInfo | None, state: State) -> datetime | None:
    """When the next attempt may begin. Only Redis knows it for a job that its worker has no handler
    for.
    """
    if state is State.LEASED or not record.open:
        return None
    if stored is not None and stored.unhandled_since is not None:
        return stored.next_try_at or record.next_try_at
    return record.next_try_at


def _failures(record: Record, stored: JobInfo | None) -> tuple[Failure, ...]:
    """The longer list of failed attempts. Redis also knows attempts whose worker died; the row
    keeps those from before a loss of Redis or a retry.
    """
    in_redis = stored.failures if stored else ()
    return in_redis if len(in_redis) >= len(record.failures) else record.failures


def state_of(record: Record, stored: JobInfo | None) -> State:
    """The state of a record's job: the row decides whether it has ended, Redis where it waits."""
    if not record.open:
        return STATES[record.state]
    if stored is not None and stored.state in _OPEN:
        return stored.state
    may_run_at = record.may_run_at
    if record.state != "running" and may_run_at and may_run_at > datetime.now(UTC):
        return State.DELAYED
    return State.LEASED if record.state == "running" else State.READY
