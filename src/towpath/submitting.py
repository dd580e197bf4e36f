"""Jobs for handlers: submitted with the payload they take, answered with the result they return."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, Unpack, cast
from weakref import WeakSet

import msgspec

from towpath.blocking import BlockingEngine
from towpath.clock import Duration
from towpath.engine.durability import Durability
from towpath.engine.engine import Engine
from towpath.engine.inspect import Job
from towpath.engine.model import JobOptions, JobRef, NewJob, Submitted, new_job
from towpath.engine.retry import own_attempts
from towpath.engine.states import State
from towpath.errors import EngineClosed, JobUnfinished, TowpathError
from towpath.ids import JobId
from towpath.telemetry import traces
from towpath.telemetry.events import JOB_SUBMITTED
from towpath.telemetry.logs import Log
from towpath.telemetry.metrics import Metrics
from towpath.worker.context import Context
from towpath.worker.handler import Handler, HandlerOptions
from towpath.worker.payload import Form, Raw, WithDefault

T = TypeVar("T")
R = TypeVar("R")
C = TypeVar("C")
_NO_PAYLOAD = b"null"
NOTHING: Any = object()
"""For handlers that take no payload, or have a default for it."""


class Way:
    """The way to the server that an app's handlers share."""

    def __init__(self, connect: Callable[[], Engine], metrics: Callable[[], Metrics]) -> None:
        self._connect, self._metrics = connect, metrics
        self._engine: Engine | None = None
        self._entered = 0
        self._blocking: BlockingEngine | None = None
        self._entering, self._connecting = asyncio.Lock(), threading.Lock()
        self._log = Log()
        _ways.add(self)

    def restart(self) -> None:
        """A forked child has none of its parent's threads and must not use its connections."""
        # Kept: what is dropped would close itself, in a loop that the parent still runs.
        self._inherited = self._engine, self._blocking
        self._engine, self._entered, self._blocking = None, 0, None
        self._entering, self._connecting = asyncio.Lock(), threading.Lock()

    async def enter(self) -> None:
        async with self._entering:
            if self._engine is None:
                engine = self._connect()
                await engine.__aenter__()
                self._engine = engine
            self._entered += 1

    async def leave(self) -> None:
        self._entered = max(0, self._entered - 1)
        if self._entered == 0 and self._engine is not None:
            engine, self._engine = self._engine, None
            await engine.__aexit__()

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            raise EngineClosed("the app is not connected: use `async with app`, or `.blocking`")
        return self._engine

    @property
    def blocking(self) -> BlockingEngine:
        """Connected at first use, anew in a forked child; closed when the program ends."""
        with self._connecting:
            if self._blocking is None or not self._blocking.here:
                blocking = BlockingEngine.around(self._connect())
                blocking.__enter__()
                atexit.register(blocking.__exit__)
                self._blocking = blocking
            return self._blocking

    @contextmanager
    def anew(self) -> Generator[None]:
        """As if nobody had connected, until the end of the block; then as it was before."""
        before = self._engine, self._entered, self._blocking, self._entering
        self._engine, self._entered, self._blocking = None, 0, None
        self._entering = asyncio.Lock()
        try:
            yield
        finally:
            if self._blocking is not None:
                atexit.unregister(self._blocking.__exit__)
                self._blocking.__exit__()
            self._engine, self._entered, self._blocking, self._entering = before

    def tell(self, submitted: Submitted, handler: str) -> None:
        """Count a job that is new, and log it for those who want to see each."""
        if not submitted.existed:
            job = submitted.job
            self._metrics().of(job.queue, handler).submitted.inc()
            self._log.emit(JOB_SUBMITTED, job=job.id, queue=job.queue, handler=handler)


_ways: WeakSet[Way] = WeakSet()


def _restart_ways() -> None:
    for way in list(_ways):
        way.restart()


os.register_at_fork(after_in_child=_restart_ways)


class Ticket(msgspec.Struct, Generic[R], frozen=True):
    """A submitted job: where to ask for what becomes of it."""

    submitted: Submitted
    _way: Way
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
        return await self._way.engine.state(self.job)

    async def cancel(self) -> State:
        """End it: CANCELLED, or LEASED if its worker was asked to stop."""
        return await self._way.engine.cancel(self.job)

    async def result(self, *, within: Duration) -> R:
        """What its handler returned, once it has.

        Raises StillOpen when the time is over, JobUnfinished if it died or was cancelled,
        JobNotFound if it is gone. Does not poll.
        """
        return self._value(await self._way.engine.ended(self.job, within=within))

    def wait(self, *, within: Duration) -> R:
        """The same for code without an event loop."""
        return self._value(self._way.blocking.ended(self.job, within=within))

    def _value(self, job: Job) -> R:
        if job.state is not State.DONE:
            raise JobUnfinished(job.ref, job.state, job.reason)
        data = job.result or b""
        # No bytes are None, unless bytes are what the handler returns.
        return cast("R", self._form.decode(data) if data or isinstance(self._form, Raw) else None)


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
        with traces.producer_span(self.queue, handler=self.name):
            submitted = await self._way.engine.submit(
                self.queue, self.encode(payload), durability=durability, **self.completed(options)
            )
        return self.ticket(submitted)

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
        handler = self._handler
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
        handler = self._handler
        values = list(payloads)
        with traces.producer_span(handler.queue, handler=handler.name, jobs=len(values)):
            jobs = handler.new_jobs(values, options)
            answers = self._way.blocking.submit_many(handler.queue, jobs, durability=durability)
        return handler.tickets(answers)
