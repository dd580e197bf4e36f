"""The engine: one method per verb, in the order of a job's life.

Every change of a job is one script in Redis: atomic, and safe to repeat. Scripts take batches; the
verbs for one job send batches of one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from towpath.clock import (
    ZERO,
    Clock,
    Duration,
    DurationLike,
    ServerClock,
    duration,
    duration_ms,
    milliseconds,
    steady,
)
from towpath.engine import codec
from towpath.engine.batcher import (
    LARGEST_BATCH,
    Batcher,
    Unbatched,
    settlement_portions,
    submit_portions,
    with_refusals,
)
from towpath.engine.blocking import BlockingPort, run_to_end
from towpath.engine.blocking_ends import BlockingEnds
from towpath.engine.calls import NOT_ENTERED
from towpath.engine.channel import Limits
from towpath.engine.check import integer
from towpath.engine.claiming import ClaimAttempts, Claims, claim_args, selection_args
from towpath.engine.cluster import open_cluster
from towpath.engine.durability import Durability, ServerFacts
from towpath.engine.events import Feeds
from towpath.engine.follow import Events
from towpath.engine.inspect import Inspector
from towpath.engine.keys import PROBE, stream_keys
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
    Placed,
    Release,
    Renew,
    Settlement,
    Submitted,
    job_ref,
    new_job,
)
from towpath.engine.options import QueueOptions
from towpath.engine.port import LoopPort, Port
from towpath.engine.queues import Queues
from towpath.engine.refusals import QueueUnknown
from towpath.engine.schedules import Schedules
from towpath.engine.script import Scripts, shipped_scripts
from towpath.engine.space import MOST_KEPT, Space, Spaces, flatten_entry
from towpath.engine.states import State
from towpath.engine.store import Store
from towpath.engine.url import parse_url
from towpath.engine.wakeups import CHECKED_CAP, WAIT_CAP_MS, Waker, WorkWatch
from towpath.engine.worker_registry import Workers
from towpath.errors import (
    CallStale,
    InvalidOption,
    LaneNotParked,
    ScriptDefect,
    TowpathError,
)
from towpath.ids import QueueName, channel_name, job_id, lane_key, queue_name, stream_name
from towpath.telemetry.logs import Log

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_SETTLING = "settling"
"""The worker's name in an exchange that claims nothing."""

T = TypeVar("T")


