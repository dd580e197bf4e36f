"""A bench: your app on a private Redis with its own clock, for one test.

    async with running(app) as bench:
        await remind.submit(Reminder("anna"), delay=hours(3))
        assert await bench.drain() == []
        bench.advance(hours=3)
        assert [ran.state for ran in await bench.drain()] == [State.DONE]

Nothing is faked: a bench runs the same scripts on a real Redis, and the same worker.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, Unpack, cast

import msgspec

from towpath.app.app import Towpath
from towpath.app.submitting import AppHandler
from towpath.clock import ZERO, DurationLike, ManualClock, Units, days, duration, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.engine.model import (
    FIELDS,
    NO_HEADERS,
    Exchanged,
    JobInfo,
    JobRef,
    NewJob,
    Renew,
    Settlement,
    Submitted,
)
from towpath.engine.port import Port
from towpath.engine.record import STATES
from towpath.engine.schedules import Schedules
from towpath.engine.states import State
from towpath.errors import JobNotFound, TowpathError
from towpath.ids import JobId
from towpath.telemetry.logs import Silent
from towpath.testing.errors import NotDrained
from towpath.testing.process import WorkerProcess
from towpath.worker.middleware import Middleware
from towpath.worker.options import DEFAULTS
from towpath.worker.schedules import fire_due
from towpath.worker.worker import Worker

if TYPE_CHECKING:
    from towpath.ledger.database.tables import Tables


T = TypeVar("T")
R = TypeVar("R")

_DRAIN_LEASE = days(3_650)
"""The leases of a drain. Heartbeats come in real time, and a clock that jumps over hours must not
take the jobs away from a worker that is alive."""
_DRAIN_WITHIN = seconds(60)
_numbers = itertools.count(1)


@asynccontextmanager
async def running(
    app: Towpath,
    *,
    url: str | None = None,
    clock: ManualClock | None = None,
    middleware: Sequence[Middleware] = (),
) -> AsyncGenerator[Bench]:
    """Run *app* on the Redis at *url*, by *clock*, until the block ends. Then the app is as
    before.

    Without *url*, it runs on its own private, empty Redis, which starts in about 0.1 s
    (ServerNotFound if no server is installed). The app is connected. *middleware* is that of your
    worker.
    """
    async with AsyncExitStack() as stack:
        if url is None:
            url = (await stack.enter_async_context(EmbeddedServer())).url
        clock, notes = clock or ManualClock(), _Notes()
        ledger = await stack.enter_async_context(_new_ledger()) if app.keeps_records else None
        watched = partial(WatchedEngine, notes)
        stack.enter_context(app.pointed_at(url, clock=clock, engine=watched, ledger=ledger))
        await stack.enter_async_context(app)
        await fire_due(app.engine, app.declared_schedules)  # schedules begin now
        yield Bench(app, clock=clock, notes=notes, middleware=middleware)


async def drift(tables: Tables, *, url: str | None = None) -> list[str]:
    """The differences between what the migration steps of *tables* make and what *tables* says;
    empty if there are none.
    """
    from towpath.ledger.ledger import Ledger  # noqa: PLC0415 -- needs the libraries of an extra

    with TemporaryDirectory(prefix="towpath-") as directory:
        where = url or f"sqlite:///{directory}/ledger.db"
        async with Ledger(where, tables=[tables]) as ledger:
            await ledger.migrate()
            return await ledger.drift()


@asynccontextmanager
async def _new_ledger() -> AsyncGenerator[str]:
    """A database of the bench's own, so that records of a test never mix with real ones."""
    from towpath.ledger.ledger import Ledger  # noqa: PLC0415 -- needs the libraries of an extra

    with TemporaryDirectory(prefix="towpath-") as directory:
        url = f"sqlite:///{directory}/ledger.db"
        async with Ledger(url) as ledger:
            await ledger.migrate()
        yield url


