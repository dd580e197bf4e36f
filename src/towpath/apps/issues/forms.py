"""Issues over HTTP: what requests and answers look like."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from towpath.apps.issues.model import (
    BODY_MOST,
    NUMBER_MOST,
    Facts,
    Issue,
    IssueSource,
    IssueState,
    ReviewDelay,
    Task,
    TaskType,
)
from towpath.apps.issues.service import (
    LARGEST_PAGE,
    RESULT_MOST,
    EndedTask,
    HeldTask,
    IssueExplanation,
)
from towpath.clock import instant, wall_ms
from towpath.web.fields import Answer, Body, InSeconds, Instant, Token, answer_from, example

WAIT_MOST = 60.0
Name = Annotated[str, Field(min_length=1, max_length=255)]
Words = Annotated[str, Field(max_length=RESULT_MOST)]
Number = Annotated[int, Field(ge=1, le=NUMBER_MOST, strict=True)]
AgentId = Annotated[str, Field(min_length=1, max_length=64)]
Names = Annotated[list[Name], Field(max_length=100)]
Labels = Annotated[list[Annotated[str, Field(max_length=100)]], Field(max_length=100)]
_TASK = "octo~repo~12~1"


class IssueIn(Body):
    """An issue of any tracker, as it is now."""

    model_config = example(
        repository="octo/repo", number=12, title="It breaks", labels=["P1"], state="open"
    )

    repository: Name
    """The repository, as `owner/name`."""
    number: Number
    """Number of the issue in its repository."""
    title: Annotated[str, Field(max_length=2000)] = ""
    body: Annotated[str, Field(max_length=BODY_MOST)] = ""
    labels: Labels = Field(default_factory=list)
    """Labels; the policy derives priority, role and task type from them."""
    url: Annotated[str, Field(max_length=2000)] = ""
    """URL of its web page."""
    state: Annotated[str, Field(pattern="^(open|closed)$")] = "open"
    """`open` or `closed`."""
    assignees: Names = Field(default_factory=list)
    """People who work on the issue; an assigned issue is not handed out."""

    def facts(self) -> Facts:
        """Raises IssueInvalid."""
        return Facts(
            repository=self.repository,
            number=self.number,
            title=self.title,
            body=self.body,
            labels=tuple(self.labels),
            url=self.url,
            state=IssueState(self.state),
            assignees=tuple(self.assignees),
        )


class IssueOut(Answer):
    """An issue."""

    id: str
    """`owner/name#number`, in lower case."""
    repository: str
    number: int
    title: str
    url: str
    labels: list[str]
    state: IssueState
    source: IssueSource
    """Where the issue comes from."""
    assignable: bool
    """Whether an agent can get it now."""
    offered_at: datetime | None
    """When agents can get it, if that is later: after its review delay, or after the pause that
    follows a task which failed, was released, or was refused by GitHub."""
    withheld: str | None
    """Why it is not handed out, in one word; null if it is."""
    why: str | None
    """The same reason as a sentence."""
    task_type: TaskType
    role: str
    """The role that an agent needs."""
    priority: int
    """0 to 100; higher is handed out first."""
    task_id: str | None
    """The id of its task, if it has one."""
    holder: str | None
    """The agent that holds it; null if none does."""
    held_since: datetime | None
    """When the agent got it."""
    expires_at: datetime | None
    """When the agent loses it unless it sends a heartbeat."""
    branch: str | None
    """The branch created for it."""
    pr_number: int | None
    """Number of its pull request."""
    outcome: str | None
    """The outcome of its last task."""
    found_at: datetime | None
    """When it was first seen to need a review."""
    review_status: ReviewDelay | None
    """Whether its review delay is over; null if it has none."""

    @classmethod
    def of(cls, issue: Issue) -> IssueOut:
        now = wall_ms()
        rests = issue.due > now and not (issue.withheld or issue.held)
        return cls(
            id=issue.id,
            repository=issue.repository,
            number=issue.number,
            title=issue.title,
            url=issue.url,
            labels=list(issue.labels),
            state=issue.state,
            source=issue.source,
            assignable=issue.assignable_at(now),
            offered_at=instant(issue.due) if rests else None,
            withheld=issue.withheld or None,
            why=issue.why or None,
            task_type=issue.task_type,
            role=issue.role,
            priority=issue.priority,
            task_id=issue.task_id or None,
            holder=issue.agent or None,
            held_since=instant(issue.held_since) if issue.held else None,
            expires_at=instant(issue.expires) if issue.held else None,
            branch=issue.branch or None,
            pr_number=issue.pr_number,
            outcome=issue.outcome or None,
            found_at=issue.found_at,
            review_status=issue.review_status,
        )


class IssuesOut(Answer):
    """A page of issues, sorted by repository and number."""

    issues: list[IssueOut]
    after: str | None
    """Pass it as `after` to get the next page; null on the last page."""


class IssueQuery(Body):
    """Which issues."""

    repository: Name | None = None
    """Only issues of this repository, as `owner/name`."""
    state: IssueState | None = None
    """Only issues in this state."""
    assignable: bool | None = None
    """true: only issues that agents can get now; false: only the others."""
    agent: AgentId | None = None
    """Only issues that this agent holds."""
    after: Annotated[str, Field(max_length=300)] | None = None
    """The `after` value returned with the previous page."""
    size: Annotated[int, Field(ge=1, le=LARGEST_PAGE)] = 50


class IssueExplanationOut(answer_from(IssueExplanation)):
    """Why an issue is not handed out."""


class RequestIn(Body):
    """A request for a task."""

    model_config = example(agent_id="agent-7", roles=["developer"], wait=30)

    agent_id: AgentId
    """The agent's name: 1 to 64 letters, digits and `._@:+-`."""
    roles: Names = Field(default_factory=list)
    """The agent's roles; empty = any role."""
    repositories: Names = Field(default_factory=list)
    """Repositories that the agent works on, as `owner/name`; empty = all."""
    wait: Annotated[float, Field(ge=0, le=WAIT_MOST, strict=True, allow_inf_nan=False)] = 0
    """Seconds to wait for a task if none is free."""


