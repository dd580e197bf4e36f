"""The service of issues: add, hand out, hold, complete, read."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import datetime

import msgspec

from towpath.apps.application import Host
from towpath.apps.issues import tables, transitions
from towpath.apps.issues.assignment import Assignment
from towpath.apps.issues.errors import IssueNotFound, NotHeld, TaskNotFound, TaskStale
from towpath.apps.issues.issue_store import IssueStore
from towpath.apps.issues.measures import STALE
from towpath.apps.issues.model import (
    ISSUES,
    Facts,
    Issue,
    IssueState,
    Task,
    TaskResult,
    agent_name,
    agent_of,
    issue_id,
)
from towpath.apps.issues.policy import policy_at
from towpath.apps.issues.tables import changes
from towpath.apps.issues.webhooks import Webhooks
from towpath.apps.owners import ALL, Access, access_of
from towpath.clock import Duration, instant, instant_ms, seconds, wall_ms
from towpath.engine.check import integer
from towpath.engine.explain import Why
from towpath.engine.leases import lease_by_token
from towpath.engine.model import JobInfo, Lease, job_ref
from towpath.engine.states import State
from towpath.errors import (
    InvalidName,
    InvalidOption,
    JobCancelled,
    JobDead,
    JobDone,
    JobError,
    JobNotFound,
    LeaseLost,
)
from towpath.ledger.errors import LedgerError
from towpath.ledger.keys.key import KeyInfo

LARGEST_PAGE = 200
_REASON_MOST = 2000
RESULT_MOST = 2000
"""Characters of what an agent says about its work."""
_ENDED_ERRORS = (JobDone, JobDead, JobCancelled, JobNotFound)


class HeldTask(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a heartbeat."""

    task_id: str
    expires_at: datetime
    """When another agent may get the task, unless another heartbeat comes before."""
    expires_in: Duration
    """The time left at the heartbeat, which does not depend on the agent's clock."""
    withdrawn: str | None
    """Why the agent should stop (the issue was closed, assigned or relabelled); None = go on."""


class EndedTask(msgspec.Struct, frozen=True, kw_only=True):
    """How a task ended."""

    task_id: str
    state: str
    """`done`; `ready` or `delayed`: it is offered again; `dead`: it was given up; `cancelled`."""


class IssuePage(msgspec.Struct, frozen=True):
    """Issues by repository and number."""

    issues: list[Issue]
    after: str | None
    """Pass it as `after` to get the next page; None on the last page."""


class IssueExplanation(msgspec.Struct, frozen=True):
    """Why an issue is not handed out."""

    why: str
    """The reason as one word."""
    text: str
    """The reason as a sentence."""


