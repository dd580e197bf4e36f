"""Converts the engine's values to the plain values of the oracle, and back."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from tests.model.values import (
    NO_OTHER_ATTEMPT,
    OPEN,
    Counts,
    HeldLease,
    JobSpec,
    JobSummary,
    Options,
    PlacedJob,
    Refusal,
    Renewed,
    SubmittedJob,
)
from towpath.clock import instant, milliseconds
from towpath.engine import inspect, model
from towpath.engine.model import NORMAL, JobInfo, JobOptions, Lease, NewJob
from towpath.engine.options import LanePolicy, QueueOptions
from towpath.engine.retry import Fixed, Never, RetryPolicy
from towpath.errors import LeaseLost, TowpathError
from towpath.ids import JobId

EPOCH = instant(0)


def refusal(error: TowpathError) -> Refusal:
    if isinstance(error, LeaseLost):
        return Refusal(error.code, error.current, error.state)
    return Refusal(error.code, state=getattr(error, "state", ""))


def options(options: Options) -> QueueOptions:
    return QueueOptions(
        max_attempts=options.max_attempts,
        max_deaths=options.max_deaths,
        retry=policy(options.retry),
        lanes=LanePolicy(options.lanes),
        keep=milliseconds(options.keep),
        keep_most=options.keep_most,
        keep_dead=milliseconds(options.keep_dead),
        keep_dead_most=options.keep_dead_most,
        remember=milliseconds(options.remember),
        remember_most=options.remember_most,
        max_length=options.max_length,
    )


def policy(retry: int) -> RetryPolicy:
    return Never() if retry == NO_OTHER_ATTEMPT else Fixed(milliseconds(retry))


def wait(policy: RetryPolicy | None) -> int | None:
    if isinstance(policy, Fixed):
        return policy.every // milliseconds(1)
    return None if policy is None else NO_OTHER_ATTEMPT


def asked(new: JobSpec) -> JobOptions:
    """The options of a submit, without id and payload; defaults are left out."""
    found = JobOptions()
    if new.priority != NORMAL:
        found["priority"] = new.priority
    if new.delay:
        found["delay"] = milliseconds(new.delay)
    if new.due:
        found["due"] = instant(new.due)
    if new.lane is not None:
        found["lane"] = new.lane
    if new.max_attempts is not None:
        found["max_attempts"] = new.max_attempts
    if new.retry is not None:
        found["retry"] = policy(new.retry)
    if new.lease is not None:
        found["lease"] = milliseconds(new.lease)
    if new.keep is not None:
        found["keep"] = milliseconds(new.keep)
    if new.selector is not None:
        found["selector"] = new.selector
    return found


def new_job(new: JobSpec) -> NewJob:
    """A new job. An unnamed job gets an id here all the same, so that a program can be repeated."""
    if new.named:
        return model.new_job(new.payload, **asked(new) | JobOptions(id=new.id))
    return model.new_job(new.payload, **asked(new))._replace(id=JobId(new.id))


def taken(answer: model.Submitted) -> SubmittedJob:
    return SubmittedJob(answer.id, answer.state, answer.existed, answer.same_payload)


def placed(answer: model.Placed) -> PlacedJob:
    return PlacedJob(answer.id, answer.state, answer.replaced)


def held(lease: Lease) -> HeldLease:
    return HeldLease(
        id=lease.id,
        payload=lease.payload,
        token=lease.token,
        attempt=lease.attempt,
        worker=lease.worker,
        expires=lease.expires_ms,
        submitted=lease.submitted_ms,
        priority=lease.priority,
        lane=lease.lane,
        due=lease.due_ms or None,
        next_try=lease.next_try_ms or None,
        max_attempts=lease.max_attempts,
        retry=wait(lease.retry),
        selector=lease.selector,
        unhandled_since=lease.unhandled_since_ms or None,
    )


def renewed(lease: Lease) -> Renewed:
    return Renewed(lease.expires_ms, lease.cancel_requested)


def outcome(outcome: model.Outcome) -> Any:
    if isinstance(outcome, TowpathError):
        return refusal(outcome)
    return renewed(outcome) if isinstance(outcome, Lease) else outcome


def counts(found: inspect.Counts) -> Counts:
    states = {state: getattr(found, state) for state in (*OPEN, "dead")}
    oldest = None if found.oldest is None else found.oldest // milliseconds(1)
    totals = {verb: n for verb, n in found.totals.items() if n and verb != "trimmed"}
    return Counts(states, found.kept, found.lanes, found.paused, oldest, totals)


def _brief(reason: str) -> str:
    """The reason without the engine's own text, which is for people."""
    word, _, _ = reason.partition(":")
    return word if word in ("LEASE_ENDED", "WORKERS_DIED") else reason


def view(job: JobInfo) -> JobSummary:
    reason = job.reason and _brief(job.reason)
    return JobSummary(
        id=job.id,
        state=job.state,
        priority=job.priority,
        lane=job.lane,
        selector=job.selector,
        attempts=job.attempts,
        deaths=job.deaths,
        max_attempts=job.max_attempts,
        submitted=ms(job.submitted_at) or 0,
        due=ms(job.due_at),
        next_try=ms(job.next_try_at),
        ended=ms(job.ended_at),
        worker=job.worker,
        token=job.token,
        cancel=job.cancel_requested,
        reason=reason,
        failures=[
            (ms(failure.at) or 0, failure.worker, _brief(failure.reason))
            for failure in job.failures
        ],
        unhandled_since=ms(job.unhandled_since),
        progress=job.progress,
    )


def ms(moment: datetime | None) -> int | None:
    return None if moment is None else (moment - EPOCH) // milliseconds(1)
