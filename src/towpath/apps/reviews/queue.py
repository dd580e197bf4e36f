"""The queue of review tasks: highest priority first, each in one worker's hands at a time."""

from __future__ import annotations

import socket
import uuid
from contextlib import suppress
from datetime import datetime

from towpath.clock import ZERO, Duration, minutes
from towpath.engine.engine import Engine
from towpath.engine.leases import HeldLeases, lease_by_token
from towpath.engine.model import NORMAL, JobRef, Lease, job_ref
from towpath.engine.options import QueueOptions
from towpath.engine.states import State
from towpath.errors import (
    InvalidName,
    InvalidOption,
    JobError,
    LeaseError,
    LeaseLost,
)
from towpath.ids import queue_name

TASKS = "task"
"""The queue's name: its keys are `{task}:queue`, `{task}:lock:<task>`, `{task}:retry:queue`."""
LOCK_TTL = minutes(5)
"""How long a task that was dequeued is locked, unless the lock is renewed."""
TASK_OPTIONS = QueueOptions(remember=ZERO, max_attempts=5)
"""A task that has ended is forgotten, so that it can be enqueued again under its own id."""
CORRUPT = "TASK_CORRUPT: another program wrote it"
"""The reason with which an entry that is no task is buried."""

_REAP_MOST = 1000


class TaskNotHeld(LeaseError):
    """The task was not dequeued in this process, so its lock can't be released here."""

    code = "task_not_held"
    remedy = (
        "Release a task in the process that dequeued it. `force_release` is for administrators."
    )

    def __init__(self, task: str, *, by: str = "this process") -> None:
        super().__init__(f"task {task} is not held by {by}")
        self.task = task


class TaskNotLocked(TaskNotHeld):
    """Nobody holds the task, so there is no lock to take away."""

    code = "task_not_locked"
    remedy = "No action needed: the task is waiting or dead."

    def __init__(self, task: str) -> None:
        super().__init__(task, by="anybody")


