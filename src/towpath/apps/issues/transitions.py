"""The transitions of an issue's row: its tracker's facts, the policy's verdict, holds, labels.

Pure functions of the row: they use neither the database nor the queue. A caller binds their
arguments with `partial`, so that a transaction can apply them to the row as it is by then.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from towpath.apps.issues.model import (
    Facts,
    Issue,
    IssueSource,
    IssueState,
    TaskResult,
    TaskType,
    task_name,
)
from towpath.apps.issues.policy import IssuePolicy
from towpath.clock import days, duration_ms, instant_ms
from towpath.engine.model import JobInfo
from towpath.engine.states import State

Transition = Callable[[Issue], Issue]
"""Returns the row after a transition; an equal one if it changes nothing."""

ENDED_STATES = (State.DONE, State.DEAD, State.CANCELLED, State.GONE)
OUTCOME_MOST = 500
"""Characters of an outcome."""
_REMEMBERED = duration_ms("found_until", days(1))
"""How long a completed review's delay is remembered, so that polling can't restart it."""


def unchanged(issue: Issue) -> Issue:
    """The same row, for the policy to judge again."""
    return issue


# ── what the tracker says ────────────────────────────────────────────────────────────────


def apply_facts(issue: Issue | None, facts: Facts, *, now: int) -> Issue:
    """The row with the facts of its tracker. A forge's facts that are older than the row's change
    nothing; facts from the HTTP API always apply.

    Webhooks may come out of order, and a forge's times have whole seconds. Of two facts with the
    same time, one that was read counts more than a webhook, and otherwise the one that came later.
    """
    if issue is None:
        new = Issue(id=facts.id, repository=facts.repository, number=facts.number, created=now)
        return _set_facts(new, facts, facts)
    if facts.source is IssueSource.API:
        return _set_facts(issue, facts, issue)
    if issue.source is facts.source and _is_stale(issue, facts):
        return issue
    return _set_facts(issue, facts, facts)


def _is_stale(issue: Issue, facts: Facts) -> bool:
    same_time = facts.version == issue.version
    return facts.version < issue.version or (same_time and issue.read and not facts.read)


def _set_facts(issue: Issue, facts: Facts, origin: Facts | Issue) -> Issue:
    """The row with *facts*, and with the source and version of *origin*."""
    is_open = facts.state is IssueState.OPEN
    again = issue.state is not IssueState.OPEN or (facts.reopened and not issue.reopened)
    issue = replace(
        issue,
        repository=facts.repository,
        title=facts.title,
        body=facts.body,
        labels=facts.labels,
        assignees=facts.assignees,
        url=facts.url or issue.url,
        state=facts.state,
        reopened=facts.reopened,
        source=origin.source,
        version=origin.version,
        read=origin.read,
    )
    if not (is_open and again):
        return issue
    # A reopened issue is offered again, whatever was done before.
    return replace(offer_again(issue), done=())


def mark_gone(issue: Issue) -> Issue:
    """The row of an issue that no longer exists in its tracker."""
    return replace(issue, state=IssueState.GONE)


def relabel(issue: Issue, old: str, new: str | None) -> Issue:
    """The row with label *old* renamed, or removed if *new* is None."""
    kept = {label for label in issue.labels if label.lower() != old.lower()}
    if len(kept) == len(issue.labels):
        return issue
    return replace(issue, labels=tuple(sorted({*kept, new} if new else kept)))


def set_pull(issue: Issue, number: int | None) -> Issue:
    """The row with the newest open pull request. Without one, an issue whose development is done
    keeps its number: its agent may have named it.
    """
    if number is None and TaskType.DEVELOPMENT in issue.done:
        return issue
    return replace(issue, pr_number=number)


def follow_pull(issue: Issue, *, number: int | None, pushed: int | None, now: int) -> Issue:
    """The row after a webhook about a pull request for the issue.

    *number* is that of an open pull request; of several, the newest counts. *pushed* is the time of
    a push or a review, by the tracker's clock: it restarts the delay of a review that nobody holds.
    The same push again changes nothing.
    """
    if number is not None:
        issue = replace(issue, pr_number=max(number, issue.pr_number or 0))
    if pushed is None or not issue.found or issue.held:
        return issue
    if TaskType.REVIEW in issue.done or pushed <= issue.restarted:
        return issue
    return replace(issue, found=now, restarted=pushed, ready_reported=False)


# ── what the policy decides ──────────────────────────────────────────────────────────────


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
        # It stays withheld until its type of task changes, or somebody offers it again.
        return issue
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
        issue = replace(issue, found=0, found_until=0, review_due=0, ready_reported=False)
    if kind is not TaskType.REVIEW or issue.state is not IssueState.OPEN:
        return issue
    found = issue.found or now
    due = found + duration_ms("review.delay", policy.delay)
    return replace(issue, found=found, review_due=due)


def mark_ready(issue: Issue, *, now: int) -> Issue:
    """The row with the end of its review delay reported, if it is over at *now*."""
    if not issue.found or issue.review_due > now:
        return issue
    return replace(issue, ready_reported=True)


def offer_again(issue: Issue) -> Issue:
    """The row to be handed out again, whatever was done before; a held row stays as it is."""
    if issue.held:
        return issue
    return replace(issue, withheld="", why="", done=(), not_before=0, task_id="")


# ── holds ────────────────────────────────────────────────────────────────────────────────


def hold(
    issue: Issue,
    *,
    task_id: str,
    agent: str,
    owner: str | None,
    token: int,
    since: int,
    expires: int,
) -> Issue:
    """The row held by *agent*, for *owner*, if it still offers the task and has had no hold with a
    higher fencing token: a server may get here after its lease has ended.
    """
    if issue.task_id != task_id or issue.withheld or token < issue.highest_token:
        return issue
    return replace(
        issue,
        agent=agent,
        owner=owner,
        token=token,
        last_token=token,
        held_since=since,
        expires=expires,
        not_before=0,
    )


def has_hold_of(issue: Issue, seen: Issue) -> bool:
    """Whether the row has the task and the fencing token that it had in *seen*."""
    return (issue.task_id, issue.token) == (seen.task_id, seen.token)


def extend_hold(issue: Issue, seen: Issue, *, expires: int) -> Issue:
    """The row after the lease of the hold in *seen* was renewed until *expires*."""
    if not has_hold_of(issue, seen):
        return issue
    return replace(issue, expires=max(expires, issue.expires))


def end_hold(issue: Issue, seen: Issue, *, job: JobInfo | None, why: str, now: int) -> Issue:
    """The row after the hold in *seen* has ended as *job* says; without a job, its task is gone.

    A task that has ended is spent: a new offer makes another one. An issue with a dead task is
    withheld until somebody offers it again or its type of task changes.
    """
    if not has_hold_of(issue, seen):
        return issue
    state = State.GONE if job is None else job.state
    completed, result = state is State.DONE, task_result(job)
    due = None
    if job is not None and state is State.DELAYED:
        due = job.next_try_at or job.due_at
    issue = replace(
        issue,
        agent="",
        owner=None,
        token=0,
        held_since=0,
        expires=0,
        outcome=_result_text(result) or why,
        not_before=instant_ms("due_at", due) if due else 0,
        task_id="" if state in ENDED_STATES else issue.task_id,
    )
    if completed:
        issue = replace(issue, done=tuple(sorted({*issue.done, issue.task_type})))
    if completed and issue.task_type is TaskType.REVIEW:
        issue = replace(issue, found_until=now + _REMEMBERED)
    if result is not None and result.pr_number is not None:
        issue = replace(issue, pr_number=result.pr_number)
    if state is State.DEAD:
        text = f"given up after too many attempts: {why}"
        issue = replace(issue, withheld="dead", why=text, task_id="")
    return issue


def describe_end(job: JobInfo | None, how: str) -> tuple[str, str]:
    """How a hold has ended: in a word, and in one line. *how* is the word, if the caller knows it
    and the job does not say.
    """
    if job is None:
        return how or "expired", "its task no longer exists"
    match job.state:
        case State.DONE:
            return "completed", "completed"
        case State.DEAD:
            return how or "failed", f"given up: {job.reason or 'no reason'}"[:OUTCOME_MOST]
        case State.CANCELLED:
            return "withdrawn", "withdrawn"
        case _:
            why = job.reason or how or "the agent sent no heartbeat"
            return how or "expired", why[:OUTCOME_MOST]


def task_result(job: JobInfo | None) -> TaskResult | None:
    """The result of a completed task; None if it has none that can be read."""
    if job is None or job.state is not State.DONE or not job.result:
        return None
    with suppress(msgspec.MsgspecError):
        return msgspec.json.decode(job.result, type=TaskResult)
    return None


def _result_text(result: TaskResult | None) -> str:
    if result is None:
        return ""
    more = f": {result.result}" if result.result else ""
    return f"completed by {result.agent}{more}"[:OUTCOME_MOST]


# ── what GitHub shows ────────────────────────────────────────────────────────────────────


def has_holder_of(issue: Issue, seen: Issue) -> bool:
    """Whether the row has the same holder as *seen*, or none in both."""
    return (issue.agent, issue.token) == (seen.agent, seen.token)


def note_labels(issue: Issue, seen: Issue, labels: tuple[str, ...], *, now: int) -> Issue:
    """The row with the labels that are about to be set: labels of Towpath never withhold it."""
    if not has_holder_of(issue, seen):
        return issue
    return replace(issue, shown=tuple(dict.fromkeys([*issue.shown, *labels])), touched=now)


def mark_touched(issue: Issue, seen: Issue, *, now: int) -> Issue:
    """The row marked as touched, so that the next comparison with GitHub reads the issue again."""
    return replace(issue, touched=now) if has_holder_of(issue, seen) else issue


def note_shown(
    issue: Issue,
    seen: Issue,
    *,
    facts: Facts | None,
    labels: tuple[str, ...],
    now: int,
    branch: str = "",
) -> Issue:
    """The row after GitHub was changed: GitHub's facts, and the labels that Towpath set there."""
    if facts is not None:
        issue = apply_facts(issue, facts, now=now)
    if not has_holder_of(issue, seen):
        return issue
    return replace(issue, shown=labels, branch=branch or issue.branch)
