"""Assignment out: leases the best task to the agent that asks for one.

The queue chooses and leases in one step. Then the row is checked, because it may have changed
meanwhile. A task that the row does not confirm is given back, and no agent sees it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from enum import StrEnum

import msgspec

from towpath.apps.issues import tables, transitions
from towpath.apps.issues.issue_store import IssueStore
from towpath.apps.issues.measures import HANDED_OUT
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
from towpath.telemetry.events import ISSUE_HANDED_OUT

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


class _Refusal(StrEnum):
    """Why a claimed task is not handed out."""

    CHANGED = "changed"
    """The row no longer offers the task; the task is withdrawn."""
    FULL = "full"
    """The limit of its repository is reached, or an issue with a higher priority exists."""


class Assignment:
    """Hands out the tasks of the stored issues."""

    def __init__(self, store: IssueStore) -> None:
        self._store = store
        self._undoing: set[asyncio.Task[None]] = set()

    async def request(
        self,
        wish: TaskRequest,
        *,
        wait: Duration | None = None,
        call: Call | None = None,
        owner: str | None = None,
    ) -> Task | None:
        """Lease the best task to the agent, for *owner*; None if there is none within *wait*."""
        until = steady() + (wait or ZERO).total_seconds()
        avoided: set[str] = set()
        while True:
            rest = seconds(max(until - steady(), 0))
            if call is not None:  # a claim that waits may be repeated with another wait
                rest = max(rest, _SHORTEST_WAIT)
            lease = await self._claim(wish, avoided, min(rest, _CLAIM_WITHIN), call, owner)
            if lease is not None:
                task = await self._hand_out(lease, wish, avoided, owner)
                if task is not None:
                    return task
                call = None  # under that name, the claim would return the same lease
                continue
            if steady() >= until:
                return None
            avoided.clear()  # their limits may be free again

    async def full(self, issue: Issue) -> tuple[str, int] | None:
        """The repository and its limit, if that keeps *issue* from being handed out; else None."""
        limits, place = self._store.policy.limits, issue.repository.lower()
        held = await self._store.ledger.read(
            lambda connection: tables.count_held(connection, place)
        )
        is_full = limits.repository and held >= limits.repository
        return (issue.repository, limits.repository) if is_full else None

    def _is_full(self, connection: tables.Connection, issue: Issue) -> bool:
        """Whether a limit keeps *issue* from being held. Called in a write, as it may lock rows."""
        policy = self._store.policy
        if policy.only_highest and issue.priority < (tables.highest_priority(connection) or 0):
            return True
        most, place = policy.limits.repository, issue.repository.lower()
        return bool(most) and tables.count_held(connection, place, lock=True) >= most

    # ── claiming ─────────────────────────────────────────────────────────────────────────

    async def _claim(
        self,
        wish: TaskRequest,
        avoided: set[str],
        wait: Duration,
        call: Call | None,
        owner: str | None,
    ) -> Lease | None:
        """Claim the best task that fits. All claims of tasks are made here."""
        engine, limit = await self._store.engine(), self._store.policy.limits.agent
        some = await self._choose_selectors(wish, avoided)
        if some is not None and not some:
            # No task ever had a selector that fits, so no wake-up can come.
            await asyncio.sleep(min(wait.total_seconds(), _PAUSE))
            return None
        leases = await engine.claim(
            ISSUES,
            worker=worker_of(wish.agent, owner),
            lease=self._store.options.lease,
            selectors=some or (),
            max_held=limit or None,
            wait=wait,
            call=call,
        )
        return leases[0] if leases else None

    async def _choose_selectors(self, wish: TaskRequest, avoided: set[str]) -> list[str] | None:
        """The selectors that a claim names; None = all tasks.

        With `only_highest`, those that have a free issue of the highest priority.
        """
        store, only = self._store, self._store.policy.only_highest
        if not (wish.chooses or avoided or only):
            return None
        places = [repository.lower() for repository in wish.repositories] or None
        if wish.roles and places and len(wish.roles) * len(places) <= SELECTORS_MOST:
            some = [selector_of(place, role) for place in places for role in wish.roles]
        else:
            query = tables.selectors_of(places, wish.roles or None)
            some = await store.ledger.read(query)
        some = [selector for selector in some if selector.partition("|")[0] not in avoided]
        if only or len(some) > SELECTORS_MOST:
            highest = await store.ledger.read(tables.highest_priority) if only else None
            best = tables.best_selectors(some, SELECTORS_MOST, priority=highest)
            some = await store.ledger.read(best)
        return some

    # ── handing out ──────────────────────────────────────────────────────────────────────

    async def _hand_out(
        self, lease: Lease, wish: TaskRequest, avoided: set[str], owner: str | None
    ) -> Task | None:
        """Note the hold in the row and return the task; None if it had to be given back. If this
        call is cancelled, the task is given back, too.
        """
        noting = asyncio.ensure_future(self._note_hold(lease, wish, owner))
        try:
            found = await asyncio.shield(noting)
        except asyncio.CancelledError:
            undoing = detached("giving back of a task", self._undo(lease, noting))
            self._undoing.add(undoing)
            undoing.add_done_callback(self._undoing.discard)
            raise
        except TowpathError:
            with suppress(TowpathError):
                await self._give_back(lease)
            raise
        if isinstance(found, Issue):
            return self._task(found, lease)
        if found is _Refusal.CHANGED:
            await self._store.withdraw(lease.id)
        await self._give_back(lease)
        if found is _Refusal.FULL:
            avoided.add(msgspec.json.decode(lease.payload, type=Payload).issue.partition("#")[0])
        return None

    async def _note_hold(
        self, lease: Lease, wish: TaskRequest, owner: str | None
    ) -> Issue | _Refusal:
        """Note the holder in the row. Returns the row, or why the task is not handed out."""
        store = self._store
        known = await store.ledger.read(tables.issue_of_task(lease.id))
        if known is None:
            return _Refusal.CHANGED

        def change(before: Issue | None) -> Issue | None:
            if before is None or before.task_id != lease.id or before.withheld:
                return before
            return transitions.hold(
                before,
                agent=wish.agent,
                owner=owner,
                token=lease.token,
                since=lease.claimed_ms,
                expires=lease.expires_ms,
            )

        found = await store.change(known.id, change, unless=self._is_full)
        after = found.after
        if after is None or after.token != lease.token:
            same = after is not None and after.task_id == lease.id and not after.withheld
            return _Refusal.FULL if same else _Refusal.CHANGED
        await store.keys.write_lock(after)
        store.metrics.own(HANDED_OUT).labels(after.task_type).inc()
        fields = {"issue": after.id, "job": lease.id, "agent": wish.agent}
        store.log.emit(ISSUE_HANDED_OUT, **fields, task_type=after.task_type)
        return after

    async def _undo(self, lease: Lease, noting: asyncio.Future[Issue | _Refusal]) -> None:
        with suppress(TowpathError):
            found = await noting
            await self._give_back(lease)
            if isinstance(found, Issue):
                await self._store.check_hold(found, how="released")

    async def _give_back(self, lease: Lease) -> None:
        engine = await self._store.engine()
        with suppress(LeaseError, JobError):
            await engine.release(lease)

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