class ReviewQueue:
    """Tasks by priority, then by the order they came; a task is taken and locked in one step.

    A task whose worker falls silent is handed out again when its lock ends, at its old place;
    after `max_attempts` of that it is dead, with the reason. A delayed task is never handed out
    before its time. An entry of the queue that is no task is set aside as dead. A method takes one
    round trip unless it says otherwise.
    """

    LOCK_TTL = LOCK_TTL

    def __init__(self, engine: Engine, name: str = TASKS) -> None:
        self.engine, self.name = engine, queue_name(name)
        self.worker = f"{socket.gethostname()}-{uuid.uuid4()}"
        """The name of the worker that holds the locks of tasks dequeued here."""
        self._held = HeldLeases(self.LOCK_TTL)

    # ── a task's life ────────────────────────────────────────────────────────────────────

    async def enqueue(self, task: str, priority: int = NORMAL) -> bool:
        """Put a task into the queue; False if it waits or is in process already.

        Priorities are 0 to 100, **higher first** (HIGH, NORMAL, LOW); a task that waits keeps its
        own. A task that has ended, or is dead, starts over. Raises InvalidName, InvalidOption, and
        what `Engine.submit` raises.
        """
        ref = self._ref(task)
        await self._prepare()
        while True:
            added = await self.engine.submit(self.name, _payload(task), id=task, priority=priority)
            if not added.existed:
                return True
            if added.state is not State.DEAD:
                return False
            with suppress(JobError):  # another process was faster: the next submit sees the state
                await self.engine.delete(ref)

    async def dequeue(self) -> str | None:
        """Take the next task and lock it for LOCK_TTL; None if there is none.

        One round trip when the next entry is a task.
        """
        await self._prepare()
        before = 0
        while True:
            taken = await self.engine.exchange(
                self.name, [], worker=self.worker, lease=self.LOCK_TTL, count=1
            )
            for lease in taken.leases:
                if _is_task(lease):
                    self._held.hold(lease)
                    return lease.id
                await self._bury(lease)
            # An exchange that leases nothing may have set entries aside: then fewer are left, and
            # the next one may find a task. In a paused queue, the number stays the same.
            if not taken.leases and (not taken.left or (before and taken.left >= before)):
                return None
            before = 0 if taken.leases else taken.left

    async def renew(self, task: str) -> datetime:
        """Lock the task for another LOCK_TTL from now. Returns when that ends.

        Raises TaskNotHeld, and LeaseLost if another worker has the task: then stop, and discard
        your work.
        """
        lease = await self.engine.renew(self._lease(task), self.LOCK_TTL)
        self._held.hold(lease)
        return lease.expires_at

    async def requeue_with_delay(self, task: str, seconds: float) -> None:
        """Release the lock and hand the task out again after the delay, never before.

        It keeps its priority, and no attempt is counted: the caller decides how often to try.
        Raises TaskNotHeld, LeaseLost, InvalidOption; nothing is changed then.
        """
        lease = self._lease(task)
        await self.engine.release(lease, delay=_delay(seconds))
        self._held.settled(task)

    async def release_lock(self, task: str) -> None:
        """Release the lock of a task that was dequeued here, because the work on it is over.

        Raises TaskNotHeld for a task that was dequeued elsewhere, LeaseLost if the lock has ended
        and another worker has the task. Nothing is changed then.
        """
        await self.engine.complete(self._lease(task))
        self._held.settled(task)

    async def force_release(self, task: str) -> None:
        """Take the lock from its holder; the task waits again, at its old place.

        For administrators. Later calls of the holder are refused. Raises JobNotFound if there is no
        such task, TaskNotLocked if nobody holds it. Two round trips.
        """
        ref = self._ref(task)
        while True:
            job = await self.engine.inspect.job(ref)
            if job.state is not State.LEASED:
                raise TaskNotLocked(task)
            with suppress(LeaseLost):  # the holder has changed: look again
                held = lease_by_token(ref, job.token or 0, worker=job.worker or "")
                await self.engine.release(held)
                return

    # ── reading ──────────────────────────────────────────────────────────────────────────

    async def queue_size(self) -> int:
        """How many tasks wait, delayed ones included; those in process do not. Two round trips."""
        await self._reap()
        counts = await self.engine.inspect.counts(self.name)
        return counts.ready + counts.delayed

    async def is_locked(self, task: str) -> bool:
        """Whether the task is in process. An expired lock does not count. Two round trips."""
        ref = self._ref(task)
        await self._reap()
        return await self.engine.inspect.state(ref) is State.LEASED

    # ── how it is done ───────────────────────────────────────────────────────────────────

    async def _prepare(self) -> None:
        """Declare the queue's options, once. Raises QueueDiffers if it keeps ended tasks."""
        held = await self.engine.queues.introduce(self.name, TASK_OPTIONS)
        if (held.remember, held.keep) != (ZERO, ZERO):
            await self.engine.queues.configure(self.name, TASK_OPTIONS)

    async def _reap(self) -> None:
        """Take back tasks whose lock has ended, because maybe nobody has dequeued since."""
        await self._prepare()
        await self.engine.queues.reap(self.name, _REAP_MOST)

    async def _bury(self, lease: Lease) -> None:
        with suppress(LeaseError, JobError):  # another worker has the entry by now
            await self.engine.bury(lease, CORRUPT)

    def _ref(self, task: str) -> JobRef:
        try:
            return job_ref(self.name, task)
        except InvalidName as error:
            raise InvalidName("task", task, rule=error.rule) from error

    def _lease(self, task: str) -> Lease:
        lease = self._held.get(task)
        if lease is None:
            raise TaskNotHeld(task)
        return lease


def _payload(task: str) -> bytes:
    """A task's payload is its name, so that an entry which another program wrote is recognised."""
    return task.encode()


def _is_task(lease: Lease) -> bool:
    return lease.payload == _payload(lease.id)


def _delay(seconds: float) -> Duration:
    try:
        return Duration(seconds=seconds)
    except (OverflowError, TypeError, ValueError) as error:
        raise InvalidOption("seconds", seconds, rule="must be a number of seconds") from error
