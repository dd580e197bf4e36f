"""Inspections of a queue, answered from the oracle. Nothing here comes from towpath."""

from __future__ import annotations

import re

from tests.model.oracle import Oracle
from tests.model.values import STATES, Counts, Job, JobDetails, JobSummary, Refusal

NOBODY_ASKED_FOR = 12_000


def census(queue: Oracle) -> dict[str, list[JobSummary]]:
    """Every job in its state: the ready and the waiting in order, the others by id."""
    found = {state: sorted(queue.jobs_in(state), key=lambda job: job.id) for state in STATES}
    found["ready"] = queue.ready()
    found["waiting"].sort(key=lambda job: job.tick)
    return {state: [view(job) for job in jobs] for state, jobs in found.items()}


def counts(queue: Oracle) -> Counts:
    states = {state: len(queue.jobs_in(state)) for state in STATES}
    kept = states.pop("done") + states.pop("cancelled")
    heads = {job.new.priority: job.submitted for job in reversed(queue.ready())}
    oldest = queue.now - min(heads.values()) if heads else None
    dead = sorted(queue.jobs_in("dead"), key=lambda job: (job.dead_since, job.id))
    groups: dict[str, list[str]] = {}
    for job in dead:
        groups.setdefault(error_of(job.reason or ""), []).append(job.id)
    found = [job.id for job in reversed(dead) if SEARCHED in (job.reason or "").lower()]
    return Counts(
        states, kept, len(queue.holders), queue.paused, oldest, dict(queue.totals), groups, found
    )


SEARCHED = "broken"
_IN_FULL = {
    "LEASE_ENDED": "LEASE_ENDED: worker # was silent until its lease ended",
    "WORKERS_DIED": "WORKERS_DIED: # deliveries ended with the death of the worker",
}


def error_of(reason: str) -> str:
    """The first line, with numbers and ids masked."""
    line = _IN_FULL.get(reason) or reason.lstrip().partition("\n")[0]
    return re.sub(r"[A-Za-z0-9_-]+", _masked, line)[:120]


def _masked(word: re.Match[str]) -> str:
    has_digit = any(character.isdigit() for character in word[0])
    if word[0][0].isdigit() or (has_digit and len(word[0]) >= 12):
        return "#"
    return re.sub("[0-9]+", "#", word[0])


def look(queue: Oracle, id: str) -> JobDetails | Refusal:
    """Everything about one job."""
    job = queue.find(id)
    if job is None:
        return Refusal("job_not_found")
    expires = job.expires if job.state == "leased" else None
    ahead: int | None = None
    if job.state == "ready":
        ahead = queue.ready_before(job)
    elif job.state == "waiting":
        ahead = queue.waiting(job.new.lane or "").index(job) + 1
    why = _why(queue, job, ahead)
    return JobDetails(view(job), job.new.payload, job.result, expires, ahead, why)


def _why(queue: Oracle, job: Job, ahead: int | None) -> str:
    match job.state:
        case "waiting":
            holder = queue.jobs[queue.holders[job.new.lane or ""]]
            return "lane_parked" if holder.state == "dead" else "behind_lane"
        case "delayed" if (job.due or 0) > queue.now:
            return "no_handler" if job.unhandled_since and job.next_try else "not_due"
        case "leased" if job.expires > queue.now:
            return "leased"
        case "ready" | "delayed" | "leased":
            return _held_up(queue, job) or ("behind_others" if ahead else "next")
        case _:
            return "ended"


def _held_up(queue: Oracle, job: Job) -> str | None:
    if queue.paused:
        return "paused"
    asked = max(queue.asked_at, queue.asked_for.get(job.new.selector or "", 0))
    if queue.now - asked <= NOBODY_ASKED_FOR:
        return None
    busy = any(job.expires > queue.now for job in queue.jobs_in("leased"))
    return "all_busy" if busy and asked else "no_worker"


def moments(queue: Oracle) -> dict[str, list[int]]:
    """The instants at which something happens without a call, by its kind: each soonest first."""
    found = {
        "due": [job.due for job in queue.jobs_in("delayed")],
        "lease": [job.expires for job in queue.jobs_in("leased")],
        "gone": [job.gone_at for job in queue.jobs.values()],
        "dead": [job.dead_since + queue.options.keep_dead for job in queue.jobs_in("dead")],
        "seen": list(queue.seen.values()),
    }
    return {
        kind: sorted(ms for ms in times if ms and ms > queue.now) for kind, times in found.items()
    }


def view(job: Job) -> JobSummary:
    leased, new = job.state == "leased", job.new
    return JobSummary(
        id=job.id,
        state=job.state,
        priority=new.priority,
        lane=new.lane,
        selector=new.selector,
        attempts=job.attempts,
        deaths=job.deaths,
        max_attempts=new.max_attempts,
        submitted=job.submitted,
        due=job.asked_due,
        next_try=job.next_try if job.state in ("ready", "delayed", "waiting") else None,
        ended=job.ended,
        worker=job.worker if leased else None,
        token=job.token or None,
        cancel=job.cancel,
        reason=job.reason,
        failures=list(job.failures),
        unhandled_since=job.unhandled_since,
        progress=job.progress,
    )


def differences(found: dict[str, list[JobSummary]], wanted: dict[str, list[JobSummary]]) -> str:
    return "\n".join(
        f"{state}: engine {found[state]}, oracle {wanted[state]}"
        for state in wanted
        if found[state] != wanted[state]
    )
