"""Owners: whose a message or a timer is, and who may use it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from towpath.ledger.keys.key import KeyInfo

OWNER = "owner"
"""The header of a job that names its owner. A job that was made without a key has none."""


def _everything(_: str) -> bool:
    return True


class Access(NamedTuple):
    """Who calls an application. The default is code that has Redis itself: it may use all."""

    owner: str = ""
    """Whose the things are that the caller makes."""
    owns: Callable[[str], bool] = _everything
    """Whether the caller may use what belongs to an owner."""

    @property
    def headers(self) -> dict[str, str]:
        """The headers of a job that the caller makes."""
        return {OWNER: self.owner} if self.owner else {}

    def may_use(self, headers: Mapping[str, str]) -> bool:
        """Whether the caller may use a job with these headers."""
        return self.owns(headers.get(OWNER, ""))


ALL = Access()


def access_of(key: KeyInfo, *, shared: bool) -> Access:
    """What *key* may use: its owner's things, or all where the operator lets the keys share."""
    return ALL if shared else Access(key.owner, key.owns)
