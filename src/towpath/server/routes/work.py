"""Work: claim, renew, complete, fail and release jobs, for workers in any language."""

from __future__ import annotations

from fastapi import APIRouter, Response

from towpath.clock import seconds
from towpath.engine.engine import Engine
from towpath.engine.leases import lease_by_token
from towpath.engine.model import Call, Lease, job_ref
from towpath.engine.states import State
from towpath.server.models import (
    ClaimedOut,
    ClaimIn,
    CompleteIn,
    FailIn,
    LeaseOut,
    ReleaseIn,
    RenewedOut,
    RenewIn,
    StateOut,
)
from towpath.telemetry.logs import scrub
from towpath.web.audit import audited
from towpath.web.auth import CanWork
from towpath.web.bodies import BodyRoute
from towpath.web.dependencies import ClaimRequest, Named, Repeatable, TheEngine, ThePoll
from towpath.web.fields import Id, Queue, encode_json
from towpath.web.problems import documented

router = APIRouter(prefix="/api/v1/queues/{queue}", tags=["work"], route_class=BodyRoute)
_OVER_HTTP = "http"
"""The worker's name in a lease that is built from its token."""


@router.post(
    "/claim",
    response_model=ClaimedOut,
    responses={204: {"description": "There is nothing to do."}, **documented(409)},
)
@audited("worker", "count", "lane", only_people=True)
async def claim(
    queue: Queue, body: ClaimIn, poll: ThePoll, named: Named, _: CanWork
) -> ClaimedOut | Response:
    """Lease up to `count` jobs: highest priority first, oldest first within it.

    With `selectors`, only jobs that have one of them. With `max_held`, the worker never holds more
    jobs than that. With `wait`, the request waits for a job. With an `Idempotency-Key`, a claim
    whose response was lost can be repeated: it returns the same jobs as far as they are still
    held, never new ones.
    """
    wish = ClaimRequest(
        queue=queue,
        worker=body.worker,
        lease=seconds(body.lease),
        count=body.count,
        wait=seconds(body.wait),
        lane=body.lane,
        selectors=body.selectors or (),
        max_held=body.max_held,
    )
    leases = await poll.claim(wish, named.call() if named else None)
    if not leases:
        return Response(status_code=204)
    return ClaimedOut(jobs=[LeaseOut.of(lease) for lease in leases])


@router.post("/jobs/{id}/renew", response_model=RenewedOut, responses=documented(404, 409))
@audited(only_people=True)
async def renew(queue: Queue, id: Id, body: RenewIn, engine: TheEngine, _: CanWork) -> RenewedOut:
    """Extend the lease by `lease` seconds from now; 409 once another worker has the job."""
    lease = _lease(queue, id, body.token)
    if body.progress is not None:
        await engine.progress(lease, encode_json(body.progress))
    renewed = await engine.renew(lease, seconds(body.lease))
    return RenewedOut.model_validate(renewed)


@router.post("/jobs/{id}/complete", response_model=StateOut, responses=documented(404, 409))
@audited(only_people=True)
async def complete(
    queue: Queue, id: Id, body: CompleteIn, engine: TheEngine, named: Named, _: CanWork
) -> StateOut:
    """Complete the job; `result` is kept as long as the job. A job can be completed only once."""
    result = encode_json(body.result) if body.result is not None else b""
    lease = _lease(queue, id, body.token)
    await engine.complete(lease, result, call=_call(named, "complete", lease))
    return StateOut(id=id, state=State.DONE)


@router.post("/jobs/{id}/fail", response_model=StateOut, responses=documented(404, 409))
@audited("dead", "delay", only_people=True)
async def fail(
    queue: Queue, id: Id, body: FailIn, engine: TheEngine, named: Named, _: CanWork
) -> StateOut:
    """Report a failed attempt: the job is `delayed`, or `dead` after its last attempt."""
    lease = _lease(queue, id, body.token)
    call = _call(named, "fail", lease)
    reason, traceback = body.reason, scrub(body.traceback)
    if body.dead:
        state = await engine.bury(lease, reason, traceback=traceback, call=call)
    elif body.delay is not None:
        delay = seconds(body.delay)
        state = await engine.fail(lease, reason, delay=delay, traceback=traceback, call=call)
    else:
        known = await _with_policy(engine, lease)
        state = await engine.fail(known, reason, traceback=traceback, call=call)
    return StateOut(id=id, state=state)


@router.post("/jobs/{id}/release", response_model=StateOut, responses=documented(404, 409))
@audited(only_people=True)
async def release(
    queue: Queue, id: Id, body: ReleaseIn, engine: TheEngine, named: Named, _: CanWork
) -> StateOut:
    """Give the job back, now or after `delay` seconds; the attempt does not count."""
    lease = _lease(queue, id, body.token)
    call = _call(named, "release", lease)
    state = await engine.release(lease, delay=seconds(body.delay), call=call)
    return StateOut(id=id, state=state)


def _call(named: Repeatable | None, verb: str, lease: Lease) -> Call | None:
    """The call with the request's name. It includes the lease, so that a name that is used for
    several jobs by mistake makes one call for each.
    """
    return named.call(f"{verb} {lease.token} {lease.id}".encode()) if named else None


def _lease(queue: str, id: str, token: int) -> Lease:
    """A lease with only its job and token: Redis knows the rest."""
    return lease_by_token(job_ref(queue, id), token, worker=_OVER_HTTP)


async def _with_policy(engine: Engine, lease: Lease) -> Lease:
    """The lease with the attempt's number and the job's retry policy, which decide the backoff."""
    job = await engine.inspect.job(lease.job)
    return lease_by_token(
        lease.job, lease.token, worker=_OVER_HTTP, attempt=job.attempts, retry=job.retry
    )
