"""Changes of issues: first of the row, then of the queue that hands them out.

A row is changed first, in one transaction with the job that shows the change on GitHub. Then the
queue follows. After a crash in between, `maintain` finds the row, which says that the queue may not
match.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from towpath.apps.issues import tables, transitions
from towpath.apps.issues.measures import ENDED, REPAIRED
from towpath.apps.issues.model import (
    ISSUES,
    PROJECTIONS,
    QUEUES,
    Issue,
    IssueSource,
    IssueState,
    Payload,
    TaskResult,
)
from towpath.apps.issues.options import IssuesOptions
from towpath.apps.issues.policy import IssuePolicy
from towpath.apps.issues.published_keys import PublishedKeys
from towpath.apps.issues.tables import changes
from towpath.clock import duration_ms, instant, instant_ms, wall_ms
from towpath.engine.engine import Engine
from towpath.engine.model import JobInfo, JobOptions, NewJob, Submitted, job_ref, new_job
from towpath.engine.states import State
from towpath.errors import (
    JobError,
    JobNotFound,
    JobNotWaiting,
    ServerError,
    TowpathError,
)
from towpath.ledger.database.writing import Write
from towpath.ledger.ledger import Ledger
from towpath.ledger.records.record import Recorded
from towpath.telemetry.events import ISSUE_HOLD_ENDED, ISSUE_REPAIRED
from towpath.telemetry.logs import Log
from towpath.telemetry.metrics import Metrics

_BATCH = 200
"""Rows that one step of the maintenance reads."""
_OUTCOME_MOST = 500
_ENDED_STATES = (State.DONE, State.DEAD, State.CANCELLED, State.GONE)

Change = Callable[[Issue | None], Issue | None]


class Revised(NamedTuple):
    """A row before a change and after it; both the same = nothing was changed."""

    before: Issue | None
    after: Issue | None

    @property
    def changed(self) -> bool:
        return self.before != self.after


class IssueStore:
    """All known issues, and the queue that hands them out."""

    def __init__(
        self,
        *,
        engine: Callable[[], Engine],
        ledger: Callable[[], Ledger],
        options: IssuesOptions,
        policy: IssuePolicy,
        metrics: Metrics,
        log: Log,
    ) -> None:
        self._engine, self._ledger = engine, ledger
        self.options, self.policy = options, policy
        self.metrics, self.log = metrics, log
        self.keys = PublishedKeys(engine)
        self._locks_seen = 0
        """The end of the last lease whose lock key was checked, in ms."""
        self._offers_seen = ""
        """The id of the last issue whose task was compared with the queue."""

    @property
    def ledger(self) -> Ledger:
        return self._ledger()

    async def engine(self) -> Engine:
        """The engine, with the queue of issues declared."""
        engine, attempts = self._engine(), self.options.attempts
        await engine.queues.introduce(ISSUES, replace(QUEUES[ISSUES], max_attempts=attempts))
        return engine

    # ── changing ─────────────────────────────────────────────────────────────────────────

    async def change(
        self,
        id: str,
        change: Change,
        *,
        settle: bool = True,
        unless: Callable[[tables.Connection, Issue], bool] | None = None,
    ) -> Revised:
        """Change the row of an issue, then the queue, unless *settle* is False.

        *unless* is asked last, in the write; if it is true, the row stays. If Redis is away, the
        queue follows later. Raises LedgerError.
        """
        [revised] = await self._change_rows({id: change}, unless)
        await self._follow_up([revised], settle=settle)
        if _is_open(revised.before) != _is_open(revised.after):
            await self.judge_blocked()
        return revised

    async def change_all(self, wanted: Mapping[str, Change]) -> list[Revised]:
        """Change many rows in one transaction, then the queue at once. A caller that opens or
        closes issues calls `judge_blocked` afterwards.
        """
        revised = await self._change_rows(wanted) if wanted else []
        await self._follow_up(revised)
        return revised

    async def _change_rows(
        self,
        wanted: Mapping[str, Change],
        unless: Callable[[tables.Connection, Issue], bool] | None = None,
    ) -> list[Revised]:
        def judged(
            connection: tables.Connection, there: Mapping[str, Issue]
        ) -> dict[str, Issue | None]:
            changed = {id: change(there.get(id)) for id, change in wanted.items()}
            return {
                id: new and self._judge(connection, new, changed) for id, new in changed.items()
            }

        change = changes.change_issues(list(wanted), judged, self._projection_job, unless)
        return [Revised(*parts) for parts in await self.ledger.jobs.decide(change)]

    def _judge(
        self, connection: tables.Connection, issue: Issue, changing: Mapping[str, Issue | None]
    ) -> Issue:
        """The row as the policy decides; *changing* are all rows of the same change, by id."""
        named = self.policy.blockers(issue)
        others = tables.open_ids(connection, [id for id in named if id not in changing])
        open_in_change = [
            other.id for id in named if (other := changing.get(id)) and _is_open(other)
        ]
        blockers = [id for id in named if id in others or id in open_in_change]
        return transitions.judge(issue, self.policy, now=wall_ms(), open_blockers=blockers)

    def _projection_job(
        self, connection: tables.Connection, before: Issue | None, after: Issue
    ) -> Write[Recorded] | None:
        """The job that shows a new holder on GitHub, to be written with the change; else None."""
        moved = (before.agent, before.token) != (after.agent, after.token) if before else False
        if not (moved and self._shows(after)):
            return None
        payload = msgspec.json.encode(Payload(after.id))
        return self.ledger.jobs.submitting(
            connection, PROJECTIONS, payload, lane=after.id, subject=after.id
        )

    async def show(self, id: str) -> None:
        """Submit a job that makes GitHub show what the row says. Raises LedgerError."""
        payload = msgspec.json.encode(Payload(id))
        await self.ledger.jobs.submit(PROJECTIONS, payload, lane=id, subject=id)

    def _shows(self, issue: Issue) -> bool:
        return self.options.github_token is not None and issue.source is IssueSource.GITHUB

    async def _follow_up(self, some: Sequence[Revised], *, settle: bool = True) -> None:
        """Update the queue and the published keys after a change of rows."""
        changed = [(row.before, row.after) for row in some if row.changed and row.after is not None]
        if settle:
            with suppress(ServerError):
                await self.settle(*(after for before, after in changed if not before), new=True)
                old = (after for before, after in changed if before and not _is_settled(after))
                await self.settle(*old)
        for before, after in changed:
            delay = (before.found, before.pr_number) if before else (0, None)
            if delay != (after.found, after.pr_number):
                await self.keys.write_delay(after)

    async def judge_blocked(self) -> None:
        """Judge issues that may name blockers again, if the policy has `blocked_by`."""
        if self.policy.blocked_by:
            await self._judge_again(await self.ledger.read(tables.ids_naming_blockers))

    async def _judge_again(self, ids: list[str]) -> None:
        for at in range(0, len(ids), _BATCH):
            await self.change_all({id: lambda issue: issue for id in ids[at : at + _BATCH]})

    # ── the queue ────────────────────────────────────────────────────────────────────────

    async def settle(self, *issues: Issue, new: bool = False) -> None:
        """Make the queue match these rows. Safe to repeat. Raises ServerError, LedgerError.

        The row notes what is submitted before it happens, so that another change of the row knows
        which task to withdraw; a *new* row was stored with that note. It notes the success after
        it, so that a crash in between is found.
        """
        offered = [issue for issue in issues if issue.wanted]
        for issue in issues if not new else ():
            task_id = issue.applied.partition(" ")[0]
            if task_id != issue.task_id or not issue.wanted:
                await self.withdraw(task_id)
        not_offered = [issue for issue in issues if not (issue.wanted or (new and issue.settled))]
        if not_offered:
            await self.ledger.write(changes.note_in_queue(not_offered))
        if offered:
            await self._submit(offered, new=new)

    async def withdraw(self, task_id: str) -> None:
        """Cancel a task that has not ended; its holder is asked to stop. "" does nothing."""
        if task_id:
            with suppress(JobError):  # it has ended already
                await (await self.engine()).cancel(job_ref(ISSUES, task_id))

    async def _submit(self, issues: list[Issue], *, new: bool) -> None:
        engine, known = await self.engine(), set[str]()
        if not new:
            known = {issue.id for issue in issues if _is_queued(issue)}
            noted = zip(issues, await self.ledger.write(changes.note_intent(issues)), strict=True)
            issues = [replace(issue, revision=issue.revision + 1) for issue, ok in noted if ok]
        await engine.submit_many(ISSUES, [_job(issue) for issue in issues if issue.id not in known])
        for issue in issues:
            if issue.id in known:
                # If an agent has just claimed the task, the queue follows when that hold ends.
                with suppress(JobNotWaiting):
                    payload = msgspec.json.encode(Payload(issue.id))
                    await engine.set(ISSUES, payload, **_job_options(issue))
        if issues:
            await self.ledger.write(changes.note_in_queue(issues))

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
        engine = await self.engine()
        answers = await engine.submit_many(ISSUES, [_job(issue) for issue in issues])
        for issue, answer in zip(issues, answers, strict=True):
            if isinstance(answer, Submitted) and answer.state in _ENDED_STATES:
                await self._follow_end(issue)

    async def _follow_end(self, issue: Issue) -> None:
        """Note that the task of an issue that nobody holds has ended. One that was cancelled is
        offered again under another id.
        """
        try:
            job = await (await self.engine()).inspect.job(job_ref(ISSUES, issue.task_id))
        except JobNotFound:
            return
        if job.state not in _ENDED_STATES:  # it was retried since
            return
        _, ended = _end_of(job, "")
        revised = await self.change(issue.id, lambda current: _end_hold(current, issue, job, ended))
        if revised.changed:
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
        engine, now = await self.engine(), wall_ms()
        await engine.queues.reap(ISSUES)
        if not await self.keys.offers_noted():
            await self.offer_all()
            await self.keys.note_offers()
        for issue in await self.ledger.read(tables.held_until(now, _BATCH)):
            await self.check_hold(issue)
        # The process that changed a row just now is still updating the queue.
        before = now - duration_ms("look", self.options.look)
        while some := await self.ledger.read(tables.issues_not_in_queue(before, _BATCH)):
            await self.settle(*some)
        digest = self.policy.digest
        await self._judge_again(await self.ledger.read(tables.ids_of_other_policies(digest)))
        for issue in await self.ledger.read(tables.issues_with_delay_over(now, _BATCH)):
            revised = await self.change(issue.id, lambda current: _mark_ready(current, now))
            if revised.after is not None:
                await self.keys.write_delay(revised.after)
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
            if not (_same_hold(now, issue) and now is not None and now.held):
                await self.keys.delete_lock(issue)  # the hold ended after its row was read

    async def check_hold(self, issue: Issue, *, how: str = "", why: str = "") -> Revised | None:
        """Note the end of the hold in *issue*, if it has ended; returns None if it has not.

        *how* and *why* are the end in a word and in a line, if the caller knows it. Raises
        ServerError, LedgerError.
        """
        ref = job_ref(ISSUES, issue.task_id)
        try:
            job = await (await self.engine()).inspect.job(ref)
        except JobNotFound:
            job = None
        if job is not None and job.state is State.LEASED:
            expires = instant_ms("expires_at", job.expires_at) if job.expires_at else 0
            await self.change(issue.id, lambda current: _extend_hold(current, issue, expires))
            return None
        word, ended = _end_of(job, how)
        text = why[:_OUTCOME_MOST] or ended
        revised = await self.change(issue.id, lambda current: _end_hold(current, issue, job, text))
        if revised.changed:
            await self._report_end(issue, word)
        return revised

    async def _report_end(self, issue: Issue, how: str) -> None:
        await self.keys.delete_lock(issue)
        self.metrics.own(ENDED).labels(how).inc()
        self.log.emit(
            ISSUE_HOLD_ENDED, issue=issue.id, job=issue.task_id, agent=issue.agent, how=how
        )


def _job_options(issue: Issue) -> JobOptions:
    options = JobOptions(id=issue.task_id, priority=issue.priority, selector=issue.selector)
    if issue.due:
        options["due"] = instant(issue.due)
    return options


def _is_open(issue: Issue | None) -> bool:
    return issue is not None and issue.state is IssueState.OPEN


def _is_settled(issue: Issue) -> bool:
    return issue.settled and tables.is_known(issue)


def _is_queued(issue: Issue) -> bool:
    """Whether the queue has its task."""
    return issue.applied.partition(" ")[0] == issue.task_id


def _job(issue: Issue) -> NewJob:
    return new_job(msgspec.json.encode(Payload(issue.id)), **_job_options(issue))


def _mark_ready(issue: Issue | None, now: int) -> Issue | None:
    if issue is None or not issue.found or issue.review_due > now:
        return issue
    return replace(issue, ready_told=True)


def _same_hold(now: Issue | None, issue: Issue) -> bool:
    return now is not None and (now.task_id, now.token) == (issue.task_id, issue.token)


def _extend_hold(now: Issue | None, issue: Issue, expires: int) -> Issue | None:
    if now is None or not _same_hold(now, issue):
        return now
    return replace(now, expires=max(expires, now.expires))


def _end_of(job: JobInfo | None, how: str) -> tuple[str, str]:
    """How a hold has ended: in a word, and in one line."""
    if job is None:
        return how or "expired", "its task no longer exists"
    match job.state:
        case State.DONE:
            return "completed", "completed"
        case State.DEAD:
            return how or "failed", f"given up: {job.reason or 'no reason'}"[:_OUTCOME_MOST]
        case State.CANCELLED:
            return "withdrawn", "withdrawn"
        case _:
            return how or "expired", (job.reason or how or "the agent sent no heartbeat")[
                :_OUTCOME_MOST
            ]


def _end_hold(now: Issue | None, issue: Issue, job: JobInfo | None, ended: str) -> Issue | None:
    """The row after the hold in *issue* has ended as *job* says."""
    if now is None or not _same_hold(now, issue):
        return now
    state = State.GONE if job is None else job.state
    due = None
    if job is not None and job.state is State.DELAYED:
        due = job.next_try_at or job.due_at
    outcome = _outcome(job)
    free = transitions.free(
        now,
        now=wall_ms(),
        spent=state in _ENDED_STATES,
        outcome=_outcome_text(outcome) or ended,
        not_before=instant_ms("due_at", due) if due else 0,
        completed=state is State.DONE,
    )
    if outcome is not None and outcome.pr_number is not None:
        free = replace(free, pr_number=outcome.pr_number)
    return transitions.give_up(free, ended) if state is State.DEAD else free


def _outcome(job: JobInfo | None) -> TaskResult | None:
    if job is None or job.state is not State.DONE or not job.result:
        return None
    with suppress(msgspec.MsgspecError):
        return msgspec.json.decode(job.result, type=TaskResult)
    return None


def _outcome_text(outcome: TaskResult | None) -> str:
    if outcome is None:
        return ""
    more = f": {outcome.result}" if outcome.result else ""
    return f"completed by {outcome.agent}{more}"[:_OUTCOME_MOST]
