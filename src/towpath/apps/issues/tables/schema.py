"""The tables of issues, and issues as rows of them."""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, String, Table, Text
from sqlalchemy.engine import RowMapping

from towpath.apps.issues.model import Issue, IssueSource, IssueState, TaskType
from towpath.ledger.database.tables import Tables

TABLES = Tables("issues", version="0002", steps=__package__ or "")

issues = Table(
    "towpath_issues_issues",
    TABLES.metadata,
    Column("id", String(300), primary_key=True, doc="owner/name#number, in lower case."),
    Column("repository", String(255), nullable=False, doc="owner/name."),
    Column("place", String(255), nullable=False, doc="The same in lower case."),
    Column("number", Integer, nullable=False, doc="Its number there."),
    Column("title", Text, nullable=False, doc="Its title."),
    Column("body", Text, nullable=False, doc="Its text."),
    Column("url", Text, nullable=False, doc="Its page."),
    Column("labels", Text, nullable=False, doc="Its labels, as JSON."),
    Column("assignees", Text, nullable=False, doc="Who is assigned, as JSON."),
    Column("state", String(12), nullable=False, doc="open, closed or gone."),
    Column("reopened", Boolean, nullable=False, doc="Whether it was closed before."),
    Column("source", String(12), nullable=False, doc="Who tells of it: github or api."),
    Column("version", BigInteger, nullable=False, doc="When its tracker changed it, ms."),
    Column("read", Boolean, nullable=False, doc="Whether that was asked for, not told."),
    Column("pr_number", Integer, doc="Its pull request."),
    Column("policy", String(16), nullable=False, doc="The digest of the policy it was judged by."),
    Column("task_type", String(16), nullable=False, doc="development, review or fix."),
    Column("role", String(64), nullable=False, doc="Who is to do it."),
    Column("priority", Integer, nullable=False, doc="0 to 100; higher is handed out first."),
    Column("withheld", String(16), nullable=False, doc="Why not, in a word; empty = handed out."),
    Column("why", Text, nullable=False, doc="The reason as a sentence."),
    Column("task_id", String(400), nullable=False, doc="Its task; empty = there is none."),
    Column("generation", Integer, nullable=False, doc="How many tasks there were."),
    Column("done", Text, nullable=False, doc="Types of tasks that were completed, as JSON."),
    Column("not_before", BigInteger, nullable=False, doc="Until when it is to rest, ms."),
    Column("applied", Text, nullable=False, doc="What the queue was told of it."),
    Column("settled", Boolean, nullable=False, doc="Whether the queue knows all of it."),
    Column("agent", String(64), nullable=False, doc="Who holds it; empty = nobody."),
    Column("token", BigInteger, nullable=False, doc="The token of the lease."),
    Column("held_since", BigInteger, nullable=False, doc="Since when, ms."),
    Column("expires", BigInteger, nullable=False, doc="When to look at the lease, ms."),
    Column("outcome", Text, nullable=False, doc="What became of the last task."),
    Column("found", BigInteger, nullable=False, doc="First seen to need a review, ms."),
    Column("found_until", BigInteger, nullable=False, doc="Until when that is known, ms."),
    Column("review_due", BigInteger, nullable=False, doc="When its review is offered, ms."),
    Column("restarted", BigInteger, nullable=False, doc="What began the delay anew, ms."),
    Column("ready_told", Boolean, nullable=False, doc="Whether outsiders know that it is."),
    Column("shown", Text, nullable=False, doc="Labels on GitHub that are ours, as JSON."),
    Column("branch", String(255), nullable=False, doc="The branch that was made for it."),
    Column("touched", BigInteger, doc="When we last changed its labels on GitHub, ms."),
    Column("created", BigInteger, nullable=False, doc="When it was first told of, ms."),
    Column("updated", BigInteger, nullable=False, doc="When the row was last changed, ms."),
    Column("revision", BigInteger, nullable=False, doc="Grows with each change of the row."),
    info={"about": "Issues, what the policy makes of them, and who holds them."},
)
Index(None, issues.c.place, issues.c.number)
Index(None, issues.c.agent, issues.c.expires)
Index(None, issues.c.settled)
Index(None, issues.c.task_id)
Index(None, issues.c.withheld, issues.c.priority)
Index(None, issues.c.policy)
Index(None, issues.c.ready_told, issues.c.found)

repositories = Table(
    "towpath_issues_repositories",
    TABLES.metadata,
    Column("place", String(255), primary_key=True, doc="owner/name, in lower case."),
    Column("name", String(255), nullable=False, doc="As its forge writes it."),
    Column("source", String(12), nullable=False, doc="Who tells of it: github or api."),
    Column("default_branch", String(255), nullable=False, doc="Where branches start from."),
    Column("synced", BigInteger, nullable=False, doc="When it was last compared, ms; 0 = never."),
    Column("trouble", Text, nullable=False, doc="Why it could not be; empty = it could."),
    Column("formerly", String(255), doc="What it was called when it was first known, if other."),
    info={"about": "Repositories whose issues are known."},
)
selectors = Table(
    "towpath_issues_selectors",
    TABLES.metadata,
    Column("selector", String(330), primary_key=True, doc="owner/name|role."),
    Column("place", String(255), nullable=False, doc="owner/name, in lower case."),
    Column("role", String(64), nullable=False, doc="The role."),
    info={"about": "Kinds of tasks that there were: by repository and role."},
)
pages = Table(
    "towpath_issues_pages",
    TABLES.metadata,
    Column("path", String(500), primary_key=True, doc="Where the page is."),
    Column("place", String(255), nullable=False, doc="Its repository, in lower case."),
    Column("etag", Text, nullable=False, doc="What GitHub called it."),
    Column("numbers", Text, nullable=False, doc="The issues on it, as JSON."),
    Column("following", Text, doc="Where the next page is; none = it was the last."),
    info={"about": "Pages of GitHub's lists of issues, as they were last read."},
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
    known = issue.settled and is_known(issue)
    return values | {"place": issue.repository.lower(), "settled": known}


def is_known(issue: Issue) -> bool:
    """Whether the queue was told what the row says; of what is held it is told afterwards."""
    return issue.wanted == issue.applied or (issue.held and bool(issue.wanted))
