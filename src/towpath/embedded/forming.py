"""Waiting until several servers have come together."""

from collections.abc import Callable

from towpath.embedded.deadline import wait_until
from towpath.embedded.errors import TopologyNotFormed

FORMED_WITHIN = 60.0


def expect(fact: str, check: Callable[[], bool], *, within: float = FORMED_WITHIN) -> None:
    """Return once *check* holds; otherwise TopologyNotFormed says which *fact* did not."""
    if not wait_until(check, within=within):
        raise TopologyNotFormed(fact, within)
