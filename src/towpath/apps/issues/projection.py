"""What GitHub shows of who holds an issue: labels, a branch, a comment.

GitHub follows the row and decides nothing. Each change of the holder submits a job with a record,
one at a time per issue, which reads the row and updates GitHub. The row notes labels before they
are set, so that the next job can remove them after a crash.
"""

from __future__ import annotations

from contextlib import suppress
from hashlib import sha256

import msgspec
from msgspec.structs import replace

from towpath.apps.issues import tables, transitions
from towpath.apps.issues.github import FoundIssue, GitHub
from towpath.apps.issues.issue_store import IssueStore
from towpath.apps.issues.measures import PROJECTED
from towpath.apps.issues.model import ISSUES, REFUSED, Issue, IssueSource, IssueState, Payload
from towpath.apps.outcomes import calling
from towpath.calls.answer import Next
from towpath.calls.errors import AnswerRefused
from towpath.clock import ZERO, minutes, seconds, wall_ms
from towpath.engine.leases import lease_by_token
from towpath.engine.model import job_ref
from towpath.engine.retry import Exponential
from towpath.errors import JobError, LeaseError
from towpath.telemetry.events import ISSUE_REFUSED
from towpath.worker.context import Context, Discard, Retry

ATTEMPTS = 6
RETRY = Exponential(first=seconds(2), factor=3, longest=minutes(5))
TIME_LIMIT = minutes(5)


class Projector:
    """Makes GitHub show what rows say."""

    def __init__(self, store: IssueStore, github: GitHub) -> None:
        self._store, self._github = store, github

    async def project(self, payload: bytes, ctx: Context) -> None:
        """Show who holds an issue, or that nobody does. A lasting refusal of GitHub releases it."""
        id = msgspec.json.decode(payload, type=Payload).issue
        issue = await self._store.ledger.read(tables.issue_by_id(id))
        if issue is None:
            return
        try:
            with calling("GitHub"):
                await self._update(issue)
        except Discard as refusal:
            await self._release_refused(issue, refusal.reason)
        except Retry as refusal:
            # A refusal lasts, unless GitHub says when to try again: then it was a rate limit.
            cause = refusal.__cause__
            refused = isinstance(cause, AnswerRefused) and cause.asked == Next.REFUSED
            lasting = refused and (refusal.after or ZERO) == ZERO
            if lasting or ctx.attempt >= ATTEMPTS:
                await self._release_refused(issue, refusal.reason)
                return
            raise

    async def _update(self, issue: Issue) -> None:
        if issue.held:
            await self._show(issue)
        else:
            await self._undo(issue)

    # ── a held issue ─────────────────────────────────────────────────────────────────────

    async def _show(self, issue: Issue) -> None:
        policy = self._store.policy
        wanted = policy.shown_labels(issue.agent)
        noted = await self._store.change(
            issue.id, lambda current: _note_labels(current, issue, wanted)
        )
        now = noted.after
        if now is None or (now.agent, now.token) != (issue.agent, issue.token):
            return  # the holder has changed, and that change has its own job
        found = await self._read_issue(issue)
        there = {label.lower() for label in found.facts.labels}
        missing = [label for label in wanted if label.lower() not in there]
        strange = [label for label in now.shown if label not in wanted and label.lower() in there]
        for label in strange:
            await self._github.remove_label(issue.repository, issue.number, label)
        if missing:
            await self._github.add_labels(issue.repository, issue.number, missing)
        branch = policy.branch(issue)
        if branch and now.branch != branch:
            await self._github.make_branch(issue.repository, branch)
        if policy.show.comment:
            await self._comment(issue)
        if missing or strange:
            found = await self._read_issue(issue)
        await self._store.change(
            issue.id, lambda current: _after(current, found, issue, shown=wanted, branch=branch)
        )
        self._count("shown")

    async def _comment(self, issue: Issue) -> None:
        text = f"`{issue.agent}` works on this ({issue.task_type})."
        # Everybody can read the comment, so it has a digest instead of the token.
        delivery = sha256(f"{issue.task_id} {issue.token}".encode()).hexdigest()[:32]
        mark = f"<!-- towpath {delivery} -->"
        await self._github.comment(issue.repository, issue.number, text, mark=mark)

    async def _read_issue(self, issue: Issue) -> FoundIssue:
        found = await self._github.issue(issue.repository, issue.number)
        if found is None:
            await self._store.change(
                issue.id, lambda current: current and replace(current, state=IssueState.GONE)
            )
            raise Discard("the issue no longer exists on GitHub")
        return found

    # ── an issue that nobody holds ───────────────────────────────────────────────────────

    async def _undo(self, issue: Issue) -> None:
        if not issue.shown:
            return
        await self._store.change(issue.id, lambda current: _mark_touched(current, issue))
        for label in issue.shown:
            await self._github.remove_label(issue.repository, issue.number, label)
        found = await self._github.issue(issue.repository, issue.number)
        await self._store.change(issue.id, lambda current: _after(current, found, issue, shown=()))
        self._count("undone")

    async def _release_refused(self, issue: Issue, reason: str) -> None:
        """Release an issue, because GitHub does not show who holds it."""
        store = self._store
        fields = {"issue": issue.id, "agent": issue.agent or None, "error": "AnswerRefused"}
        store.log.emit(ISSUE_REFUSED, **fields, reason=reason)
        self._count("refused")
        if not issue.held:
            return  # the row still has the labels: the next comparison has them removed
        lease = lease_by_token(job_ref(ISSUES, issue.task_id), issue.token, worker=issue.agent)
        with suppress(LeaseError, JobError):  # the hold has ended by itself
            await (await store.engine()).release(lease, delay=store.options.pause)
        await store.check_hold(issue, how="refused", why=f"{REFUSED}{reason}")

    def _count(self, state: str) -> None:
        self._store.metrics.own(PROJECTED).labels(state).inc()


def _same_hold(now: Issue | None, issue: Issue) -> bool:
    return now is not None and (now.agent, now.token) == (issue.agent, issue.token)


def _note_labels(now: Issue | None, issue: Issue, wanted: tuple[str, ...]) -> Issue | None:
    """The row with the labels noted before they are set: they never withhold the issue."""
    if now is None or not _same_hold(now, issue):
        return now
    return replace(now, shown=tuple(dict.fromkeys([*now.shown, *wanted])), touched=wall_ms())


def _mark_touched(now: Issue | None, issue: Issue) -> Issue | None:
    """The row marked as touched, so that the next comparison reads this issue again."""
    return replace(now, touched=wall_ms()) if now and _same_hold(now, issue) else now


def _after(
    now: Issue | None,
    found: FoundIssue | None,
    issue: Issue,
    *,
    shown: tuple[str, ...],
    branch: str = "",
) -> Issue | None:
    """The row after GitHub was changed: GitHub's facts, and the labels that Towpath set."""
    if now is None:
        return None
    if found is not None:
        facts, version = found.facts, found.version
        now = transitions.apply_facts(
            now, facts, source=IssueSource.GITHUB, version=version, read=True, now=wall_ms()
        )
    if not _same_hold(now, issue):
        return now
    return replace(now, shown=shown, branch=branch or now.branch)
