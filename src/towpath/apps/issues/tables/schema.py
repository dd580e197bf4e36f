"""The tables of issues, and issues as rows of them."""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, String, Table, Text
from sqlalchemy.engine import RowMapping

from towpath.apps.issues.model import Issue, IssueSource, IssueState, TaskType
from towpath.ledger.database.tables import Tables

TABLES = Tables("issues", version="0004", steps=__package__ or "")

issues = Table(
    "towpath_issues_issues",
    TABLES.metadata,
    Column("id", String(300), primary_key=True, doc="The id: owner/name#number, in lower case."),
    Column("repository", String(255), nullable=False, doc="The repository, as owner/name."),
    Column("place", String(255), nullable=False, doc="The repository in lower case."),
    Column("number", Integer, nullable=False, doc="Number of the issue in its repository."),
    Column("title", Text, nullable=False, doc="Its title."),
    Column("body", Text, nullable=False, doc="Its text."),
    Column("url", Text, nullable=False, doc="URL of its web page."),
    Column("labels", Text, nullable=False, doc="Its labels, as a JSON list."),
    Column("assignees", Text, nullable=False, doc="People assigned to it, as a JSON list."),
    Column("state", String(12), nullable=False, doc="open, closed or gone."),
    Column("reopened", Boolean, nullable=False, doc="Whether it was closed and opened again."),
    Column("source", String(12), nullable=False, doc="Where it comes from: github or api."),
    Column("version", BigInteger, nullable=False, doc="When its tracker last changed it."),
    Column("read", Boolean, nullable=False, doc="True: read from GitHub. False: from a webhook."),
    Column("pr_number", Integer, doc="Number of its pull request."),
    Column("policy", String(16), nullable=False, doc="Digest of the policy that judged it."),
    Column("task_type", String(16), nullable=False, doc="Its task: development, review or fix."),
    Column("role", String(64), nullable=False, doc="The role that an agent needs for it."),
    Column("priority", Integer, nullable=False, doc="0 to 100; higher is handed out first."),
    Column("withheld", String(16), nullable=False, doc="Why it is not handed out; empty = it is."),
    Column("why", Text, nullable=False, doc="The same reason as a sentence."),
    Column("task_id", String(400), nullable=False, doc="The id of its task; empty = none."),
    Column("generation", Integer, nullable=False, doc="Number of tasks made for it so far."),
    Column("done", Text, nullable=False, doc="Types of its completed tasks, as a JSON list."),
    Column("not_before", BigInteger, nullable=False, doc="Not handed out before this time."),
    Column("applied", Text, nullable=False, doc="What the queue was last told about it."),
    Column(
        "settled",
        Boolean,
        key="queue_matches",
        nullable=False,
        doc="Whether the queue knows all of the row.",
    ),
    Column("agent", String(64), nullable=False, doc="The agent that holds it; empty = none."),
    Column("owner", String(100), doc="Owner of the key that requested its task; null = none."),
    Column("token", BigInteger, nullable=False, doc="Token of the agent's lease."),
    Column("last_token", BigInteger, doc="Token of the last hold, also after its end."),
    Column("held_since", BigInteger, nullable=False, doc="When the agent got it."),
    Column("expires", BigInteger, nullable=False, doc="When to check the lease again."),
    Column("outcome", Text, nullable=False, doc="Outcome of its last task."),
    Column("found", BigInteger, nullable=False, doc="When it first needed a review; 0 = never."),
    Column("found_until", BigInteger, nullable=False, doc="When `found` is cleared; 0 = never."),
    Column("review_due", BigInteger, nullable=False, doc="When its review may be handed out."),
    Column("restarted", BigInteger, nullable=False, doc="Push or review that restarted the delay."),
    Column(
        "ready_told",
        Boolean,
        key="ready_reported",
        nullable=False,
        doc="Whether the end of the delay was reported.",
    ),
    Column("shown", Text, nullable=False, doc="Labels that Towpath set on GitHub, as a JSON list."),
    Column("branch", String(255), nullable=False, doc="The branch created for it."),
    Column("touched", BigInteger, doc="When Towpath last changed its labels on GitHub."),
    Column("created", BigInteger, nullable=False, doc="When the row was created."),
    Column("updated", BigInteger, nullable=False, doc="When the row was last changed."),
    Column("revision", BigInteger, nullable=False, doc="Grows with each change of the row."),
    info={"about": "Issues: what their tracker says, what the policy decides, and who holds them."},
)
Index(None, issues.c.place, issues.c.number)
Index(None, issues.c.agent, issues.c.expires)
Index(None, issues.c.queue_matches)
Index(None, issues.c.task_id)
Index(None, issues.c.withheld, issues.c.priority)
Index(None, issues.c.policy)
Index(None, issues.c.ready_reported, issues.c.found)

