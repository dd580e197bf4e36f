"""The states and places of a queue's jobs: part of the oracle.

Nothing here comes from towpath.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.model.values import IdsByTime, Job, Options


@dataclass
class Places:
    """The jobs of one queue."""

    options: Options
    now: int
    declared: dict[str, Any] = field(default_factory=dict[str, Any])
    """What programs declared of the options last, by name."""
    jobs: dict[str, Job] = field(default_factory=dict[str, Job])
    holders: dict[str, str] = field(default_factory=dict[str, str])
    """Lane -> the one job of it that is in the open."""
    seen: dict[str, int] = field(default_factory=dict[str, int])
    """Ids that callers chose -> the time to forget them."""
    calls: dict[str, tuple[int, Any]] = field(default_factory=dict[str, tuple[int, Any]])
    totals: Counter[str] = field(default_factory=Counter[str])
    paused: bool = False
    asked_at: int = 0
    asked_for: dict[str, int] = field(default_factory=dict[str, int])
    """Selectors -> when they were last asked for by name."""
    trimmed_at: int = 0
    last_tick: int = 0
    last_token: int = 0
    just_completed: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    """By this very call: id and token."""

    # ── finding jobs ────────────────────────────────────────────────────────────────────────

    def find(self, id: str) -> Job | None:
        """The job, unless its retention is over."""
        job = self.jobs.get(id)
        return None if job is None or self._is_over(job) else job

    def _is_over(self, job: Job) -> bool:
        return job.gone_at is not None and job.gone_at <= self.now

    def jobs_in(self, state: str) -> list[Job]:
        return [job for job in self.jobs.values() if job.state == state and not self._is_over(job)]

    def ready(self) -> list[Job]:
        """The ready jobs in the order in which they are claimed."""
        return sorted(self.jobs_in("ready"), key=lambda job: (-job.new.priority, job.turn))

    def ready_before(self, job: Job) -> int:
        """How many jobs are before it: of its selector if it has one, or of all."""
        selector = job.new.selector
        return [other for other in self.ready() if selector in (None, other.new.selector)].index(
            job
        )

    def held_by(self, worker: str) -> int:
        """How many leases a worker holds of those that it claimed with a limit."""
        return len([job for job in self.jobs_in("leased") if job.counted and job.worker == worker])

    def waiting(self, lane: str) -> list[Job]:
        """The jobs behind the head of *lane*, in the order of submission."""
        behind = [job for job in self.jobs_in("waiting") if job.new.lane == lane]
        return sorted(behind, key=lambda job: job.tick)

    def length(self) -> int:
        return sum(len(self.jobs_in(state)) for state in ("ready", "delayed", "waiting"))

    # ── order and lanes ──────────────────────────────────────────────────────────────────

    def _tick(self) -> int:
        self.last_tick = max(self.now, self.last_tick + 1)
        return self.last_tick

    def _delay(self, job: Job, delay: int) -> None:
        """Delays a job until its next attempt; its due time stays as it was asked for."""
        job.asked = (job.due or 0) if job.asked is None else job.asked
        job.state, job.due = "delayed", self.now + delay

    def _come_forward(self, job: Job) -> None:
        """Makes a job ready behind all ready jobs, or delayed if its time has not come."""
        if job.due is not None and job.due > self.now:
            job.state = "delayed"
        else:
            job.state, job.turn = "ready", self._tick()

    def _take_lane(self, job: Job) -> bool:
        """Whether the job may leave its lane; otherwise it waits at its place in the order of
        submission.
        """
        lane = job.new.lane
        if lane is None or self.holders.setdefault(lane, job.id) == job.id:
            return True
        job.state = "waiting"
        return False

    def _leave_lane(self, job: Job) -> None:
        lane = job.new.lane
        if lane is not None and self.holders.get(lane) == job.id:
            self._advance(lane)

    def _advance(self, lane: str) -> None:
        del self.holders[lane]
        if behind := self.waiting(lane):
            self.holders[lane] = behind[0].id
            self._come_forward(behind[0])

    # ── how a job ends ──────────────────────────────────────────────────────────────────────

    def _end(self, job: Job, state: str) -> str:
        keep = self.options.keep if job.new.keep is None else job.new.keep
        self._forget_later(job, keep)
        job.unhandled_since = None
        job.state, job.ended, job.gone_at = state, self.now, self.now + keep
        if not keep:
            del self.jobs[job.id]
        self._leave_lane(job)
        return state

    def _cancel(self, job: Job) -> str:
        self.totals["cancelled"] += 1
        return self._end(job, "cancelled")

    def _note_failure(self, job: Job, reason: str) -> None:
        job.failures = [*job.failures, (self.now, job.worker, reason)][-5:]
        job.unhandled_since = None

    def _bury(self, job: Job, reason: str) -> str:
        self.totals["died"] += 1
        job.state, job.reason = "dead", reason
        job.ended = job.dead_since = self.now
        if self.options.lanes != "park":
            self._leave_lane(job)
        return "dead"

    def _forget_later(self, job: Job, keep: int) -> None:
        if job.new.named:
            self.seen[job.id] = self.now + keep + self.options.remember

    def _used_up(self, job: Job) -> bool:
        holds = job.new.lane is not None and self.options.lanes != "skip"
        usual = self.options.max_attempts or (10 if holds else 20)
        return job.attempts >= (job.new.max_attempts or usual)

    # ── retention ────────────────────────────────────────────────────────────────────────

    def _shelves(self) -> IdsByTime:
        kept = {job.id: job.gone_at for job in self.jobs.values() if job.gone_at is not None}
        dead = {job.id: job.dead_since for job in self.jobs_in("dead")}
        leased = {job.id: job.expires for job in self.jobs_in("leased")}
        return IdsByTime(leased, kept, dead, dict(self.seen))

    def _trim(self, limit: int, shelves: IdsByTime) -> int:
        """Removes jobs that are too old; if there are none, those beyond the number that is
        kept.
        """
        options = self.options
        kept = _outdated(shelves.kept, self.now, options.keep_most, limit)
        old = self.now - options.keep_dead
        dead = _outdated(shelves.dead, old, options.keep_dead_most, limit)
        seen = _outdated(shelves.seen, self.now, options.remember_most, limit)
        for id in seen:
            if self.seen[id] == shelves.seen[id]:
                del self.seen[id]
        for id in kept:
            del self.jobs[id]
        gone = [id for id in dead if self._trim_dead(self.jobs[id])]
        return len(kept) + len(gone) + len(seen)

    def _trim_dead(self, job: Job) -> bool:
        """A dead head that parks its lane stays until it is retried, dropped or deleted."""
        if job.new.lane is not None and self.holders.get(job.new.lane) == job.id:
            job.dead_since = self.now
            return False
        del self.jobs[job.id]
        self._forget_later(job, 0)
        return True


def _outdated(times: dict[str, int], before: int, most: int, limit: int) -> list[str]:
    order = sorted(times, key=lambda id: (times[id], id))
    old = [id for id in order if times[id] <= before]
    return old[:limit] or order[: min(limit, max(0, len(order) - most))]
