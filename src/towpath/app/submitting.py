"""Jobs for handlers: submitted with the payload they take, answered with the result they return."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, cast

from towpath.app.connection import Connection
from towpath.app.ticket import STATES, RecordTicket, Ticket, Uncommitted
from towpath.engine.durability import Durability
from towpath.engine.model import (
    JobOptions,
    JobRef,
    NewJob,
    OnConflict,
    Submitted,
    new_job,
    with_own_attempts,
)
from towpath.engine.schedule import Missed, Recurrence, Schedule, schedule
from towpath.engine.schedules import SetSchedule
from towpath.errors import HandlerInvalid, InvalidOption, JobDiffers, TowpathError
from towpath.telemetry import traces
from towpath.worker.context import Context
from towpath.worker.handler import Handler, HandlerOptions
from towpath.worker.payload import WithDefault

if TYPE_CHECKING:
    from towpath.ledger.records.record import NewRecord, Recorded, RecordOptions
    from towpath.ledger.records.sessions import BlockingTransaction, Made, Transaction

T = TypeVar("T")
R = TypeVar("R")
C = TypeVar("C")
_NO_PAYLOAD = b"null"
NOTHING: Any = object()
"""For handlers that take no payload, or have a default for it."""


class AppHandler(Handler[T, R, C]):
    """A handler that jobs can be submitted to."""

    def __init__(
        self,
        queue: str,
        function: Callable[..., C],
        options: HandlerOptions,
        *,
        connection: Connection,
    ) -> None:
        super().__init__(queue, function, options)
        self._connection = connection
        self.blocking = BlockingHandler[T, R](self, connection)
        own = (
            {}
            if self.named is None
            else {"retry": options.retry, "max_attempts": self.options.max_attempts}
        )
        self._own_options = {name: value for name, value in own.items() if value is not None}

    def belongs_to(self, connection: Connection) -> bool:
        """Whether it is a handler of the app with that connection."""
        return self._connection is connection

    def __call__(self, *args: Any, **kwargs: Any) -> C:
        """Run the function here and now. A Context that it asks for and nobody gives is made."""
        name = self.context_name
        if (
            name is not None
            and self.needs_context
            and name not in kwargs
            and not any(isinstance(it, Context) for it in args)
        ):
            here = Context.here(self.queue, handler=self.name)
            if self.context_first:
                return self.function(here, *args, **kwargs)
            kwargs[name] = here
        return self.function(*args, **kwargs)

    async def submit(
        self,
        payload: T = NOTHING,
        *,
        durability: Durability | None = None,
        in_transaction: Transaction | None = None,
        on_conflict: OnConflict = "refuse",
        **options: Unpack[RecordOptions],
    ) -> Ticket[R]:
        """Take a job in for this handler. Options and refusals are those of `Engine.submit`.

        *in_transaction* is an AsyncSession or AsyncConnection of SQLAlchemy on the ledger's
        database: the job is there if and when that commits. It takes a handler with `record=True`.
        Raises PayloadInvalid, before anything is sent, for what the handler could not take, and
        JobDiffers where the id is that of a job with another payload: *on_conflict*="keep" is for
        those who want the job that is there then.
        """
        if in_transaction is not None:
            made = self._submit_in(in_transaction, [payload], durability, on_conflict, options)
            return (await made)[0]
        if self.options.record:
            return await self._record(payload, durability, on_conflict, options)
        with traces.producer_span(self.queue, handler=self.name):
            engine = self._connection.connected or self._connection.engine
            submitted = await engine.submit(
                self.queue, self.encode(payload), durability=durability, **self.completed(options)
            )
        return self.ticket(submitted.checked(on_conflict))

    async def _record(
        self,
        payload: T,
        durability: Durability | None,
        on_conflict: OnConflict,
        options: RecordOptions,
    ) -> Ticket[R]:
        _refuse_durability(durability)
        with traces.producer_span(self.queue, handler=self.name):
            jobs, data = self._connection.ledger.jobs, self.encode(payload)
            made = await jobs.submit(self.queue, data, **self.completed(options))
        self._connection.tell(_submitted(made, data).checked(on_conflict), self.name)
        return self._record_ticket(made, data)

    async def _submit_in(
        self,
        transaction: Transaction,
        payloads: Sequence[T],
        durability: Durability | None,
        on_conflict: OnConflict,
        options: RecordOptions,
    ) -> list[Ticket[R]]:
        with traces.producer_span(self.queue, handler=self.name, jobs=len(payloads)):
            wanted = self.new_records(payloads, durability, options)
            made = await self._connection.transactions.take(transaction, wanted, self.tell_made)
        return self.record_tickets(made, wanted, on_conflict)

    async def submit_many(
        self,
        payloads: Iterable[T],
        *,
        durability: Durability | None = None,
        in_transaction: Transaction | None = None,
        on_conflict: OnConflict = "refuse",
        **options: Unpack[RecordOptions],
    ) -> list[Ticket[R] | TowpathError]:
        """Take many jobs in with the same options, answered one by one, in order.

        A refused one's answer is its error; the others are in. All payloads are checked first. In
        a transaction all of them are in, or none.
        """
        values = list(payloads)
        if in_transaction is not None:
            return [
                *await self._submit_in(in_transaction, values, durability, on_conflict, options)
            ]
        if self.options.record:
            each = [self._record(value, durability, on_conflict, options) for value in values]
            return [_or_error(it) for it in await asyncio.gather(*each, return_exceptions=True)]
        with traces.producer_span(self.queue, handler=self.name, jobs=len(values)):
            jobs = self.new_jobs(values, options)
            answers = await self._connection.engine.submit_many(
                self.queue, jobs, durability=durability
            )
        return self.tickets(answers, on_conflict)

    # ── what both ways of submitting share ───────────────────────────────────────────────

    def encode(self, payload: T) -> bytes:
        if not self.takes_payload:
            return _NO_PAYLOAD
        if payload is not NOTHING:
            return self.payload.encode(payload)
        form = self.payload
        return form.nothing() if isinstance(form, WithDefault) else form.encode(None)

    def new_records(
        self, payloads: Sequence[T], durability: Durability | None, options: RecordOptions
    ) -> list[NewRecord]:
        """Records to make in somebody's transaction."""
        if not self.options.record:
            rule = f"{self.name} keeps no record; declare it with `record=True`"
            raise InvalidOption("in_transaction", "…", rule=rule)
        _refuse_durability(durability)
        from towpath.ledger.records.record import new_record  # noqa: PLC0415 -- needs libraries of an extra

        completed = self.completed(options)
        return [new_record(self.queue, self.encode(it), **completed) for it in payloads]

    def new_jobs(self, payloads: Iterable[T], options: JobOptions) -> list[NewJob]:
        completed = self.completed(options)
        return [new_job(self.encode(payload), **completed) for payload in payloads]

    def completed(self, options: JobOptions) -> JobOptions:
        """The caller's options and what this handler and the current trace add to them."""
        return self.addressed(options, traces.inject())

    def addressed(self, options: JobOptions, headers: dict[str, str]) -> JobOptions:
        """The caller's options and what this handler adds to them, under these *headers* too."""
        if self.named is not None:
            headers["handler"] = self.named
        if headers:
            headers |= options.get("headers") or {}
            options = {**options, "headers": headers}
        # The caller's own policy decides before the handler's limit, which was made for another.
        options = with_own_attempts(options)
        return (
            cast("JobOptions", {**self._own_options, **options}) if self._own_options else options
        )

    async def schedule(
        self,
        name: str,
        when: str | Schedule,
        payload: T = NOTHING,
        *,
        tz: str | None = None,
        missed: Missed = Missed.ONCE,
        **options: Unpack[JobOptions],
    ) -> SetSchedule:
        """Keep a schedule in the store that submits *payload* to this handler, or replace one.

        For what is made while the app runs: fired by workers of the queue and by servers within a
        second; `app.recur` is for what the code declares, `app.schedules` has the rest. Raises what
        `schedules.set` raises, and PayloadInvalid.
        """
        it = self.recurrence(name, schedule(when, tz=tz), payload, missed, options)
        schedules = self._connection.engine.schedules
        return await schedules.set(
            it.queue, it.name, it.when, it.payload, missed=it.missed, **it.options
        )

    def recurrence(
        self, name: str, when: Schedule, payload: T, missed: Missed, options: JobOptions
    ) -> Recurrence:
        """*payload* for this handler again and again. Raises HandlerInvalid, PayloadInvalid."""
        if self.options.record:
            rule = "has a record, which nobody would make: let recurring work submit to it"
            raise HandlerInvalid(self.name, rule=rule)
        return Recurrence(
            name=name,
            when=when,
            queue=self.queue,
            payload=self.encode(payload),
            options=self.addressed(options, {}),
            missed=missed,
        )

    def ticket(self, submitted: Submitted) -> Ticket[R]:
        self._connection.tell(submitted, self.name)
        return Ticket(submitted, self._connection, self.result)

    def tell_made(self, recorded: list[Recorded]) -> None:
        """Tell of records whose transaction has committed."""
        for made in recorded:
            self._connection.tell(_submitted(made, made.record.payload), self.name)

    def record_tickets(
        self, made: Made, wanted: Sequence[NewRecord], on_conflict: OnConflict
    ) -> list[Ticket[R]]:
        both = list(zip(made.recorded, wanted, strict=True))
        for recorded, new in both:
            _submitted(recorded, new.job.payload).checked(on_conflict)
        return [
            self._record_ticket(it, new.job.payload, Uncommitted(it.record, made.transaction))
            for it, new in both
        ]

    def _record_ticket(
        self, made: Recorded, data: bytes, uncommitted: Uncommitted | None = None
    ) -> Ticket[R]:
        submitted = _submitted(made, data)
        return RecordTicket(submitted, self._connection, self.result, made.record.id, uncommitted)

    def tickets(
        self, answers: list[Submitted | TowpathError], on_conflict: OnConflict
    ) -> list[Ticket[R] | TowpathError]:
        return [self._ticket_or_error(answer, on_conflict) for answer in answers]

    def _ticket_or_error(
        self, answer: Submitted | TowpathError, on_conflict: OnConflict
    ) -> Ticket[R] | TowpathError:
        try:
            return (
                answer
                if isinstance(answer, TowpathError)
                else self.ticket(answer.checked(on_conflict))
            )
        except JobDiffers as error:
            return error


