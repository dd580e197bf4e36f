"""The policy: what is done about which issue, by whom, and how urgently. Data, read from TOML.

A policy decides by the facts of one issue, never by its holder.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from towpath.apps.issues.errors import PolicyInvalid
from towpath.apps.issues.model import Issue, IssueState, TaskType, issue_id, role_name
from towpath.clock import Duration, parse_duration
from towpath.errors import InvalidName, InvalidOption
from towpath.forges.texts import is_branch, one_line

_LARGEST = 1024 * 1024
_BLOCKED_BY = re.compile(
    r"\bblocked\s+by:?\s+((?:[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+)?#[0-9]{1,9}"
    r"(?:\s*(?:,|and)\s*(?:[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+)?#[0-9]{1,9})*)",
    re.IGNORECASE,
)
_REFERENCE = re.compile(r"([A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+)?#([0-9]{1,9})")
_BLOCKERS_MOST = 50
_LABEL_LONGEST = 50
"""In characters; the limit of GitHub."""
Priority = Annotated[int, Meta(ge=0, le=100)]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the policy file. Unknown names are refused."""


class ReviewTasks(_Part, frozen=True, kw_only=True):
    """Review tasks."""

    labels: tuple[str, ...] = ("needs-review",)
    role: str = "reviewer"
    delay: str = "5m"
    """How long after an issue first needs a review it is offered."""
    restart: bool = False
    """Whether a newer push or review restarts the delay."""


class FixTasks(_Part, frozen=True, kw_only=True):
    """Fix tasks: an agent makes the changes that a review requested."""

    labels: tuple[str, ...] = ("changes-requested",)


class Roles(_Part, frozen=True, kw_only=True):
    """Who does what."""

    default: str = "developer"
    prefix: str = "role:"
    """A label with this prefix names the role; empty = no label does."""
    labels: Mapping[str, str] = {}
    """Roles by label."""


class WorkLimits(_Part, frozen=True, kw_only=True):
    """Limits of the number of tasks that are worked on at once; 0 = no limit."""

    agent: Annotated[int, Meta(ge=0, le=100_000)] = 0
    repository: Annotated[int, Meta(ge=0, le=1_000_000)] = 0


class Showing(_Part, frozen=True, kw_only=True):
    """How GitHub shows who holds an issue."""

    label: str = "in-progress"
    agent_label: str = "agent:{agent}"
    branch: str = "issue-{number}"
    """Made from the default branch; empty = none is made."""
    comment: bool = False


class IssuePolicy(_Part, frozen=True, kw_only=True):
    """What is handed out, to whom, and in which order."""

    priorities: Mapping[str, Priority] = msgspec.field(
        default_factory=lambda: {"P0": 100, "P1": 80, "P2": 60, "P3": 40, "P4": 20}
    )
    """Priorities by label, 0 to 100: higher is handed out first."""
    priority: Priority = 40
    """The priority of an issue without such a label."""
    never: tuple[str, ...] = ("epic", "story")
    """Labels of issues that are never handed out."""
    in_progress: tuple[str, ...] = ("in-progress",)
    """Labels by which people say that they work on it; those that Towpath sets don't count."""
    ignored_assignees: tuple[str, ...] = ()
    """Logins that may be assigned without taking the issue: bots."""
    blocked_by: bool = False
    """Whether "blocked by #12" in the text holds an issue back while #12 is open."""
    only_highest: bool = False
    """Whether only issues of the highest priority present are handed out."""
    roles: Roles = Roles()
    review: ReviewTasks = ReviewTasks()
    fix: FixTasks = FixTasks()
    limits: WorkLimits = WorkLimits()
    show: Showing = Showing()

    @property
    def digest(self) -> str:
        """Identifies the policy: each row has the digest of the policy that judged it."""
        return sha256(msgspec.json.encode(self, order="sorted")).hexdigest()[:16]

    @property
    def delay(self) -> Duration:
        return parse_duration("review.delay", self.review.delay)

    @property
    def known_roles(self) -> list[str]:
        """The roles that the policy names; labels with the prefix may name others."""
        return sorted({self.roles.default, self.review.role, *self.roles.labels.values()})

    def task_type(self, labels: tuple[str, ...]) -> TaskType:
        named = _lower(labels)
        if named & _lower(self.review.labels):
            return TaskType.REVIEW
        return TaskType.FIX if named & _lower(self.fix.labels) else TaskType.DEVELOPMENT

    def role(self, issue: Issue, kind: TaskType) -> str:
        """The role that an agent needs. Of several labels, the first by the alphabet counts."""
        if kind is TaskType.REVIEW:
            return self.review.role
        by_label = {label.lower(): role for label, role in self.roles.labels.items()}
        for label in issue.labels:
            if (role := by_label.get(label.lower())) is not None:
                return role
        prefix = self.roles.prefix.lower()
        for label in issue.labels:
            if prefix and label.lower().startswith(prefix):
                name = label[len(prefix) :].strip()
                if _is_role(name):
                    return name
        return self.roles.default

    def urgency(self, issue: Issue) -> int:
        by_label = {label.lower(): number for label, number in self.priorities.items()}
        found = [by_label[label] for label in map(str.lower, issue.labels) if label in by_label]
        return max(found, default=self.priority)

    def withheld(self, issue: Issue, kind: TaskType, open_blockers: list[str]) -> Withheld | None:
        """Why *issue* is not handed out; None = it is."""
        held_back = self.withdrawn(issue)
        if held_back is not None:
            return held_back
        own = _lower(issue.shown)
        for label in issue.labels:
            if label.lower() in _lower(self.in_progress) and label.lower() not in own:
                return Withheld(
                    "in_progress", f"somebody is working on it: it has the label {label}"
                )
        if kind in issue.done:
            return Withheld("completed", f"its {kind} task was completed")
        if open_blockers:
            return Withheld("blocked", f"it is blocked by {', '.join(open_blockers)}")
        return None

    def withdrawn(self, issue: Issue) -> Withheld | None:
        """Why *issue* is withheld even from an agent that holds it; None = it is not."""
        if issue.state is not IssueState.OPEN:
            return Withheld(issue.state, f"the issue is {issue.state}")
        for label in issue.labels:
            if label.lower() in _lower(self.never):
                return Withheld("never", f"issues with the label {label} are never handed out")
        people = [
            person
            for person in issue.assignees
            if person.lower() not in _lower(self.ignored_assignees)
        ]
        if people:
            return Withheld("assigned", f"it is assigned to {', '.join(people[:5])}")
        return None

    def blockers(self, issue: Issue) -> list[str]:
        """The ids of the issues that its text names as blockers; none without `blocked_by`."""
        if not self.blocked_by:
            return []
        found: dict[str, None] = {}
        for named in _BLOCKED_BY.finditer(issue.body):
            for repository, number in _REFERENCE.findall(named[1]):
                found[issue_id(repository or issue.repository, int(number))] = None
        found.pop(issue.id, None)
        return list(found)[:_BLOCKERS_MOST]

    def shown_labels(self, agent: str) -> tuple[str, ...]:
        """The labels that say who holds an issue."""
        of_agent = self.show.agent_label.replace("{agent}", agent)[:_LABEL_LONGEST]
        return tuple(label for label in (self.show.label, of_agent) if label)

    def branch(self, issue: Issue) -> str:
        """The branch for *issue*. It has the number, never a text that its author wrote."""
        return self.show.branch.replace("{number}", str(issue.number))


