"""The calls of GitHub's API that issues need: reading issues, and showing who holds them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from towpath.apps.issues.errors import IssueInvalid
from towpath.apps.issues.model import Facts, IssueSource, IssueState
from towpath.apps.issues.options import IssuesOptions
from towpath.apps.issues.tables import KnownPage
from towpath.calls.answer import CallAnswer
from towpath.calls.caller import Caller
from towpath.calls.guard import parse_target
from towpath.clock import seconds
from towpath.errors import TowpathError
from towpath.forges import github as reading
from towpath.forges.client import ForgeClient
from towpath.forges.facts import IssueFact, PullFact
from towpath.forges.texts import is_branch, is_repository, is_url

WITHIN = seconds(30)
PAGES_MOST = 10_000
_LARGEST_ANSWER = 32 * 1024 * 1024
"""Bytes: a page has a hundred issues, and each may have 64 KiB of text or more."""
_PER_PAGE = 100


class RepositoryFacts(NamedTuple):
    """A repository as GitHub has it now."""

    name: str
    default_branch: str


class IssuesPage(NamedTuple):
    """A page of a list of issues."""

    issues: list[Facts]
    known: KnownPage
    """The numbers of its issues, and the ETag by which a later read sees whether it has changed."""
    changed: bool
    """Whether it has changed since it was last read; if not, *issues* is empty."""


class GitHub:
    """Calls GitHub's API. Raises the errors of `calls` for a refusal; see `forges/client.py`."""

    def __init__(self, client: ForgeClient) -> None:
        self._client = client
        self.requests = 0

    # ── reading ──────────────────────────────────────────────────────────────────────────

    async def repository(self, name: str) -> RepositoryFacts | None:
        """The repository under its present name; None = it is gone, or the token can't see it."""
        answer = await self._read(f"/repos/{name}")
        if answer is None:
            return None
        fields = msgspec.json.decode(answer.body, type=dict[str, Any])
        now, branch = str(fields.get("full_name", "")), str(fields.get("default_branch", ""))
        if not is_repository(now):
            raise IssueInvalid("full_name", "must be owner/name")
        return RepositoryFacts(now, branch if is_branch(branch) else "")

    async def open_issues(
        self,
        repository: str,
        *,
        known: Mapping[str, KnownPage],
        doubted: frozenset[int] = frozenset(),
    ) -> AsyncGenerator[IssuesPage]:
        """All open issues, page by page, the oldest first, because full pages rarely change then.

        A *known* page that has not changed comes without issues. A page with a *doubted* issue is
        read in any case: it may not have changed on GitHub while our row did.
        """
        query = f"state=open&sort=created&direction=asc&per_page={_PER_PAGE}"
        path: str | None = f"/repos/{repository}/issues?{query}"
        for _ in range(PAGES_MOST):
            if path is None:
                return
            before = known.get(path)
            etag = before.etag if before and not before.numbers & doubted else ""
            self.requests += 1
            page = await self._client.page(path, etag=etag)
            if page is None:
                if before is None:
                    return
                yield IssuesPage([], before, changed=False)
                path = before.next
                continue
            issues = [
                listed for entry in page.entries if (listed := _parse_issue(entry, repository))
            ]
            numbers = frozenset(issue.number for issue in issues)
            yield IssuesPage(issues, KnownPage(path, page.etag, numbers, page.next), changed=True)
            path = page.next

    async def issue(self, repository: str, number: int) -> Facts | None:
        """The issue as it is now; None = it was deleted or transferred."""
        self.requests += 1
        answer = await self._client.look(f"/repos/{repository}/issues/{number}")
        if self._client.lacks(answer) or self._client.moved(answer) is not None:
            return None
        self._client.require_taken(answer)
        return _parse_issue(msgspec.json.decode(answer.body, type=dict[str, Any]), repository)

    async def open_pulls(self, repository: str) -> AsyncGenerator[PullFact]:
        path = f"/repos/{repository}/pulls?state=open&per_page={_PER_PAGE}"
        async for page in self._client.pages(path, most=PAGES_MOST):
            self.requests += 1
            for entry in page.entries:
                yield reading.shown_pull(entry, repository)

    # ── writing ──────────────────────────────────────────────────────────────────────────

    async def add_labels(self, repository: str, number: int, labels: list[str]) -> None:
        path = f"/repos/{repository}/issues/{number}/labels"
        self._client.require_taken(await self._client.post(path, {"labels": labels}))

    async def remove_label(self, repository: str, number: int, label: str) -> None:
        """Remove a label, also from an issue that was transferred. A missing label is no error."""
        path = f"/repos/{repository}/issues/{number}/labels/{quote(label, safe='')}"
        answer = await self._client.remove(path)
        if (moved := self._client.moved(answer)) is not None:
            answer = await self._client.remove(moved)
        if not self._client.lacks(answer):
            self._client.require_taken(answer)

    async def make_branch(self, repository: str, branch: str) -> None:
        """Make *branch* from the default branch, if it does not exist yet."""
        facts = await self.repository(repository)
        default = facts.default_branch if facts else ""
        place = f"/repos/{repository}/git/ref/heads/{quote(default)}"
        answer = await self._client.get(place)
        ref = msgspec.json.decode(answer.body, type=_Ref)
        made = await self._client.post(
            f"/repos/{repository}/git/refs",
            {"ref": f"refs/heads/{branch}", "sha": ref.object.sha},
        )
        if self._client.lasting(made) and "already exists" in self._client.said(made).lower():
            return
        self._client.require_taken(made)

    async def comment(self, repository: str, number: int, text: str, *, mark: str) -> None:
        """Post *text* once: a comment that contains *mark* is looked for first."""
        path = f"/repos/{repository}/issues/{number}/comments"
        if await self._client.find(path, mark, field="body") is None:
            self._client.require_taken(await self._client.post(path, {"body": f"{text}\n\n{mark}"}))

    # ── how it is done ───────────────────────────────────────────────────────────────────

    async def _read(self, path: str) -> CallAnswer | None:
        """The answer for *path*, or for where it has moved to; None = nothing is there."""
        self.requests += 1
        answer = await self._client.look(path)
        moved = self._client.moved(answer)
        if moved is not None:
            self.requests += 1
            answer = await self._client.look(moved)
        if self._client.lacks(answer):
            return None
        self._client.require_taken(answer)
        return answer


