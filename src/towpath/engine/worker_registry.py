"""Live workers: each reports every ten seconds, and leaves the list when it is silent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from towpath.clock import ZERO, Duration, duration_ms, instant, seconds
from towpath.engine.model import JobRef
from towpath.engine.space import SpaceRecord
from towpath.ids import worker_name

REPORT_EVERY, SILENT_AFTER = seconds(10), seconds(25)
"""How often a worker reports that it is alive, and after what silence it is no longer listed."""
WORKERS_MOST, SHOWN_MOST = 10_000, 1000
"""Maximum number of workers that are stored, and that one answer lists."""
QUEUES_SHOWN, JOBS_SHOWN = 50, 20
"""Maximum number of queues, and of running jobs, in the report of a worker."""
HANDLERS_SHOWN = 100
"""Maximum number of handlers in a report. A worker with more of them may have any handler."""


class RunningJob(msgspec.Struct, frozen=True):
    """A job that a worker runs."""

    job: JobRef
    since_ms: int

    @property
    def since(self) -> datetime:
        return instant(self.since_ms)


class BlockedLoop(msgspec.Struct, frozen=True):
    """A worker's event loop that a handler keeps from running anything else."""

    seconds: float
    """For how long, when the worker reported it."""
    handler: str | None = None
    """The handler that blocks it; None if something else does, or if it is not known."""
    job: JobRef | None = None
    """The job of that handler."""


class HandlerReport(msgspec.Struct, frozen=True, array_like=True):
    """A handler of a worker."""

    queue: str
    name: str | None
    """None = the handler of the queue that has no name."""
    digest: str = ""
    """A short hash of the type of its payload; empty = it takes any payload."""


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker reports about itself."""

    host: str
    pid: int
    queues: Sequence[str]
    """The first 50 by name; `serving` counts them all."""
    serving: int
    slots: int
    running: int
    """How many jobs it runs."""
    jobs: Sequence[RunningJob]
    """The 20 that run longest."""
    recorded: Sequence[str] = msgspec.field(default_factory=list[str])
    """Queues whose jobs have a record; the first 50 by name."""
    ledger: str | None = None
    """The id of the database with these records; None if there are none, or it did not answer."""
    blocked: BlockedLoop | None = None
    """Set while its event loop is blocked: it renews its leases, and runs and claims nothing."""
    release: str = ""
    """Its version of Towpath; empty = an older one, which does not report it."""
    handlers: Sequence[HandlerReport] | None = None
    """The first 100 by queue and name; `handling` counts them all. None = an older release, which
    does not report them."""
    handling: int = 0
    unhandled_for_ms: int = 0
    """How long it leaves a job that no worker can run to others, before the job is dead."""

    def may_serve(self, queue: str) -> bool:
        """Whether it serves *queue*, or has more queues than it lists."""
        return queue in self.queues or self.serving > len(self.queues)

    def may_handle(self, queue: str, name: str | None, *, but: str | None = None) -> bool:
        """Whether it has the handler *name* of *queue*; with *but*, for another payload type than
        the one with that digest. True also if it does not list all its handlers.
        """
        if self.handlers is None:
            return self.may_serve(queue)
        for handler in self.handlers:
            if (handler.queue, handler.name) == (queue, name):
                return handler.digest != but
        return self.handling > len(self.handlers)


class LiveWorker(NamedTuple):
    """A worker that reported within the last 25 seconds."""

    name: str
    since: datetime
    """When its process began, by the clock of Redis."""
    report: WorkerReport


class WorkerSurvey(NamedTuple):
    """The live workers at one moment."""

    workers: list[LiveWorker]
    """By name."""
    is_complete: bool
    """False if there are more than one answer lists, or some whose report this release cannot
    read."""

    def may_handle(
        self, queue: str, name: str | None, *, besides: str, but: str | None = None
    ) -> bool:
        """Whether a worker other than *besides* may have the handler."""
        return not self.is_complete or any(
            worker.name != besides and worker.report.may_handle(queue, name, but=but)
            for worker in self.workers
        )


class Workers:
    """The live workers of a deployment: `engine.workers`."""

    def __init__(self, record: SpaceRecord) -> None:
        self._record = record

    async def report(
        self,
        worker: str,
        report: WorkerReport,
        *,
        age: Duration = ZERO,
        lasts: Duration = SILENT_AFTER,
    ) -> bool:
        """Report that this worker is alive, and that its process began *age* ago. Returns False if
        too many others are: then it is not listed. One round trip.
        """
        few = msgspec.structs.replace(
            report,
            queues=sorted(report.queues)[:QUEUES_SHOWN],
            recorded=sorted(report.recorded)[:QUEUES_SHOWN],
            handlers=None if report.handlers is None else list(report.handlers[:HANDLERS_SHOWN]),
            jobs=sorted(report.jobs, key=lambda job: job.since_ms)[:JOBS_SHOWN],
        )
        answer = await self._record.run(
            "report_worker",
            worker=worker_name(worker),
            about=msgspec.json.encode(few).decode(),
            age=duration_ms("age", age),
            lasts=duration_ms("lasts", lasts),
            most=WORKERS_MOST,
        )
        return bytes(answer) == b"ok"

    async def remove(self, worker: str) -> None:
        """Report that the worker has ended: it is not listed any more."""
        await self._record.run("remove_worker", worker=worker_name(worker))

    async def list(self) -> list[LiveWorker]:
        """The live workers, by name; at most 1,000. Leaves out what this release cannot read."""
        return (await self.survey()).workers

    async def survey(self) -> WorkerSurvey:
        """The live workers, and whether the list is complete. One round trip."""
        flat: list[Any] = await self._record.read("list_workers", most=SHOWN_MOST)
        found: list[LiveWorker] = []
        for name, stored in zip(flat[::2], flat[1::2], strict=True):
            since, _, about = stored.partition(b" ")
            with suppress(msgspec.MsgspecError, ValueError):
                report = msgspec.json.decode(about, type=WorkerReport)
                found.append(LiveWorker(name.decode(), instant(int(since)), report))
        listed = len(flat) // 2
        is_complete = len(found) == listed < SHOWN_MOST
        return WorkerSurvey(sorted(found, key=lambda worker: worker.name), is_complete)


def find_records_elsewhere(workers: Iterable[LiveWorker], ledger: str) -> dict[str, list[str]]:
    """The queues whose jobs have their records in another database than *ledger*, with the names of
    the workers that report it.
    """
    found: dict[str, list[str]] = {}
    for worker in workers:
        if worker.report.ledger not in {None, ledger}:
            for queue in worker.report.recorded:
                found.setdefault(queue, []).append(worker.name)
    return found
