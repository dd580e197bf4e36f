"""The state of the GitHub double: repositories, issues, labels, branches, pull requests."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from towpath.clock import wall_ms

HUMAN, ROBOT = "octocat", "towpath-bot"
"""The login of people's changes, and that of the token's owner."""


def now() -> str:
    """The time as GitHub writes it: in whole seconds."""
    return datetime.fromtimestamp(wall_ms() // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def sha_of(text: str) -> str:
    """An invented id of a commit, made from *text*."""
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


@dataclass
class GitHubComment:
    id: int
    body: str
    author: str
    at: str = field(default_factory=now)


@dataclass
class GitHubReview:
    id: int
    state: str
    body: str
    author: str
    commit: str
    at: str = field(default_factory=now)


@dataclass
class Pull:
    """What a pull request has in addition to an issue."""

    head: str
    base: str
    sha: str
    base_sha: str
    draft: bool = False
    merged_at: str | None = None
    reviews: list[GitHubReview] = field(default_factory=list[GitHubReview])


@dataclass
class GitHubIssue:
    """An issue; with `pull`, a pull request: GitHub numbers both together."""

    id: int
    number: int
    title: str
    body: str | None
    author: str
    labels: list[str] = field(default_factory=list[str])
    assignees: list[str] = field(default_factory=list[str])
    comments: list[GitHubComment] = field(default_factory=list[GitHubComment])
    pull: Pull | None = None
    created_at: str = field(default_factory=now)
    updated_at: str = field(default_factory=now)
    closed_at: str | None = None
    moved: str | None = None
    """Where it was transferred to; empty = it was deleted."""

    @property
    def state(self) -> str:
        return "closed" if self.closed_at else "open"


@dataclass
class GitHubLabel:
    id: int
    name: str
    color: str = "ededed"
    description: str = ""


@dataclass
class GitHubRepository:
    """One repository. Names of labels are the same whatever their case, as on GitHub."""

    id: int
    full_name: str
    default_branch: str = "main"
    issues: dict[int, GitHubIssue] = field(default_factory=dict[int, GitHubIssue])
    labels: dict[str, GitHubLabel] = field(default_factory=dict[str, GitHubLabel])
    refs: dict[str, str] = field(default_factory=dict[str, str])
    created_at: str = field(default_factory=now)
    revision: int = 0
    """Grows with every change."""
    numbers: int = 0
    ids: int = 0

    def __post_init__(self) -> None:
        self.refs[f"refs/heads/{self.default_branch}"] = sha_of(f"{self.full_name} 1")

    @property
    def owner(self) -> str:
        return self.full_name.partition("/")[0]

    @property
    def name(self) -> str:
        return self.full_name.partition("/")[2]

    @property
    def branches(self) -> list[str]:
        return [
            ref.removeprefix("refs/heads/") for ref in self.refs if ref.startswith("refs/heads/")
        ]

    def next_id(self) -> int:
        """A new id, which nothing else on this double has."""
        self.ids += 1
        return self.id * 1_000_000 + self.ids

    def changed(self, issue: GitHubIssue | None = None) -> None:
        """Note a change of the repository, or of *issue*."""
        self.revision += 1
        if issue is not None:
            issue.updated_at = now()

    # ── changes ──────────────────────────────────────────────────────────────────────────

    def add(
        self,
        title: str,
        body: str | None,
        *,
        labels: Iterable[str] = (),
        author: str = HUMAN,
        pull: Pull | None = None,
    ) -> GitHubIssue:
        self.numbers += 1
        issue = GitHubIssue(self.next_id(), self.numbers, title, body, author, pull=pull)
        self.issues[issue.number] = issue
        issue.labels = [self.label(name).name for name in dict.fromkeys(labels)]
        self.changed(issue)
        return issue

    def label(self, name: str) -> GitHubLabel:
        """The label, which is made if there is none."""
        found = self.labels.get(name.lower())
        if found is None:
            found = self.labels[name.lower()] = GitHubLabel(self.next_id(), name)
            self.changed()
        return found

    def add_labels(self, issue: GitHubIssue, names: Iterable[str]) -> list[str]:
        """Add labels. Returns those that the issue did not have."""
        new = [name for wanted in names if (name := self.label(wanted).name) not in issue.labels]
        new = list(dict.fromkeys(new))
        if new:
            issue.labels += new
            self.changed(issue)
        return new

    def remove_labels(self, issue: GitHubIssue, names: Iterable[str]) -> list[str]:
        """Remove labels. Returns those that the issue had."""
        gone = {name.lower() for name in names}
        old = [label for label in issue.labels if label.lower() in gone]
        if old:
            issue.labels = [label for label in issue.labels if label not in old]
            self.changed(issue)
        return old

    def set_open(self, issue: GitHubIssue, *, is_open: bool) -> bool:
        """Open or close an issue. Returns whether that changed anything."""
        if is_open == (issue.closed_at is None):
            return False
        issue.closed_at = None if is_open else now()
        self.changed(issue)
        return True

    def comment(self, issue: GitHubIssue, body: str, author: str) -> GitHubComment:
        made = GitHubComment(self.next_id(), body, author)
        issue.comments.append(made)
        self.changed(issue)
        return made
