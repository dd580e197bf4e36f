"""What GitHub shows of who holds an issue: labels, a branch, a comment.

GitHub follows the row and decides nothing. Each change of the holder submits a job with a record,
one at a time per issue, which reads the row and updates GitHub. The row notes labels before they
are set, so that the next job can remove them after a crash.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from hashlib import sha256

import msgspec

from towpath.apps.issues import tables
from towpath.apps.issues.github import GitHub
from towpath.apps.issues.issue_store import IssueStore
from towpath.apps.issues.log_events import ISSUE_REFUSED
from towpath.apps.issues.measures import PROJECTED
from towpath.apps.issues.model import ISSUES, REFUSED, Facts, Issue, Payload
from towpath.apps.issues.transitions import (
    has_holder_of,
    mark_gone,
    mark_touched,
    note_labels,
    note_shown,
)
from towpath.apps.outcomes import calling
from towpath.calls.answer import Next
from towpath.calls.errors import AnswerRefused
from towpath.clock import ZERO, minutes, seconds, wall_ms
from towpath.engine.leases import lease_by_token
from towpath.engine.model import job_ref
from towpath.engine.retry import Exponential
from towpath.errors import JobError, LeaseError
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
                await (self._show(issue) if issue.held else self._remove_labels(issue))
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

    # ── a held issue ─────────────────────────────────────────────────────────────────────

    async def _show(self, issue: Issue) -> None:
        store, policy = self._store, self._store.policy
        wanted = policy.shown_labels(issue.agent)
        note = partial(note_labels, seen=issue, labels=wanted, now=wall_ms())
        now = (await store.change(issue.id, note)).after
        if now is None or not has_holder_of(now, issue):
            return  # the holder has changed, and that change has its own job
        facts = await self._read_issue(issue)
        there = {label.lower() for label in facts.labels}
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
            facts = await self._read_issue(issue)
        shown = partial(
            note_shown, seen=issue, facts=facts, labels=wanted, branch=branch, now=wall_ms()
        )
        await store.change(issue.id, shown)
        self._count("shown")

    async def _comment(self, issue: Issue) -> None:
        text = f"`{issue.agent}` works on this ({issue.task_type})."
        # Everybody can read the comment, so it has a digest instead of the token.
        delivery = sha256(f"{issue.task_id} {issue.token}".encode()).hexdigest()[:32]
        mark = f"<!-- towpath {delivery} -->"
        await self._github.comment(issue.repository, issue.number, text, mark=mark)

    async def _read_issue(self, issue: Issue) -> Facts:
        facts = await self._github.issue(issue.repository, issue.number)
        if facts is None:
            await self._store.change(issue.id, mark_gone)
            raise Discard("the issue no longer exists on GitHub")
        return facts

    # ── an issue that nobody holds ───────────────────────────────────────────────────────

    async def _remove_labels(self, issue: Issue) -> None:
        if not issue.shown:
            return
        await self._store.change(issue.id, partial(mark_touched, seen=issue, now=wall_ms()))
        for label in issue.shown:
            await self._github.remove_label(issue.repository, issue.number, label)
        facts = await self._github.issue(issue.repository, issue.number)
        removed = partial(note_shown, seen=issue, facts=facts, labels=(), now=wall_ms())
        await self._store.change(issue.id, removed)
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
            await store.engine.release(lease, delay=store.options.pause)
        await store.check_hold(issue, how="refused", why=f"{REFUSED}{reason}")

    def _count(self, state: str) -> None:
        self._store.metrics.own(PROJECTED).labels(state).inc()
