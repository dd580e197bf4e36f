"""`towpath workers`: the live workers, with their hosts and jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from towpath.console.verb import Session, verb

if TYPE_CHECKING:
    from towpath.engine.worker_registry import BlockedLoop, HandlerReport, LiveWorker

COLUMNS = ("WORKER", "HOST", ">PID", "SINCE", ">SLOTS", ">RUNNING", "QUEUES", "RUNS")
BLOCKED = "BLOCKED"
"""Another column, shown if the event loop of a worker is blocked."""
_NAMED = 3
"""Maximum number of queues and jobs that a row names; the rest is counted."""


async def workers(session: Session) -> None:
    """List the workers that are alive.

    Workers report every ten seconds. A worker that stops leaves the list at once, a killed one
    after 25 seconds. A worker whose event loop is blocked stays: BLOCKED shows for how long, by
    which handler, and in which job. SINCE is the start of the process. With --json, each worker
    lists its release and its handlers.
    """
    async with session.engine() as engine:
        found = await engine.workers.list()
    out = session.out
    if out.as_json:
        for worker in found:
            out.object(_described(worker))
    elif found:
        rows = [_row(worker) for worker in found]
        if any(worker.report.blocked for worker in found):
            marks = [_mark(worker.report.blocked) for worker in found]
            rows = [(*row, mark) for row, mark in zip(rows, marks, strict=True)]
            out.table((*COLUMNS, BLOCKED), rows)
        else:
            out.table(COLUMNS, rows)
    else:
        out.note("no worker is alive; start one: towpath worker module:app")


def register(towpath: typer.Typer) -> None:
    verb(towpath, "workers", examples="towpath workers\ntowpath workers --json")(workers)


def _described(worker: LiveWorker) -> dict[str, Any]:
    report = worker.report
    jobs = [{"queue": one.job.queue, "id": one.job.id, "since": one.since} for one in report.jobs]
    return {
        "name": worker.name,
        "host": report.host,
        "pid": report.pid,
        "since": worker.since,
        "queues": list(report.queues),
        "serving": report.serving,
        "slots": report.slots,
        "running": report.running,
        "jobs": jobs,
        "blocked": _blocked(report.blocked),
        "release": report.release or None,
        "handlers": _handlers(report.handlers),
        "handling": report.handling,
    }


def _handlers(handlers: Sequence[HandlerReport] | None) -> list[dict[str, Any]] | None:
    """The handlers of a worker; None for one of an older release, which does not report them."""
    if handlers is None:
        return None
    return [{"queue": one.queue, "name": one.name, "digest": one.digest} for one in handlers]


def _blocked(blocked: BlockedLoop | None) -> dict[str, Any] | None:
    if blocked is None:
        return None
    job = blocked.job
    return {
        "seconds": blocked.seconds,
        "handler": blocked.handler,
        "queue": job.queue if job else None,
        "id": job.id if job else None,
    }


def _mark(blocked: BlockedLoop | None) -> str:
    if blocked is None:
        return ""
    by = f" by {blocked.handler} in {blocked.job}" if blocked.job else ""
    return f"{blocked.seconds:.0f}s{by}"


def _row(worker: LiveWorker) -> tuple[Any, ...]:
    report = worker.report
    queues = _shorten(list(report.queues), report.serving)
    runs = _shorten([str(one.job) for one in report.jobs], report.running)
    return (
        worker.name,
        report.host,
        report.pid,
        worker.since,
        report.slots,
        report.running,
        queues,
        runs,
    )


def _shorten(names: list[str], count: int) -> str:
    more = count - len(names[:_NAMED])
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
