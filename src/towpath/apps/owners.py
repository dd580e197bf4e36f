"""Owners: whose a message or a timer is, and who may use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from towpath.ledger.keys.key import KeyInfo


def _everything(_: str) -> bool:
    return True


class Access(NamedTuple):
    """Who calls an application. The default is code that has Redis itself: it may use all."""

    owner: str = ""
    """Whose the things are that the caller makes."""
    owns: Callable[[str], bool] = _everything
    """Whether the caller may use what belongs to an owner."""

    def may_use(self, owner: str | None) -> bool:
        """Whether the caller may use a job of *owner*; None = it was made without a key."""
        return self.owns(owner or "")


ALL = Access()


def access_of(key: KeyInfo, *, shared: bool) -> Access:
    """What *key* may use: its owner's things, or all where the operator lets the keys share."""
    return ALL if shared else Access(key.owner, key.owns)
