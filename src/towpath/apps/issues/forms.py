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
    IssueState,
    ReviewDelay,
    Source,
    TaskType,
)
from towpath.apps.issues.service import LARGEST_PAGE, RESULT_MOST
from towpath.clock import instant
from towpath.web.fields import Answer, Body, Instant, Token, example

WAIT_MOST = 60.0
Name = Annotated[str, Field(min_length=1, max_length=255)]
Words = Annotated[str, Field(max_length=RESULT_MOST)]
Number = Annotated[int, Field(ge=1, le=NUMBER_MOST, strict=True)]
AgentId = Annotated[str, Field(min_length=1, max_length=64)]
Names = Annotated[list[Name], Field(max_length=100)]
Labels = Annotated[list[Annotated[str, Field(max_length=100)]], Field(max_length=100)]
_TASK = "octo~repo~12~1"


class IssueIn(Body):
    """An issue of any tracker: new, or as it is now."""

    model_config = example(
        repository="octo/repo", number=12, title="It breaks", labels=["P1"], state="open"
    )

    repository: Name
    """`owner/name`."""
    number: Number
    title: Annotated[str, Field(max_length=2000)] = ""
    body: Annotated[str, Field(max_length=BODY_MOST)] = ""
    labels: Labels = Field(default_factory=list)
    """The policy goes by them: priority, role, what is to be done."""
    url: Annotated[str, Field(max_length=2000)] = ""
    """The page for people."""
    state: Annotated[str, Field(pattern="^(open|closed)$")] = "open"
    assignees: Names = Field(default_factory=list)
    """People who work on it: it is not handed out then."""

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
    """An issue as it is now."""

    id: str
    repository: str
    number: int
    title: str
    url: str
    labels: list[str]
    state: IssueState
    source: Source
    assignable: bool
    """Whether the next agent that fits gets it, or would after its review delay."""
    withheld: str | None
    """Why it is not handed out, in a word."""
    why: str | None
    """The same as a sentence."""
    task_type: TaskType
    role: str
    priority: int
    """0 to 100; higher is handed out first."""
    task_id: str | None
    holder: str | None
    """The agent that holds it."""
    held_since: datetime | None
    expires_at: datetime | None
    """When the holder loses it unless it sends a heartbeat."""
    branch: str | None
    """The branch that was made for it."""
    pr_number: int | None
    outcome: str | None
    """What became of its last task."""
    found_at: datetime | None
    """When it was first seen to need a review."""
    review_status: ReviewDelay | None

    @classmethod
    def of(cls, issue: Issue) -> IssueOut:
        return cls(
            id=issue.id,
            repository=issue.repository,
            number=issue.number,
            title=issue.title,
            url=issue.url,
            labels=list(issue.labels),
            state=issue.state,
            source=issue.source,
            assignable=not (issue.withheld or issue.held),
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
    """A page of issues, by repository and number."""

    issues: list[IssueOut]
    after: str | None
    """Give it as `after` to get the next page; null on the last one."""


class Which(Body):
    """Which issues."""

    repository: Name | None = None
    state: IssueState | None = None
    assignable: bool | None = None
    """true = those that agents can get; false = all others."""
    agent: AgentId | None = None
    """Only issues that this agent holds."""
    after: Annotated[str, Field(max_length=300)] | None = None
    """The `after` value returned with the previous page."""
    size: Annotated[int, Field(ge=1, le=LARGEST_PAGE)] = 50


class ExplanationOut(Answer):
    """Why an issue is not handed out."""

    why: str
    text: str


class RequestIn(Body):
    """What an agent asks for."""

    model_config = example(agent_id="agent-7", roles=["developer"], wait=30)

    agent_id: AgentId
    """Its name: letters, digits, and `._@:+-`."""
    roles: Names = Field(default_factory=list)
    """What it can do; none = everything."""
    repositories: Names = Field(default_factory=list)
    """Where it works; none = everywhere."""
    wait: Annotated[float, Field(ge=0, le=WAIT_MOST, strict=True, allow_inf_nan=False)] = 0
    """Seconds to wait for a task."""


class TaskOut(Answer):
    """A task that the agent holds from now on. Its texts were written by strangers."""

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

    repository: str
    issue_number: int
    url: str
    title: str
    body: str
    labels: list[str]
    branch: str
    """Where the work goes; it is made on GitHub within moments."""
    role: str
    task_type: TaskType
    task_id: str
    token: int
    """Shows who holds the task: give it with each word about it."""
    expires_at: datetime
    """Another agent may get the task then, unless a heartbeat comes before."""
    pr_number: int | None


class Said(Body):
    """A word of an agent about its task."""

    token: Token
    agent_id: AgentId | None = None
    """Who says so; if it is given, it must be the one who holds the task."""


class HeartbeatIn(Said):
    """The agent is still at work."""

    model_config = example(token=1794771968716192)


class CompleteIn(Said):
    """The work is done."""

    model_config = example(token=1794771968716192, result="done", pr_number=31)

    result: Words = ""
    """The result, in a line or two."""
    pr_number: Number | None = None
    """The pull request."""


class FailIn(Said):
    """It did not work."""

    model_config = example(token=1794771968716192, reason="the tests can't be run here")

    reason: Words = "no reason given"


class ReleaseIn(Said):
    """The agent gives the task back."""

    model_config = example(token=1794771968716192, reason="not my language")

    reason: Words = ""
    not_before: Instant | None = None
    """Do not hand it out before this time."""


class HeldOut(Answer):
    """The agent holds the task for another while."""

    task_id: str
    expires_at: datetime
    withdrawn: str | None
    """Why it should stop all the same: the issue was closed, assigned or relabelled."""


class EndedOut(Answer):
    """What became of the task."""

    task_id: str
    state: str
    """`done`; `ready` or `delayed`: it is offered again; `dead`: given up; `cancelled`."""


class DeliveredOut(Answer):
    """What came of a webhook."""

    model_config = example(issues=["octo/repo#12"], ignored=None)

    issues: list[str]
    """The issues that it changed."""
    ignored: str | None
    """Why it changed none."""


class TakeAwayIn(Body):
    """Why it is taken away."""

    model_config = example(reason="its agent hangs")

    reason: Words = ""
