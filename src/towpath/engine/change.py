"""Changing jobs that no worker holds.

Waiting jobs get another due time (`move`) or are replaced (`set`). Jobs that have ended get new
attempts (`retry`) or are deleted; the dead head of a parked lane is dropped (`drop`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Unpack

from towpath.clock import DurationLike, duration_ms, instant_ms
from towpath.engine import codec
from towpath.engine.batcher import LARGEST_BATCH, submits, with_refusals
from towpath.engine.durability import Durability
from towpath.engine.lifetime import Lifetime
from towpath.engine.model import (
    Call,
    JobOptions,
    JobRef,
    NewJob,
    Placed,
    job_ref,
    new_job,
)
from towpath.engine.refusals import QueueUnknown
from towpath.engine.states import State
from towpath.errors import InvalidOption, LaneNotParked, TowpathError
from towpath.ids import QueueName, job_id, lane_key, queue_name

BY_DELAY = -1
"""Stands in place of a due time when a delay is given."""


class Changing(Lifetime):
    """The methods of an engine for jobs that no worker holds."""

    async def move(
        self,
        job: JobRef,
        *,
        due: datetime | None = None,
        delay: DurationLike | None = None,
        for_owner: str | None = None,
        call: Call | None = None,
    ) -> State:
        """Give a waiting job another due time: *due*, or *delay* from now. Returns its state.

        It is DELAYED until then, even if it was ready. If the time is past it is READY: a ready job
        keeps its place, any other goes behind those that are ready. A job behind the head of its
        lane stays WAITING; its new time counts once it is the head. A head holds its lane until it
        is due. Payload, attempts and priority do not change. Raises JobNotFound, JobHasRecord,
        NotOwned if the job has another owner than *for_owner*, and JobNotWaiting, with the state,
        if the job is leased or has ended. One round trip; waiting workers learn of an earlier time
        at once.
        """
        moves = [[job.id, *when(due, delay), *([] if for_owner is None else [for_owner])]]
        [answer] = await self._ask_existing("move", job.queue, moves, call)
        state = codec.moved(job, answer)
        if isinstance(state, TowpathError):
            raise state
        return state

    async def move_many(
        self, queue: str, moves: Mapping[str, datetime | DurationLike], *, call: Call | None = None
    ) -> list[State | TowpathError]:
        """Give jobs other due times: *moves* has a time, or a delay from now, for each id.

        Returns a state or an error for each, in order. Up to LARGEST_BATCH moves are one atomic
        step and one round trip; more take several.
        """
        name, answers = queue_name(queue), list[Any]()
        items = [[job_id(id), *_parse_time(time)] for id, time in moves.items()]
        _check_call(call, -(-len(items) // LARGEST_BATCH))
        for at in range(0, len(items), LARGEST_BATCH):
            some = items[at : at + LARGEST_BATCH]
            answers += await self._ask_existing("move", name, some, call)
        return [
            codec.moved(JobRef(name, job_id(id)), answer)
            for id, answer in zip(moves, answers, strict=True)
        ]

    async def set(
        self,
        queue: str,
        payload: bytes,
        *,
        for_owner: str | None = None,
        durability: Durability | None = None,
        call: Call | None = None,
        **options: Unpack[JobOptions],
    ) -> Placed:
        """Create a job under an *id*, or replace the job that waits there.

        *options* are those of `submit`; *id* is required. The new job has nothing of the old one:
        it has all its attempts, and goes behind the other jobs of its priority and lane, as if the
        old job were cancelled and this one submitted in a single step. A job that is done, dead or
        cancelled, or whose id is only remembered, is created anew (`submit` would answer
        `existed`). Replacing a waiting job works in a full queue, too. Raises
        JobNotWaiting if the job is leased, NotOwned if a job with another owner than *for_owner* is
        there, JobHasRecord, QueueFull, MemoryFull, PayloadTooLarge, InvalidOption. One round trip.
        """
        if options.get("id") is None:
            raise InvalidOption("id", None, rule="is required: it names the job to set")
        name, job = queue_name(queue), new_job(payload, **options)
        [answer] = await self._set_jobs(name, [job], durability, call, for_owner)
        placed = codec.placed(name, job.id, answer)
        if isinstance(placed, TowpathError):
            raise placed
        return placed

    async def set_many(
        self,
        queue: str,
        jobs: Iterable[NewJob],
        *,
        durability: Durability | None = None,
        call: Call | None = None,
    ) -> list[Placed | TowpathError]:
        """Set several jobs, made by `new_job`. Returns one answer per job, in order. Of two with
        the same id, the later one replaces the other. Steps are those of `submit_many`.
        """
        name, wanted = queue_name(queue), list(jobs)
        answers = await self._set_jobs(name, wanted, durability, call)
        return [
            codec.placed(name, job.id, answer) for job, answer in zip(wanted, answers, strict=True)
        ]

    # ── dead jobs and parked lanes ───────────────────────────────────────────────────────

    async def retry(self, job: JobRef, *, call: Call | None = None) -> State:
        """Give a dead job new attempts. Returns READY, or WAITING behind the head of its lane.

        If the job parks its lane, the lane continues with it. Raises JobNotFound, JobNotDead,
        JobHasRecord.
        """
        return await self._change_one("retry", [job.id], job, call)

    async def delete(
        self, job: JobRef, *, call: Call | None = None, by_record: bool = False
    ) -> None:
        """Delete a dead, done or cancelled job. If it parks its lane, the lane continues without
        it.

        Raises JobNotFound, JobOpen, and JobHasRecord unless the call comes from the job's record
        (*by_record*).
        """
        await self._change_one("delete", [job.id, int(by_record)], job, call)

    async def delete_many(self, queue: str, ids: Sequence[str]) -> list[State | TowpathError]:
        """Delete jobs that have ended. Returns GONE for each, or what `delete` raises, in order.

        Up to LARGEST_BATCH jobs are one atomic step and one round trip; more take several.
        """
        refs = [job_ref(queue, id) for id in ids]
        answers = await self._answer_each("delete", refs)
        return [
            codec.STATES[answer] if isinstance(answer, bytes) else codec.refusal(ref, answer)
            for ref, answer in zip(refs, answers, strict=True)
        ]

    async def _answer_each(self, verb: str, jobs: Sequence[JobRef]) -> list[Any]:
        """The raw answers of a verb for jobs of one queue, in steps of LARGEST_BATCH."""
        answers: list[Any] = []
        for at in range(0, len(jobs), LARGEST_BATCH):
            some = [[job.id, 0] for job in jobs[at : at + LARGEST_BATCH]]
            answers += await self._ask_existing(verb, jobs[0].queue, some, None)
        return answers

    async def _ask_existing(
        self, verb: str, queue: QueueName, items: list[list[Any]], call: Call | None
    ) -> list[Any]:
        """The raw answers of a verb for jobs that must exist. A queue that does not exist is not
        created: each job is answered with JOB_NOT_FOUND. But with a *call*, Redis is always asked,
        as the call may be a repeat whose answer is stored.
        """
        try:
            return await self._store.write(
                verb, queue, lambda _: items, call, creates=call is not None
            )
        except QueueUnknown:
            return [[b"JOB_NOT_FOUND"]] * len(items)

    async def drop(self, queue: str, lane: str, *, call: Call | None = None) -> JobRef:
        """Let a parked lane continue without its dead head. The head stays listed as dead.

        Returns that job. Raises LaneNotParked.
        """
        name, key = queue_name(queue), lane_key(lane)
        [answer] = await self._ask_existing("drop", name, [[key]], call)
        if answer[0] != b"dropped":
            raise LaneNotParked(name, key)
        return JobRef(name, answer[1].decode())

    async def _change_one(
        self, verb: str, item: list[Any], job: JobRef, call: Call | None
    ) -> State:
        [answer] = await self._ask_existing(verb, job.queue, [item], call)
        if isinstance(answer, bytes):
            return codec.STATES[answer]
        raise codec.refusal(job, answer)

    async def _set_jobs(
        self,
        queue: QueueName,
        jobs: list[NewJob],
        durability: Durability | None,
        call: Call | None,
        for_owner: str | None = None,
    ) -> list[Any]:
        """The raw answers. A job that is too large is refused without being sent, except with a
        caller's *call*: it may be a repeat, and only Redis knows its answer.
        """
        store, answers, steps = self._store, list[Any](), list(submits(jobs))
        _check_call(call, len(steps))
        for step in steps:
            largest = max(len(job.payload) for job in step)
            limit = await store.largest_payload(queue, largest)
            sent: list[Any] = [
                job if for_owner is None else (*job, for_owner)
                for job in step
                if call is not None or len(job.payload) <= limit
            ]
            replies: list[Any] = []
            if sent and durability is None:
                replies = await store.write("set", queue, lambda _, sent=sent: sent, call)
            elif sent and durability is not None:
                replies = await store.write_confirmed(
                    "set", queue, lambda _, sent=sent: sent, call,
                    durability=durability, written=lambda: None,
                )  # fmt: skip
            answers += replies if len(sent) == len(step) else with_refusals(step, replies, limit)
        return answers


def _parse_time(time: datetime | DurationLike) -> tuple[int, int]:
    return when(time, None) if isinstance(time, datetime) else when(None, time)


def when(due: datetime | None, delay: DurationLike | None) -> tuple[int, int]:
    """The instant in ms, or BY_DELAY and the delay. Raises InvalidOption unless one of both is
    given.
    """
    if due is not None and delay is None:
        return instant_ms("due", due), 0
    if delay is not None and due is None:
        return BY_DELAY, duration_ms("delay", delay)
    raise InvalidOption("due", due, rule="pass either a delay or a due time")


def _check_call(call: Call | None, steps: int) -> None:
    if call is not None and steps > 1:
        raise InvalidOption("call", call, rule=f"covers at most {LARGEST_BATCH} jobs")
