"""What the docs say that the engine does, in plain Python: the model with which it is compared.

Nothing here comes from towpath. Everything is a dictionary that is searched from end to end, so
that each rule can be read beside its sentence in the docs. Times are ms of one clock.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.model.oracle_places import Places
from tests.model.values import (
    NO_OTHER_ATTEMPT,
    OPEN,
    WAITS,
    Exchanged,
    HeldLease,
    IdsByTime,
    Job,
    JobSpec,
    Options,
    PlacedJob,
    Refusal,
    Renewed,
    Settle,
    SubmittedJob,
)

REAP_MOST = 100
PROMOTE_LEAST = 100
TRIM_EVERY = 1000


class Oracle(Places):
    """One queue: a method per verb, with the engine's answers as plain values."""

    # ── calls that may be repeated ───────────────────────────────────────────────────────

    def perform(self, channel: str, number: int, verb: str, **asked: Any) -> Any:
        """The answer to a call; a repeat has the same answer and no effect."""
        last, answer = self.calls.get(channel, (0, None))
        if number < last:
            return Refusal("call_stale")
        if number == last:
            return self._again(verb, answer)
        self.just_completed.clear()
        answer = getattr(self, verb)(**asked)
        self.calls[channel] = (number, answer)
        return answer

    def _again(self, verb: str, answer: Any) -> Any:
        """A repeated claim returns those of its leases that are still held."""
        if verb == "claim":
            return self._still_held(answer)
        if verb == "exchange":
            return Exchanged(answer.outcomes, self._still_held(answer.leases))
        return answer

    def _still_held(self, leases: list[HeldLease]) -> list[HeldLease]:
        held = [self._held(lease.id, lease.token) for lease in leases]
        return [self._answer(job) for job in held if isinstance(job, Job)]

    # ── submit ───────────────────────────────────────────────────────────────────────────

    def submit(self, jobs: list[JobSpec]) -> list[Any]:
        return [self._submit(new) for new in jobs]

    def _submit(self, new: JobSpec) -> SubmittedJob | Refusal:
        if known := self.find(new.id):
            return SubmittedJob(
                new.id, known.state, existed=True, same=known.new.payload == new.payload
            )
        if new.named and self.seen.get(new.id, 0) > self.now:
            return SubmittedJob(new.id, "gone", existed=True)
        if self._is_full():
            return Refusal("queue_full")
        self.totals["submitted"] += 1
        return SubmittedJob(new.id, self._take_in(new).state)

    def _is_full(self) -> bool:
        return 0 < self.options.max_length <= self.length()

    def _take_in(self, new: JobSpec) -> Job:
        tick = self._tick()
        job = self.jobs[new.id] = Job(new, submitted=self.now, tick=tick, turn=tick)
        due = new.due or self.now + new.delay
        job.due = due if due > self.now else None
        if self._take_lane(job):
            job.state = "delayed" if job.due else "ready"
        return job

    # ── claim and exchange ───────────────────────────────────────────────────────────────

    def claim(
        self,
        worker: str,
        lease: int,
        count: int,
        *,
        lane: str | None = None,
        selectors: tuple[str, ...] = (),
        max_held: int | None = None,
    ) -> list[HeldLease]:
        self._sweep(count, self._shelves())
        if max_held is not None:
            count = max(0, min(count, max_held - self.held_by(worker)))
        found = self._asked_for(selectors) if count else []
        if lane is not None:
            found = [job for job in found if self.holders.get(lane) == job.id]
        return [
            self._lease(job, worker, lease, counted=max_held is not None) for job in found[:count]
        ]

    def exchange(self, settlements: list[Settle], worker: str, lease: int, count: int) -> Exchanged:
        shelves = self._shelves()
        outcomes = [
            getattr(self, settlement.verb)(settlement.id, settlement.token, *settlement.rest)
            for settlement in settlements
        ]
        if count == 0:
            return Exchanged(outcomes, [])
        self._sweep(count, shelves)
        return Exchanged(
            outcomes, [self._lease(job, worker, lease) for job in self._asked_for()[:count]]
        )

    def _sweep(self, count: int, shelves: IdsByTime) -> None:
        limit = max(PROMOTE_LEAST, count)
        self._reap(REAP_MOST, shelves)
        self.promote(limit)
        if self.now - self.trimmed_at >= TRIM_EVERY:
            self._trim(2 * limit, shelves)
            self.trimmed_at = self.now

    def _asked_for(self, selectors: tuple[str, ...] = ()) -> list[Job]:
        """The jobs that a claim may get: with one of these selectors, or any."""
        if selectors:
            self.asked_for |= dict.fromkeys(selectors, self.now)
        else:
            self.asked_at = self.now
        found = [] if self.paused else self.ready()
        return [job for job in found if not selectors or job.new.selector in selectors]

    def _lease(self, job: Job, worker: str, lease: int, *, counted: bool = False) -> HeldLease:
        job.counted = counted
        self.last_token = max(self.last_token + 1, self.now * 1000)
        job.state, job.worker, job.token = "leased", worker, self.last_token
        job.attempts += 1
        job.expires = self.now + (job.new.lease or lease)
        return self._answer(job)

    def _answer(self, job: Job) -> HeldLease:
        new = job.new
        return HeldLease(
            id=job.id,
            payload=new.payload,
            token=job.token,
            attempt=job.attempts,
            worker=job.worker,
            expires=job.expires,
            submitted=job.submitted,
            priority=new.priority,
            lane=new.lane,
            due=job.asked_due,
            next_try=job.next_try,
            max_attempts=new.max_attempts,
            retry=new.retry,
            selector=new.selector,
            unhandled_since=job.unhandled_since,
        )

    # ── under a lease ────────────────────────────────────────────────────────────────────

    def _held(self, id: str, token: int) -> Job | Refusal:
        """The job, if this token is the current one, whatever the clock says."""
        job = self.find(id)
        if job is None:
            return Refusal("job_not_found")
        if job.state == "leased" and job.token == token:
            return job
        if job.state in ("done", "dead", "cancelled"):
            return Refusal(f"job_{job.state}")
        return Refusal("lease_lost", job.token, job.state)

    def holds(self, id: str, token: int) -> bool:
        return isinstance(self._held(id, token), Job)

    def renew(self, id: str, token: int, ttl: int) -> Renewed | Refusal:
        job = self._held(id, token)
        if isinstance(job, Refusal):
            return job
        job.expires = self.now + ttl
        return Renewed(job.expires, job.cancel)

    def progress(self, id: str, token: int, note: bytes) -> Refusal | None:
        job = self._held(id, token)
        if isinstance(job, Refusal):
            return job
        job.progress = note
        return None

    def complete(self, id: str, token: int, result: bytes) -> str | Refusal:
        job = self._held(id, token)
        if isinstance(job, Refusal):
            return "done" if self._completed(id, token) else job
        self.just_completed.add((id, token))
        job.result = result or None
        self.totals["completed"] += 1
        return self._end(job, "done")

    def _completed(self, id: str, token: int) -> bool:
        """Whether this very lease completed the job, as far as that is still remembered."""
        ended = self.find(id)
        kept = ended is not None and ended.state == "done" and ended.token == token
        return kept or (id, token) in self.just_completed

    def fail(
        self,
        id: str,
        token: int,
        delay: int | None,
        reason: str,
        keep_turn: bool = False,  # noqa: FBT001, FBT002 -- as programs have it
    ) -> str | Refusal:
        job = self._held(id, token)
        if isinstance(job, Refusal):
            return job
        self.totals["failed"] += 1
        if job.cancel:
            return self._cancel(job)
        self._note_failure(job, reason)
        if delay is None:
            delay = self.options.retry if job.new.retry is None else job.new.retry
        if delay == NO_OTHER_ATTEMPT or self._used_up(job):
            return self._bury(job, reason)
        job.reason, job.keep_turn = reason, keep_turn
        self._delay(job, delay)
        if self.options.lanes == "skip":
            self._leave_lane(job)
        return job.state

    def bury(self, id: str, token: int, reason: str) -> str | Refusal:
        return self.fail(id, token, NO_OTHER_ATTEMPT, reason)

    def release(self, id: str, token: int, delay: int, unhandled: str) -> str | Refusal:
        job = self._held(id, token)
        if isinstance(job, Refusal):
            return job
        self.totals["released"] += 1
        if job.cancel:
            return self._cancel(job)
        job.attempts -= 1
        since = self.now if unhandled == "anew" else job.unhandled_since or self.now
        job.unhandled_since = since if unhandled else None
        if unhandled:
            self.totals["unhandled"] += 1
        if delay:
            self._delay(job, delay)
        else:
            job.state = "ready"  # at its old place
        return job.state

    # ── without a lease ──────────────────────────────────────────────────────────────────

    def cancel(self, id: str) -> str | Refusal:
        """A running job is asked to stop; it is cancelled when its worker settles it."""
        job = self.find(id)
        if job is None:
            return Refusal("job_not_found")
        if job.state in ("done", "dead"):
            return Refusal(f"job_{job.state}")
        if job.state == "leased":
            job.cancel = True
        elif job.state != "cancelled":
            self._cancel(job)
        return job.state

    def move(self, moves: dict[str, tuple[str, int]]) -> list[str | Refusal]:
        return [self._move(id, kind, ms) for id, (kind, ms) in moves.items()]

    def _move(self, id: str, kind: str, ms: int) -> str | Refusal:
        """The job is delayed until then; in the past it is ready, and a ready job stays in its
        place.
        """
        job = self.find(id)
        if job is None:
            return Refusal("job_not_found")
        if job.state not in WAITS:
            return Refusal("job_not_waiting", state=job.state)
        due = max(self.now, ms if kind == "due" else self.now + ms)
        if job.state == "ready" and due == self.now:
            return job.state
        self.totals["moved"] += 1
        job.due, job.asked, job.keep_turn = due, None, False
        if job.state != "waiting":  # that one is delayed when it becomes the head
            if due > self.now:
                job.state = "delayed"
            elif self._take_lane(job):
                self._come_forward(job)
        return job.state

    def set(self, jobs: list[JobSpec]) -> list[PlacedJob | Refusal]:
        return [self._set(new) for new in jobs]

    def _set(self, new: JobSpec) -> PlacedJob | Refusal:
        """As if the old job had never been, except for the room that it takes in the queue."""
        old = self.find(new.id)
        state = old.state if old else ""
        if state == "leased":
            return Refusal("job_not_waiting", state=state)
        if state not in WAITS and self._is_full():
            return Refusal("queue_full")
        left = self.jobs.pop(new.id, None)
        if left is not None:
            self._leave_lane(left)
        self.totals["replaced" if state in WAITS else "submitted"] += 1
        return PlacedJob(new.id, self._take_in(new).state, state in WAITS)

    def reap(self, limit: int) -> int:
        return self._reap(limit, self._shelves())

    def _reap(self, limit: int, shelves: IdsByTime) -> int:
        """At most *limit* leases, including those that this very call has settled or renewed."""
        ended = [id for id, expires in shelves.leased.items() if expires <= self.now]
        ended.sort(key=lambda id: (shelves.leased[id], id))
        for job in [self.jobs[id] for id in ended[:limit] if id in self.jobs]:
            if job.state == "leased" and job.expires <= self.now:
                self._reap_one(job)
        return len(ended[:limit])

    def _reap_one(self, job: Job) -> None:
        self.totals["reaped"] += 1
        if job.cancel:
            self._cancel(job)
            return
        self._note_failure(job, "LEASE_ENDED")
        job.deaths += 1
        if self._used_up(job):
            self._bury(job, "LEASE_ENDED")
        elif job.deaths >= self.options.max_deaths:
            self._bury(job, "WORKERS_DIED")
        else:
            job.state, job.reason = "ready", "LEASE_ENDED"  # at its old place

    def promote(self, limit: int) -> int:
        """Due jobs become ready in the order of due times, then of submission, within a batch."""
        due = [job for job in self.jobs_in("delayed") if (job.due or 0) <= self.now]
        due.sort(key=lambda job: (job.due, job.id))
        batch = sorted(due[:limit], key=lambda job: (job.asked_due or job.due, job.tick))
        for job in batch:
            self.totals["promoted"] += 1
            if self._take_lane(job):
                if job.keep_turn:
                    job.state, job.keep_turn = "ready", False
                else:
                    self._come_forward(job)
        return len(batch)

    def retry(self, id: str) -> str | Refusal:
        job = self.find(id)
        if job is None:
            return Refusal("job_not_found")
        if job.state != "dead":
            return Refusal("job_not_dead", state=job.state)
        self.totals["retried"] += 1
        job.asked = job.due if job.asked is None else job.asked
        job.attempts, job.deaths, job.ended, job.due = 0, 0, None, None
        if self._take_lane(job):
            self._come_forward(job)
        return job.state

    def delete(self, id: str) -> Refusal | None:
        job = self.find(id)
        if job is None:
            return Refusal("job_not_found")
        if job.state in OPEN:
            return Refusal("job_open", state=job.state)
        self.totals["deleted"] += 1
        self._forget_later(job, 0)
        del self.jobs[id]
        self._leave_lane(job)
        return None

    def drop(self, lane: str) -> str | Refusal:
        """A parked lane goes on without its dead head."""
        holder = self.holders.get(lane)
        if holder is None or self.jobs[holder].state != "dead":
            return Refusal("lane_not_parked")
        self._advance(lane)
        return holder

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    # ── options ──────────────────────────────────────────────────────────────────────────

    def declare(self, wanted: dict[str, Any]) -> Options:
        """Each declared option takes effect if its value is still the one declared last; changes of
        operators stay.
        """
        held = {name: value for name, value in wanted.items() if self._as_declared(name)}
        self.declared |= wanted
        self.options = replace(self.options, **held)
        return self.options

    def reset(self, names: list[str]) -> Options:
        """Sets options to what was declared last, or to their defaults."""
        self.options = replace(self.options, **{name: self._base(name) for name in names})
        return self.options

    def _as_declared(self, name: str) -> bool:
        return getattr(self.options, name) == self._base(name)

    def _base(self, name: str) -> Any:
        return self.declared.get(name, getattr(Options(), name))

    def trim(self, limit: int) -> int:
        return self._trim(limit, self._shelves())