class Issues:
    """The application, for a server and for the command line."""

    def __init__(self, store: IssueStore) -> None:
        self.store = store
        self.assignment, self.webhooks = Assignment(store), Webhooks(store)

    # ── adding ───────────────────────────────────────────────────────────────────────────

    async def put(self, facts: Facts) -> Issue:
        """Store what a tracker says of an issue, unless the row has newer facts of the same
        tracker. An issue of GitHub's is overwritten when GitHub next reports it. Raises
        LedgerError.
        """
        changed = await self.store.change(facts.id, facts)
        if changed.after is None:
            raise IssueNotFound(facts.id)
        return changed.after

    # ── an agent's task ──────────────────────────────────────────────────────────────────

    def access(self, key: KeyInfo) -> Access:
        """Whose tasks *key* may use."""
        return access_of(key, shared=self.store.options.shared)

    async def heartbeat(
        self, task_id: str, token: int, *, agent: str | None = None, access: Access = ALL
    ) -> HeldTask:
        """Renew the lease of the task. Raises TaskStale, TaskNotFound."""
        lease, _, issue = await self._find_lease(task_id, token, agent, access)
        engine = self.store.engine
        try:
            renewed = await engine.renew(lease, self.store.options.lease)
        except (LeaseLost, *_ENDED_ERRORS) as error:
            raise await self._stale_error(task_id) from error
        if issue is not None and issue.token == token:
            with suppress(LedgerError):  # the lease counts; the next heartbeat updates the row
                await self._note_renewal(issue, renewed)
        why = (issue.why or "it was withdrawn") if issue and renewed.cancel_requested else None
        return HeldTask(
            task_id=task_id,
            expires_at=renewed.expires_at,
            expires_in=self.store.options.lease,
            withdrawn=why,
        )

    async def complete(
        self,
        task_id: str,
        token: int,
        *,
        agent: str | None = None,
        result: str = "",
        pr_number: int | None = None,
        access: Access = ALL,
    ) -> EndedTask:
        """Complete the task. The issue is not offered again until it is reopened or needs another
        type of task. Safe to repeat. Raises TaskStale, TaskNotFound.
        """
        lease, job, issue = await self._find_lease(task_id, token, agent, access)
        outcome = TaskResult(agent_of(job.worker or agent or ""), result[:RESULT_MOST], pr_number)
        engine = self.store.engine
        try:
            await engine.complete(lease, msgspec.json.encode(outcome))
        except (LeaseLost, *_ENDED_ERRORS) as error:
            raise await self._stale_error(task_id) from error
        return await self._note_end(lease, issue, State.DONE)

    async def fail(
        self,
        task_id: str,
        token: int,
        *,
        reason: str,
        agent: str | None = None,
        access: Access = ALL,
    ) -> EndedTask:
        """Report a failed attempt. The issue is offered again after a pause, or given up after the
        last attempt.

        Raises TaskStale, TaskNotFound.
        """
        lease, _, issue = await self._find_lease(task_id, token, agent, access)
        engine = self.store.engine
        try:
            state = await engine.fail(lease, reason[:_REASON_MOST])
        except (LeaseLost, *_ENDED_ERRORS) as error:
            raise await self._stale_error(task_id) from error
        return await self._note_end(lease, issue, state, how="failed")

    async def release(
        self,
        task_id: str,
        token: int,
        *,
        reason: str = "",
        not_before: datetime | None = None,
        agent: str | None = None,
        access: Access = ALL,
    ) -> EndedTask:
        """Give the task back. It is offered again now, or from *not_before* on; no attempt counts.

        Raises TaskStale, TaskNotFound.
        """
        lease, _, issue = await self._find_lease(task_id, token, agent, access)
        engine = self.store.engine
        rest = instant_ms("not_before", not_before) - wall_ms() if not_before else 0
        try:
            state = await engine.release(lease, delay=seconds(max(rest, 0) / 1000))
        except (LeaseLost, *_ENDED_ERRORS) as error:
            raise await self._stale_error(task_id) from error
        return await self._note_end(lease, issue, state, how="released", why=reason)

    async def give_back(self, task: Task) -> None:
        """Release *task*, whose agent left before it got the answer."""
        with suppress(TaskStale, TaskNotFound):
            await self.release(task.task_id, task.token, reason="the agent is gone")

    # ── for people ───────────────────────────────────────────────────────────────────────

    async def get(self, repository: str, number: int) -> Issue:
        """The issue as it is now. Raises IssueNotFound."""
        id = issue_id(repository, number)
        found = await self.store.ledger.read(tables.issue_by_id(id))
        if found is None:
            raise IssueNotFound(id)
        return found

    async def list(
        self,
        *,
        repository: str | None = None,
        state: IssueState | None = None,
        assignable: bool | None = None,
        agent: str | None = None,
        after: str | None = None,
        size: int = 50,
    ) -> IssuePage:
        """A page of issues, by repository and number. Raises InvalidOption."""
        integer("size", size, 1, LARGEST_PAGE)
        query = tables.issues_page(
            repository=repository,
            state=state,
            assignable=assignable,
            agent=agent,
            after=_parse_after(after) if after is not None else None,
            now=wall_ms(),
            size=size + 1,
        )
        some = await self.store.ledger.read(query)
        last = some[size - 1].id if len(some) > size else None
        return IssuePage(some[:size], last)

    async def explain(self, repository: str, number: int) -> IssueExplanation:
        """Why the issue is not handed out, or that it is. Raises IssueNotFound."""
        issue = await self.get(repository, number)
        if issue.held:
            until = instant(issue.expires).isoformat(timespec="seconds")
            text = f"{issue.agent} holds it until {until}, or longer if heartbeats come"
            return IssueExplanation("held", f"{text}; {issue.why}" if issue.why else text)
        if issue.withheld:
            return IssueExplanation(issue.withheld, issue.why)
        if (limit := await self.assignment.reached_limit(issue)) is not None:
            return _limit_explanation(*limit)
        try:
            found = await self.store.engine.inspect.explain(job_ref(ISSUES, issue.task_id))
        except JobNotFound:
            return IssueExplanation("unknown", "it is not in the queue yet; it will be added soon")
        if found.why in (Why.NEXT, Why.NO_WORKER, Why.ALL_BUSY):
            text = f"the next agent with the role {issue.role} for {issue.repository} gets it"
            return IssueExplanation("ready", text)
        if found.why is Why.NOT_DUE:
            return _resting_explanation(issue, found.text)
        return IssueExplanation(found.why, found.text)

    async def take_away(self, repository: str, number: int, *, reason: str = "") -> Issue:
        """Take an issue from its agent and offer it again; later calls of that agent are refused.
        An issue that was given up or completed is offered again, too.

        Raises IssueNotFound, and NotHeld if it is offered already or the policy withholds it.
        """
        issue = await self.get(repository, number)
        if not issue.held:
            offered = issue if not issue.withheld else await self._offer_again(issue)
            if offered.withheld or not issue.withheld:
                raise NotHeld(issue.id)
            return offered
        lease = lease_by_token(job_ref(ISSUES, issue.task_id), issue.token, worker=issue.agent)
        with suppress(LeaseLost, JobError):  # the hold has ended by itself
            await self.store.engine.release(lease)
        await self.store.check_hold(issue, how="released", why=reason)
        return await self.get(repository, number)

    # ── how it is done ───────────────────────────────────────────────────────────────────

    async def _find_lease(
        self, task_id: str, token: int, agent: str | None, access: Access
    ) -> tuple[Lease, JobInfo, Issue | None]:
        """The lease that *token* names, its job, and the issue that has the task. If *agent* is
        given, it must be the current holder.

        Raises TaskNotFound, TaskStale, and LedgerError if the task's owner can't be read.
        """
        engine = self.store.engine
        try:
            job = await engine.inspect.job(job_ref(ISSUES, task_id))
        except (JobNotFound, InvalidName) as error:
            raise TaskNotFound(task_id) from error
        if agent is not None and agent_name(agent) != agent_of(job.worker or agent):
            raise await self._stale_error(task_id)
        issue = None
        try:
            issue = await self.store.ledger.read(tables.issue_of_task(task_id))
        except LedgerError:
            if not access.owns(""):  # admins and code without a key may use every task
                raise
        if not _may_use(access, issue, token):
            raise await self._stale_error(task_id)
        attempt, retry = job.attempts, job.retry
        held = lease_by_token(job.ref, token, worker=job.worker or "", attempt=attempt, retry=retry)
        return held, job, issue

    async def _offer_again(self, issue: Issue) -> Issue:
        return (await self.store.change(issue.id, transitions.offer_again)).after or issue

    async def _stale_error(self, task_id: str) -> TaskStale | TaskNotFound:
        self.store.metrics.own(STALE).inc()
        try:
            job = await self.store.engine.inspect.job(job_ref(ISSUES, task_id))
        except JobNotFound:
            return TaskNotFound(task_id)
        held = job.state is State.LEASED
        return TaskStale(
            task_id,
            state=job.state,
            holder=agent_of(job.worker) if held and job.worker else None,
            expires_at=job.expires_at if held else None,
        )

    async def _note_renewal(self, issue: Issue, renewed: Lease) -> None:
        await self.store.ledger.write(changes.note_renewal(issue, renewed.expires_ms))
        await self.store.keys.write_lock(msgspec.structs.replace(issue, expires=renewed.expires_ms))

    async def _note_end(
        self, lease: Lease, issue: Issue | None, state: State, *, how: str = "", why: str = ""
    ) -> EndedTask:
        """Note in the row that a hold has ended. If the database is away, `maintain` notes it
        later: the queue has the end.
        """
        if issue is not None and issue.token == lease.token:
            with suppress(LedgerError):
                await self.store.check_hold(issue, how=how, why=why)
        return EndedTask(task_id=lease.id, state=state)