class Bench:
    """What a test does with an app: let time pass, run jobs, look at jobs. Made by `running`."""

    def __init__(
        self, app: Towpath, *, clock: ManualClock, notes: _Notes, middleware: Sequence[Middleware]
    ) -> None:
        self.app, self.clock = app, clock
        self._notes, self._middleware = notes, tuple(middleware)

    @property
    def url(self) -> str:
        """The URL of Redis."""
        return self.app.url

    @property
    def database(self) -> str | None:
        """The URL of the bench's own SQLite database, which has the records; None for an app
        without a ledger.
        """
        return self.app.ledger_url

    def advance(self, duration: DurationLike = ZERO, **units: Unpack[Units]) -> None:
        """Let time pass: `advance(hours=3)`. Jobs that become due run with the next `drain`."""
        self.clock.advance(duration, **units)

    async def drain(
        self, *, concurrency: int = DEFAULTS.concurrency, within: DurationLike = _DRAIN_WITHIN
    ) -> list[Ran]:
        """Run everything that can run now, and what follows from it, with a worker in this process.

        Schedules that are due are fired first, and records that were committed are queued. Returns
        when nothing is ready: the jobs that ended an attempt, in order, with their states after it.
        Jobs for a later time stay. With *concurrency* = 1, jobs run one after the other, in the
        promised order. Raises NotDrained after *within* of real time.
        """
        before, limit = len(self._notes.ran), duration("within", within)
        worker = Worker(
            self.app,
            concurrency=concurrency,
            lease=_DRAIN_LEASE,
            middleware=self._middleware,
            name=f"bench.{os.getpid()}.{next(_numbers)}",
            signals=(),  # Ctrl-C is for the test runner
        )
        try:
            async with asyncio.timeout(limit.total_seconds()):
                await fire_due(self.app.engine, self.app.declared_schedules)
                await self._queue_records()
                await worker.drain()
                while await self._queue_records():
                    await worker.drain()
        except TimeoutError as error:
            raise NotDrained(limit, len(self._notes.ran) - before) from error
        return self._notes.ran[before:]

    def submitted(self, handler: AppHandler[T, Any, Any]) -> list[T]:
        """The payloads of all jobs that this process submitted to *handler* on this bench, in
        order.

        Includes jobs in any state. Leaves out jobs that existed already under their id.
        """
        return [
            handler.payload.decode(note.payload)
            for note in self._notes.submits
            if (note.queue, note.handler) == (handler.queue, handler.named)
        ]

    async def jobs(self, handler: AppHandler[T, R, Any]) -> list[Seen[T, R]]:
        """All jobs of *handler* that are in Redis now, oldest first, whoever submitted them.

        Includes finished jobs while they are kept: an hour by default. One round trip per job.
        """
        found = [
            Seen[T, R](job, handler)
            for state in STATES
            async for job in self._list_jobs(handler.queue, state)
            if job.headers.get("handler") == handler.named
        ]
        return sorted(found, key=lambda seen: (seen.job.submitted_at, seen.id))

    def worker_process(self, app: str, *, lease: DurationLike = DEFAULTS.lease) -> WorkerProcess:
        """A worker of the app at `module:name` in its own process, with the clock of this bench."""
        return WorkerProcess(app, url=self.url, clock=self.clock, lease=lease, ledger=self.database)

    async def _queue_records(self) -> bool:
        """Queue the records that were committed in transactions. Returns whether there were any."""
        if not self.app.keeps_records:
            return False
        from towpath.ledger.records.relay import Relay  # noqa: PLC0415 -- needs libraries of an extra

        relay = Relay(self.app.ledger, self.app.engine, log=Silent())
        found = (await relay.reconcile()).values()
        return any(not isinstance(each, TowpathError) and each.queued for each in found)

    async def _list_jobs(self, queue: str, state: State) -> AsyncIterator[JobInfo]:
        after: str | None = None
        while True:
            page = await self.app.engine.inspect.list(queue, state, after=after)
            for listed in page.jobs:
                try:
                    yield await self.app.engine.inspect.job(listed.ref)
                except JobNotFound:
                    continue  # trimmed since
            after = page.after
            if after is None:
                return


