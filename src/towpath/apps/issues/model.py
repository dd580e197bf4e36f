"""Issues and tasks: their values, and the rules for names."""

from __future__ import annotations

import re
from datetime import datetime
from enum import StrEnum

import msgspec
from msgspec.structs import force_setattr as set_field

from towpath.apps.issues.errors import IssueInvalid
from towpath.clock import ZERO, hours, instant, minutes
from towpath.engine.options import QueueOptions
from towpath.engine.retry import Exponential
from towpath.errors import InvalidName
from towpath.forges.texts import (
    REPOSITORY_MOST,
    is_repository,
    is_url,
    one_line,
    prose,
    without_invisible,
)

ISSUES = "issues"
"""All issues share one queue, because one atomic claim covers only one queue."""
PROJECTIONS = "issues.project"
SYNCS = "issues.sync"
QUEUES = {
    ISSUES: QueueOptions(
        keep=hours(24),
        retry=Exponential(first=minutes(1), factor=2, longest=hours(1)),
        max_payload=4096,
    ),
    PROJECTIONS: QueueOptions(keep=ZERO),
    SYNCS: QueueOptions(keep=hours(1), max_attempts=3),
}
"""An ended task is kept for a day, so that an end which the row missed can still be read."""

REFUSED = "GitHub refused: "
"""Prefix of the outcome of a task that ended because GitHub refused to show its holder."""
NUMBER_MOST = 2**31 - 1
TITLE_MOST = 500
BODY_MOST = 65_536
"""In characters; the limit of GitHub."""
LABEL_MOST, LABELS_MOST = 100, 100
AGENT_MOST = 64
_AGENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@:+-]{0,63}")
_ROLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class IssueState(StrEnum):
    """The state of the issue in its tracker."""

    OPEN = "open"
    CLOSED = "closed"
    GONE = "gone"
    """The issue or its repository was deleted or transferred."""


class TaskType(StrEnum):
    """The type of a task."""

    DEVELOPMENT = "development"
    REVIEW = "review"
    FIX = "fix"


class ReviewDelay(StrEnum):
    """Whether a review task has waited long enough."""

    PENDING = "PENDING"
    READY = "READY_FOR_ASSIGNMENT"


class IssueSource(StrEnum):
    """Where an issue comes from."""

    GITHUB = "github"
    API = "api"


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """An issue as its tracker describes it. Raises IssueInvalid for values that are not possible.

    Strangers write these texts: they are cleaned for display, and never used as a command, a path
    or the name of a branch.
    """

    repository: str
    number: int
    title: str = ""
    body: str = ""
    labels: tuple[str, ...] = ()
    url: str = ""
    state: IssueState = IssueState.OPEN
    assignees: tuple[str, ...] = ()
    reopened: bool = False
    """Whether the tracker says that the issue was closed and opened again."""
    source: IssueSource = IssueSource.API
    version: int = 0
    """When the tracker last changed it, by the tracker's clock: in ms, but whole seconds."""
    read: bool = False
    """Whether it was read from the tracker; False = from a webhook, which may come out of order."""

    def __post_init__(self) -> None:
        if not is_repository(self.repository):
            rule = f"must be owner/name of up to {REPOSITORY_MOST} characters"
            raise IssueInvalid("repository", rule)
        if not 1 <= self.number <= NUMBER_MOST:
            raise IssueInvalid("number", f"must be from 1 to {NUMBER_MOST}")
        if self.url and not is_url(self.url):
            rule = "must be an http or https URL without a user or password"
            raise IssueInvalid("url", rule)
        set_field(self, "title", one_line(without_invisible(self.title), most=TITLE_MOST))
        set_field(self, "body", prose(without_invisible(self.body)[:BODY_MOST]))
        set_field(self, "labels", _unique_lines(self.labels))
        set_field(self, "assignees", _unique_lines(self.assignees))

    @property
    def id(self) -> str:
        return issue_id(self.repository, self.number)


def _unique_lines(some: tuple[str, ...]) -> tuple[str, ...]:
    """Labels or logins: one line each, without duplicates, sorted so that order never matters."""
    lines = (one_line(text, most=LABEL_MOST) for text in some[:LABELS_MOST])
    return tuple(sorted({line for line in lines if line}))


