"""Issues over HTTP: add and read them; for agents: request, hold and end a task."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Response
from pydantic import BeforeValidator, Field

from towpath.apps.issues.assignment import TaskRequest
from towpath.apps.issues.forms import (
    CompleteTaskIn,
    DeliveredOut,
    EndedOut,
    FailTaskIn,
    HeartbeatIn,
    HeldTaskOut,
    IssueExplanationOut,
    IssueIn,
    IssueOut,
    IssueQuery,
    IssuesOut,
    ReleaseTaskIn,
    RequestIn,
    TakeAwayIn,
    TaskOut,
)
from towpath.apps.issues.model import ISSUES, NUMBER_MOST, Task
from towpath.apps.issues.service import EndedTask, HeldTask, IssueExplanation, Issues
from towpath.apps.issues.webhooks import EVENTS, IssueWebhook, read_github
from towpath.clock import seconds
from towpath.forges import github
from towpath.forges.facts import Ignored
from towpath.ledger.keys.key import KeyInfo, Scope
from towpath.web.application_routes import ApplicationRoutes, forge_listener
from towpath.web.audit import audited, not_audited
from towpath.web.auth import scoped
from towpath.web.bodies import BodyRoute
from towpath.web.dependencies import Named, ThePoll, service
from towpath.web.fields import Id, decoded
from towpath.web.problems import documented

router = APIRouter(prefix="/api/v1", tags=["issues"], route_class=BodyRoute)

TheIssues = Annotated[Issues, Depends(service("issues"))]
CanSubmit = Annotated[KeyInfo, Depends(scoped(Scope.SUBMIT, queue=ISSUES))]
CanRead = Annotated[KeyInfo, Depends(scoped(Scope.READ, queue=ISSUES))]
CanWork = Annotated[KeyInfo, Depends(scoped(Scope.WORK, queue=ISSUES))]
CanAdmin = Annotated[KeyInfo, Depends(scoped(Scope.ADMIN, queue=ISSUES))]
Repository = Annotated[
    str,
    Field(max_length=255),
    BeforeValidator(decoded),
    Path(examples=["octo%2Frepo"], description="`owner/name`; its slash is written %2F."),
]
InPath = Annotated[int, Path(ge=1, le=NUMBER_MOST, examples=[12])]


# ── issues ───────────────────────────────────────────────────────────────────────────────


@router.post("/issues", response_model=IssueOut, responses=documented())
@audited("repository", "number", only_people=True)
async def put(body: IssueIn, issues: TheIssues, _: CanSubmit) -> IssueOut:
    """Add an issue, or update it. Repeating the request changes nothing."""
    return IssueOut.of(await issues.put(body.facts()))


@router.get("/issues", response_model=IssuesOut, responses=documented())
async def list_issues(
    issues: TheIssues, _: CanRead, which: Annotated[IssueQuery, Query()]
) -> IssuesOut:
    """List issues by repository and number: which are free, and who holds which."""
    page = await issues.list(**which.model_dump())
    return IssuesOut(issues=[IssueOut.of(issue) for issue in page.issues], after=page.after)


@router.get("/issues/{repository}/{number}", response_model=IssueOut, responses=documented(404))
async def look(repository: Repository, number: InPath, issues: TheIssues, _: CanRead) -> IssueOut:
    """Read an issue."""
    return IssueOut.of(await issues.get(repository, number))


@router.get(
    "/issues/{repository}/{number}/explain",
    response_model=IssueExplanationOut,
    responses=documented(404),
)
async def explain(
    repository: Repository, number: InPath, issues: TheIssues, _: CanRead
) -> IssueExplanation:
    """Explain why the issue is not handed out, or who holds it."""
    return await issues.explain(repository, number)


@router.post(
    "/issues/{repository}/{number}/release",
    response_model=IssueOut,
    responses=documented(404, 409),
)
@audited("reason")
async def take_away(
    repository: Repository, number: InPath, body: TakeAwayIn, issues: TheIssues, _: CanAdmin
) -> IssueOut:
    """Take the issue away from its agent and offer it again. An issue that was given up or
    completed is offered again, too. 409 if there is nothing to release.
    """
    return IssueOut.of(await issues.take_away(repository, number, reason=body.reason))


# ── tasks ────────────────────────────────────────────────────────────────────────────────


@router.post(
    "/request-task",
    response_model=TaskOut,
    responses={204: {"description": "There is no task for this agent now."}, **documented(409)},
)
@audited("agent_id", answer=("task_id",), only_people=True)
async def request_task(
    body: RequestIn, issues: TheIssues, poll: ThePoll, named: Named, key: CanWork
) -> Task | Response:
    """Get the best task for the agent and hold it: no other agent gets it meanwhile. With `wait`,
    the request waits for a task. With an `Idempotency-Key`, a request whose response was lost can
    be repeated: it returns the same task as long as it is held.
    """
    request = TaskRequest(
        agent=body.agent_id, roles=tuple(body.roles), repositories=tuple(body.repositories)
    )
    wait, call = seconds(body.wait), named.call() if named else None
    owner = issues.access(key).owner or None
    asking = issues.assignment.request(request, wait=wait, call=call, owner=owner)
    task = await poll.while_connected(asking, issues.give_back, waits=bool(body.wait))
    return Response(status_code=204) if task is None else task


@router.post("/tasks/{id}/heartbeat", response_model=HeldTaskOut, responses=documented(404, 409))
@not_audited("it changes nothing but the time until which the task is held")
async def heartbeat(id: Id, body: HeartbeatIn, issues: TheIssues, key: CanWork) -> HeldTask:
    """Hold the task longer. 409 for an agent that no longer holds it; `holder` and `expires_at`
    say who does.
    """
    return await issues.heartbeat(id, body.token, agent=body.agent_id, access=issues.access(key))


@router.post("/tasks/{id}/complete", response_model=EndedOut, responses=documented(404, 409))
@audited("agent_id", only_people=True)
async def complete(id: Id, body: CompleteTaskIn, issues: TheIssues, key: CanWork) -> EndedTask:
    """Complete the task. Safe to repeat."""
    return await issues.complete(
        id,
        body.token,
        agent=body.agent_id,
        result=body.result,
        pr_number=body.pr_number,
        access=issues.access(key),
    )


@router.post("/tasks/{id}/fail", response_model=EndedOut, responses=documented(404, 409))
@audited("agent_id", only_people=True)
async def fail(id: Id, body: FailTaskIn, issues: TheIssues, key: CanWork) -> EndedTask:
    """Report a failed attempt: the issue is offered again after a pause, or given up after the
    last attempt."""
    return await issues.fail(
        id, body.token, reason=body.reason, agent=body.agent_id, access=issues.access(key)
    )


@router.post("/tasks/{id}/release", response_model=EndedOut, responses=documented(404, 409))
@audited("agent_id", only_people=True)
async def release(id: Id, body: ReleaseTaskIn, issues: TheIssues, key: CanWork) -> EndedTask:
    """Give the task back: it is offered again, now or from a given time on."""
    return await issues.release(
        id,
        body.token,
        reason=body.reason,
        not_before=body.not_before,
        agent=body.agent_id,
        access=issues.access(key),
    )


# ── webhooks ─────────────────────────────────────────────────────────────────────────────


async def _apply_webhook(issues: Issues, webhook: IssueWebhook | Ignored) -> DeliveredOut:
    changed, ignored = await issues.webhooks.apply(webhook)
    return DeliveredOut(issues=changed, ignored=ignored or None)


_GITHUB = forge_listener(
    github.FORGE,
    application="issues",
    events=EVENTS,
    repeated="has no effect",
    read=read_github,
    take=_apply_webhook,
    answer=DeliveredOut,
    about="Issues are saved and handed out to agents.",
)
ROUTES = ApplicationRoutes(
    routers=(router,),
    listeners=(_GITHUB,),
    tags={"issues": "Issues for agents; each issue has one agent at a time."},
)