repositories = Table(
    "towpath_issues_repositories",
    TABLES.metadata,
    Column("place", String(255), primary_key=True, doc="The repository, in lower case."),
    Column("name", String(255), nullable=False, doc="The repository as its forge writes it."),
    Column("source", String(12), nullable=False, doc="Where it comes from: github or api."),
    Column("default_branch", String(255), nullable=False, doc="Where branches of tasks start."),
    Column("synced", BigInteger, nullable=False, doc="When last compared with GitHub; 0 = never."),
    Column("trouble", Text, nullable=False, doc="Why the last comparison failed; else empty."),
    Column("formerly", String(255), doc="Its first known name, if it was renamed."),
    info={"about": "Repositories with known issues."},
)
selectors = Table(
    "towpath_issues_selectors",
    TABLES.metadata,
    Column("selector", String(330), primary_key=True, doc="Repository and role: owner/name|role."),
    Column("place", String(255), nullable=False, doc="The repository, in lower case."),
    Column("role", String(64), nullable=False, doc="The role."),
    info={"about": "Combinations of repository and role that tasks have had."},
)
pages = Table(
    "towpath_issues_pages",
    TABLES.metadata,
    Column("path", String(500), primary_key=True, doc="Path of the page in GitHub's API."),
    Column("place", String(255), nullable=False, doc="The repository, in lower case."),
    Column("etag", Text, nullable=False, doc="The ETag that GitHub sent with it."),
    Column("numbers", Text, nullable=False, doc="Numbers of the issues on it, as a JSON list."),
    Column("following", Text, doc="Path of the next page; null = this is the last one."),
    info={"about": "Pages of GitHub's lists of issues, as last read."},
)
Index(None, pages.c.place)
_LISTS = ("labels", "assignees", "done", "shown")
_ENUMS = {"state": IssueState, "source": IssueSource, "task_type": TaskType}
_FIELDS = Issue.__struct_fields__
_texts = msgspec.json.Decoder(tuple[str, ...])


def issue_of(row: RowMapping) -> Issue:
    values: dict[str, Any] = {name: row[name] for name in _FIELDS}
    values |= {name: _texts.decode(row[name]) for name in _LISTS}
    values |= {name: kind(row[name]) for name, kind in _ENUMS.items()}
    return Issue(**values)


def row_of(issue: Issue) -> dict[str, Any]:
    values: dict[str, Any] = {name: getattr(issue, name) for name in _FIELDS}
    values |= {name: msgspec.json.encode(getattr(issue, name)).decode() for name in _LISTS}
    values |= {name: str(getattr(issue, name)) for name in _ENUMS}
    matches = issue.queue_matches and needs_no_update(issue)
    return values | {"place": issue.repository.lower(), "queue_matches": matches}


def needs_no_update(issue: Issue) -> bool:
    """Whether nothing is to be sent to the queue now; a held issue's changes wait for its end."""
    return issue.wanted == issue.applied or (issue.held and bool(issue.wanted))
