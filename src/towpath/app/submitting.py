"""Submitting to handlers: takes payloads of the handler's type, returns jobs with its results."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast, overload

from towpath.app.backend import Backend
from towpath.app.blocking_handler import BlockingHandler
from towpath.app.job import Job, RecordJob, Uncommitted
from towpath.app.jobs import state_of
from towpath.app.submission import NOTHING, Draft, NotGiven, Submission, X, drafts, submitted
from towpath.engine.durability import Durability
from towpath.engine.model import (
    JobOptions,
    JobRef,
    OnConflict,
    Submitted,
    job_ref,
    new_job,
    with_own_attempts,
)
from towpath.engine.schedule import Missed, NamedSchedule, Schedule, ScheduleOptions, schedule
from towpath.engine.schedules import SetSchedule
from towpath.errors import HandlerInvalid, InvalidOption, JobDiffers, TowpathError
from towpath.telemetry import traces
from towpath.worker.context import Context
from towpath.worker.handler import Handler, HandlerOptions, OnSettled
from towpath.worker.lifespan import Lifespan
from towpath.worker.payload import WithDefault

if TYPE_CHECKING:
    from towpath.ledger.records.record import NewRecord, Recorded, RecordOptions
    from towpath.ledger.records.transactions import Accept, Made, Transaction

T = TypeVar("T")
R = TypeVar("R")
C = TypeVar("C")
_NO_PAYLOAD = b"null"


class AppHandler(Handler[T, R, C]):
    """A handler of an app: jobs can be submitted to it. Made by `@app.handler(…)`."""

    def __init__(
        self,
        queue: str,
        function: Callable[..., C],
        options: HandlerOptions,
        *,
        on_settled: OnSettled | None = None,
    ) -> None:
        super().__init__(queue, function, options, on_settled=on_settled)
        self._attached: Backend | None = None
        self.blocking = BlockingHandler[T, R](self)
        own = (
            {}
            if self.named is None
            else {"retry": options.retry, "max_attempts": self.options.max_attempts}
        )
        self._own_options = cast(
            "JobOptions", {name: value for name, value in own.items() if value is not None}
        )

    def attach(self, backend: Backend, lifespan: Lifespan | None) -> None:
        """Internal: make this a handler of the app with that backend."""
        self._attached, self.lifespan = backend, lifespan

    @property
    def backend(self) -> Backend:
        """Internal: the backend of the handler's app. Raises HandlerInvalid if it has none yet."""
        if self._attached is None:
            rule = "belongs to no app yet: call `app.include(handlers)`"
            raise HandlerInvalid(self.name, rule=rule)
        return self._attached

    def belongs_to(self, backend: Backend) -> bool:
        """Internal: whether this is a handler of the app with that backend."""
        return self._attached is backend

    def __call__(self, *args: Any, **kwargs: Any) -> C:
        """Call the function here. If it needs a Context and none is given, it gets one without a
        job.
        """
        name = self.context_name
        if (
            name is not None
            and self.needs_context
            and name not in kwargs
            and not any(isinstance(arg, Context) for arg in args)
        ):
            here = Context.here(self.queue, handler=self.name)
            if self.context_first:
                return self.function(here, *args, **kwargs)
            kwargs[name] = here
        return self.function(*args, **kwargs)

    # ── submitting ───────────────────────────────────────────────────────────────────────

    @overload
    def new(
        self: AppHandler[None, R, Any], payload: None = ..., **options: Unpack[RecordOptions]
    ) -> Draft[Any, R]: ...
    @overload
    def new(
        self: AppHandler[X | NotGiven, R, Any], payload: X = ..., **options: Unpack[RecordOptions]
    ) -> Draft[Any, R]: ...
    @overload
    def new(self, payload: T, **options: Unpack[RecordOptions]) -> Draft[T, R]: ...
    def new(self, payload: Any = NOTHING, **options: Unpack[RecordOptions]) -> Draft[Any, R]:
        """A job for `submit_many`, with its own options. Submits nothing."""
        return Draft(self, payload, options)

    @overload
    async def submit(
        self: AppHandler[None, R, Any],
        payload: None = ...,
        *,
        durability: Durability | None = ...,
        in_transaction: Transaction | None = ...,
        on_conflict: OnConflict = ...,
        **options: Unpack[RecordOptions],
    ) -> Job[R]: ...
    @overload
    async def submit(
        self: AppHandler[X | NotGiven, R, Any],
        payload: X = ...,
        *,
        durability: Durability | None = ...,
        in_transaction: Transaction | None = ...,
        on_conflict: OnConflict = ...,
        **options: Unpack[RecordOptions],
    ) -> Job[R]: ...
    @overload
    async def submit(
        self,
        payload: T,
        *,
        durability: Durability | None = ...,
        in_transaction: Transaction | None = ...,
        on_conflict: OnConflict = ...,
        **options: Unpack[RecordOptions],
    ) -> Job[R]: ...
    async def submit(
        self,
        payload: Any = NOTHING,
        *,
        durability: Durability | None = None,
        in_transaction: Transaction | None = None,
        on_conflict: OnConflict = "refuse",
        **options: Unpack[RecordOptions],
    ) -> Job[R]:
        """Submit a job to this handler. Returns once it is stored.

        *options* and errors are those of `Engine.submit`. *in_transaction* is an AsyncSession or
        AsyncConnection of SQLAlchemy on the ledger's database: the job exists once that commits;
        the handler needs `record=True`. Raises PayloadInvalid, before anything is sent, if the
        payload does not fit the handler, and JobDiffers if the id belongs to a job with another
        payload; with *on_conflict*="keep" it returns that job instead.
        """
        backend = self.backend
        if self.options.record or in_transaction is not None or backend.submit_middleware:
            draft = Draft(self, payload, options)
            submission = Submission(self, [draft], durability, on_conflict, in_transaction)
            return (await self.submitted(backend, submission))[0]
        return await self.submit_plain(backend, payload, durability, on_conflict, options)

    async def submit_plain(
        self,
        backend: Backend,
        payload: T,
        durability: Durability | None,
        on_conflict: OnConflict,
        options: JobOptions,
    ) -> Job[R]:
        """Internal: submit a job that has no record and no middleware: the usual, short way."""
        with traces.producer_span(self.queue, handler=self.name):
            engine = backend.connected or backend.engine
            submitted = await engine.submit(
                self.queue, self.encode(payload), durability=durability, **self.completed(options)
            )
        return self._job(backend, submitted.checked(on_conflict))

    async def submit_many(
        self,
        jobs: Iterable[T | Draft[T, R]],
        *,
        durability: Durability | None = None,
        in_transaction: Transaction | None = None,
        on_conflict: OnConflict = "refuse",
        **options: Unpack[RecordOptions],
    ) -> list[Job[R]]:
        """Submit several jobs and return them in order. Each is a payload, or `handler.new(payload,
        …)` with its own options, which override *options*.

        All payloads are checked first. Raises SubmitsRefused if some jobs were refused; it has the
        jobs that were submitted. In a transaction, all jobs are submitted or none.
        """
        made = drafts(self, jobs, options)
        submission = Submission(self, made, durability, on_conflict, in_transaction, many=True)
        return await self.submitted(self.backend, submission)

    def job(self, id: str) -> Job[R]:
        """The job with that id. Sends nothing to Redis yet. Raises InvalidName."""
        return self._job_at(self.backend, job_ref(self.queue, id))

    async def submitted(self, backend: Backend, submission: Submission) -> list[Job[R]]:
        """Internal: submit *submission* through the middleware."""
        middleware = backend.submit_middleware
        if not middleware:
            return await self.take(backend, submission)
        for draft in submission.jobs:
            draft.options = cast("RecordOptions", dict(draft.options))  # middleware may change them
        return await submitted(middleware, submission, lambda: self.take(backend, submission))

    async def take(self, backend: Backend, submission: Submission) -> list[Job[R]]:
        """Internal: submit *submission* through *backend*, after the middleware."""
        jobs, on_conflict = submission.jobs, submission.on_conflict
        with traces.producer_span(self.queue, handler=self.name, jobs=len(jobs)):
            if submission.transaction is not None:
                wanted = self.new_records(submission)
                accept = self.accepts(wanted, on_conflict)
                made = await backend.transactions.submit(
                    submission.transaction, wanted, self.report_created, accept
                )
                return self.record_jobs(backend, made)
            if self.options.record:
                wanted = self.new_records(submission)
                return submission.answer(await self._submit_records(backend, wanted, on_conflict))
            answers = await backend.engine.submit_many(
                self.queue,
                [new_job(payload, **options) for payload, options in self._encode_jobs(jobs)],
                durability=submission.durability,
            )
        done = [self._job_or_error(backend, answer, on_conflict) for answer in answers]
        return submission.answer(done)

    async def _submit_records(
        self, backend: Backend, wanted: Sequence[NewRecord], on_conflict: OnConflict
    ) -> list[Job[R] | TowpathError]:
        records = (await backend.open_ledger()).jobs

        async def one(new: NewRecord) -> Job[R] | TowpathError:
            try:
                made = await records.submit_new(new)
                submitted = _as_submitted(made, new.job.payload).checked(on_conflict)
            except TowpathError as error:
                return error
            backend.report_submitted(submitted, self.name)
            return self._record_job(backend, made)

        return list(await asyncio.gather(*map(one, wanted)))

    # ── what both ways of submitting share ───────────────────────────────────────────────

    def encode(self, payload: T) -> bytes:
        """The payload as it is stored. Raises PayloadInvalid if it does not fit the handler."""
        if not self.takes_payload:
            return _NO_PAYLOAD
        if payload is not NOTHING:
            return self.payload.encode(payload)
        form = self.payload
        return form.nothing() if isinstance(form, WithDefault) else form.encode(None)

    def new_records(self, submission: Submission) -> list[NewRecord]:
        """Internal: the records of *submission*, not yet stored. Raises InvalidOption."""
        if not self.options.record:
            rule = f"{self.name} keeps no record; declare it with `record=True`"
            raise InvalidOption("in_transaction", "…", rule=rule)
        if submission.durability is not None:
            rule = "a record is stored in the ledger; its durability can't be chosen"
            raise InvalidOption("durability", submission.durability, rule=rule)
        from towpath.ledger.records.record import new_record  # noqa: PLC0415 -- needs libraries of an extra

        encoded = self._encode_jobs(submission.jobs)
        return [new_record(self.queue, payload, **options) for payload, options in encoded]

    def _encode_jobs(self, jobs: Sequence[Draft[T, R]]) -> Iterator[tuple[bytes, RecordOptions]]:
        """Yields each job's payload and complete options. Jobs that share one options dict have it
        completed once.
        """
        known: RecordOptions | None = None
        whole: RecordOptions = {}
        for job in jobs:
            if job.options is not known:
                known, whole = job.options, cast("RecordOptions", self.completed(job.options))
            yield self.encode(job.payload), whole

    def completed(self, options: JobOptions) -> JobOptions:
        """Internal: the caller's options, with those of this handler and the current trace."""
        return self.addressed(options, traces.inject())

    def addressed(self, options: JobOptions, headers: dict[str, str]) -> JobOptions:
        """Internal: the caller's options, with those of this handler and these *headers*."""
        if not options and not headers and self.named is None:
            return self._own_options
        if self.named is not None:
            headers["handler"] = self.named
        if headers:
            headers |= options.get("headers") or {}
            options = {**options, "headers": headers}
        # A retry policy of the caller also decides the number of attempts, not the handler's limit.
        options = with_own_attempts(options)
        return (
            cast("JobOptions", {**self._own_options, **options}) if self._own_options else options
        )

    @overload
    async def schedule(
        self: AppHandler[None, R, Any],
        name: str,
        when: str | Schedule,
        payload: None = ...,
        **options: Unpack[ScheduleOptions],
    ) -> SetSchedule: ...
    @overload
    async def schedule(
        self: AppHandler[X | NotGiven, R, Any],
        name: str,
        when: str | Schedule,
        payload: X = ...,
        **options: Unpack[ScheduleOptions],
    ) -> SetSchedule: ...
    @overload
    async def schedule(
        self,
        name: str,
        when: str | Schedule,
        payload: T,
        **options: Unpack[ScheduleOptions],
    ) -> SetSchedule: ...
    async def schedule(
        self,
        name: str,
        when: str | Schedule,
        payload: Any = NOTHING,
        *,
        tz: str | None = None,
        missed: Missed = Missed.ONCE,
        **options: Unpack[JobOptions],
    ) -> SetSchedule:
        """Create or replace a schedule that submits *payload* to this handler. It is stored in the
        queue.

        Use it for schedules made at run time; `app.recur` is for schedules in code. Workers of the
        queue and servers fire it, from within a second on. `app.schedules` lists and changes
        schedules. Raises what `schedules.set` raises, and PayloadInvalid.
        """
        work = self.named_schedule(name, schedule(when, tz=tz), payload, missed, options)
        schedules = self.backend.engine.schedules
        return await schedules.set(
            work.queue, work.name, work.when, work.payload, missed=work.missed, **work.options
        )

    def named_schedule(
        self, name: str, when: Schedule, payload: T, missed: Missed, options: JobOptions
    ) -> NamedSchedule:
        """Internal: a schedule for this handler. Raises PayloadInvalid."""
        return NamedSchedule(
            name=name,
            when=when,
            queue=self.queue,
            payload=self.encode(payload),
            options=self.addressed(options, {}),
            missed=missed,
        )

    # ── submitted jobs ───────────────────────────────────────────────────────────────────

    def _job_at(self, backend: Backend, ref: JobRef, *, existed: bool = False) -> Job[R]:
        if self.options.record:
            return RecordJob(ref, backend, self.result, existed)
        return Job(ref, backend, self.result, existed)

    def _job(self, backend: Backend, submitted: Submitted) -> Job[R]:
        backend.report_submitted(submitted, self.name)
        return Job(submitted.job, backend, self.result, submitted.existed)

    def _job_or_error(
        self, backend: Backend, answer: Submitted | TowpathError, on_conflict: OnConflict
    ) -> Job[R] | TowpathError:
        try:
            return (
                answer
                if isinstance(answer, TowpathError)
                else self._job(backend, answer.checked(on_conflict))
            )
        except JobDiffers as error:
            return error

    def report_created(self, recorded: list[Recorded]) -> None:
        """Internal: count and log records whose transaction has committed."""
        for made in recorded:
            self.backend.report_submitted(_as_submitted(made, made.record.payload), self.name)

    def accepts(self, wanted: Sequence[NewRecord], on_conflict: OnConflict) -> Accept:
        """Internal: returns a check that existing records equal *wanted*; it raises JobDiffers."""

        def accept(made: Sequence[Recorded]) -> None:
            for recorded, new in zip(made, wanted, strict=True):
                _as_submitted(recorded, new.job.payload).checked(on_conflict)

        return accept

    def record_jobs(self, backend: Backend, made: Made) -> list[Job[R]]:
        """Internal: the jobs of records that were made in the caller's transaction."""
        return [
            self._record_job(backend, recorded, Uncommitted(recorded.record, made.transaction))
            for recorded in made.recorded
        ]

    def _record_job(
        self, backend: Backend, made: Recorded, uncommitted: Uncommitted | None = None
    ) -> Job[R]:
        ref = JobRef(made.record.queue, made.record.id)
        return RecordJob(ref, backend, self.result, made.existed, uncommitted)


def _as_submitted(made: Recorded, data: bytes) -> Submitted:
    record = made.record
    same = record.payload == data if made.existed else None
    ref = JobRef(record.queue, record.id)
    return Submitted(ref, state_of(record, None), existed=made.existed, same_payload=same)
