"""The transitions of an issue's row: added, judged by the policy, held, released.

These are pure functions: they use neither the database nor the queue.
"""

from __future__ import annotations

from msgspec.structs import replace

from towpath.apps.issues.model import Facts, Issue, IssueSource, IssueState, TaskType, task_name
from towpath.apps.issues.policy import IssuePolicy
from towpath.clock import days, duration_ms

_REMEMBERED = duration_ms("found_until", days(1))
"""How long a completed review's delay is remembered, so that polling can't restart it."""


def apply_facts(
    before: Issue | None, facts: Facts, *, source: IssueSource, version: int, read: bool, now: int
) -> Issue:
    """The row with the facts of its tracker. A forge's facts that are older than the row's change
    nothing; facts from the HTTP API always apply.

    Webhooks may come out of order, and a forge's times have whole seconds. Of two facts with the
    same time, one that was read counts more than a webhook, and otherwise the one that came later.
    """
    if before is None:
        issue = Issue(id=facts.id, repository=facts.repository, number=facts.number, created=now)
        return _set_facts(issue, facts, source=source, version=version, read=read)
    if source is IssueSource.API:
        known = before.source, before.version, before.read
        return _set_facts(before, facts, source=known[0], version=known[1], read=known[2])
    if before.source is source and _is_stale(before, version, read=read):
        return before
    return _set_facts(before, facts, source=source, version=version, read=read)


def _is_stale(before: Issue, version: int, *, read: bool) -> bool:
    return version < before.version or (version == before.version and before.read and not read)


def _set_facts(
    before: Issue, facts: Facts, *, source: IssueSource, version: int, read: bool
) -> Issue:
    is_open = facts.state is IssueState.OPEN
    again = before.state is not IssueState.OPEN or (facts.reopened and not before.reopened)
    issue = replace(
        before,
        repository=facts.repository,
        title=facts.title,
        body=facts.body,
        labels=facts.labels,
        assignees=facts.assignees,
        url=facts.url or before.url,
        state=facts.state,
        reopened=facts.reopened,
        source=source,
        version=version,
        read=read,
    )
    if not (is_open and again):
        return issue
    # A reopened issue is offered again, whatever was done before.
    offered = offer_again(issue)
    return replace(offered, done=())


def judge(issue: Issue, policy: IssuePolicy, *, now: int, open_blockers: list[str]) -> Issue:
    """The row as *policy* decides.

    A held issue keeps its task until the hold ends. But the policy may withdraw it: then its holder
    is asked to stop.
    """
    kind = policy.task_type(issue.labels)
    done = tuple(task for task in issue.done if task in (TaskType.DEVELOPMENT, kind))
    issue = _set_review_delay(replace(issue, done=done, policy=policy.digest), kind, policy, now)
    if issue.held:
        reason = policy.withdrawn(issue)
        return replace(
            issue,
            withheld=reason.word if reason else "",
            why=reason.why if reason else "",
        )
    if issue.withheld == "dead" and issue.task_type is kind and not policy.withdrawn(issue):
        return issue  # until its type of task changes, or somebody offers it again
    keeps = bool(issue.task_id) and issue.task_type is kind
    role, urgency = policy.role(issue, kind), policy.urgency(issue)
    issue = replace(issue, task_type=kind, role=role, priority=urgency)
    reason = policy.withheld(issue, kind, open_blockers)
    if reason is not None:
        return replace(issue, withheld=reason.word, why=reason.why, task_id="")
    if keeps:
        return replace(issue, withheld="", why="")
    generation = issue.generation + 1
    task_id = task_name(issue.id, generation)
    return replace(issue, withheld="", why="", generation=generation, task_id=task_id)


def _set_review_delay(issue: Issue, kind: TaskType, policy: IssuePolicy, now: int) -> Issue:
    """The row with its review delay, which begins when the issue first needs a review."""
    if issue.found and issue.found_until and issue.found_until <= now:
        issue = replace(issue, found=0, found_until=0, review_due=0, ready_told=False)
    if kind is not TaskType.REVIEW or issue.state is not IssueState.OPEN:
        return issue
    found = issue.found or now
    due = found + duration_ms("review.delay", policy.delay)
    return replace(issue, found=found, review_due=due)


def link_pull(issue: Issue, pr_number: int) -> Issue:
    """The row with the number of a pull request about it; of several, the newest counts."""
    return replace(issue, pr_number=max(pr_number, issue.pr_number or 0))


def restart_delay(issue: Issue, *, at: int, now: int) -> Issue:
    """The row after a push or a review, *at* by the tracker's clock. It restarts the delay of a
    review that nobody holds; the same one again changes nothing.
    """
    if not issue.found or issue.held or TaskType.REVIEW in issue.done or at <= issue.restarted:
        return issue
    return replace(issue, found=now, restarted=at, ready_told=False)


def hold(
    issue: Issue, *, agent: str, owner: str | None, token: int, since: int, expires: int
) -> Issue:
    """The row held by *agent*, for *owner*."""
    return replace(
        issue,
        agent=agent,
        owner=owner,
        token=token,
        held_since=since,
        expires=expires,
        not_before=0,
    )


def free(
    issue: Issue,
    *,
    now: int,
    spent: bool,
    outcome: str,
    not_before: int = 0,
    completed: bool = False,
) -> Issue:
    """The row after its hold. *spent* = its task has ended; a new offer makes another one."""
    done = tuple(sorted({*issue.done, issue.task_type})) if completed else issue.done
    review = issue.task_type is TaskType.REVIEW and completed
    return replace(
        issue,
        agent="",
        owner=None,
        token=0,
        held_since=0,
        expires=0,
        outcome=outcome,
        done=done,
        not_before=not_before,
        task_id="" if spent else issue.task_id,
        found_until=now + _REMEMBERED if review else issue.found_until,
    )


def give_up(issue: Issue, reason: str) -> Issue:
    """The row with a dead task: withheld until somebody offers it again or its type changes."""
    why = f"given up after too many attempts: {reason}"
    return replace(issue, withheld="dead", why=why, task_id="")


def offer_again(issue: Issue) -> Issue:
    """The row to be handed out again, whatever was done before; a held row stays as it is."""
    if issue.held:
        return issue
    return replace(issue, withheld="", why="", done=(), not_before=0, task_id="")
