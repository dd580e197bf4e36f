"""Handing out: the best task that an agent may have, in its hands and nobody else's.

The queue chooses and leases in one step. Then the row is asked, which may have changed meanwhile:
what it does not confirm is given back, and no agent hears of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum

import msgspec

from towpath.apps.issues import life, tables
from towpath.apps.issues.board import Board
from towpath.apps.issues.measures import HANDED_OUT
from towpath.apps.issues.model import (
    ISSUES,
    Issue,
    Payload,
    Task,
    agent_name,
    role_name,
    selector_of,
)
from towpath.clock import ZERO, Duration, instant, seconds, steady
from towpath.engine.model import Call, Lease
from towpath.errors import InvalidOption, JobError, LeaseError, TowpathError
from towpath.forges.texts import is_repository
from towpath.supervise import detached
from towpath.telemetry.events import ISSUE_HANDED_OUT

SELECTORS_MOST = 100
"""Kinds of tasks that one claim can name."""
_SLICE = seconds(5)
"""How long one look waits: kinds of tasks may come that were not there before."""
_NAMED_MOST = 100


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent asks for. Raises InvalidName, InvalidOption."""

    agent: str
    roles: tuple[str, ...] = ()
    """What it can do; none = everything."""
    repositories: tuple[str, ...] = ()
    """Where; none = everywhere."""

    def __post_init__(self) -> None:
        agent_name(self.agent)
        if max(len(self.roles), len(self.repositories)) > _NAMED_MOST:
            raise InvalidOption("roles", "…", rule=f"at most {_NAMED_MOST} of each")
        for role in self.roles:
            role_name(role)
        for repository in self.repositories:
            if not is_repository(repository):
                raise InvalidOption("repositories", repository, rule="must be owner/name")

    @property
    def chooses(self) -> bool:
        return bool(self.roles or self.repositories)

    def fits(self, issue: Issue) -> bool:
        places = {it.lower() for it in self.repositories}
        return (not self.roles or issue.role in self.roles) and (
            not places or issue.repository.lower() in places
        )


class _No(StrEnum):
    """Why what was claimed is not handed out."""

    CHANGED = "changed"
    """The row knows nothing of the task: it is withdrawn."""
    OTHER = "other"
    """It is not for this agent."""
    FULL = "full"
    """Its repository has as many tasks in progress as it may have."""


class Handing:
    """Hands out what the board offers."""

    def __init__(self, board: Board) -> None:
        self._board = board

    async def request(
        self, wish: Wish, *, wait: Duration | None = None, call: Call | None = None
    ) -> Task | None:
        """The best task for the agent, held by it; None if there is none within *wait*."""
        until = steady() + (wait or ZERO).total_seconds()
        avoided: set[str] = set()
        while True:
            rest = seconds(max(until - steady(), 0))
            lease = await self._claim(wish, avoided, min(rest, _SLICE), call)
            if lease is not None:
                task = await self._handed_out(lease, wish, avoided)
                if task is not None:
                    return task
                call = None  # under that name it would be the same again
                continue
            if steady() >= until:
                return None

    async def full(self, issue: Issue) -> tuple[str, int] | None:
        """Whose limit keeps *issue* from being handed out, and that limit."""
        most = self._board.policy.limits.repository
        place = issue.repository.lower()
        if most and await self._board.ledger.read(lambda it: tables.held_in(it, place)) >= most:
            return issue.repository, most
        return None

    # ── claiming ─────────────────────────────────────────────────────────────────────────

    async def _claim(
        self, wish: Wish, avoided: set[str], wait: Duration, call: Call | None
    ) -> Lease | None:
        """A lease of the best task that fits; the one place where the queue is asked for one."""
        engine = await self._board.engine()
        limit = self._board.policy.limits.agent
        if limit and await self._held(wish.agent) >= limit:
            await asyncio.sleep(min(wait.total_seconds(), 1))
            return None
        leases = await engine.claim(
            ISSUES, worker=wish.agent, lease=self._board.options.lease, wait=wait, call=call
        )
        return leases[0] if leases else None

    async def _held(self, agent: str) -> int:
        return await self._board.ledger.read(lambda it: tables.held_by(it, agent))

    async def selectors(self, wish: Wish, avoided: set[str]) -> Sequence[str] | None:
        """The kinds of tasks that a claim names; None = all."""
        if not wish.chooses and not avoided:
            return None
        places = [it.lower() for it in wish.repositories] or None
        if wish.roles and places and len(wish.roles) * len(places) <= SELECTORS_MOST:
            some = [selector_of(place, role) for place in places for role in wish.roles]
        else:
            query = tables.selectors_of(places, wish.roles or None)
            some = await self._board.ledger.read(query)
        some = [it for it in some if it.partition("|")[0] not in avoided]
        if len(some) > SELECTORS_MOST:
            best = tables.best_selectors(some, SELECTORS_MOST, priority=None)
            some = await self._board.ledger.read(best)
        return some

    # ── handing out ──────────────────────────────────────────────────────────────────────

    async def _handed_out(self, lease: Lease, wish: Wish, avoided: set[str]) -> Task | None:
        """The task in the agent's hands. Whoever goes away meanwhile gets nothing: what was taken
        for it is given back.
        """
        noting = asyncio.ensure_future(self._noted(lease, wish))
        try:
            found = await asyncio.shield(noting)
        except asyncio.CancelledError:
            detached("giving back of a task", self._undo(lease, noting))
            raise
        except TowpathError:
            with suppress(TowpathError):
                await self._give_back(lease)
            raise
        if isinstance(found, Issue):
            return self._task(found, lease)
        if found is _No.CHANGED:
            await self._board.withdraw(lease.id)
        await self._give_back(lease)
        if found is _No.FULL:
            avoided.add(msgspec.json.decode(lease.payload, type=Payload).issue.partition("#")[0])
        return None

    async def _noted(self, lease: Lease, wish: Wish) -> Issue | _No:
        """The row says who holds the issue; or why nobody may."""
        board = self._board
        known = await board.ledger.read(tables.of_task(lease.id))
        if known is None:
            return _No.CHANGED
        if not wish.fits(known):
            return _No.OTHER

        def change(before: Issue | None) -> Issue | None:
            if before is None or before.task_id != lease.id or before.withheld:
                return before
            return life.taken(
                before,
                agent=wish.agent,
                token=lease.token,
                since=lease.claimed_ms,
                expires=lease.expires_ms,
            )

        after = (await board.revise(known.id, change)).after
        if after is None or after.token != lease.token:
            return _No.CHANGED
        await board.mirrors.held(after)
        board.metrics.own(HANDED_OUT).labels(after.task_type).inc()
        told = {"issue": after.id, "job": lease.id, "agent": wish.agent}
        board.log.emit(ISSUE_HANDED_OUT, **told, task_type=after.task_type)
        return after

    async def _undo(self, lease: Lease, noting: asyncio.Future[Issue | _No]) -> None:
        with suppress(TowpathError):
            found = await noting
            await self._give_back(lease)
            if isinstance(found, Issue):
                await self._board.look_at(found, how="released")

    async def _give_back(self, lease: Lease) -> None:
        engine = await self._board.engine()
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
            branch=self._board.policy.branch(issue),
            role=issue.role,
            task_type=issue.task_type,
            pr_number=issue.pr_number,
        )
