"""Why a job is not running, and how far it is from running, from one read of Redis.

`job_facts.lua` gathers the facts in one step, so that they agree with each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from towpath.clock import Duration, instant, milliseconds, seconds
from towpath.engine.states import State

if TYPE_CHECKING:
    from towpath.engine.model import JobInfo
    from towpath.engine.worker_registry import WorkerReport

Facts = dict[str, Any]

SILENT_MS = seconds(12).total_seconds() * 1000
"""Waiting claims ask every 5 s. If none has asked for this long, no worker has a free slot."""


_LONGEST_REASON = 200
_MOST_HANDLERS = 20
HANDLER_MISSING = "HandlerNotFound"
"""Why a worker could not run a job whose handler it does not have."""


class Why(StrEnum):
    """Why a job is not running."""

    LEASED = "leased"
    BEHIND_LANE = "behind_lane"
    LANE_PARKED = "lane_parked"
    NOT_DUE = "not_due"
    PAUSED = "paused"
    NO_WORKER = "no_worker"
    NO_HANDLER = "no_handler"
    """Workers that got it cannot run it: they lack its handler, or have it for another payload."""
    ALL_BUSY = "all_busy"
    BEHIND_OTHERS = "behind_others"
    NEXT = "next"
    NOT_QUEUED = "not_queued"
    """Its record is stored, but Redis does not have the job yet."""
    ENDED = "ended"


class Explanation(msgspec.Struct, frozen=True):
    """Why a job is not running."""

    why: Why
    text: str
    """The reason as a sentence."""


class Position(msgspec.Struct, frozen=True):
    """How far a job is from running."""

    ahead: int
    """Number of jobs before it: in the queue if it is ready, of its selector if it has one, in its
    lane if it waits there."""
    in_lane: bool
    wait: Duration | None
    """An estimate from recent service times. None if nothing was completed yet, if the queue is
    paused or has no worker, and for a job with a selector."""


def explain(
    job: JobInfo, facts: Facts, *, most: int | None = None, workers: Sequence[WorkerReport] = ()
) -> Explanation:
    """Why *job* is not running, as a word and a sentence. *most* is its limit of attempts.
    *workers* are the live workers; they are needed for a job that no worker could run.
    """
    match job.state:
        case State.READY:
            return _explain_ready(facts)
        case State.WAITING:
            return _explain_waiting(job, facts)
        case State.LEASED:
            return _explain_leased(job, facts)
        case State.DELAYED:
            return _explain_delayed(job, facts, job.max_attempts or most, workers)
        case _:
            # A done or cancelled job may have the reason of an earlier attempt, which says nothing.
            reason = f": {job.reason}" if job.state is State.DEAD and job.reason else ""
            return Explanation(Why.ENDED, f"{job.state} at {job.ended_at}{reason}")


def position(state: State, facts: Facts) -> Position | None:
    """Where a job in *state* stands, and about how long it will wait there."""
    match state:
        case State.READY:
            ahead, workers = int(facts["rank"]), max(1, int(facts["leased"]))
            return Position(ahead, False, _estimate_wait(ahead / workers, facts))
        case State.WAITING:
            ahead = int(facts["lane_rank"]) + 1
            return Position(ahead, True, _estimate_wait(ahead, facts))
        case _:
            return None


def _estimate_wait(turns: float, facts: Facts) -> Duration | None:
    """The time of *turns* jobs, one after the other; if all workers are busy, plus the time until
    one is free. None if the job has a selector, or if its queue is paused, has no worker, or has
    completed nothing yet.
    """
    if "service_ms" not in facts or "selector" in facts:
        return None
    if (obstacle := _obstacle(facts)) is not None:
        if obstacle.why is not Why.ALL_BUSY:
            return None
        turns += 1 / int(facts["leased"])
    return milliseconds(float(facts["service_ms"]) * turns)


def _explain_ready(facts: Facts) -> Explanation:
    if (obstacle := _obstacle(facts)) is not None:
        return obstacle
    if ahead := int(facts["rank"]):
        where = "among those of its selector" if "selector" in facts else "in the queue"
        return Explanation(Why.BEHIND_OTHERS, f"{_jobs(ahead)} before it {where}")
    return Explanation(Why.NEXT, "the next worker that asks gets it")


def _explain_waiting(job: JobInfo, facts: Facts) -> Explanation:
    holder, state = (facts.get(name, b"").decode() for name in ("holder", "holder_state"))
    ahead = int(facts["lane_rank"]) + 1
    if state == State.DEAD:
        text = f"lane {job.lane} is parked by dead job {holder}: retry or drop it"
        return Explanation(Why.LANE_PARKED, text)
    text = f"behind job {holder} of lane {job.lane}, which is {state}; {ahead} ahead"
    held = state == State.LEASED and _is_lasting(facts.get("holder_expires", 0), facts)
    obstacle = None if held else _obstacle(facts)
    return Explanation(Why.BEHIND_LANE, text if obstacle is None else f"{text}; {obstacle.text}")


def _explain_leased(job: JobInfo, facts: Facts) -> Explanation:
    if _is_lasting(facts["expires"], facts):
        asked = "; it was cancelled, and its worker is asked to stop"
        text = f"leased by {job.worker} until {job.expires_at}"
        return Explanation(Why.LEASED, text + (asked if job.cancel_requested else ""))
    return _explain_claimable(f"the lease of {job.worker} ended at {job.expires_at}", facts)


def _explain_delayed(
    job: JobInfo, facts: Facts, most: int | None, workers: Sequence[WorkerReport]
) -> Explanation:
    now, at = instant(int(facts["now"])), job.next_try_at or job.due_at
    if at is None or at <= now:
        return _explain_claimable(f"overdue since {job.due_at or at}", facts)
    if job.next_try_at is None:
        return Explanation(Why.NOT_DUE, f"due at {at}")
    if job.unhandled_since is not None:
        return _explain_unhandled(job, workers)
    of = f" of {most}" if most else ""
    failed = (
        f"attempt {job.attempts}{of} failed: {_in_one_line(job.reason)}; " if job.reason else ""
    )
    overdue = f"; it was due at {job.due_at}" if job.due_at and job.due_at <= now else ""
    return Explanation(Why.NOT_DUE, f"{failed}the next try may begin at {at}{overdue}")


def _explain_unhandled(job: JobInfo, workers: Sequence[WorkerReport]) -> Explanation:
    queue, name = job.ref.queue, job.headers.get("handler")
    asked = spell_handler(name)
    if is_payload := job.unhandled not in (None, HANDLER_MISSING):
        text = f"its payload does not fit {asked} of the workers that got it"
        text = f"{text} since {job.unhandled_since}: {_in_one_line(job.unhandled or '')}"
    else:
        text = f"the workers that got it since {job.unhandled_since} do not have {asked}"
    serving = [report for report in workers if report.may_serve(queue)]
    able = [report for report in serving if report.may_handle(queue, name)]
    if able and not is_payload:
        text = f"{text}; {len(able)} of {len(serving)} live workers of the queue have it"
    else:
        had = spell_handlers(serving, queue)
        text = f"{text}; live workers of the queue have: {had}"
    text = f"{text}; the next try may begin at {job.next_try_at}"
    limits = [report.unhandled_for_ms for report in serving if report.handlers is not None]
    if limits and job.unhandled_since:
        dies = job.unhandled_since + milliseconds(min(limits))
        text = f"{text}; dead from {dies} on unless a worker that can run it is alive by then"
    return Explanation(Why.NO_HANDLER, text)


def spell_handler(name: str | None) -> str:
    """The handler that a job needs, in words."""
    return f"handler {name!r}" if name else "a handler without a name"


def spell_handlers(workers: Iterable[WorkerReport], queue: str) -> str:
    """The handlers of *queue* that live workers report, as a list in words."""
    listed = {
        handler.name
        for report in workers
        for handler in report.handlers or ()
        if handler.queue == queue
    }
    named = sorted(repr(name) for name in listed if name is not None)
    if None in listed:
        named.append("one without a name")
    shown = named[:_MOST_HANDLERS]
    more = [f"{len(named) - len(shown)} more"] if named[_MOST_HANDLERS:] else []
    return ", ".join(shown + more) or "none"


def _in_one_line(reason: str) -> str:
    line = " ".join(reason.split())
    return line if len(line) <= _LONGEST_REASON else f"{line[: _LONGEST_REASON - 1]}…"


def _explain_claimable(what: str, facts: Facts) -> Explanation:
    """Explains a job that the next claim takes up: *what* happened, and what keeps claims away."""
    taken_up = Explanation(Why.NEXT, "the next worker that asks takes it up")
    obstacle = _obstacle(facts) or taken_up
    return Explanation(obstacle.why, f"{what}; {obstacle.text}")


def _obstacle(facts: Facts) -> Explanation | None:
    """What keeps all jobs of the queue, or of the job's selector, from being claimed. None if
    workers ask for jobs; a worker that holds as many jobs as it may does not count.
    """
    now, busy = int(facts["now"]), int(facts["leased"])
    asked = max(int(facts.get("asked_at", 0)), int(facts.get("asked_for", 0)))
    if (paused := int(facts.get("paused", 0))) > 0:
        return Explanation(Why.PAUSED, f"the queue has been paused since {instant(paused)}")
    if now - asked <= SILENT_MS:
        return None
    selector: str | None = facts["selector"].decode() if "selector" in facts else None
    if busy and asked:
        more = f"for selector {selector}" if selector else "for more"
        text = f"all workers are busy: {_jobs(busy)} leased, and no worker has asked {more} since"
        return Explanation(Why.ALL_BUSY, f"{text} {instant(asked)}")
    last = f"the last one asked at {instant(asked)}" if asked else "none has ever asked"
    of = f"selector {selector}" if selector else "this queue"
    return Explanation(Why.NO_WORKER, f"no worker is asking for jobs of {of}; {last}")


def _is_lasting(expires: Any, facts: Facts) -> bool:
    return int(expires) > int(facts["now"])


def _jobs(count: int) -> str:
    return "1 job is" if count == 1 else f"{count} jobs are"
