"""The engine: one method per verb, in the order of a job's life.

Every change of a job is one script in Redis: atomic, and safe to repeat. Scripts take batches; the
verbs for one job send batches of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, Unpack

from towpath.clock import (
    ZERO,
    Duration,
    DurationLike,
    duration,
    duration_ms,
    milliseconds,
    steady,
)
from towpath.engine import codec
from towpath.engine.batcher import LARGEST_BATCH, settling, submits
from towpath.engine.change import Changing
from towpath.engine.claiming import ClaimAttempts, choice_of, wish_of
from towpath.engine.durability import Durability
from towpath.engine.model import (
    Bury,
    Call,
    Complete,
    Exchanged,
    Fail,
    JobOptions,
    JobRef,
    Lease,
    NewJob,
    Outcome,
    Release,
    Renew,
    Settlement,
    Submitted,
    job_ref,
    new_job,
)
from towpath.engine.options import QueueOptions
from towpath.engine.states import State
from towpath.engine.wakeups import CHECKED_CAP, WAIT_CAP_MS, WorkWatch
from towpath.errors import CallStale, InvalidOption, ScriptDefect, TowpathError
from towpath.ids import queue_name

_SETTLING = "settling"
"""The worker's name in an exchange that claims nothing."""

T = TypeVar("T")


