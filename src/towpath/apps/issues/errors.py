"""Errors of issues.

TowpathError
├── IssueNotFound       there is no such issue
├── IssueInvalid        an issue whose repository, number or text can't be right
├── PolicyInvalid       a policy file that can't be read, or says what no policy can
├── TaskNotFound        there is no such task
├── TaskStale           the token no longer counts: another agent has the task, or nobody
└── NotHeld             nobody holds the issue, so there is nothing to take away
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from towpath.apps.application import ErrorCodes
from towpath.errors import InvalidInput, LeaseError, TowpathError
from towpath.forges.errors import FieldInvalid


class IssueNotFound(TowpathError):
    """There is no such issue."""

    code = "issue_not_found"
    remedy = "Check the repository and the number. `towpath issues list` shows all known issues."

    def __init__(self, id: str) -> None:
        super().__init__(f"there is no issue {id}")
        self.id = id


class IssueInvalid(FieldInvalid):
    """The issue's repository, number or text is not valid; nothing was stored."""

    code = "issue_invalid"


class PolicyInvalid(InvalidInput):
    """A policy file that can't be read, or that breaks a rule."""

    code = "policy_invalid"
    remedy = "Fix the file; `towpath issues policy FILE` checks it."

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"policy {place}: {reason}")
        self.place, self.reason = place, reason


class TaskNotFound(TowpathError):
    """There is no such task, or it ended long ago."""

    code = "task_not_found"
    remedy = "Use the `task_id` returned by request-task, or request another task."

    def __init__(self, task_id: str) -> None:
        super().__init__(f"there is no task {task_id}")
        self.task_id = task_id


class TaskStale(LeaseError):
    """The token is no longer valid; nothing was changed."""

    code = "task_stale"
    remedy = "Stop working and discard the result, then request another task."

    def __init__(
        self,
        task_id: str,
        *,
        state: str,
        holder: str | None = None,
        expires_at: datetime | None = None,
    ) -> None:
        who = f"held by {holder}" if holder else f"{state}, and nobody holds it"
        super().__init__(f"task {task_id} is {who}; this token is no longer valid")
        self.task_id, self.state = task_id, state
        self.holder, self.expires_at = holder, expires_at

    @property
    def facts(self) -> Mapping[str, Any]:
        expires = self.expires_at.isoformat() if self.expires_at else None
        return {"state": self.state, "holder": self.holder, "expires_at": expires}


class NotHeld(TowpathError):
    """Nobody holds the issue, so there is nothing to take away."""

    code = "issue_not_held"
    remedy = "No action needed; `explain` says why the issue is not handed out."

    def __init__(self, id: str) -> None:
        super().__init__(f"nobody holds issue {id}")
        self.id = id


ANSWERS: Mapping[type[TowpathError], ErrorCodes] = {
    IssueNotFound: ErrorCodes(404, 5),
    TaskNotFound: ErrorCodes(404, 5),
    NotHeld: ErrorCodes(409, 4),
}
"""Status and exit code of the errors whose base classes have none that fits."""
