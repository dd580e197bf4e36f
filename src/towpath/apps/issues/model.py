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
"""All issues are one queue: choosing among several could not be one atomic step."""
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
"""A task that has ended can be looked at for a day; so long its end may go unnoticed."""

REFUSED = "GitHub refused: "
"""How the outcome of a task begins that ended because GitHub refused to show its holder."""
NUMBER_MOST = 2**31 - 1
TITLE_MOST = 500
BODY_MOST = 65_536
"""Characters: as many as GitHub takes."""
LABEL_MOST, LABELS_MOST = 100, 100
AGENT_MOST = 64
_AGENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@:+-]{0,63}")
_ROLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class IssueState(StrEnum):
    """The state of the issue in its tracker."""

    OPEN = "open"
    CLOSED = "closed"
    GONE = "gone"
    """Deleted or transferred, or its repository is."""


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

    Every text was written by a stranger: it is made harmless to show, and is never a command, a
    path or a branch of ours.
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
    """Whether it was closed before, as far as its tracker says so."""

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
        set_field(self, "labels", _texts(self.labels))
        set_field(self, "assignees", _texts(self.assignees))

    @property
    def id(self) -> str:
        return issue_id(self.repository, self.number)


def _texts(some: tuple[str, ...]) -> tuple[str, ...]:
    """Labels and logins: one line each, no two alike, in one order whoever tells of them."""
    lines = (one_line(text, most=LABEL_MOST) for text in some[:LABELS_MOST])
    return tuple(sorted({line for line in lines if line}))


class Issue(msgspec.Struct, frozen=True, kw_only=True):
    """An issue at one moment: what its tracker says, what the policy makes of it, who holds it."""

    id: str
    """`owner/name#12`, in lower case: trackers take repositories in any case."""
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
    """When it was last changed by its tracker's clock, in ms, of whole seconds."""
    read: bool = False
    """Whether that was asked for, and not told by a webhook: those may overtake each other."""
    pr_number: int | None = None

    # What the policy makes of it.
    policy: str = ""
    """The digest of that policy."""
    task_type: TaskType = TaskType.DEVELOPMENT
    role: str = ""
    priority: int = 0
    withheld: str = ""
    """Why it is not handed out, in a word; empty = it is."""
    why: str = ""
    """The reason as a sentence."""
    task_id: str = ""
    generation: int = 0
    """How many tasks there were."""
    done: tuple[str, ...] = ()
    """Types of tasks that were completed since it was opened."""
    not_before: int = 0
    """Until when whoever released it wants it to rest, in ms."""
    applied: str = ""
    """What the queue was told last, or is about to be told: see `wanted`."""
    settled: bool = True
    """Whether the queue knows what the row says."""

    # Who holds it: a note of the lease, which decides.
    agent: str = ""
    owner: str | None = None
    """The owner of the key that requested the task; None = its token alone decides."""
    token: int = 0
    held_since: int = 0
    expires: int = 0
    """When to look at the lease: it may have been renewed."""
    outcome: str = ""
    """What became of the last task, in one line."""

    # The review delay.
    found: int = 0
    """When it was first seen to need a review, in ms; 0 = it was not."""
    found_until: int = 0
    """Until when that is remembered after the end of its task, in ms."""
    review_due: int = 0
    restarted: int = 0
    """When the last push or review was that began the delay anew, by the tracker's clock, ms."""
    ready_told: bool = False
    """Whether outsiders were told that the delay is over."""

    # What GitHub shows.
    shown: tuple[str, ...] = ()
    """Labels there that are ours."""
    branch: str = ""
    touched: int | None = None
    """When its labels were last changed by us, in ms."""

    created: int = 0
    updated: int = 0
    revision: int = 0

    @property
    def held(self) -> bool:
        return bool(self.agent)

    @property
    def delayed_until(self) -> int:
        """When its review delay is over, in ms; 0 = it has none."""
        return self.review_due if self.task_type is TaskType.REVIEW else 0

    @property
    def due(self) -> int:
        """Not before then, in ms."""
        return max(self.delayed_until, self.not_before)

    def assignable_at(self, now: int) -> bool:
        """Whether an agent could get it at that time, in ms."""
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
        """What the queue has to know of it: empty = nothing."""
        if self.withheld or not self.task_id:
            return ""
        # What a release or a retry made of its due time, the queue knows before anybody else.
        return f"{self.task_id} {self.priority} {self.delayed_until} {self.selector}"

    @property
    def found_at(self) -> datetime | None:
        return instant(self.found) if self.found else None

    @property
    def review_status(self) -> ReviewDelay | None:
        """As outsiders were told; None where there is no delay."""
        if not self.found:
            return None
        return ReviewDelay.READY if self.ready_told else ReviewDelay.PENDING


class Payload(msgspec.Struct, frozen=True):
    """What a job says: which issue. All else is in the row."""

    issue: str


class TaskResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a completed job."""

    agent: str
    result: str = ""
    pr_number: int | None = None


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A task that an agent holds."""

    task_id: str
    token: int
    expires_at: datetime
    repository: str
    issue_number: int
    url: str
    title: str
    body: str
    labels: tuple[str, ...]
    branch: str
    role: str
    task_type: TaskType
    pr_number: int | None = None


def issue_id(repository: str, number: int) -> str:
    return f"{repository.lower()}#{number}"


def task_name(id: str, generation: int) -> str:
    """A task's id: safe in URLs, and another one each time that an issue is offered anew."""
    return f"{id.replace('/', '~').replace('#', '~')}~{generation}"


def selector_of(repository: str, role: str) -> str:
    return f"{repository.lower()}|{role}"


def agent_name(text: str) -> str:
    """*text* as an agent's id, or InvalidName."""
    if _AGENT.fullmatch(text) is None:
        rule = f"1 to {AGENT_MOST} of A-Z, a-z, 0-9, '.', '_', '@', ':', '+', '-'"
        raise InvalidName("agent_id", text, rule=rule)
    return text


def worker_of(agent: str, owner: str | None) -> str:
    """The name under which the queue counts what *agent* holds: owners may use the same ids."""
    return f"{agent}/{owner}" if owner else agent


def agent_of(worker: str) -> str:
    """The agent in a name that `worker_of` made; an agent's id has no slash."""
    return worker.partition("/")[0]


def role_name(text: str) -> str:
    """*text* as a role, or InvalidName."""
    if _ROLE.fullmatch(text) is None:
        raise InvalidName("role", text, rule="1 to 64 of A-Z, a-z, 0-9, '.', '_', '-'")
    return text
