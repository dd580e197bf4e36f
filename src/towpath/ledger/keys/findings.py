"""What `towpath doctor` says about API keys."""

from __future__ import annotations

from collections.abc import Iterable

from towpath.engine.findings import Finding, Grade
from towpath.ledger.keys.key import KeyInfo, Scope
from towpath.ledger.keys.raw import SUBMIT_VERBS, WORK_VERBS, RawQueues


def of_keys(keys: Iterable[KeyInfo], raw: RawQueues) -> list[Finding]:
    """Return a finding for each of *keys*, from releases without owners, that allows less now."""
    return [
        Finding(
            "keys",
            Grade.WARN,
            f"key {key.name} ({key.id}) is of an earlier release; it no longer allows "
            + " and ".join(lost),
            "If its users need that, create a key with these scopes too, and revoke this one. "
            f"Otherwise replace it: `towpath keys rotate {key.id}`.",
        )
        for key in keys
        if (lost := _lost(key, raw))
    ]


def _lost(key: KeyInfo, raw: RawQueues) -> list[str]:
    lost: list[str] = []
    if closed := _closed_queues(key, raw):
        lost.append(f"raw calls to {', '.join(closed)} (scope raw)")
    if key.may(Scope.SUBMIT) and not key.may(Scope.MANAGE):
        lost.append("changes of jobs that it did not submit (scope manage)")
    return lost


def _closed_queues(key: KeyInfo, raw: RawQueues) -> list[str]:
    """The applications' queues on which *key* may make fewer calls because it has no `raw`."""
    if key.may(Scope.RAW):
        return []
    verbs = {
        *(SUBMIT_VERBS if key.may(Scope.SUBMIT) else ()),
        *(WORK_VERBS if key.may(Scope.WORK) else ()),
    }
    return [
        name
        for name, published in raw.published.items()
        if verbs - set(published) and _meets(key, name)
    ]


def _meets(key: KeyInfo, name: str) -> bool:
    """Whether *key* covers the queue *name*, or any queue of a prefix (`timers.*`)."""
    if not name.endswith("*"):
        return key.covers(name)
    return any(_can_begin(pattern, name[:-1]) for pattern in key.queues)


def _can_begin(pattern: str, prefix: str) -> bool:
    """Whether *pattern* can match a name that begins with *prefix*."""
    for at, character in enumerate(prefix):
        if at == len(pattern):
            return False
        if pattern[at] == "*":
            return True
        if pattern[at] not in ("?", character):
            return False
    return True
