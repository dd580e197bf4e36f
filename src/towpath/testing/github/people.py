"""What people do on the GitHub double: open, label, assign, comment, push, review, close."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from towpath.testing.github.paths import EmitEvent
from towpath.testing.github.state import (
    HUMAN,
    GitHubComment,
    GitHubIssue,
    GitHubRepository,
    GitHubReview,
    Pull,
    now,
    sha_of,
)


class People:
    """Everybody who works in one repository. Each thing they do is an event, as on GitHub."""

    def __init__(
        self, repository: GitHubRepository, lock: threading.RLock, emit: EmitEvent
    ) -> None:
        self.repository, self._lock, self._emit = repository, lock, emit

    def __getitem__(self, number: int) -> GitHubIssue:
        return self.repository.issues[number]

    def _emit_here(self, event: str, action: str, issue: GitHubIssue, **more: Any) -> None:
        self._emit(event, action, self.repository, issue, **more)

    def _event_of(self, issue: GitHubIssue) -> str:
        return "pull_request" if issue.pull else "issues"

    # ── issues ───────────────────────────────────────────────────────────────────────────

    def open(
        self, title: str, *, body: str | None = None, labels: Iterable[str] = (), by: str = HUMAN
    ) -> GitHubIssue:
        with self._lock:
            issue = self.repository.add(title, body, labels=labels, author=by)
            self._emit_here("issues", "opened", issue, sender=by)
            return issue

    def close(self, number: int) -> None:
        self._set_open(number, is_open=False)

    def reopen(self, number: int) -> None:
        self._set_open(number, is_open=True)

    def _set_open(self, number: int, *, is_open: bool) -> None:
        with self._lock:
            issue = self[number]
            if self.repository.set_open(issue, is_open=is_open):
                self._emit_here(self._event_of(issue), "reopened" if is_open else "closed", issue)

    def edit(self, number: int, *, title: str | None = None, body: str | None = None) -> None:
        with self._lock:
            issue = self[number]
            issue.title = issue.title if title is None else title
            issue.body = issue.body if body is None else body
            self.repository.changed(issue)
            self._emit_here(self._event_of(issue), "edited", issue)

    def label(self, number: int, *names: str) -> None:
        with self._lock:
            issue = self[number]
            for name in self.repository.add_labels(issue, names):
                self._emit_here(self._event_of(issue), "labeled", issue, label=name)

    def unlabel(self, number: int, *names: str) -> None:
        with self._lock:
            issue = self[number]
            for name in self.repository.remove_labels(issue, names):
                self._emit_here(self._event_of(issue), "unlabeled", issue, label=name)

    def assign(self, number: int, login: str) -> None:
        with self._lock:
            issue = self[number]
            if login not in issue.assignees:
                issue.assignees.append(login)
                self.repository.changed(issue)
                self._emit_here(self._event_of(issue), "assigned", issue, assignee=login)

    def unassign(self, number: int, login: str) -> None:
        with self._lock:
            issue = self[number]
            if login in issue.assignees:
                issue.assignees.remove(login)
                self.repository.changed(issue)
                self._emit_here(self._event_of(issue), "unassigned", issue, assignee=login)

    def comment(self, number: int, body: str, *, by: str = HUMAN) -> GitHubComment:
        with self._lock:
            issue = self[number]
            made = self.repository.comment(issue, body, by)
            self._emit_here("issue_comment", "created", issue, comment=made, sender=by)
            return made

    def delete(self, number: int) -> None:
        """Delete an issue: requests for it are answered 410 from now on."""
        with self._lock:
            issue = self[number]
            issue.moved = ""
            self.repository.changed(issue)
            self._emit_here("issues", "deleted", issue)

    # ── pull requests ────────────────────────────────────────────────────────────────────

    def open_pull(
        self,
        title: str,
        *,
        head: str,
        base: str | None = None,
        body: str | None = None,
        labels: Iterable[str] = (),
        draft: bool = False,
    ) -> GitHubIssue:
        with self._lock:
            target, refs = base or self.repository.default_branch, self.repository.refs
            sha = refs.setdefault(f"refs/heads/{head}", sha_of(f"{head} {len(refs)}"))
            pull = Pull(head, target, sha, refs[f"refs/heads/{target}"], draft=draft)
            issue = self.repository.add(title, body, labels=labels, pull=pull)
            self._emit_here("pull_request", "opened", issue)
            return issue

    def push(self, number: int) -> str:
        """Push a commit to the branch of a pull request. Returns its id."""
        with self._lock:
            issue, pull = self[number], self._pull(number)
            before, pull.sha = pull.sha, sha_of(f"{pull.sha} and on")
            self.repository.refs[f"refs/heads/{pull.head}"] = pull.sha
            self.repository.changed(issue)
            self._emit_here("pull_request", "synchronize", issue, before=before, after=pull.sha)
            return pull.sha

    def review(self, number: int, state: str, *, body: str = "", by: str = HUMAN) -> GitHubReview:
        """Review a pull request; *state* is APPROVED, CHANGES_REQUESTED or COMMENTED."""
        with self._lock:
            issue, pull = self[number], self._pull(number)
            made = GitHubReview(self.repository.next_id(), state, body, by, pull.sha)
            pull.reviews.append(made)
            self.repository.changed(issue)
            self._emit_here("pull_request_review", "submitted", issue, review=made, sender=by)
            return made

    def merge(self, number: int) -> None:
        with self._lock:
            issue, pull = self[number], self._pull(number)
            pull.merged_at = now()
            self.repository.set_open(issue, is_open=False)
            self._emit_here("pull_request", "closed", issue)

    def _pull(self, number: int) -> Pull:
        pull = self[number].pull
        if pull is None:
            raise LookupError(f"#{number} is not a pull request")
        return pull
