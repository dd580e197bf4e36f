"""Reconciliation: compares all open issues with GitHub.

It applies changes whose webhook was lost, and has labels corrected that do not show the holder.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial

import msgspec

from towpath.apps.issues import tables
from towpath.apps.issues.github import GitHub, IssuesPage
from towpath.apps.issues.issue_store import IssueStore
from towpath.apps.issues.log_events import ISSUE_REPAIRED, REPOSITORY_SYNCED, REPOSITORY_TROUBLE
from towpath.apps.issues.measures import REPAIRED, SYNCED
from towpath.apps.issues.model import SYNCS, Issue, IssueSource, issue_id
from towpath.apps.issues.repositories import Repositories
from towpath.apps.issues.tables import changes
from towpath.apps.issues.transitions import apply_facts, mark_gone, set_pull
from towpath.apps.issues.webhooks import linked_issues
from towpath.apps.outcomes import calling
from towpath.clock import Duration, duration_ms, instant_ms, seconds, steady, wall_ms
from towpath.engine.engine import Engine
from towpath.worker.context import Context, Discard, Retry

_MINUTE = 60_000
_PAGES_PER_WRITE = 20
"""Pages that are noted as read in one write."""


class SyncRequest(msgspec.Struct, frozen=True):
    """Which repository to compare; None = all."""

    repository: str | None = None


class Synced(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a comparison."""

    repository: str
    issues: int = 0
    """Number of open issues on GitHub."""
    changed: int = 0
    """Number of rows that differed from GitHub."""
    repaired: int = 0
    """Number of issues whose labels did not show the holder."""
    requests: int = 0
    gone: bool = False