class Issue(msgspec.Struct, frozen=True, kw_only=True):
    """An issue at one moment: what its tracker says, what the policy decides, who holds it."""

    id: str
    """`owner/name#12`, in lower case, because trackers ignore the case of repository names."""
    repository: str
    number: int
    title: str = ""
    body: str = ""
    url: str = ""
    labels: tuple[str, ...] = ()
    assignees: tuple[str, ...] = ()
    state: IssueState = IssueState.OPEN
    reopened: bool = False
    source: IssueSource = IssueSource.API
    version: int = 0
    """When the tracker last changed it, by the tracker's clock: in ms, but whole seconds."""
    read: bool = False
    """Whether it was read from the tracker; False = from a webhook, which may come out of order."""
    pr_number: int | None = None

    # What the policy decides.
    policy: str = ""
    """The digest of the policy that judged it."""
    task_type: TaskType = TaskType.DEVELOPMENT
    role: str = ""
    priority: int = 0
    withheld: str = ""
    """Why it is not handed out, in a word; empty = it is."""
    why: str = ""
    """The reason as a sentence."""
    task_id: str = ""
    generation: int = 0
    """Number of tasks made for it so far."""
    done: tuple[str, ...] = ()
    """Types of tasks that were completed since it was opened."""
    not_before: int = 0
    """Not handed out before this time, in ms: set by a release or by the backoff of a task."""
    applied: str = ""
    """The last value of `wanted` that was sent to the queue, or is about to be sent."""
    queue_matches: bool = True
    """Whether the queue is known to match the row."""

    # Who holds it. This is a copy of the lease, which decides.
    agent: str = ""
    owner: str | None = None
    """The owner of the API key that requested the task; None = the fencing token is enough."""
    token: int = 0
    last_token: int | None = None
    """The fencing token of the last hold, which stays when that hold ends; None = unknown."""
    held_since: int = 0
    expires: int = 0
    """When to check the lease, in ms; it may have been renewed."""
    outcome: str = ""
    """The outcome of the last task, in one line."""

    # The review delay.
    found: int = 0
    """When it was first seen to need a review, in ms; 0 = never."""
    found_until: int = 0
    """When `found` is cleared after a completed review, in ms; 0 = never."""
    review_due: int = 0
    restarted: int = 0
    """The last push or review that restarted the delay: its time by the tracker's clock, in ms."""
    ready_reported: bool = False
    """Whether the end of the delay was reported: `review_status` is READY."""

    # What GitHub shows.
    shown: tuple[str, ...] = ()
    """Labels on GitHub that Towpath set."""
    branch: str = ""
    touched: int | None = None
    """When Towpath last changed its labels on GitHub, in ms."""

    created: int = 0
    updated: int = 0
    revision: int = 0

    @property
    def held(self) -> bool:
        return bool(self.agent)

    @property
    def highest_token(self) -> int:
        """The highest fencing token that the row has had. A claim with a lower one is outdated."""
        return max(self.token, self.last_token or 0)

    @property
    def delayed_until(self) -> int:
        """When its review delay is over, in ms; 0 = it has none."""
        return self.review_due if self.task_type is TaskType.REVIEW else 0

    @property
    def due(self) -> int:
        """The earliest time at which it may be handed out, in ms."""
        return max(self.delayed_until, self.not_before)

    def assignable_at(self, now: int) -> bool:
        """Whether an agent could get it at *now*, in ms."""
        return not (self.withheld or self.held) and self.due <= now

    @property
    def was_refused(self) -> bool:
        """Whether its last task ended because GitHub refused to show its holder."""
        return self.outcome.startswith(REFUSED)

    @property
    def selector(self) -> str:
        return selector_of(self.repository, self.role)

    @property
    def wanted(self) -> str:
        """The task as the queue should have it; empty = the queue should have none."""
        if self.withheld or not self.task_id:
            return ""
        # Without `not_before`: a release or a retry has set that due time in the queue itself.
        return f"{self.task_id} {self.priority} {self.delayed_until} {self.selector}"

    @property
    def found_at(self) -> datetime | None:
        return instant(self.found) if self.found else None

    @property
    def review_status(self) -> ReviewDelay | None:
        """The status that is published; None without a review delay."""
        if not self.found:
            return None
        return ReviewDelay.READY if self.ready_reported else ReviewDelay.PENDING


class Payload(msgspec.Struct, frozen=True):
    """The payload of a job: the id of the issue. All else is in the row."""

    issue: str


class TaskResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a completed job."""

    agent: str
    result: str = ""
    pr_number: int | None = None


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A task that an agent holds."""

    repository: str
    issue_number: int
    url: str
    title: str
    body: str
    labels: tuple[str, ...]
    branch: str
    """The branch to work on; the server creates it on GitHub shortly after."""
    role: str
    task_type: TaskType
    """What to do: solve the issue, review its pull request, or fix it."""
    task_id: str
    token: int
    """Proves that the agent holds the task: send it with every request about the task."""
    expires_at: datetime
    """When another agent may get the task, unless a heartbeat comes before."""
    pr_number: int | None
    """Number of the pull request, if there is one."""


def issue_id(repository: str, number: int) -> str:
    return f"{repository.lower()}#{number}"


def task_name(id: str, generation: int) -> str:
    """A task's id: safe in URLs, and a new one for each *generation* of the issue's tasks."""
    return f"{id.replace('/', '~').replace('#', '~')}~{generation}"


def selector_of(repository: str, role: str) -> str:
    return f"{repository.lower()}|{role}"


def agent_name(text: str) -> str:
    """Returns *text* if it is a valid id of an agent. Raises InvalidName."""
    if _AGENT.fullmatch(text) is None:
        rule = f"1 to {AGENT_MOST} of A-Z, a-z, 0-9, '.', '_', '@', ':', '+', '-'"
        raise InvalidName("agent_id", text, rule=rule)
    return text


def worker_of(agent: str, owner: str | None) -> str:
    """The worker name of *agent* in the queue, with its owner: owners may use the same ids."""
    return f"{agent}/{owner}" if owner else agent


def agent_of(worker: str) -> str:
    """The agent in a name that `worker_of` made; an agent's id has no slash."""
    return worker.partition("/")[0]


def role_name(text: str) -> str:
    """Returns *text* if it is a valid role. Raises InvalidName."""
    if _ROLE.fullmatch(text) is None:
        raise InvalidName("role", text, rule="1 to 64 of A-Z, a-z, 0-9, '.', '_', '-'")
    return text
