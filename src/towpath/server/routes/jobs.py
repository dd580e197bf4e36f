"""Jobs: submit, read, explain, list, move, set, cancel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response
from pydantic import Discriminator, Field, Tag

from towpath.clock import ZERO, hours, seconds
from towpath.engine.batcher import LARGEST_BATCH
from towpath.engine.engine import Engine
from towpath.engine.inspect import Page
from towpath.engine.model import JobInfo, JobOptions, NewJob, Submitted, job_ref, new_job
from towpath.engine.states import State
from towpath.errors import InvalidInput, InvalidOption, JobNotFound, TowpathError
from towpath.ledger.keys.key import KeyInfo
from towpath.server.job_fields import options_in
from towpath.server.models import (
    CancelOut,
    ExplanationOut,
    JobIn,
    JobOut,
    JobUnfit,
    ListedJobIn,
    ManyOut,
    MoveIn,
    PageOut,
    PlacedOut,
    RefusedOut,
    StateOut,
    SubmittedOut,
)
from towpath.web.audit import audited
from towpath.web.auth import CanRead, CanSubmit, changes_only, hide_foreign
from towpath.web.bodies import BodyRoute
from towpath.web.dependencies import Named, Repeatable, TheEngine, TheJobs, readable
from towpath.web.fields import Id, Queue
from towpath.web.problems import documented

KEEP = hours(1)
"""How long ended jobs that came over HTTP are kept if their queue keeps none."""

router = APIRouter(prefix="/api/v1/queues/{queue}/jobs", tags=["jobs"], route_class=BodyRoute)

Jobs = Annotated[list[ListedJobIn], Field(max_length=LARGEST_BATCH, min_length=1)]
JobOrJobs = Annotated[
    Annotated[JobIn, Tag("job")] | Annotated[Jobs, Tag("list")],
    # Report validation errors for the matching variant only.
    Discriminator(lambda body: "list" if isinstance(body, list) else "job"),
]
Listed = Annotated[State, Query(description="The state of the jobs to list.")]
After = Annotated[
    str | None,
    Query(max_length=2048, description="The `after` value returned with the previous page."),
]
Size = Annotated[int, Query(ge=1, le=1000, description="Entries per page.")]
_LOCATION = {"Location": {"description": "URL of a single job.", "schema": {"type": "string"}}}


@router.post(
    "",
    status_code=202,
    response_model=SubmittedOut | ManyOut,
    responses={202: {"headers": _LOCATION}, **documented(409)},
)
@audited("id", "priority", "lane", "due", "delay", answer=("id",), only_people=True)
async def submit(
    queue: Queue,
    body: JobOrJobs,
    *,
    response: Response,
    engine: TheEngine,
    named: Named,
    key: CanSubmit,
) -> SubmittedOut | ManyOut:
    """Submit a job, or a list of jobs. The same id twice is one job: the second answer says
    `existed`. Other content under the same id, or under the same Idempotency-Key, is refused with
    409. A list is answered with one entry per job, in order: refused jobs have an error, the
    others are submitted. Jobs belong to the owner of the key.
    """
    if isinstance(body, list):
        answers = await _submit_all(engine, queue, body, key, named)
        return ManyOut(jobs=[_answer_entry(answer) for answer in answers])
    if named is not None:
        [answer] = await _submit_all(engine, queue, [body], key, named)
    else:
        # One job without an idempotency key can share its round trip with other submits.
        options = await _options(engine, queue, body, key)
        answer = await engine.submit(queue, body.data(), **options)
    submitted = _require_submitted(answer)
    response.headers["Location"] = _location(queue, submitted.id)
    return SubmittedOut.model_validate(submitted)


@router.get("", response_model=PageOut, responses=documented())
async def list_jobs(
    queue: Queue,
    *,
    state: Listed,
    jobs: TheJobs,
    request: Request,
    key: CanRead,
    lane: Annotated[str | None, Query(max_length=512, description="Only this lane.")] = None,
    after: After = None,
    size: Size = 100,
) -> PageOut:
    """List the jobs in a state, in the order they run or ended. Payloads are left out."""
    page = await jobs.list(queue, state, lane=lane, after=after, size=size)
    return page_out(page, request, key)


@router.get("/{id}/explain", response_model=ExplanationOut, responses=documented(404))
async def explain(queue: Queue, id: Id, jobs: TheJobs, _: CanRead) -> ExplanationOut:
    """Explain why the job is not running, how many jobs are ahead, and about how long it will
    wait."""
    return ExplanationOut.of(*await jobs.explain(job_ref(queue, id)))


@router.get("/{id}", response_model=JobOut, responses=documented(404))
async def look(queue: Queue, id: Id, request: Request, jobs: TheJobs, key: CanRead) -> JobOut:
    """Read a job with its payload, result and progress. They are left out if the job belongs to an
    application and to another owner: `content_hidden` says so. The scope `raw` shows them.
    """
    return job_out(await jobs.get(job_ref(queue, id)), request, key)


@router.patch("/{id}", response_model=StateOut, responses=documented(404, 409))
@audited("due", "delay")
async def move(queue: Queue, id: Id, body: MoveIn, jobs: TheJobs, key: CanSubmit) -> StateOut:
    """Move a waiting job to another due time. A job that is leased or has ended is refused with
    409, which has its `state`. A job of another owner needs the scope `manage`.
    """
    ref, delay = job_ref(queue, id), None if body.delay is None else seconds(body.delay)
    moving = jobs.move(ref, due=body.due, delay=delay, for_owner=changes_only(key))
    return StateOut(id=id, state=await hide_foreign(moving, key, JobNotFound(ref)))


@router.put(
    "/{id}",
    response_model=PlacedOut,
    responses={
        200: {"description": "It replaced a waiting job."},
        201: {"description": "Created.", "model": PlacedOut, "headers": _LOCATION},
        **documented(404, 409),
    },
)
@audited("priority", "lane", "due", "delay", answer=("replaced",))
async def set_job(
    queue: Queue,
    id: Id,
    *,
    body: JobIn,
    response: Response,
    engine: TheEngine,
    jobs: TheJobs,
    named: Named,
    key: CanSubmit,
) -> PlacedOut:
    """Create a job under this id, or replace the one that waits there. An ended job is created
    again. A job that is running is refused with 409. A job of another owner needs the scope
    `manage`; the new one belongs to the owner of the key.
    """
    options, data = await _options(engine, queue, body, key), body.data()
    if (other := options.setdefault("id", id)) != id:
        raise InvalidOption("id", other, rule="must equal the one in the path, or be left out")
    call = named.call(repr(new_job(data, **options)).encode()) if named else None
    placed = await jobs.set(queue, data, for_owner=changes_only(key), call=call, **options)
    if not placed.replaced:
        response.status_code = 201
        response.headers["Location"] = _location(queue, id)
    return PlacedOut(id=placed.id, state=placed.state, replaced=placed.replaced)


@router.post("/{id}/cancel", response_model=CancelOut, responses=documented(404, 409))
@router.delete("/{id}", response_model=CancelOut, responses=documented(404, 409), deprecated=True)
@audited(answer=("state",))
async def cancel(queue: Queue, id: Id, jobs: TheJobs, key: CanSubmit) -> CancelOut:
    """Cancel a job that has not ended: it is `cancelled`, or stays `leased` until its worker
    stops. A job of another owner needs the scope `manage`."""
    ref = job_ref(queue, id)
    cancelling = jobs.cancel(ref, for_owner=changes_only(key))
    state = await hide_foreign(cancelling, key, JobNotFound(ref))
    return CancelOut(id=id, state=state, cancel_requested=state is State.LEASED)


def job_out(job: JobInfo, request: Request, key: KeyInfo) -> JobOut:
    """*job*, without the content that *key* may not read."""
    shown = readable(request, key, job)
    return JobOut.of(shown, content_hidden=shown is not job)


def page_out(page: Page, request: Request, key: KeyInfo) -> PageOut:
    """A page of jobs, without the content that *key* may not read."""
    return PageOut(jobs=[job_out(job, request, key) for job in page.jobs], after=page.after)


def _location(queue: str, id: str) -> str:
    return f"/api/v1/queues/{queue}/jobs/{quote(id, safe='')}"


async def _submit_all(
    engine: Engine,
    queue: str,
    jobs: Sequence[JobIn | JobUnfit],
    key: KeyInfo,
    named: Repeatable | None,
) -> list[Submitted | TowpathError]:
    """The answers for *jobs*, in order. Invalid jobs are not sent, and get their error."""
    made = [
        await _new(engine, queue, job, key, id=named.job_id(place) if named else None)
        for place, job in enumerate(jobs)
    ]
    fit = [job for job in made if isinstance(job, NewJob)]
    call = named.call(b"\n".join(repr(job).encode() for job in fit)) if named else None
    answers = iter(await engine.submit_many(queue, fit, call=call) if fit else [])
    return [next(answers) if isinstance(job, NewJob) else job for job in made]


async def _new(
    engine: Engine,
    queue: str,
    job: JobIn | JobUnfit,
    key: KeyInfo,
    *,
    id: str | None,
) -> NewJob | TowpathError:
    if isinstance(job, JobUnfit):
        return job
    try:
        options = await _options(engine, queue, job, key)
        if id is not None:
            options.setdefault("id", id)
        return new_job(job.data(), **options)
    except InvalidInput as error:
        return error


async def _options(engine: Engine, queue: str, job: JobIn, key: KeyInfo) -> JobOptions:
    options = options_in(job)
    options["owner"] = key.owner
    if "keep" not in options and (await engine.queues.known_options(queue)).keep == ZERO:
        options["keep"] = KEEP
    return options


def _require_submitted(answer: Submitted | TowpathError) -> Submitted:
    """The submitted job. Raises its error if it was refused."""
    if isinstance(answer, TowpathError):
        raise answer
    return answer.checked()


def _answer_entry(answer: Submitted | TowpathError) -> SubmittedOut | RefusedOut:
    try:
        return SubmittedOut.model_validate(_require_submitted(answer))
    except TowpathError as error:
        return RefusedOut.of(error)
