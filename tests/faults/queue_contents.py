"""Every job of a queue, and whether the counts are right: the basis of checks that no job is
lost.
"""

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass

from towpath.engine.engine import Engine
from towpath.engine.inspect import Counts
from towpath.engine.model import JobInfo, JobRef
from towpath.engine.record import STATES
from towpath.engine.states import State
from towpath.errors import JobNotFound
from towpath.ids import JobId, queue_name


@dataclass(frozen=True)
class QueueContents:
    """All jobs by id, with their payloads, and the counts of the queue."""

    jobs: dict[JobId, JobInfo]
    counts: Counts

    def ids(self, *states: State) -> set[JobId]:
        return {id for id, job in self.jobs.items() if job.state in states}


async def contents_of(engine: Engine, queue: str) -> QueueContents:
    """Reads all jobs, and checks that every job is in exactly one state (I1)."""
    listed: dict[JobId, JobInfo] = {}
    for state in STATES:
        for job in await all_in(engine, queue, state):
            assert job.id not in listed, f"{job.id} is listed twice"
            listed[job.id] = job
    counts = await engine.inspect.counts(queue)
    states = Counter(job.state for job in listed.values())
    kept = states[State.DONE] + states[State.CANCELLED]
    assert (counts.ready, counts.delayed, counts.waiting, counts.leased) == (
        states[State.READY], states[State.DELAYED], states[State.WAITING], states[State.LEASED],
    )  # fmt: skip
    assert (counts.dead, counts.kept) == (states[State.DEAD], kept)
    return QueueContents(listed, counts)


async def with_payloads(engine: Engine, found: QueueContents) -> QueueContents:
    """Reads each job again by itself, because lists leave payloads out.

    Finished jobs whose retention is over cannot be read any more and are left out.
    """
    jobs: dict[JobId, JobInfo] = {}
    for id, job in found.jobs.items():
        with suppress(JobNotFound):
            jobs[id] = await engine.inspect.job(job.ref)
    return QueueContents(jobs, found.counts)


async def all_in(engine: Engine, queue: str, state: State) -> list[JobInfo]:
    """Every job in *state*, page by page, in order."""
    page = await engine.inspect.list(queue, state, size=1000)
    jobs = page.jobs
    while page.after is not None:
        page = await engine.inspect.list(queue, state, size=1000, after=page.after)
        jobs = jobs + page.jobs
    return jobs


async def is_drained(engine: Engine, queue: str) -> bool:
    """Whether no job of *queue* is open any more."""
    counts = await engine.inspect.counts(queue)
    return counts.ready + counts.delayed + counts.waiting + counts.leased == 0


def ref(queue: str, id: str) -> JobRef:
    return JobRef(queue_name(queue), JobId(id))