class _Object(msgspec.Struct):
    sha: str


class _Ref(msgspec.Struct):
    object: _Object


def _parse_issue(entry: dict[str, Any], repository: str) -> Facts | None:
    """An issue of a list; None for a pull request, and for an entry that is not valid."""
    try:
        fact = reading.shown_issue(entry, repository)
        return None if fact.is_pull else facts_of(fact, read=True)
    except TowpathError:
        return None


def facts_of(fact: IssueFact, *, gone: bool = False, read: bool = False) -> Facts:
    """The facts of an issue, from a webhook or the API. Raises IssueInvalid and WebhookInvalid."""
    usual = IssueState.OPEN if fact.is_open else IssueState.CLOSED
    return Facts(
        repository=fact.repository,
        number=fact.number,
        title=fact.title,
        body=fact.body,
        labels=fact.labels,
        url=fact.url if is_url(fact.url) else "",
        state=IssueState.GONE if gone else usual,
        assignees=fact.assignees,
        reopened=fact.reopened,
        source=IssueSource.GITHUB,
        version=fact.at_ms or 0,
        read=read,
    )


def caller_of(options: IssuesOptions) -> Caller:
    """A caller that may call GitHub, also at a private address: the operator has chosen it."""
    hosts = [options.github_host, *([options.github_api] if options.github_api else [])]
    allow = (*(parse_target(host).host for host in hosts), *options.allow)
    return Caller(allow=allow, timeout=WITHIN, largest_answer=_LARGEST_ANSWER)


def github_of(options: IssuesOptions, caller: Caller) -> GitHub:
    """GitHub with the token of the options, which must have one."""
    client = ForgeClient(
        caller,
        reading.FORGE,
        token=options.github_token or "",
        host=options.github_host,
        api=options.github_api,
    )
    return GitHub(client)
