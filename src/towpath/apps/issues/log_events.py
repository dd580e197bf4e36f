"""The log events of issues."""

from __future__ import annotations

from logging import WARNING

from towpath.telemetry.events import LogEvent, LogEvents

ISSUE_HANDED_OUT = LogEvent(
    "issue.handed_out",
    "An agent requested a task and got an issue.",
    ("issue", "job", "agent", "task_type"),
)
ISSUE_HOLD_ENDED = LogEvent(
    "issue.hold_ended",
    "An agent's hold on an issue ended; `how` says why.",
    ("issue", "job", "agent", "how"),
)
ISSUE_REFUSED = LogEvent(
    "issue.refused",
    "GitHub refused the changes that show who holds an issue. It was released and is offered "
    "again later.",
    ("issue", "agent", "error", "reason"),
    WARNING,
)
ISSUE_REPAIRED = LogEvent(
    "issue.repaired",
    "A comparison with GitHub or with the queue found and repaired a difference, in the issue, its "
    "labels or its task.",
    ("issue", "what"),
)
REPOSITORY_SYNCED = LogEvent(
    "repository.synced",
    "The issues of a repository were compared with GitHub.",
    ("repository", "issues", "requests", "changed", "took"),
)
REPOSITORY_TROUBLE = LogEvent(
    "repository.trouble",
    "The issues of a repository could not be compared with GitHub; it is tried again. If the "
    "repository is gone, its issues are no longer handed out.",
    ("repository", "error", "reason"),
    WARNING,
)
REPOSITORY_MOVED = LogEvent(
    "repository.moved",
    "A repository was renamed; its issues are kept under the new name.",
    ("repository", "name"),
    WARNING,
)

LOG_EVENTS = LogEvents(
    (
        ISSUE_HANDED_OUT,
        ISSUE_HOLD_ENDED,
        ISSUE_REFUSED,
        ISSUE_REPAIRED,
        REPOSITORY_SYNCED,
        REPOSITORY_TROUBLE,
        REPOSITORY_MOVED,
    ),
    {
        "agent": "The name of the agent that works on an issue.",
        "changed": "How many issues had changed since the last comparison.",
        "how": "How the hold ended: completed, failed, released, withdrawn, expired or refused.",
        "issue": "An issue: its repository and number.",
        "issues": "How many issues were compared.",
        "name": "The new name of the repository.",
        "repository": "A repository: its owner and name.",
        "requests": "How many requests were sent to GitHub.",
        "task_type": "The type of timers, or of an issue's task; all = every type.",
        "took": "Seconds that it took.",
        "what": "What was different.",
    },
)
