"""Submitting to handlers from code without an event loop: `handler.blocking`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, overload

from towpath.app.backend import Backend
from towpath.app.job import BlockingJob, Job
from towpath.app.submission import NOTHING, Draft, NotGiven, Submission, X, drafts, submitted
from towpath.engine.durability import Durability
from towpath.engine.model import OnConflict
from towpath.telemetry import traces

if TYPE_CHECKING:
    from towpath.app.submitting import AppHandler
    from towpath.ledger.records.record import RecordOptions
    from towpath.ledger.records.transactions import BlockingTransaction

T = TypeVar("T")
R = TypeVar("R")


class BlockingHandler(Generic[T, R]):
    """Submits to a handler from code without an event loop: scripts, Django views, notebooks.

    The app need not be entered: connections are made at first use and shared by all threads.
    """

    def __init__(self, handler: AppHandler[T, R, Any]) -> None:
        self._handler = handler

    @overload
    def submit(
        self: BlockingHandler[None, R],
        payload: None = ...,
        *,
        durability: Durability | None = ...,
        in_transaction: BlockingTransaction | None = ...,
        on_conflict: OnConflict = ...,
        **options: Unpack[RecordOptions],
    ) -> BlockingJob[R]: ...
    @overload
    def submit(
        self: BlockingHandler[X | NotGiven, R],
        payload: X = ...,
        *,
        durability: Durability | None = ...,
        in_transaction: BlockingTransaction | None = ...,
        on_conflict: OnConflict = ...,
        **options: Unpack[RecordOptions],
    ) -> BlockingJob[R]: ...
    @overload
    def submit(
        self,
        payload: T,
        *,
        durability: Durability | None = ...,
        in_transaction: BlockingTransaction | None = ...,
        on_conflict: OnConflict = ...,
        **options: Unpack[RecordOptions],
    ) -> BlockingJob[R]: ...
    def submit(
        self,
        payload: Any = NOTHING,
        *,
        durability: Durability | None = None,
        in_transaction: BlockingTransaction | None = None,
        on_conflict: OnConflict = "refuse",
        **options: Unpack[RecordOptions],
    ) -> BlockingJob[R]:
        """Submit a job; `job.result(within=…)` waits for its result.

        *in_transaction* is a Session or Connection of SQLAlchemy on the ledger's database, used in
        this thread: the job is there if and when that commits.
        """
        handler, backend = self._handler, self._handler.backend
        if in_transaction is None and not self._needs_loop:
            job = backend.run_here(
                lambda here: handler.submit_plain(here, payload, durability, on_conflict, options)
            )
            return BlockingJob(job, backend)
        drafts = [Draft(handler, payload, options)]
        submission = Submission(handler, drafts, durability, on_conflict, in_transaction)
        return self._submit(submission)[0]

    @property
    def _needs_loop(self) -> bool:
        """Records and middleware need an event loop: `blocking` runs one in another thread."""
        handler = self._handler
        return handler.options.record or bool(handler.backend.submit_middleware)

    def submit_many(
        self,
        jobs: Iterable[T | Draft[T, R]],
        *,
        durability: Durability | None = None,
        in_transaction: BlockingTransaction | None = None,
        on_conflict: OnConflict = "refuse",
        **options: Unpack[RecordOptions],
    ) -> list[BlockingJob[R]]:
        """Submit many jobs, as AppHandler.submit_many does."""
        handler = self._handler
        made = drafts(handler, jobs, options)
        submission = Submission(handler, made, durability, on_conflict, in_transaction, many=True)
        return self._submit(submission)

    def job(self, id: str) -> BlockingJob[R]:
        """The job with that id. Sends nothing to Redis yet. Raises InvalidName."""
        handler = self._handler
        return BlockingJob(handler.job(id), handler.backend)

    def _submit(self, submission: Submission) -> list[BlockingJob[R]]:
        handler, backend = self._handler, self._handler.backend
        if submission.transaction is None and not self._needs_loop:
            jobs = backend.run_here(lambda here: handler.take(here, submission))
        elif submission.transaction is None:
            jobs = backend.run_blocking(lambda there: handler.submitted(there, submission))
        elif backend.submit_middleware:
            jobs = self._in_this_thread(submission)
        else:
            jobs = self._insert(submission)
        return [BlockingJob(job, backend) for job in jobs]

    def _insert(self, submission: Submission) -> list[Job[R]]:
        """Insert the records in the caller's transaction and thread."""
        handler, backend = self._handler, self._handler.backend
        jobs = len(submission.jobs)
        with traces.producer_span(handler.queue, handler=handler.name, jobs=jobs):
            wanted = handler.new_records(submission)
            made = backend.transactions.submit_blocking(
                submission.transaction,
                wanted,
                handler.report_created,
                handler.accepts(wanted, submission.on_conflict),
            )
        return handler.record_jobs(backend, made)

    def _in_this_thread(self, submission: Submission) -> list[Job[R]]:
        """Insert the records in this thread; the middleware runs in the loop of `blocking`."""
        errands: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

        async def insert() -> list[Job[R]]:
            future: Future[list[Job[R]]] = Future()
            errands.put(lambda: _run(future, lambda: self._insert(submission)))
            return await asyncio.wrap_future(future)

        async def around(backend: Backend) -> list[Job[R]]:
            try:
                return await submitted(backend.submit_middleware, submission, insert)
            finally:
                errands.put(None)

        with ThreadPoolExecutor(1) as beside:
            done = beside.submit(self._handler.backend.run_blocking, around)
            done.add_done_callback(lambda _: errands.put(None))
            while (errand := errands.get()) is not None:
                errand()
            return done.result()


def _run(future: Future[T], call: Callable[[], T]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001 -- raised again by the middleware's await
        future.set_exception(error)