class Engine(Changing):
    """Jobs on one deployment of Redis or Valkey.

        async with Engine("redis://localhost") as engine:
            await engine.submit("thumbnails", b"cat.png")
            [lease] = await engine.claim("thumbnails", worker="w1", lease=seconds(30))
            await engine.complete(lease)

    `engine.queues`, `.inspect`, `.events`, `.schedules` and `.workers` have the rest.

    `async with` reads the state of Redis, for at most two seconds. It raises EvictionUnsafe if
    Redis may evict live jobs, DurabilityUnknown if Redis does not report its durability and it is
    not *declared*, and ServerRefused if the login fails. If Redis is unreachable, nothing is
    raised: it is logged once, and calls work when Redis is back. *limits* says how long calls wait
    for Redis; *clock* and *scripts* are for tests.
    """

    # ── a job's life ─────────────────────────────────────────────────────────────────────

    async def submit(
        self,
        queue: str,
        payload: bytes,
        *,
        durability: Durability | None = None,
        **options: Unpack[JobOptions],
    ) -> Submitted:
        """Submit a job. Returns once it is stored with the durability asked for.

        *options* are the fields of `JobOptions`: id, priority (0 to 100, **higher runs first**),
        delay or due, lane, selector, max_attempts, retry, lease, keep, headers. The same *id* twice
        is one job: the second answer says `existed`. *durability* is what this job needs; default:
        what Redis has. Raises QueueFull, MemoryFull, DurabilityUnavailable; ServerUnreachable,
        after which the job may exist (repeat with the same id); and, before anything is sent,
        InvalidName, InvalidOption, PayloadTooLarge.

        Concurrent submits share a round trip; a single one does not wait for others. Within a lane
        and within a priority, jobs have the order of the calls.
        """
        name, job = queue_name(queue), new_job(payload, **options)
        [answer] = await self._batcher.submit(name, [job], durability)
        outcome = codec.submitted(name, job.id, answer)
        if isinstance(outcome, TowpathError):
            raise outcome
        return outcome

    async def submit_many(
        self,
        queue: str,
        jobs: Iterable[NewJob],
        *,
        durability: Durability | None = None,
        call: Call | None = None,
    ) -> list[Submitted | TowpathError]:
        """Submit several jobs, made by `new_job`. Returns one answer per job, in order.

        The answer to a refused job is its error (QueueFull, PayloadTooLarge); the other jobs are
        stored. Up to LARGEST_BATCH jobs are one atomic step and one round trip; a longer list takes
        several.
        """
        name, wanted = queue_name(queue), list(jobs)
        if call is not None and len(list(submits(wanted))) > 1:
            raise InvalidOption("call", call, rule=f"covers at most {LARGEST_BATCH} jobs")
        if not wanted:
            return []
        answers = await self._batcher.submit(name, wanted, durability, call)
        submitted = codec.submitted
        return [
            submitted(name, job.id, answer) for job, answer in zip(wanted, answers, strict=True)
        ]

    async def claim(
        self,
        queue: str,
        *,
        worker: str,
        lease: DurationLike,
        count: int = 1,
        lane: str | None = None,
        selectors: Sequence[str] = (),
        max_held: int | None = None,
        wait: DurationLike = ZERO,
        call: Call | None = None,
    ) -> list[Lease]:
        """Lease up to *count* jobs to *worker*: highest priority first, oldest first within it.

        Due jobs and jobs whose lease has ended are included. With *lane*, claims only the next job
        of that lane. With *selectors* (at most 100), claims only jobs that have one of them. With
        *max_held*, the worker never holds more than that many of the jobs that it claimed with a
        limit. Large payloads may reduce the count: one answer has about 8 MiB, but at least one
        job.

        With *wait*, an empty queue is waited on: the claim returns within milliseconds of a submit
        or a due time, and returns an empty list when the time is over. A repeat under the same
        *call* returns the same leases. One round trip if there is work.
        """
        name = queue_name(queue)
        wish, wait_ms = wish_of(worker, lease, count, lane), duration_ms("wait", wait)
        choice, called = choice_of(selectors, max_held, lane), ""
        if lane is not None and wait_ms:
            raise InvalidOption("wait", wait, rule="a claim for one lane can't wait")
        looks = ClaimAttempts(call) if call is not None and wait_ms else None
        give_up_at = 0
        while True:
            named = looks.next() if looks else call
            asked = [*wish, *self._store.outages.args(name)]
            if choice is not None:
                asked += [*choice, called]
            sent_at = steady()
            try:
                leases, due, left, now = await self._claims.ask(
                    "claim", name, worker, lambda _, asked=asked: asked, named
                )
            except CallStale as stale:
                if looks is None or not looks.again(stale.last):
                    raise
                continue
            read_at = steady()
            self._store.times.learn(name, now, sent_at=sent_at, read_at=read_at)
            give_up_at = give_up_at or now + wait_ms
            if leases or now >= give_up_at:
                return [codec.lease(name, worker, fields) for fields in leases]
            # Redis ends blocking reads late, so the wait for a due time is timed here.
            until = min(give_up_at, now + WAIT_CAP_MS, due or give_up_at)
            pause = milliseconds(max(until - now, 0))
            if until == due:
                pause = self._store.times.until(name, due, now, at=read_at)
            called = await self._waker.wait_on(name, choice[0] if choice else (), left, pause)

    async def wait_for_work(self, queue: str, *, within: Duration) -> bool:
        """Internal: return when there may be jobs to claim, at the latest after *within* or a
        minute.

        For callers of `exchange`; a claim waits by itself. True = this caller was woken; if it
        cannot look now, it calls `hand_on`. No round trip but the shared blocking read.
        """
        return await self._waker.wait(queue_name(queue), min(within, CHECKED_CAP))

    def watch_for_work(
        self, queue: str, act: Callable[[bool], None], *, within: Duration, since: float
    ) -> WorkWatch:
        """Internal: `wait_for_work` without a task, its time counted from *since* on. *act* is
        called once, with True if this caller was woken, in the step of the event loop that brings
        the wake-up.
        """
        return self._waker.watch(queue_name(queue), min(within, CHECKED_CAP), since, act)

    def hand_on(self, queue: str) -> None:
        """Internal: wake another waiter; this caller was woken and cannot look."""
        self._waker.hand_on(queue_name(queue))

    async def renew(self, lease: Lease, ttl: DurationLike, *, call: Call | None = None) -> Lease:
        """Extend the lease to *ttl* from now, by the clock of Redis. Returns the new lease.

        The token stays the same. If `cancel_requested` is set in the answer, the job was cancelled:
        stop. Raises LeaseLost if another worker holds the job; then stop and discard the work. One
        round trip.
        """
        return await self._settle_one(Renew(lease, duration("ttl", ttl)), Lease, call)

    async def progress(self, lease: Lease, note: bytes, *, call: Call | None = None) -> None:
        """Store a progress note with the job, in place of the last one. Raises LeaseLost."""
        item = [lease.job.id, lease.token, codec.note_bytes(note)]
        [answer] = await self._store.write("progress", lease.queue, lambda _: [item], call)
        if not isinstance(answer, bytes):
            raise codec.refusal(lease.job, answer, held=lease.token)

    async def complete(
        self, lease: Lease, result: bytes = b"", *, call: Call | None = None
    ) -> None:
        """Complete the job. *result* is kept as long as the job. A job can be completed only once.

        Raises LeaseLost, JobCancelled, JobDead, JobNotFound; then nothing has changed.
        """
        await self._settle_one(Complete(lease, result), State, call)

    async def fail(
        self,
        lease: Lease,
        reason: str,
        *,
        delay: DurationLike | None = None,
        traceback: str = "",
        keep_turn: bool = False,
        call: Call | None = None,
    ) -> State:
        """Fail the attempt. Returns DELAYED until the next one, or DEAD after the last.

        *delay* is the time until the next attempt; without it, the retry policy of the job or of
        its queue decides. The job then goes behind those that are ready, or with *keep_turn* to the
        place that it had among them. The last 4 KiB of *traceback* are kept for the three newest
        attempts. Raises LeaseLost.
        """
        wait = None if delay is None else duration("delay", delay)
        failed = Fail(lease, reason, wait, traceback=traceback, keep_turn=keep_turn)
        return await self._settle_one(failed, State, call)

    async def bury(
        self, lease: Lease, reason: str, *, traceback: str = "", call: Call | None = None
    ) -> State:
        """End the job as DEAD now, even if attempts are left. Raises LeaseLost."""
        return await self._settle_one(Bury(lease, reason, traceback), State, call)

    async def release(
        self,
        lease: Lease,
        *,
        delay: DurationLike = ZERO,
        unhandled: str = "",
        anew: bool = False,
        call: Call | None = None,
    ) -> State:
        """Give the job back, to its old place or after *delay*; the attempt does not count. Returns
        its state. Raises LeaseLost.

        *unhandled* says why the worker cannot run the job: it lacks the handler, or has it for
        another payload. The job then shows since when no worker could run it; with *anew*, that is
        since now.
        """
        released = Release(lease, duration("delay", delay), unhandled, anew)
        return await self._settle_one(released, State, call)

    async def exchange(
        self,
        queue: str,
        settlements: Sequence[Settlement],
        *,
        worker: str,
        lease: DurationLike,
        count: int,
        call: Call | None = None,
    ) -> Exchanged:
        """Settle leases and claim up to *count* jobs (0 = none), in one round trip.

        All leases must be of *queue*, at most LARGEST_BATCH of them. Each settlement has its own
        outcome: a state, a renewed lease, or an error.
        """
        name = queue_name(queue)
        if len(settlements) > LARGEST_BATCH:
            raise InvalidOption("settlements", len(settlements), rule=f"at most {LARGEST_BATCH}")
        wish = wish_of(worker, lease, count, None, least=0)
        for settlement in settlements:
            if settlement.lease.queue != name:
                raise InvalidOption(
                    "settlements", settlement.lease.job, rule=f"must be of queue {name}"
                )

        def body(options: QueueOptions) -> Any:
            return [
                [codec.settlement_item(settlement, options) for settlement in settlements],
                [*wish, *self._store.outages.args(name)],
            ]

        sent_at = steady()
        if count:
            answer = await self._claims.ask("exchange", name, worker, body, call)
        else:
            answer = await self._store.write("exchange", name, body, call)
        due, now, read_at = answer[2], answer[-1], steady()
        self._store.times.learn(name, now, sent_at=sent_at, read_at=read_at)
        due_in = self._store.times.until(name, due, now, at=read_at) if due else None
        return codec.exchanged(name, worker, list(settlements), answer, due_in=due_in)

    async def settle(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        """Settle leases of any queues. Returns one outcome per settlement, in order.

        One round trip per queue and per 500 settlements or about 8 MiB.
        """
        outcomes: dict[int, Outcome] = {}
        for queue in {settlement.lease.queue for settlement in settlements}:
            mine = [
                (i, settlement)
                for i, settlement in enumerate(settlements)
                if settlement.lease.queue == queue
            ]
            for part in settling(mine, lambda one: one[1]):
                exchanged = await self.exchange(
                    queue,
                    [settlement for _, settlement in part],
                    worker=_SETTLING,
                    lease=milliseconds(1),
                    count=0,
                )
                outcomes |= {
                    i: outcome for (i, _), outcome in zip(part, exchanged.outcomes, strict=True)
                }
        return [outcomes[i] for i in range(len(settlements))]

    async def cancel(
        self,
        job: JobRef,
        *,
        for_owner: str | None = None,
        call: Call | None = None,
        by_record: bool = False,
    ) -> State:
        """Cancel a job that has not ended. Returns CANCELLED, or LEASED while its worker is asked
        to stop.

        Needs no token. A completion that comes first wins. Raises JobNotFound, JobDone, JobDead,
        NotOwned if the job has another owner than *for_owner*, and JobHasRecord unless the call
        comes from the job's record (*by_record*).
        """
        item = [job.id, int(by_record), *([] if for_owner is None else [for_owner])]
        [answer] = await self._ask_existing("cancel", job.queue, [item], call)
        state = codec.cancelled(job, answer)
        if isinstance(state, TowpathError):
            raise state
        return state

    async def cancel_many(self, queue: str, ids: Sequence[str]) -> list[State | TowpathError]:
        """Cancel jobs. Returns what `cancel` returns or raises for each, in order.

        Up to LARGEST_BATCH jobs are one atomic step and one round trip; more take several.
        """
        refs = [job_ref(queue, id) for id in ids]
        answers = await self._answer_each("cancel", refs)
        return [codec.cancelled(ref, answer) for ref, answer in zip(refs, answers, strict=True)]

    # ── how it is done ───────────────────────────────────────────────────────────────────

    async def _settle_one(self, settlement: Settlement, kind: type[T], call: Call | None) -> T:
        queue = settlement.lease.queue
        verb = codec.verb_of(settlement)

        def body(options: QueueOptions) -> Any:
            return [codec.settlement_item(settlement, options)[1:]]

        [answer] = await self._store.write(verb, queue, body, call)
        outcome = codec.outcome(settlement.lease, answer)
        if isinstance(outcome, TowpathError):
            raise outcome
        if not isinstance(outcome, kind):
            raise ScriptDefect(f"{verb} answered {answer!r}")
        return outcome
