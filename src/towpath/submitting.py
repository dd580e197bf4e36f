"""Jobs for handlers: submitted with the payload they take, answered with the result they return."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, cast

from towpath.engine.durability import Durability
from towpath.engine.model import JobOptions, JobRef, NewJob, Submitted, new_job
from towpath.engine.retry import own_attempts
from towpath.errors import HandlerInvalid, InvalidOption, TowpathError
from towpath.telemetry import traces
from towpath.ticket import STATES, RecordTicket, Ticket
from towpath.way import Way
from towpath.worker.context import Context
from towpath.worker.handler import Handler, HandlerOptions
from towpath.worker.payload import WithDefault

if TYPE_CHECKING:
    from towpath.ledger.record import Recorded

T = TypeVar("T")
R = TypeVar("R")
C = TypeVar("C")
_NO_PAYLOAD = b"null"
NOTHING: Any = object()
"""For handlers that take no payload, or have a default for it."""


class AppHandler(Handler[T, R, C]):
    """A handler that jobs can be submitted to."""

    def __init__(
        self, queue: str, function: Callable[..., C], options: HandlerOptions, *, way: Way
    ) -> None:
        super().__init__(queue, function, options)
        self._way = way
        self.blocking = BlockingHandler[T, R](self, way)
        own = (
            {}
            if self.named is None
            else {"retry": options.retry, "max_attempts": self.options.max_attempts}
        )
        self._own_options = {name: value for name, value in own.items() if value is not None}

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
        **options: Unpack[JobOptions],
    ) -> Ticket[R]:
        """Take a job in for this handler. Options and refusals are those of `Engine.submit`.

        Raises PayloadInvalid, before anything is sent, for what the handler could not take.
        """
        if self.options.record:
            return await self._record(payload, durability, options)
        with traces.producer_span(self.queue, handler=self.name):
            submitted = await self._way.engine.submit(
                self.queue, self.encode(payload), durability=durability, **self.completed(options)
            )
        return self.ticket(submitted)

    async def _record(
        self, payload: T, durability: Durability | None, options: JobOptions
    ) -> Ticket[R]:
        if durability is not None:
            raise InvalidOption("durability", durability, rule="a record is on disk in the ledger")
        with traces.producer_span(self.queue, handler=self.name):
            jobs, data = self._way.ledger.jobs, self.encode(payload)
            made = await jobs.submit(self.queue, data, **self.completed(options))
        return self._record_ticket(made, data)

    async def submit_many(
        self,
        payloads: Iterable[T],
        *,
        durability: Durability | None = None,
        **options: Unpack[JobOptions],
    ) -> list[Ticket[R] | TowpathError]:
        """Take many jobs in with the same options, answered one by one, in order.

        A refused one's answer is its error; the others are in. All payloads are checked first.
        """
        values = list(payloads)
        if self.options.record:
            made = [self._record(value, durability, options) for value in values]
            return [_or_error(it) for it in await asyncio.gather(*made, return_exceptions=True)]
        with traces.producer_span(self.queue, handler=self.name, jobs=len(values)):
            jobs = self.new_jobs(values, options)
            answers = await self._way.engine.submit_many(self.queue, jobs, durability=durability)
        return self.tickets(answers)

    # ── what both ways of submitting share ───────────────────────────────────────────────

    def encode(self, payload: T) -> bytes:
        if not self.takes_payload:
            return _NO_PAYLOAD
        if payload is not NOTHING:
            return self.payload.encode(payload)
        form = self.payload
        return form.nothing() if isinstance(form, WithDefault) else form.encode(None)

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
        if options.get("max_attempts") is None and (most := own_attempts(options.get("retry"))):
            options = {**options, "max_attempts": most}
        return (
            cast("JobOptions", {**self._own_options, **options}) if self._own_options else options
        )

    def ticket(self, submitted: Submitted) -> Ticket[R]:
        self._way.tell(submitted, self.name)
        return Ticket(submitted, self._way, self.result)

    def _record_ticket(self, made: Recorded, data: bytes) -> Ticket[R]:
        record = made.record
        same = record.payload == data if made.existed else None
        ref = JobRef(record.queue, record.job)
        submitted = Submitted(ref, STATES[record.state], existed=made.existed, same_payload=same)
        self._way.tell(submitted, self.name)
        return RecordTicket(submitted, self._way, self.result, record.id)

    def tickets(self, answers: list[Submitted | TowpathError]) -> list[Ticket[R] | TowpathError]:
        return [it if isinstance(it, TowpathError) else self.ticket(it) for it in answers]


class BlockingHandler(Generic[T, R]):
    """The same for code without an event loop: scripts, Django views, notebooks."""

    def __init__(self, handler: AppHandler[T, R, Any], way: Way) -> None:
        self._handler, self._way = handler, way

    def submit(
        self,
        payload: T = NOTHING,
        *,
        durability: Durability | None = None,
        **options: Unpack[JobOptions],
    ) -> Ticket[R]:
        """Take a job in. `ticket.wait(within=…)` waits for its result."""
        handler = self._unrecorded()
        with traces.producer_span(handler.queue, handler=handler.name):
            submitted = self._way.blocking.submit(
                handler.queue,
                handler.encode(payload),
                durability=durability,
                **handler.completed(options),
            )
        return handler.ticket(submitted)

    def submit_many(
        self,
        payloads: Iterable[T],
        *,
        durability: Durability | None = None,
        **options: Unpack[JobOptions],
    ) -> list[Ticket[R] | TowpathError]:
        """Take many jobs in, answered one by one."""
        handler = self._unrecorded()
        values = list(payloads)
        with traces.producer_span(handler.queue, handler=handler.name, jobs=len(values)):
            jobs = handler.new_jobs(values, options)
            answers = self._way.blocking.submit_many(handler.queue, jobs, durability=durability)
        return handler.tickets(answers)

    def _unrecorded(self) -> AppHandler[T, R, Any]:
        if self._handler.options.record:
            rule = "has a record, which is submitted in its app's event loop: `await .submit(…)`"
            raise HandlerInvalid(self._handler.name, rule=rule)
        return self._handler


def _or_error(answer: Ticket[R] | BaseException) -> Ticket[R] | TowpathError:
    if isinstance(answer, BaseException) and not isinstance(answer, TowpathError):
        raise answer
    return answer
