"""Changes of issues: first of the row, then of the queue that hands them out.

A row is changed first, in one transaction with the job that shows the change on GitHub. Then the
queue follows. After a crash in between, `maintain` finds the row, which says that the queue may not
match.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import partial

import msgspec
from msgspec.structs import replace

from towpath.apps.issues import tables, transitions
from towpath.apps.issues.log_events import ISSUE_HANDED_OUT, ISSUE_HOLD_ENDED, ISSUE_REPAIRED
from towpath.apps.issues.measures import ENDED, HANDED_OUT, REPAIRED
from towpath.apps.issues.model import ISSUES, PROJECTIONS, QUEUES, Facts, Issue, Payload
from towpath.apps.issues.options import IssuesOptions
from towpath.apps.issues.policy import IssuePolicy
from towpath.apps.issues.published_keys import PublishedKeys
from towpath.apps.issues.tables import changes
from towpath.apps.issues.tables.changes import (
    ChangedIssues,
    IssueChange,
    QueueWork,
    change_issues,
    hold_issue,
)
from towpath.apps.issues.transitions import (
    ENDED_STATES,
    OUTCOME_MOST,
    Transition,
    describe_end,
    end_hold,
    extend_hold,
    has_hold_of,
    mark_ready,
    unchanged,
)
from towpath.clock import duration_ms, instant, instant_ms, wall_ms
from towpath.engine.engine import Engine
from towpath.engine.model import JobOptions, Lease, NewJob, Submitted, job_ref, new_job
from towpath.engine.states import State
from towpath.errors import JobError, JobNotFound, JobNotWaiting, ServerError, TowpathError
from towpath.ledger.ledger import Ledger
from towpath.telemetry.logs import Log
from towpath.telemetry.metrics import Metrics

_BATCH = 200
"""Rows that one step of the maintenance reads."""


class ClaimRefusal(StrEnum):
    """Why a claimed task is not handed out."""

    CHANGED = "changed"
    """The row no longer offers the task; the task is withdrawn."""
    STALE = "stale"
    """The lease has ended, and the row has noted a newer one of the same task, which stays."""
    LIMIT = "limit"
    """The limit of its repository is reached, or an issue with a higher priority exists."""


class IssueStore:
    """All known issues, and the queue that hands them out.

    *policy* judges each row that changes. Without a token for GitHub, nothing is shown there.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        ledger: Ledger,
        options: IssuesOptions,
        policy: IssuePolicy,
        metrics: Metrics,
        log: Log,
    ) -> None:
        self.engine, self.ledger = engine, ledger
        self.options, self.policy = options, policy
        self.metrics, self.log = metrics, log
        self.keys = PublishedKeys(engine)
        self._projections = ledger.jobs if options.github_token is not None else None
        self._locks_seen = 0
        """The end of the last lease whose lock key was checked, in ms."""
        self._offers_seen = ""
        """The id of the last issue whose task was compared with the queue."""

    async def declare_queue(self) -> Engine:
        """Declare the queue of issues and return the engine. No round trip after the first."""
        options = replace(QUEUES[ISSUES], max_attempts=self.options.attempts)
        await self.engine.queues.introduce(ISSUES, options)
        return self.engine

    # ── changing ─────────────────────────────────────────────────────────────────────────

    async def change(self, id: str, change: Facts | Transition) -> IssueChange:
        """Apply facts or a transition to the row of an issue, then update the queue. If Redis is
        away, the queue follows later. Raises LedgerError.
        """
        changed = await self._change_rows({id: change})
        if changed.work.judge_blocked:
            await self.judge_blocked()
        return changed.changes[0]

    async def change_all(self, wanted: Mapping[str, Facts | Transition]) -> list[IssueChange]:
        """Change many rows in one transaction, then the queue at once. A caller that opens or
        closes issues calls `judge_blocked` afterwards.
        """
        return (await self._change_rows(wanted)).changes if wanted else []

    async def hold(self, lease: Lease, agent: str, owner: str | None) -> Issue | ClaimRefusal:
        """Note the holder of a task in its row. Returns the row, or why the task is not handed out.
        Raises LedgerError.
        """
        hold = partial(
            transitions.hold,
            task_id=lease.id,
            agent=agent,
            owner=owner,
            token=lease.token,
            since=lease.claimed_ms,
            expires=lease.expires_ms,
        )
        change = hold_issue(lease.id, hold, policy=self.policy, projections=self._projections)
        changed = await self.ledger.jobs.decide(change)
        await self._do_queue_work(changed.work)
        if changed.limited:
            return ClaimRefusal.LIMIT
        issue = changed.changes[0].after if changed.changes else None
        if issue is not None and lease.token < issue.highest_token:
            # If Redis lost data and its clock is behind, its next token must still be higher.
            await self.engine.queues.incarnation(ISSUES, floor=issue.highest_token)
            return ClaimRefusal.STALE
        if issue is None or issue.token != lease.token:
            return ClaimRefusal.CHANGED
        await self.keys.write_lock(issue)
        self.metrics.own(HANDED_OUT).labels(issue.task_type).inc()
        fields = {"issue": issue.id, "job": lease.id, "agent": agent}
        self.log.emit(ISSUE_HANDED_OUT, **fields, task_type=issue.task_type)
        return issue

    async def _change_rows(self, wanted: Mapping[str, Facts | Transition]) -> ChangedIssues:
        change = change_issues(wanted, policy=self.policy, projections=self._projections)
        changed = await self.ledger.jobs.decide(change)
        await self._do_queue_work(changed.work)
        return changed

    async def _do_queue_work(self, work: QueueWork) -> None:
        with suppress(ServerError):
            await self._submit_new(work.submit)
            await self.update_queue(work.update)
        for issue in work.delays:
            await self.keys.write_delay(issue)

    async def submit_projection(self, id: str) -> None:
        """Submit a job that makes GitHub show what the row says. Raises LedgerError."""
        payload = msgspec.json.encode(Payload(id))
        await self.ledger.jobs.submit(PROJECTIONS, payload, lane=id, subject=id)

    async def judge_blocked(self) -> None:
        """Judge issues that may name blockers again, if the policy has `blocked_by`."""
        if self.policy.blocked_by:
            await self._judge_again(await self.ledger.read(tables.ids_naming_blockers))

    async def _judge_again(self, ids: list[str]) -> None:
        for at in range(0, len(ids), _BATCH):
            await self.change_all(dict.fromkeys(ids[at : at + _BATCH], unchanged))

    # ── the queue ────────────────────────────────────────────────────────────────────────

    async def _submit_new(self, issues: Sequence[Issue]) -> None:
        """Submit the tasks of new issues, and note in the rows that the queue has them."""
        if issues:
            engine = await self.declare_queue()
            await engine.submit_many(ISSUES, [_job(issue) for issue in issues])
            await self.ledger.write(changes.note_in_queue(issues))

    async def update_queue(self, issues: Sequence[Issue]) -> None:
        """Make the queue match these rows. Safe to repeat. Raises ServerError, LedgerError.

        The row notes what is submitted before it happens, so that another change of the row knows
        which task to withdraw. It notes the success after it, so that a crash in between is found.
        """
        for issue in issues:
            task_id = _task_in_queue(issue)
            if task_id != issue.task_id or not issue.wanted:
                await self.withdraw(task_id)
        if not_offered := [issue for issue in issues if not issue.wanted]:
            await self.ledger.write(changes.note_in_queue(not_offered))
        if offered := [issue for issue in issues if issue.wanted]:
            await self._submit_or_set(offered)

    async def _submit_or_set(self, issues: list[Issue]) -> None:
        engine = await self.declare_queue()
        queued = {issue.id for issue in issues if _task_in_queue(issue) == issue.task_id}
        noted = await self.ledger.write(changes.note_intent(issues))
        issues = [
            replace(issue, revision=issue.revision + 1)
            for issue, is_noted in zip(issues, noted, strict=True)
            if is_noted
        ]
        new = [_job(issue) for issue in issues if issue.id not in queued]
        await engine.submit_many(ISSUES, new)
        for issue in issues:
            if issue.id in queued:
                # If an agent has just claimed the task, the queue follows when that hold ends.
                with suppress(JobNotWaiting):
                    payload = msgspec.json.encode(Payload(issue.id))
                    await engine.set(ISSUES, payload, **_job_options(issue))
        if issues:
            await self.ledger.write(changes.note_in_queue(issues))

    async def withdraw(self, task_id: str) -> None:
        """Cancel a task that has not ended; its holder is asked to stop. "" does nothing."""
        if task_id:
            with suppress(JobError):  # it has ended already
                await self.engine.cancel(job_ref(ISSUES, task_id))

    async def offer_all(self) -> None:
        """Submit the tasks of all offered issues again, because Redis may have lost them."""
        after = ""
        while True:
            query = partial(tables.all_issues, after=after, size=_BATCH)
            some = await self.ledger.read(query)
            if not some:
                return
            after = some[-1].id
            await self._offer_again([issue for issue in some if issue.wanted and not issue.held])
            for issue in some:
                if issue.held:
                    await self.check_hold(issue)

    async def _offer_again(self, issues: Sequence[Issue]) -> None:
        """Submit the tasks of issues that nobody holds again. If a task has ended, a raw call ended
        it, and the row follows. Raises ServerError, LedgerError.
        """
        engine = await self.declare_queue()
        answers = await engine.submit_many(ISSUES, [_job(issue) for issue in issues])
        for issue, answer in zip(issues, answers, strict=True):
            if isinstance(answer, Submitted) and answer.state in ENDED_STATES:
                await self._follow_end(issue)

    async def _follow_end(self, issue: Issue) -> None:
        """Note that the task of an issue that nobody holds has ended. One that was cancelled is
        offered again under another id.
        """
        try:
            job = await self.engine.inspect.job(job_ref(ISSUES, issue.task_id))
        except JobNotFound:
            return
        if job.state not in ENDED_STATES:  # the task was retried meanwhile
            return
        _, why = describe_end(job, "")
        end = partial(end_hold, seen=issue, job=job, why=why, now=wall_ms())
        if (await self.change(issue.id, end)).changed:
            self.metrics.own(REPAIRED).labels("task").inc()
            self.log.emit(ISSUE_REPAIRED, issue=issue.id, what="task")

    # ── maintenance ──────────────────────────────────────────────────────────────────────

    async def maintain(self) -> None:
        """Call `maintain_once` every `look`, until cancelled."""
        while True:
            with suppress(TowpathError):  # the engine and the ledger log their own outages
                await self.maintain_once()
            await asyncio.sleep(self.options.look.total_seconds())

    async def maintain_once(self) -> None:
        """Handle leases that have ended, rows that the queue may not match, review delays that are
        over, rows that another policy judged, published keys that were deleted, and tasks that raw
        calls ended. Raises ServerError, LedgerError.
        """
        engine, now = await self.declare_queue(), wall_ms()
        await engine.queues.reap(ISSUES)
        if not await self.keys.offers_noted():
            await self.offer_all()
            await self.keys.note_offers()
        for issue in await self.ledger.read(tables.held_until(now, _BATCH)):
            await self.check_hold(issue)
        # The process that changed a row just now is still updating the queue.
        before = now - duration_ms("look", self.options.look)
        while some := await self.ledger.read(tables.issues_not_in_queue(before, _BATCH)):
            await self.update_queue(some)
        digest = self.policy.digest
        await self._judge_again(await self.ledger.read(tables.ids_of_other_policies(digest)))
        for issue in await self.ledger.read(tables.issues_with_delay_over(now, _BATCH)):
            marked = await self.change(issue.id, partial(mark_ready, now=now))
            if marked.after is not None:
                await self.keys.write_delay(marked.after)
        held = await self.ledger.read(tables.held_after(max(now, self._locks_seen), _BATCH))
        for issue in held:
            await self.restore_lock(issue)
        # The next call continues after these leases, and after the last one from the beginning.
        self._locks_seen = held[-1].expires if len(held) == _BATCH else 0
        offered = await self.ledger.read(tables.offered_issues(self._offers_seen, _BATCH))
        await self._offer_again(offered)
        self._offers_seen = offered[-1].id if len(offered) == _BATCH else ""

    async def restore_lock(self, issue: Issue) -> None:
        """Write the lock key again if it was deleted. Raises ServerError, LedgerError."""
        if await self.keys.restore_lock(issue):
            now = await self.ledger.read(tables.issue_of_task(issue.task_id))
            if now is None or not (now.held and has_hold_of(now, issue)):
                await self.keys.delete_lock(issue)  # the hold ended after this row was read

    async def check_hold(self, issue: Issue, *, how: str = "", why: str = "") -> None:
        """Note the end of the hold in *issue*, if it has ended; else until when it lasts. A lease
        with another fencing token is of another hold.

        *how* and *why* are the end in a word and in a line, if the caller knows it. Raises
        ServerError, LedgerError.
        """
        try:
            job = await self.engine.inspect.job(job_ref(ISSUES, issue.task_id))
        except JobNotFound:
            job = None
        if job is not None and job.state is State.LEASED and job.token == issue.token:
            expires = instant_ms("expires_at", job.expires_at) if job.expires_at else 0
            await self.change(issue.id, partial(extend_hold, seen=issue, expires=expires))
            return
        word, line = describe_end(job, how)
        line = why[:OUTCOME_MOST] or line
        end = partial(end_hold, seen=issue, job=job, why=line, now=wall_ms())
        if (await self.change(issue.id, end)).changed:
            await self.keys.delete_lock(issue)
            self.metrics.own(ENDED).labels(word).inc()
            self.log.emit(
                ISSUE_HOLD_ENDED, issue=issue.id, job=issue.task_id, agent=issue.agent, how=word
            )


def _job(issue: Issue) -> NewJob:
    return new_job(msgspec.json.encode(Payload(issue.id)), **_job_options(issue))


def _job_options(issue: Issue) -> JobOptions:
    options = JobOptions(id=issue.task_id, priority=issue.priority, selector=issue.selector)
    if issue.due:
        options["due"] = instant(issue.due)
    return options


def _task_in_queue(issue: Issue) -> str:
    """The id of the task that the queue has, or is about to get; empty = none."""
    return issue.applied.partition(" ")[0]
