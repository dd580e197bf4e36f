"""Jobs: submit, look, explain, list, cancel."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from pydantic import Field

from towpath.clock import ZERO, hours
from towpath.engine.batcher import LARGEST_BATCH
from towpath.engine.engine import Engine
from towpath.engine.model import JobOptions, NewJob, Submitted, job_ref, new_job
from towpath.engine.states import State
from towpath.errors import TowpathError
from towpath.server.auth import CanRead, CanSubmit
from towpath.server.models import (
    ExplanationOut,
    JobIn,
    JobOut,
    ManyOut,
    PageOut,
    RefusedOut,
    StateOut,
    SubmittedOut,
)
from towpath.server.parts import NamedCall, TheEngine
from towpath.server.problems import Refused, documented

KEEP = hours(1)
"""How long jobs that came over HTTP can be looked at, where their queue keeps nothing."""

router = APIRouter(prefix="/api/v1/queues/{queue}/jobs", tags=["jobs"])

Queue = Annotated[str, Path(max_length=64, examples=["thumbnails"])]
Id = Annotated[str, Path(max_length=512)]
Jobs = Annotated[list[JobIn], Field(max_length=LARGEST_BATCH, min_length=1)]
Listed = Annotated[State, Query(description="Which jobs.")]
After = Annotated[str | None, Query(max_length=2048, description="`after` of the last page.")]
Size = Annotated[int, Query(ge=1, le=1000)]


@router.post(
    "",
    status_code=202,
    response_model=SubmittedOut | ManyOut,
    responses={200: {"model": SubmittedOut, "description": "It existed."}, **documented(409)},
)
async def submit(
    queue: Queue,
    body: JobIn | Jobs,
    response: Response,
    engine: TheEngine,
    call: NamedCall,
    _: CanSubmit,
) -> SubmittedOut | ManyOut:
    """Take a job in, or a list of them (answered one by one, in order).

    The same id twice is one job: the second answer says `existed`, with status 200; other content
    under the same id is refused with 409.
    """
    if isinstance(body, list):
        jobs = [await _new(engine, queue, job) for job in body]
        answers = await engine.submit_many(queue, jobs, call=call)
        return ManyOut(jobs=[_listed(it) for it in answers])
    if call is not None:
        [answer] = await engine.submit_many(queue, [await _new(engine, queue, body)], call=call)
        return _one(queue, answer, response)
    # Alone and without a name it may share its round trip with others.
    submitted = await engine.submit(queue, body.data(), **await _options(engine, queue, body))
    return _one(queue, submitted, response)


@router.get("", response_model=PageOut, responses=documented())
async def list_jobs(
    queue: Queue,
    *,
    state: Listed,
    engine: TheEngine,
    _: CanRead,
    lane: Annotated[str | None, Query(max_length=512)] = None,
    after: After = None,
    size: Size = 100,
) -> PageOut:
    """A page of the jobs in a state, in the order they run (or ended). Payloads are left out."""
    page = await engine.list(queue, state, lane=lane, after=after, size=size)
    return PageOut(jobs=[JobOut.of(job) for job in page.jobs], after=page.after)


@router.get("/{id:path}/explain", response_model=ExplanationOut, responses=documented(404))
async def explain(queue: Queue, id: Id, engine: TheEngine, _: CanRead) -> ExplanationOut:
    """Why the job is not running, how many run before it, and about how long that takes."""
    ref = job_ref(queue, id)
    return ExplanationOut.of(await engine.explain(ref), await engine.position(ref))


@router.get("/{id:path}", response_model=JobOut, responses=documented(404))
async def look(queue: Queue, id: Id, engine: TheEngine, _: CanRead) -> JobOut:
    """The job as it is now, with payload, result and progress."""
    return JobOut.of(await engine.job(job_ref(queue, id)))


@router.delete("/{id:path}", response_model=StateOut, responses=documented(404, 409))
async def cancel(queue: Queue, id: Id, engine: TheEngine, _: CanSubmit) -> StateOut:
    """End a job that has not ended: `cancelled`, or `leased` if its worker was asked to stop."""
    ref = job_ref(queue, id)
    return StateOut(id=id, state=await engine.cancel(ref))


async def _new(engine: Engine, queue: str, job: JobIn) -> NewJob:
    return new_job(job.data(), **await _options(engine, queue, job))


async def _options(engine: Engine, queue: str, job: JobIn) -> JobOptions:
    options = job.options()
    if "keep" not in options and (await engine.known_options(queue)).keep == ZERO:
        options["keep"] = KEEP
    return options


def _one(queue: str, answer: Submitted | TowpathError, response: Response) -> SubmittedOut:
    if isinstance(answer, TowpathError):
        raise answer
    if answer.same_payload is False:
        raise Refused(
            409,
            "job_differs",
            f"job {answer.job} exists with another payload",
            remedy="Use another id, or send the same payload.",
        )
    response.headers["Location"] = f"/api/v1/queues/{queue}/jobs/{answer.id}"
    if answer.existed:
        response.status_code = 200
    return SubmittedOut.of(answer)


def _listed(answer: Submitted | TowpathError) -> SubmittedOut | RefusedOut:
    if isinstance(answer, TowpathError):
        return RefusedOut.of(answer)
    if answer.same_payload is False:
        return RefusedOut(
            error="job_differs",
            detail=f"job {answer.job} exists with another payload",
            remedy="Use another id, or send the same payload.",
        )
    return SubmittedOut.of(answer)