class Engine:
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

    # ── its parts, entering and leaving ──────────────────────────────────────────────────

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,
        limits: Limits | None = None,
        declared: Durability | None = None,
        scripts: Scripts | None = None,
        log: Log | None = None,
    ) -> None:
        self.url = parse_url(url)
        self._clock, self._limits = clock or ServerClock(), limits or Limits()
        in_url = Durability.parse(self.url.durability) if self.url.durability else None
        self._declared, self._scripts = declared or in_url, scripts or shipped_scripts()
        self._log = log or Log()
        self._is_tolerant = False
        self._build(LoopPort())

    def _build(self, port: Port) -> None:
        """Make the parts. They connect to Redis when the engine is entered."""
        self._port, self._was_left = port, False
        self._cluster = open_cluster(self.url, port)
        self._store = Store(
            self._cluster,
            clock=self._clock,
            limits=self._limits,
            scripts=self._scripts,
            declared=self._declared,
            log=self._log,
        )
        self._waker = Waker(self._cluster, self._clock, self._store)
        self._claims = Claims(self._store)
        give_up = self._limits.give_up
        self._feeds = Feeds(self._cluster, self._store, give_up=give_up)
        self._batcher = Unbatched(self._store) if port.in_threads else Batcher(self._store)
        self._blocking_ends = (
            BlockingEnds(self._cluster, self._store, port, give_up=give_up)
            if isinstance(port, BlockingPort)
            else None
        )
        self._spaces = Spaces(self._scripts, self._store.calls)
        self.queues = Queues(self._store)
        """Queues: which exist, their options, pause and resume."""
        self.workers = Workers(self._spaces.own.at("workers"))
        """Live workers, by what each reports."""
        self.inspect = Inspector(self._store, self.workers)
        """Jobs, counts and lists, as they are now."""
        self.events = Events(self._store, self._feeds, self._blocking_ends)
        """Events of queues, and waiting for the end of a job."""
        self.schedules = Schedules(self._store, self._spaces.own.at("schedules"), self.queues)
        """Schedules: created, changed, fired."""

    def tolerant(self) -> Self:
        """Internal: let this engine be entered although Redis is unfit. Each call then raises the
        error until Redis is fixed. Call it before entering; returns the same engine.
        """
        self._is_tolerant = True
        return self

    def in_threads(self) -> Self:
        """Internal: let threads without an event loop use this engine: `run_to_end` drives its
        methods. What needs tasks is missing: waiting claims and events. Waiting for the end of a
        job works. Call it before anything else; returns the same engine.
        """
        self._home = os.getpid()
        self._build(BlockingPort())
        return self

    async def __aenter__(self) -> Self:
        if self._was_left:
            self._build(self._port)
        try:
            await self._store.connect(tolerant=self._is_tolerant)
        except BaseException:
            self._was_left = True
            await self._store.close()
            await self._cluster.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._was_left = True
        await self._batcher.close()
        await self._claims.close()
        await self._store.close()
        if self._blocking_ends is not None:
            await self._blocking_ends.close()
        await self._feeds.close()
        await self._waker.close()
        await self._cluster.close()

    def close_here(self) -> None:
        """Internal: leave an engine entered `in_threads`. Does nothing in a forked child."""
        if self._home == os.getpid():
            run_to_end(self.__aexit__())

    def close_at_exit(self) -> None:
        """Internal: as `close_here`, at the end of the program. Threads that wait for a job are not
        woken: only daemon threads are left by then.
        """
        if self._home == os.getpid() and self._blocking_ends is not None:
            self._blocking_ends.leave_at_exit()
        self.close_here()

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
        outcome = codec.decode_submitted(name, job.id, answer)
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
        if call is not None and len(list(submit_portions(wanted))) > 1:
            raise InvalidOption("call", call, rule=f"covers at most {LARGEST_BATCH} jobs")
        if not wanted:
            return []
        answers = await self._batcher.submit(name, wanted, durability, call)
        submitted = codec.decode_submitted
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
        wish, wait_ms = claim_args(worker, lease, count, lane), duration_ms("wait", wait)
        choice, called = selection_args(selectors, max_held, lane), ""
        if lane is not None and wait_ms:
            raise InvalidOption("wait", wait, rule="a claim for one lane can't wait")
        attempts = ClaimAttempts(call) if call is not None and wait_ms else None
        give_up_at = 0
        while True:
            named = attempts.next() if attempts else call
            asked = [*wish, *self._store.outages.args(name)]
            if choice is not None:
                asked += [*choice, called]
            sent_at = steady()
            try:
                leases, due, left, now = await self._claims.ask(
                    "claim", name, worker, lambda _, asked=asked: asked, named
                )
            except CallStale as stale:
                if attempts is None or not attempts.again(stale.last):
                    raise
                continue
            read_at = steady()
            self._store.times.learn(name, now, sent_at=sent_at, read_at=read_at)
            give_up_at = give_up_at or now + wait_ms
            if leases or now >= give_up_at:
                return [codec.decode_lease(name, worker, fields) for fields in leases]
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
            raise codec.decode_refusal(lease.job, answer, held=lease.token)

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
        wish = claim_args(worker, lease, count, None, least=0)
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
        return codec.decode_exchanged(name, worker, list(settlements), answer, due_in=due_in)

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
            for part in settlement_portions(mine, lambda one: one[1]):
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
        state = codec.decode_cancelled(job, answer)
        if isinstance(state, TowpathError):
            raise state
        return state

    async def cancel_many(self, queue: str, ids: Sequence[str]) -> list[State | TowpathError]:
        """Cancel jobs. Returns what `cancel` returns or raises for each, in order.

        Up to LARGEST_BATCH jobs are one atomic step and one round trip; more take several.
        """
        refs = [job_ref(queue, id) for id in ids]
        answers = await self._answer_each("cancel", refs)
        return [
            codec.decode_cancelled(ref, answer) for ref, answer in zip(refs, answers, strict=True)
        ]

    # ── jobs that no worker holds ────────────────────────────────────────────────────────

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
        moves = [
            [job.id, *codec.due_or_delay(due, delay), *([] if for_owner is None else [for_owner])]
        ]
        [answer] = await self._ask_existing("move", job.queue, moves, call)
        state = codec.decode_moved(job, answer)
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
        items = [[job_id(id), *_encode_time(time)] for id, time in moves.items()]
        _check_call(call, -(-len(items) // LARGEST_BATCH))
        for at in range(0, len(items), LARGEST_BATCH):
            some = items[at : at + LARGEST_BATCH]
            answers += await self._ask_existing("move", name, some, call)
        return [
            codec.decode_moved(JobRef(name, job_id(id)), answer)
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
        placed = codec.decode_placed(name, job.id, answer)
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
            codec.decode_placed(name, job.id, answer)
            for job, answer in zip(wanted, answers, strict=True)
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
            codec.STATES[answer] if isinstance(answer, bytes) else codec.decode_refusal(ref, answer)
            for ref, answer in zip(refs, answers, strict=True)
        ]

    async def drop(self, queue: str, lane: str, *, call: Call | None = None) -> JobRef:
        """Let a parked lane continue without its dead head. The head stays listed as dead.

        Returns that job. Raises LaneNotParked.
        """
        name, key = queue_name(queue), lane_key(lane)
        [answer] = await self._ask_existing("drop", name, [[key]], call)
        if answer[0] != b"dropped":
            raise LaneNotParked(name, key)
        return JobRef(name, answer[1].decode())

    # ── records of applications, streams, broadcasts ─────────────────────────────────────

    def space(self, name: str, scripts: Traversable) -> Space:
        """The space called *name*, with the scripts of a folder: one file each.

        An application asks for it when it starts, before or after the engine is entered. Raises
        InvalidName, and SpaceInvalid if another folder has the name, or if a script breaks a rule.
        """
        return self._spaces.get(name, scripts)

    async def publish(
        self, stream: str, entries: Sequence[Mapping[str, str | bytes]], *, cap: int
    ) -> list[str]:
        """Append *entries* to the stream `towpath:stream:<stream>`, all or none. Returns their ids.

        The stream keeps at least the last *cap* entries, and few more. If the call fails, the
        entries may have been appended: give each something by which a reader can tell a repeat. At
        most LARGEST_BATCH entries. Raises MemoryFull, ServerUnreachable and, before anything is
        sent, InvalidName, InvalidOption. One round trip.
        """
        keys, cap = stream_keys(stream_name(stream)), integer("cap", cap, 1, MOST_KEPT)
        if not 1 <= len(entries) <= LARGEST_BATCH:
            raise InvalidOption("entries", len(entries), rule=f"from 1 to {LARGEST_BATCH}")
        record = self._spaces.own.record(keys)
        ids: list[bytes] = await record.run(
            "append_entries", cap=cap, entries=list(map(flatten_entry, entries))
        )
        return [id.decode() for id in ids]

    async def broadcast(self, channel: str, message: bytes) -> int:
        """Send *message* to the current subscribers of *channel*. Returns how many there are, as
        far as Redis knows.

        Nothing is stored, and a message may arrive twice: for watching, never for work. Raises
        InvalidName, ServerUnreachable, and ServerRefused if the user may not publish there.
        """
        return await self._store.calls.command("PUBLISH", channel_name(channel), message)

    # ── the state of Redis ───────────────────────────────────────────────────────────────

    @property
    def facts(self) -> ServerFacts:
        """What Redis reported about itself when it was last asked: on entering, after each
        reconnect, and by `check`. Raises ServerUnreachable if it has never answered.
        """
        if not self._store.calls.was_opened:
            raise RuntimeError(NOT_ENTERED)
        return self._store.facts

    @property
    def goes_by_server_clock(self) -> bool:
        """Internal: whether due times follow the clock of Redis, and not the clock of a test."""
        return isinstance(self._clock, ServerClock)

    async def check(self) -> ServerFacts:
        """Ask Redis about itself now, for at most two seconds; on a cluster, every master.

        Raises ServerUnreachable, EvictionUnsafe, DurabilityUnknown, ServerRefused.
        """
        return await self._store.check()

    async def current_facts(self) -> ServerFacts:
        """What Redis reported about itself at most a second ago; it is asked again if need be.

        Settings may be changed while it runs. Raises as `check` does.
        """
        return await self._store.current_facts()

    async def try_write(self) -> None:
        """Check that Redis accepts a write. Leaves nothing behind. One round trip.

        On a cluster, checks the server of one slot. Raises ServerError.
        """
        await self._store.command("SET", PROBE, "1", "PX", 1)

    # ── how it is done ───────────────────────────────────────────────────────────────────

    async def _settle_one(self, settlement: Settlement, kind: type[T], call: Call | None) -> T:
        queue = settlement.lease.queue
        verb = codec.verb_of(settlement)

        def body(options: QueueOptions) -> Any:
            return [codec.settlement_item(settlement, options)[1:]]

        [answer] = await self._store.write(verb, queue, body, call)
        outcome = codec.decode_outcome(settlement.lease, answer)
        if isinstance(outcome, TowpathError):
            raise outcome
        if not isinstance(outcome, kind):
            raise ScriptDefect(f"{verb} answered {answer!r}")
        return outcome

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

    async def _change_one(
        self, verb: str, item: list[Any], job: JobRef, call: Call | None
    ) -> State:
        [answer] = await self._ask_existing(verb, job.queue, [item], call)
        if isinstance(answer, bytes):
            return codec.STATES[answer]
        raise codec.decode_refusal(job, answer)

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
        store, answers, steps = self._store, list[Any](), list(submit_portions(jobs))
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


def _encode_time(time: datetime | DurationLike) -> tuple[int, int]:
    if isinstance(time, datetime):
        return codec.due_or_delay(time, None)
    return codec.due_or_delay(None, time)


def _check_call(call: Call | None, steps: int) -> None:
    if call is not None and steps > 1:
        raise InvalidOption("call", call, rule=f"covers at most {LARGEST_BATCH} jobs")