class Seen(msgspec.Struct, Generic[T, R], frozen=True):
    """A job at one moment."""

    job: JobInfo
    """Everything that Redis knows of it."""
    _handler: AppHandler[T, R, Any]

    @property
    def ref(self) -> JobRef:
        return self.job.ref

    @property
    def id(self) -> JobId:
        return self.job.id

    @property
    def state(self) -> State:
        return self.job.state

    @property
    def payload(self) -> T:
        """The payload as the handler gets it. Raises PayloadInvalid."""
        return cast("T", self._handler.payload.decode(self.job.payload))

    @property
    def result(self) -> R | None:
        """What the handler returned; None if there is no result."""
        return self._handler.result.decode(self.job.result) if self.job.result else None

    @property
    def attempts(self) -> int:
        return self.job.attempts

    @property
    def reason(self) -> str | None:
        """Why the last attempt failed, or why the job is dead."""
        return self.job.reason


class Ran(NamedTuple):
    """A job that was run, and its state after that attempt."""

    job: JobRef
    state: State


class NotedSubmit(NamedTuple):
    """A job that was submitted, as it was then."""

    queue: str
    handler: str | None
    """The name of the handler that it is for, if the job has one."""
    payload: bytes


class _Notes:
    """What the engines of one app submitted and settled, in order. Any thread may add to it."""

    def __init__(self) -> None:
        self.submits: list[NotedSubmit] = []
        self.ran: list[Ran] = []

    def note_submit(
        self, queue: str, payload: bytes, headers: Mapping[str, str], answer: object
    ) -> None:
        """Note a submit, unless it was refused or the job existed already."""
        if isinstance(answer, Submitted) and not answer.existed:
            self.submits.append(NotedSubmit(queue, headers.get("handler"), payload))

    def note_submits(self, queue: str, jobs: Sequence[NewJob], answers: Sequence[object]) -> None:
        for job, answer in zip(jobs, answers, strict=True):
            packed = (job.more or {}).get("headers")
            self.note_submit(
                queue, job.payload, FIELDS["headers"].kind.read(packed) if packed else {}, answer
            )


class _WatchedSchedules(Schedules):
    """Notes the jobs that schedules submit."""

    notes: _Notes

    async def fire_due(
        self, queue: str, name: str, jobs: Sequence[NewJob], **how: Any
    ) -> list[Submitted]:
        answers = await super().fire_due(queue, name, jobs, **how)
        self.notes.note_submits(queue, jobs, answers)
        return answers


class WatchedEngine(Engine):
    """The engine of an app on a bench: it notes what it submits and settles."""

    def __init__(self, notes: _Notes, url: str, **options: Any) -> None:
        self._notes = notes
        super().__init__(url, **options)

    async def submit(self, queue: str, payload: bytes, **options: Any) -> Submitted:
        answer = await super().submit(queue, payload, **options)
        self._notes.note_submit(queue, payload, options.get("headers") or NO_HEADERS, answer)
        return answer

    async def submit_many(
        self, queue: str, jobs: Iterable[NewJob], **how: Any
    ) -> list[Submitted | TowpathError]:
        wanted = list(jobs)
        answers = await super().submit_many(queue, wanted, **how)
        self._notes.note_submits(queue, wanted, answers)
        return answers

    def _build(self, port: Port) -> None:
        super()._build(port)
        self.schedules = _WatchedSchedules(self._store, self.schedules.index, self.queues)
        self.schedules.notes = self._notes

    async def exchange(
        self, queue: str, settlements: Sequence[Settlement], **how: Any
    ) -> Exchanged:
        answer = await super().exchange(queue, settlements, **how)
        for settlement, outcome in zip(settlements, answer.outcomes, strict=True):
            if isinstance(outcome, State) and not isinstance(settlement, Renew):
                self._notes.ran.append(Ran(settlement.lease.job, outcome))
        return answer