def _may_use(access: Access, issue: Issue | None, token: int) -> bool:
    """Whether the caller may settle the lease that *token* names; Redis checks the token itself.

    The row has the token before its agent does, so a token that differs from the row's was guessed
    or is stale. The owner of a token never changes, so the answer still holds when Redis checks the
    token. A task that is in no row was withdrawn or has ended; its agent may still settle it.
    """
    if issue is None or access.owns(""):
        return True
    return issue.token == token and (not issue.owner or access.owns(issue.owner))


def _limit_explanation(what: str, most: int) -> IssueExplanation:
    return IssueExplanation("limit", f"{what} has as many tasks in progress as it may have: {most}")


def _parse_after(after: str) -> tuple[str, int]:
    """Repository and number in the id *after*, where a page begins. Raises InvalidOption."""
    place, _, number = after.rpartition("#")
    if not place or not (number.isascii() and number.isdecimal()) or len(number) > 10:
        rule = "must be the `after` value returned with the previous page"
        raise InvalidOption("after", after, rule=rule)
    return place, int(number)


@asynccontextmanager
async def serving(host: Host) -> AsyncGenerator[Issues]:
    """The application in a server. Raises PolicyInvalid."""
    yield Issues(
        IssueStore(
            engine=host.engine,
            ledger=host.ledger,
            options=host.options,
            policy=policy_at(host.options.policy),
            metrics=host.metrics,
            log=host.log,
        )
    )


def tasks(service: Issues) -> Mapping[str, Callable[[], Awaitable[None]]]:
    """The background tasks of the server."""
    return {"leases": service.store.maintain}


def _resting_explanation(issue: Issue, due: str) -> IssueExplanation:
    """Why an issue is offered later. *due* is the queue's sentence about the time."""
    if issue.was_refused:
        text = f"{issue.outcome}; nobody holds it, and it is offered again: {due}"
        return IssueExplanation("refused", text)
    if issue.delayed_until >= issue.not_before:
        return IssueExplanation(Why.NOT_DUE, f"its review delay is not over: {due}")
    last = f" after its last task ({issue.outcome})" if issue.outcome else ""
    return IssueExplanation(Why.NOT_DUE, f"it rests{last}: {due}")