class BlockingHandler(Generic[T, R]):
    """The same for code without an event loop: scripts, Django views, notebooks."""

    def __init__(self, handler: AppHandler[T, R, Any], connection: Connection) -> None:
        self._handler, self._connection = handler, connection

    def submit(
        self,
        payload: T = NOTHING,
        *,
        durability: Durability | None = None,
        in_transaction: BlockingTransaction | None = None,
        on_conflict: OnConflict = "refuse",
        **options: Unpack[RecordOptions],
    ) -> Ticket[R]:
        """Take a job in. `ticket.wait(within=…)` waits for its result.

        *in_transaction* is a Session or Connection of SQLAlchemy on the ledger's database, used in
        this thread: the job is there if and when that commits. The app need not be entered.
        """
        if in_transaction is not None:
            return self._submit_in(in_transaction, [payload], durability, on_conflict, options)[0]
        handler = self._unrecorded()
        with traces.producer_span(handler.queue, handler=handler.name):
            submitted = self._connection.blocking.submit(
                handler.queue,
                handler.encode(payload),
                durability=durability,
                **handler.completed(options),
            )
        return handler.ticket(submitted.checked(on_conflict))

    def submit_many(
        self,
        payloads: Iterable[T],
        *,
        durability: Durability | None = None,
        in_transaction: BlockingTransaction | None = None,
        on_conflict: OnConflict = "refuse",
        **options: Unpack[RecordOptions],
    ) -> list[Ticket[R] | TowpathError]:
        """Take many jobs in, answered one by one; in a transaction all of them, or none."""
        values = list(payloads)
        if in_transaction is not None:
            return [*self._submit_in(in_transaction, values, durability, on_conflict, options)]
        handler = self._unrecorded()
        with traces.producer_span(handler.queue, handler=handler.name, jobs=len(values)):
            jobs = handler.new_jobs(values, options)
            answers = self._connection.blocking.submit_many(
                handler.queue, jobs, durability=durability
            )
        return handler.tickets(answers, on_conflict)

    def _submit_in(
        self,
        transaction: BlockingTransaction,
        payloads: Sequence[T],
        durability: Durability | None,
        on_conflict: OnConflict,
        options: RecordOptions,
    ) -> list[Ticket[R]]:
        handler = self._handler
        with traces.producer_span(handler.queue, handler=handler.name, jobs=len(payloads)):
            wanted = handler.new_records(payloads, durability, options)
            made = self._connection.transactions.take_blocking(
                transaction, wanted, handler.tell_made
            )
        return handler.record_tickets(made, wanted, on_conflict)

    def _unrecorded(self) -> AppHandler[T, R, Any]:
        if self._handler.options.record:
            rule = (
                "has a record, which is submitted in its app's event loop: `await .submit(…)`,"
                " or in a transaction: `.blocking.submit(…, in_transaction=session)`"
            )
            raise HandlerInvalid(self._handler.name, rule=rule)
        return self._handler


def _submitted(made: Recorded, data: bytes) -> Submitted:
    record = made.record
    same = record.payload == data if made.existed else None
    ref = JobRef(record.queue, record.job)
    return Submitted(ref, STATES[record.state], existed=made.existed, same_payload=same)


def _refuse_durability(durability: Durability | None) -> None:
    if durability is not None:
        raise InvalidOption("durability", durability, rule="a record is on disk in the ledger")


def _or_error(answer: Ticket[R] | BaseException) -> Ticket[R] | TowpathError:
    if isinstance(answer, BaseException) and not isinstance(answer, TowpathError):
        raise answer
    return answer
