"""Assignment: leases the best task to the agent that asks for one.

The queue chooses and leases in one step. Then the row is checked, because it may have changed
meanwhile. A task that the row does not confirm is given back, and no agent sees it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import msgspec

from towpath.apps.issues import tables
from towpath.apps.issues.issue_store import ClaimRefusal, IssueStore
from towpath.apps.issues.model import (
    ISSUES,
    Issue,
    Payload,
    Task,
    agent_name,
    role_name,
    selector_of,
    worker_of,
)
from towpath.clock import ZERO, Duration, instant, milliseconds, seconds, steady
from towpath.engine.model import Call, Lease
from towpath.errors import InvalidOption, JobError, LeaseError, TowpathError
from towpath.forges.texts import is_repository
from towpath.supervise import detached

SELECTORS_MOST = 100
"""Selectors that one claim can name."""
_CLAIM_WITHIN = seconds(5)
"""How long one claim waits. Then selectors are read again, because new ones may exist."""
_SHORTEST_WAIT = milliseconds(1)
_PAUSE = 0.5
"""Seconds between two reads of selectors while none fits."""
_NAMES_MOST = 100


class TaskRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a task. Raises InvalidName, InvalidOption."""

    agent: str
    roles: tuple[str, ...] = ()
    """The agent's roles; none = all."""
    repositories: tuple[str, ...] = ()
    """The repositories that it works on; none = all."""

    def __post_init__(self) -> None:
        agent_name(self.agent)
        if max(len(self.roles), len(self.repositories)) > _NAMES_MOST:
            raise InvalidOption("roles", "…", rule=f"at most {_NAMES_MOST} of each")
        for role in self.roles:
            role_name(role)
        for repository in self.repositories:
            if not is_repository(repository):
                raise InvalidOption("repositories", repository, rule="must be owner/name")

    @property
    def chooses(self) -> bool:
        return bool(self.roles or self.repositories)