class Withheld(NamedTuple):
    """Why an issue is not handed out: in a word, and as a sentence."""

    word: str
    why: str


def _lower(some: tuple[str, ...]) -> set[str]:
    return {text.lower() for text in some}


def _is_role(name: str) -> bool:
    try:
        role_name(name)
    except InvalidName:
        return False
    return True


# ── from a file ──────────────────────────────────────────────────────────────────────────


def policy_at(path: str) -> IssuePolicy:
    """The policy in the file at *path*; without a path, the built-in one. Raises PolicyInvalid."""
    if not path:
        return IssuePolicy()
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise PolicyInvalid(path, error.strerror or "can't be read") from error
    return read_policy(text, place=path)


def read_policy(text: bytes, *, place: str = "file") -> IssuePolicy:
    """The policy in *text*. Raises PolicyInvalid, which names the field."""
    if len(text) > _LARGEST:
        raise PolicyInvalid(place, f"is larger than {_LARGEST} bytes")
    try:
        table: dict[str, Any] = tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PolicyInvalid(
            place, f"is not valid TOML: {one_line(str(error), most=200)}"
        ) from error
    try:
        policy = msgspec.convert(table, IssuePolicy)
    except msgspec.ValidationError as error:
        raise PolicyInvalid(place, _field_first(str(error))) from error
    _check(policy, place)
    return policy


def _field_first(message: str) -> str:
    """The message with the name of the field in front."""
    problem, at, field = message.partition(" - at `$.")
    return f"{field.rstrip('`')}: {problem}" if at else problem


def _check(policy: IssuePolicy, place: str) -> None:
    """Check what the types do not. Raises PolicyInvalid."""
    try:
        parse_duration("review.delay", policy.review.delay)
    except InvalidOption as error:
        raise PolicyInvalid(place, f"review.delay: {error.rule}") from error
    for name, role in {
        "roles.default": policy.roles.default,
        "review.role": policy.review.role,
        **{f"roles.labels.{label}": role for label, role in policy.roles.labels.items()},
    }.items():
        if not _is_role(role):
            raise PolicyInvalid(
                place, f"{name}: a role must be 1 to 64 of A-Z, a-z, 0-9, '.', '_', '-'"
            )
    show = policy.show
    example = show.branch.replace("{number}", "1")
    if show.branch and (example == show.branch or not is_branch(example)):
        raise PolicyInvalid(
            place, "show.branch: must be the name of a branch that contains {number}"
        )
    if show.agent_label and "{agent}" not in show.agent_label:
        raise PolicyInvalid(place, "show.agent_label: must contain {agent}")
    if len(show.label) > _LABEL_LONGEST:
        raise PolicyInvalid(place, f"show.label: at most {_LABEL_LONGEST} characters")
