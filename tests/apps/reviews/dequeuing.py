"""Helpers for tests of the queue of review tasks."""

from towpath.apps.reviews.queue import ReviewQueue
from towpath.engine.model import JobInfo, job_ref

QUEUE, RETRY, LEASES = "{task}:queue", "{task}:retry:queue", "{task}:leases"
"""The keys below the queue."""


async def drained(queue: ReviewQueue) -> list[str]:
    """Dequeues and completes every task; returns them in order."""
    tasks: list[str] = []
    while (task := await queue.dequeue()) is not None:
        tasks.append(task)
        await queue.release_lock(task)
    return tasks


async def job(queue: ReviewQueue, task: str) -> JobInfo:
    """The job of a task."""
    return await queue.engine.inspect.job(job_ref(queue.name, task))