class Assignment:
    """Hands out the tasks of issues. The steps of a request, in their order:

    1. Claim: the queue chooses the best task and leases it (`_claim`).
    2. Hold: one transaction notes the holder in the row, and creates the record of the job that
       shows the holder on GitHub (`IssueStore.hold`). If it refuses the claim, the lease is given
       back, and the request claims again (`_confirm`).
    3. Publish: the lock key of the issue is written (`PublishedKeys.write_lock`).
    4. Answer: the agent gets the task with its fencing token.

    Later, in a worker, `projection.Projector` shows the holder on GitHub.
    """

    def __init__(self, store: IssueStore) -> None:
        self._store = store
        self._giving_back: set[asyncio.Task[None]] = set()

    async def request(
        self,
        request: TaskRequest,
        *,
        wait: Duration | None = None,
        call: Call | None = None,
        owner: str | None = None,
    ) -> Task | None:
        """The best task that the agent may have; None if there is none within *wait*.

        The agent, and *owner* with it, holds the task for the time of the lease. If this call is
        cancelled, it gives the task back. Raises ServerError, LedgerError.
        """
        until = steady() + (wait or ZERO).total_seconds()
        avoided: set[str] = set()
        while True:
            rest = seconds(max(until - steady(), 0))
            if call is not None:  # a claim that waits may be repeated with another wait
                rest = max(rest, _SHORTEST_WAIT)
            lease = await self._claim(request, avoided, min(rest, _CLAIM_WITHIN), call, owner)
            if lease is not None:
                task = await self._confirm(lease, request, avoided, owner)
                if task is not None:
                    return task
                call = None  # a repeat of the same call would return the lease that was given back
                continue
            if steady() >= until:
                return None
            avoided.clear()  # repositories that had reached their limit may be below it again

    async def reached_limit(self, issue: Issue) -> tuple[str, int] | None:
        """The repository and its limit, if that keeps *issue* from being handed out; else None."""
        limits, place = self._store.policy.limits, issue.repository.lower()
        held = await self._store.ledger.read(
            lambda connection: tables.count_held(connection, place)
        )
        is_full = limits.repository and held >= limits.repository
        return (issue.repository, limits.repository) if is_full else None

    # ── claiming ─────────────────────────────────────────────────────────────────────────

    async def _claim(
        self,
        request: TaskRequest,
        avoided: set[str],
        wait: Duration,
        call: Call | None,
        owner: str | None,
    ) -> Lease | None:
        """Claim the best task that fits. All claims of tasks are made here."""
        engine, limit = await self._store.declare_queue(), self._store.policy.limits.agent
        some = await self._choose_selectors(request, avoided)
        if some is not None and not some:
            # No task ever had a selector that fits, so no wake-up can come.
            await asyncio.sleep(min(wait.total_seconds(), _PAUSE))
            return None
        leases = await engine.claim(
            ISSUES,
            worker=worker_of(request.agent, owner),
            lease=self._store.options.lease,
            selectors=some or (),
            max_held=limit or None,
            wait=wait,
            call=call,
        )
        return leases[0] if leases else None

    async def _choose_selectors(self, request: TaskRequest, avoided: set[str]) -> list[str] | None:
        """The selectors that a claim names; None = all tasks.

        With `only_highest`, those that have a free issue of the highest priority.
        """
        store, only = self._store, self._store.policy.only_highest
        if not (request.chooses or avoided or only):
            return None
        places = [repository.lower() for repository in request.repositories] or None
        if request.roles and places and len(request.roles) * len(places) <= SELECTORS_MOST:
            some = [selector_of(place, role) for place in places for role in request.roles]
        else:
            query = tables.selectors_of(places, request.roles or None)
            some = await store.ledger.read(query)
        some = [selector for selector in some if selector.partition("|")[0] not in avoided]
        if only or len(some) > SELECTORS_MOST:
            highest = await store.ledger.read(tables.highest_priority) if only else None
            best = tables.best_selectors(some, SELECTORS_MOST, priority=highest)
            some = await store.ledger.read(best)
        return some

    # ── handing out ──────────────────────────────────────────────────────────────────────

    async def _confirm(
        self, lease: Lease, request: TaskRequest, avoided: set[str], owner: str | None
    ) -> Task | None:
        """Note the hold in the row and return the task; None if it had to be given back. If this
        call is cancelled, the task is given back, too.
        """
        noting = asyncio.ensure_future(self._store.hold(lease, request.agent, owner))
        try:
            found = await asyncio.shield(noting)
        except asyncio.CancelledError:
            giving_back = detached("giving back of a task", self._take_back(lease, noting))
            self._giving_back.add(giving_back)
            giving_back.add_done_callback(self._giving_back.discard)
            raise
        except TowpathError:
            with suppress(TowpathError):
                await self._give_back(lease)
            raise
        if isinstance(found, Issue):
            return self._task(found, lease)
        if found is ClaimRefusal.CHANGED:
            await self._store.withdraw(lease.id)
        await self._give_back(lease)
        if found is ClaimRefusal.LIMIT:
            avoided.add(msgspec.json.decode(lease.payload, type=Payload).issue.partition("#")[0])
        return None

    async def _take_back(self, lease: Lease, noting: asyncio.Future[Issue | ClaimRefusal]) -> None:
        with suppress(TowpathError):
            found = await noting
            await self._give_back(lease)
            if isinstance(found, Issue):
                await self._store.check_hold(found, how="released")

    async def _give_back(self, lease: Lease) -> None:
        with suppress(LeaseError, JobError):
            await self._store.engine.release(lease)

    def _task(self, issue: Issue, lease: Lease) -> Task:
        return Task(
            task_id=lease.id,
            token=lease.token,
            expires_at=instant(lease.expires_ms),
            repository=issue.repository,
            issue_number=issue.number,
            url=issue.url,
            title=issue.title,
            body=issue.body,
            labels=issue.labels,
            branch=self._store.policy.branch(issue),
            role=issue.role,
            task_type=issue.task_type,
            pr_number=issue.pr_number,
        )
