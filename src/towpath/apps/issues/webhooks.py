"""GitHub's webhooks about issues, pull requests, labels and repositories, applied to the rows.

A webhook may come twice or out of order: each row has the version of its facts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from towpath.apps.issues import tables, transitions
from towpath.apps.issues.errors import IssueInvalid
from towpath.apps.issues.github import facts_of
from towpath.apps.issues.issue_store import IssueStore
from towpath.apps.issues.measures import WEBHOOKS
from towpath.apps.issues.model import NUMBER_MOST, issue_id
from towpath.apps.issues.repositories import Repositories
from towpath.clock import wall_ms
from towpath.forges import github
from towpath.forges.facts import (
    Delivery,
    Fact,
    ForgeEvent,
    Ignored,
    IssueFact,
    LabelFact,
    PullFact,
    RepositoryFact,
)
from towpath.forges.texts import is_repository, one_line

_CLOSES = re.compile(
    r"\b(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?):?\s+"
    r"((?:[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+)?)#([0-9]{1,9})\b",
    re.IGNORECASE,
)
_LINKED_MOST = 20
_GONE_ACTIONS = ("deleted", "transferred")
EVENTS = (
    ForgeEvent.ISSUE,
    ForgeEvent.COMMENT,
    ForgeEvent.LABEL,
    ForgeEvent.PULL,
    ForgeEvent.REVIEW,
    ForgeEvent.REPOSITORY,
)


class IssueWebhook(msgspec.Struct, frozen=True):
    """A webhook to be applied."""

    event: ForgeEvent
    action: str
    """The action, in the forge's own word."""
    fact: Fact


def read_github(
    headers: Mapping[str, str], body: bytes, *, secrets: Sequence[str]
) -> IssueWebhook | Ignored:
    """Read a delivery of GitHub. Raises SignatureRefused and WebhookInvalid."""
    return webhook_of(github.read(headers, body, secrets=secrets))


def webhook_of(delivery: Delivery) -> IssueWebhook | Ignored:
    event = delivery.event
    if event not in EVENTS:
        return Ignored(delivery.named)
    fact, said = delivery.fact(), delivery.acted().said
    if fact is None or event is None:
        return Ignored(delivery.named)
    if not is_repository(fact.repository):
        raise fact.refusal("repository", "must be owner/name")
    if isinstance(fact, IssueFact):
        if fact.is_pull:
            return Ignored("a pull request's comment")
        _check(fact)
    return IssueWebhook(event, one_line(said, most=64), fact)


def _check(fact: IssueFact) -> None:
    """Raises WebhookInvalid, with the forge's name of the field, if a fact breaks a rule."""
    try:
        facts_of(fact)
    except IssueInvalid as error:
        raise fact.refusal(error.field, error.rule) from error


class Webhooks:
    """Applies webhooks to the issues."""

    def __init__(self, store: IssueStore) -> None:
        self._store, self._repositories = store, Repositories(store)

    async def apply(self, webhook: IssueWebhook | Ignored) -> tuple[list[str], str]:
        """Apply a webhook. Returns the ids of the issues that changed, and why none did, if none
        did. Raises LedgerError.
        """
        if isinstance(webhook, Ignored):
            return self._count_result([], webhook.reason)
        fact = webhook.fact
        if not await self._is_handed_out(fact):
            return self._count_result([], "issues of this repository are not handed out")
        if isinstance(fact, IssueFact):
            changed = await self._apply_issue(fact, webhook)
        elif isinstance(fact, PullFact):
            changed = await self._apply_pull(fact, webhook)
        elif isinstance(fact, LabelFact):
            changed = await self._apply_label(fact, webhook.action)
        elif isinstance(fact, RepositoryFact):
            changed = await self._apply_repository(fact, webhook.action)
        else:
            changed = []
        return self._count_result(changed, "" if changed else "nothing new")

    def _count_result(self, changed: list[str], ignored: str) -> tuple[list[str], str]:
        known = ignored == "nothing new"
        state = "taken" if changed else "stale" if known else "ignored"
        self._store.metrics.own(WEBHOOKS).labels(state).inc()
        return changed, ignored

    async def _is_handed_out(self, fact: Fact) -> bool:
        """Whether issues of its repository are handed out, under its name or a former one."""
        before = fact.before if isinstance(fact, RepositoryFact) else None
        for name in (fact.repository, before):
            if name and self._store.options.takes(name):
                return True
            former = name and await self._store.ledger.read(tables.former_name(name))
            if former and self._store.options.takes(former):
                return True
        return False

    # ── issues ───────────────────────────────────────────────────────────────────────────

    async def _apply_issue(self, fact: IssueFact, webhook: IssueWebhook) -> list[str]:
        gone = webhook.event is ForgeEvent.ISSUE and webhook.action in _GONE_ACTIONS
        # A deletion counts as read: a late webhook of the same second does not undo it.
        facts = facts_of(fact, gone=gone, read=gone)
        return [facts.id] if (await self._store.change(facts.id, facts)).changed else []

    # ── pull requests ────────────────────────────────────────────────────────────────────

    async def _apply_pull(self, fact: PullFact, webhook: IssueWebhook) -> list[str]:
        """Store the number of a pull request in the issues that it is about. A push to it, or a
        review, may restart the delay of their review.
        """
        restarts = webhook.event is ForgeEvent.REVIEW or webhook.action == "synchronize"
        at = fact.at_ms or 0
        pushed = at if restarts and self._store.policy.review.restart else None
        number = fact.number if fact.is_open else None
        follow = partial(transitions.follow_pull, number=number, pushed=pushed, now=wall_ms())
        ids = linked_issues(fact, self._store)
        return [id for id in ids if (await self._store.change(id, follow)).changed]

    # ── labels and repositories ──────────────────────────────────────────────────────────

    async def _apply_label(self, fact: LabelFact, action: str) -> list[str]:
        """Rename a label on all issues, or remove it if it was deleted."""
        old = fact.title if action == "deleted" else fact.before
        if old is None:
            return []
        new = None if action == "deleted" else fact.title
        ledger = self._store.ledger
        ids = await ledger.read(tables.ids_with_label(fact.repository, old))
        relabel = partial(transitions.relabel, old=old, new=new)
        return [id for id in ids if (await self._store.change(id, relabel)).changed]

    async def _apply_repository(self, fact: RepositoryFact, action: str) -> list[str]:
        if action == "deleted":
            return await self._repositories.mark_gone(fact.repository)
        if action in ("renamed", "transferred") and fact.before and is_repository(fact.before):
            return await self._repositories.rename(fact.before, fact.repository)
        return []


def linked_issues(pull: PullFact, store: IssueStore) -> list[str]:
    """The ids of the issues that *pull* is about: by its branch's name, or a text: `closes #12`."""
    found: dict[str, None] = {}
    before, _, after = store.policy.show.branch.partition("{number}")
    number = pull.ref.removeprefix(before).removesuffix(after)
    if before + number + after == pull.ref and number.isascii() and number.isdecimal():
        found[issue_id(pull.repository, int(number[:10]))] = None
    for repository, named in _CLOSES.findall(f"{pull.title}\n{pull.body}")[:_LINKED_MOST]:
        if int(named) <= NUMBER_MOST:
            found[issue_id(repository or pull.repository, int(named))] = None
    return list(found)
