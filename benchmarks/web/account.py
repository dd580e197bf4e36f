"""The account of messages: those that consumers got and completed, compared with those that users
sent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import msgspec


class Violation(Exception):
    """A guarantee was violated, so the figure of this run is worth nothing."""


class HeldMessage(msgspec.Struct, frozen=True):
    """One message that one consumer holds."""

    user: str
    number: int
    """Which of its user's it is, from 0."""
    token: int
    """The store's time of the claim, so tokens tell which claim came first."""


class MessageAccount:
    """The history of *each* messages of every one of *users*."""

    def __init__(self, users: int, each: int) -> None:
        self._users, self._each = users, each
        self._given: list[HeldMessage] = []
        self._completing: set[tuple[str, int]] = set()
        self._completed: list[HeldMessage] = []
        self.deaths = 0
        self.refused = 0
        """Completions that came too late, and did not count."""

    @property
    def total(self) -> int:
        return self._users * self._each

    @property
    def done(self) -> int:
        return len(self._completed)

    def given(self, given: HeldMessage) -> None:
        """A consumer got a message. Raises Violation if the one before it cannot be done yet."""
        self._given.append(given)
        if given.number and (given.user, given.number - 1) not in self._completing:
            raise Violation(f"{_named(given)} was given before its forerunner was done")

    def completing(self, given: HeldMessage) -> None:
        """A consumer is about to complete it."""
        self._completing.add((given.user, given.number))

    def completed(self, given: HeldMessage) -> None:
        """The server accepted the completion."""
        self._completed.append(given)

    def check(self, totals: Mapping[str, int]) -> None:
        """Raises Violation unless all were completed once, in order; *totals* are the server's
        counts.
        """
        last = self._last_of_each()
        if len(last) != self.total:
            raise Violation(f"{self.total - len(last)} of {self.total} messages were never given")
        numbers = {(given.user, given.number) for given in self._completed}
        if len(numbers) != len(self._completed):
            raise Violation(f"{self.done - len(numbers)} messages were completed twice")
        if len(numbers) != self.total:
            raise Violation(f"{self.total - len(numbers)} messages were not completed")
        for given in self._completed:
            if given != last[given.user, given.number]:
                raise Violation(f"{_named(given)} was given again after it was completed")
        if totals["completed"] != self.total:
            raise Violation(f"the server counts {totals['completed']} of {self.total} completions")

    def _last_of_each(self) -> dict[tuple[str, int], HeldMessage]:
        """The last claim of each message. Raises Violation if a user's messages came out of
        order.
        """
        by_user: defaultdict[str, list[HeldMessage]] = defaultdict(list)
        for given in sorted(self._given, key=lambda given: given.token):
            by_user[given.user].append(given)
        for mine in by_user.values():
            for before, given in zip([None, *mine], mine, strict=False):
                expected = {0} if before is None else {before.number, before.number + 1}
                if given.number not in expected:
                    raise Violation(f"{_named(given)} was given out of order")
        return {(given.user, given.number): given for mine in by_user.values() for given in mine}


def _named(given: HeldMessage) -> str:
    return f"message {given.number} of {given.user}"