class Reconciler:
    """Compares repositories with GitHub."""

    def __init__(self, store: IssueStore, github: GitHub) -> None:
        self._store, self._github = store, github
        self._repositories = Repositories(store)

    async def run(self, request: SyncRequest, ctx: Context) -> Synced | None:
        """Compare one repository; without a name, submit a comparison of each known one."""
        if request.repository is None:
            await self._store.offer_all()
            period = sync_period(self._store.options.sync, ctx.submitted_at)
            for name in await self.repositories():
                await submit_sync(self._store.engine, name, period=period)
            return None
        if not self._store.options.takes(request.repository):
            raise Discard(
                f"issues of {request.repository} are not handed out (issues.repositories)"
            )
        try:
            with calling("GitHub"):
                return await self.compare(request.repository)
        except (Retry, Discard) as refusal:
            await self._report_failure(request.repository, refusal.reason)
            raise

    async def repositories(self) -> list[str]:
        """The repositories to compare: those of the options, or else all known ones of GitHub."""
        options = self._store.options
        if options.repositories:
            return list(options.repositories)
        known = await self._store.ledger.read(tables.repository_rows)
        return [
            repository["name"] for repository in known if repository["source"] == IssueSource.GITHUB
        ]

    async def compare(self, name: str) -> Synced:
        """Compare one repository with GitHub. Raises what `calls` raises, LedgerError."""
        began, asked, now = steady(), self._github.requests, wall_ms()
        facts = await self._github.repository(name)
        if facts is None:
            await self._repositories.mark_gone(name)
            await self._store.ledger.write(changes.delete_pages(name))
            self._store.metrics.own(SYNCED).labels("gone").inc()
            return Synced(repository=name, gone=True, requests=self._github.requests - asked)
        if facts.name.lower() != name.lower():
            await self._repositories.rename(name, facts.name)
            name = facts.name
        numbers, changed = await self._store_pages(name)
        if changed:
            await self._store.judge_blocked()
        changed += await self._read_missing(name, numbers)
        await self._link_pulls(name)
        repaired = await self._correct_labels(name)
        branch = facts.default_branch
        noted = changes.set_repository(
            name, default_branch=branch, synced=now, trouble="", source="github"
        )
        await self._store.ledger.decide(noted)
        synced = Synced(
            repository=name,
            issues=len(numbers),
            changed=changed,
            repaired=repaired,
            requests=self._github.requests - asked,
        )
        self._report_sync(synced, steady() - began)
        return synced

    # ── issues ───────────────────────────────────────────────────────────────────────────

    async def _store_pages(self, name: str) -> tuple[set[int], int]:
        """Store the issues of all pages; returns their numbers, and how many rows have changed.

        A page is noted as read once its issues are stored, even if a later page can't be read.
        """
        ledger, numbers, changed = self._store.ledger, set[int](), 0
        known = await ledger.read(tables.pages_of(name))
        doubted = await ledger.read(tables.numbers_to_read_again(name))
        read: list[tables.KnownPage] = []
        try:
            async for page in self._github.open_issues(name, known=known, doubted=doubted):
                numbers |= page.known.numbers
                if page.changed:
                    changed += await self._store_page(page)
                    read.append(page.known)
                if len(read) >= _PAGES_PER_WRITE:
                    await ledger.write(changes.store_pages(name, read))
                    read = []
        finally:
            if read:
                await ledger.write(changes.store_pages(name, read))
        return numbers, changed

    async def _store_page(self, page: IssuesPage) -> int:
        """Store the issues of a page; returns how many rows have changed."""
        store = self._store
        ids = [issue.id for issue in page.issues]
        known = await store.ledger.read(tables.issues_by_id(ids)) if ids else {}
        now = wall_ms()
        differ = {
            facts.id: facts
            for facts in page.issues
            if apply_facts(known.get(facts.id), facts, now=now) != known.get(facts.id)
        }
        changed = [
            change.after
            for change in await store.change_all(differ)
            if change.changed and change.after
        ]
        for issue in changed:
            if issue.id in known and not _only_read(known[issue.id], issue):
                self._report_repair(issue.id, "issue")
        return len(changed)

    async def _read_missing(self, repository: str, numbers: set[int]) -> int:
        """Read each issue that is open on GitHub (*numbers*) or in our rows, but not in both.
        Returns how many rows have changed.

        The list may change while it is read, and an unchanged page says nothing about our rows.
        """
        known = await self._store.ledger.read(tables.open_numbers(repository, IssueSource.GITHUB))
        changed = 0
        for number in sorted(known ^ numbers):
            facts = await self._github.issue(repository, number)
            update = partial(apply_facts, facts=facts, now=wall_ms()) if facts else mark_gone
            id = issue_id(repository, number)
            if (await self._store.change(id, update)).changed:
                self._report_repair(id, "issue")
                changed += 1
        return changed

    async def _link_pulls(self, repository: str) -> None:
        """Store the newest open pull request of each issue. Without one, an issue whose development
        is done keeps its number: its agent may have named it.
        """
        before = await self._store.ledger.read(tables.ids_with_pull(repository))
        linked: dict[str, int | None] = dict.fromkeys(before)
        async for pull in self._github.open_pulls(repository):
            for id in linked_issues(pull, self._store):
                linked[id] = max(pull.number, linked.get(id) or 0)
        for id, number in linked.items():
            await self._store.change(id, partial(set_pull, number=number))

    async def _correct_labels(self, repository: str) -> int:
        """Submit a projection of each issue whose labels do not show its holder; returns how many
        there were.
        """
        store, count = self._store, 0
        for issue in await store.ledger.read(tables.held_or_labelled(repository)):
            wanted = set(store.policy.shown_labels(issue.agent)) if issue.held else set[str]()
            has = {label.lower() for label in issue.labels}
            right = wanted == set(issue.shown) and all(label.lower() in has for label in wanted)
            if not right and issue.source is IssueSource.GITHUB:
                await store.submit_projection(issue.id)
                self._report_repair(issue.id, "label")
                count += 1
        return count

    # ── reporting ────────────────────────────────────────────────────────────────────────

    def _report_repair(self, id: str, what: str) -> None:
        self._store.metrics.own(REPAIRED).labels(what).inc()
        self._store.log.emit(ISSUE_REPAIRED, issue=id, what=what)

    async def _report_failure(self, name: str, reason: str) -> None:
        self._store.metrics.own(SYNCED).labels("failed").inc()
        await self._store.ledger.decide(changes.set_repository(name, trouble=reason))
        fields = {"repository": name, "error": "AnswerRefused"}
        self._store.log.emit(REPOSITORY_TROUBLE, **fields, reason=reason)

    def _report_sync(self, synced: Synced, took: float) -> None:
        self._store.metrics.own(SYNCED).labels("done").inc()
        self._store.log.emit(
            REPOSITORY_SYNCED,
            repository=synced.repository,
            issues=synced.issues,
            requests=synced.requests,
            changed=synced.changed,
            took=seconds(took),
        )


def _only_read(before: Issue, after: Issue) -> bool:
    """Whether GitHub only confirmed what the row had from a webhook."""
    names = ("title", "body", "labels", "assignees", "state", "version")
    return all(getattr(before, name) == getattr(after, name) for name in names)


async def submit_sync(engine: Engine, repository: str | None, *, period: int | None = None) -> str:
    """Submit a comparison of a repository, or of all. Returns the job's id.

    Comparisons of one repository run one at a time. Calls with the same *period* share one job;
    without a period, each call makes a new one.
    """
    lane = f"repository {repository.lower()}" if repository else "all"
    id = None if period is None else f"{lane} {period}"
    request = msgspec.json.encode(SyncRequest(repository))
    return (await engine.submit(SYNCS, request, id=id, lane=lane)).id


def sync_period(every: Duration, at: datetime) -> int:
    """The number of the period that *at* is in, for a comparison *every* so often.

    A period is half of *every*, so that successive comparisons never share one, and at most a
    minute.
    """
    return instant_ms("at", at) // max(1, min(_MINUTE, duration_ms("sync", every) // 2))