class TaskOut(answer_from(Task)):
    """A task that the agent now holds. Strangers wrote its title, body and labels."""

    model_config = example(
        repository="octo/repo",
        issue_number=12,
        url="https://github.com/octo/repo/issues/12",
        title="It breaks",
        body="Always.",
        labels=["P1"],
        branch="issue-12",
        role="developer",
        task_type="development",
        task_id=_TASK,
        token=1794771968716192,
        expires_at="2026-01-01T10:10:00Z",
        pr_number=None,
    )


class HeldTaskIn(Body):
    """A request of an agent about its task."""

    token: Token
    agent_id: AgentId | None = None
    """The agent's name; if given, it must be the one that holds the task."""


class HeartbeatIn(HeldTaskIn):
    """A heartbeat of an agent."""

    model_config = example(token=1794771968716192)


class CompleteTaskIn(HeldTaskIn):
    """A task that is done."""

    model_config = example(token=1794771968716192, result="done", pr_number=31)

    result: Words = ""
    """What was done, in one or two lines."""
    pr_number: Number | None = None
    """Number of the pull request, if there is one."""


class FailTaskIn(HeldTaskIn):
    """A task that failed."""

    model_config = example(token=1794771968716192, reason="the tests can't be run here")

    reason: Words = "no reason given"
    """Why it failed."""


class ReleaseTaskIn(HeldTaskIn):
    """A task to give back."""

    model_config = example(token=1794771968716192, reason="not my language")

    reason: Words = ""
    """Why the agent gives it back."""
    not_before: Instant | None = None
    """The task is not handed out before this time."""


class HeldTaskOut(answer_from(HeldTask)):
    """A task that the agent still holds."""

    expires_in: InSeconds
    """The same in seconds, counted from the heartbeat: right whatever the agent's clock says."""


class EndedOut(answer_from(EndedTask)):
    """What became of the task."""


class DeliveredOut(Answer):
    """The result of a webhook."""

    model_config = example(issues=["octo/repo#12"], ignored=None)

    issues: list[str]
    """Ids of the issues that the webhook changed."""
    ignored: str | None
    """Why the webhook changed no issue; null if it changed one."""


class TakeAwayIn(Body):
    """Why the issue is taken from its agent."""

    model_config = example(reason="its agent hangs")

    reason: Words = ""
