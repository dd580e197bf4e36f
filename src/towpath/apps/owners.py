"""Owners of messages, timers and the like, and which of them a caller may use."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from towpath.ledger.keys.key import KeyInfo


def _everything(_: str) -> bool:
    return True


class Access(NamedTuple):
    """The rights of a caller. The default is for code with its own connection to Redis: it may use
    everything.
    """

    owner: str = ""
    """The owner of what the caller creates."""
    owns: Callable[[str], bool] = _everything
    """Whether the caller may use what belongs to an owner."""

    def may_use(self, owner: str | None) -> bool:
        """Whether the caller may use a job of *owner*; None = it was made without a key."""
        return self.owns(owner or "")


ALL = Access()


def access_of(key: KeyInfo, *, shared: bool) -> Access:
    """Returns the rights of *key*: things of its owner, or everything if keys share (*shared*)."""
    return ALL if shared else Access(key.owner, key.owns)
