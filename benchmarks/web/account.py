"""What consumers were given and what they completed: held against what each user sent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import msgspec


class Violation(Exception):
    """A promise was broken: a figure of a run that loses messages is worth nothing."""


class Given(msgspec.Struct, frozen=True):
    """One message in one consumer's hands."""

    user: str
    number: int
    """Which of its user's it is, from 0."""
    token: int
    """The store's time of the claim, so tokens tell which claim came first."""


class Account:
    """What happened to *each* messages of every one of *users*."""

    def __init__(self, users: int, each: int) -> None:
        self._users, self._each = users, each
        self._given: list[Given] = []
        self._completing: set[tuple[str, int]] = set()
        self._completed: list[Given] = []
        self.deaths = 0
        self.refused = 0
        """Completions that came too late, and did not count."""

    @property
    def total(self) -> int:
        return self._users * self._each

    @property
    def done(self) -> int:
        return len(self._completed)

    def given(self, it: Given) -> None:
        """A consumer got a message. Raises Violation if the one before it can't be done yet."""
        self._given.append(it)
        if it.number and (it.user, it.number - 1) not in self._completing:
            raise Violation(f"{_named(it)} was given before its forerunner was done")

    def completing(self, it: Given) -> None:
        """A consumer is about to say that it is done."""
        self._completing.add((it.user, it.number))

    def completed(self, it: Given) -> None:
        """The server said yes."""
        self._completed.append(it)

    def check(self, totals: Mapping[str, int]) -> None:
        """Raises Violation unless all were completed once, in order; *totals* are the server's."""
        last = self._last_of_each()
        if len(last) != self.total:
            raise Violation(f"{self.total - len(last)} of {self.total} messages were never given")
        numbers = {(it.user, it.number) for it in self._completed}
        if len(numbers) != len(self._completed):
            raise Violation(f"{self.done - len(numbers)} messages were completed twice")
        if len(numbers) != self.total:
            raise Violation(f"{self.total - len(numbers)} messages were not completed")
        for it in self._completed:
            if it != last[it.user, it.number]:
                raise Violation(f"{_named(it)} was given again after it was completed")
        if totals["completed"] != self.total:
            raise Violation(f"the server counts {totals['completed']} of {self.total} completions")

    def _last_of_each(self) -> dict[tuple[str, int], Given]:
        """The last claim of each message. Raises Violation if a user's came out of order."""
        by_user: defaultdict[str, list[Given]] = defaultdict(list)
        for it in sorted(self._given, key=lambda it: it.token):
            by_user[it.user].append(it)
        for mine in by_user.values():
            for before, it in zip([None, *mine], mine, strict=False):
                expected = {0} if before is None else {before.number, before.number + 1}
                if it.number not in expected:
                    raise Violation(f"{_named(it)} was given out of order")
        return {(it.user, it.number): it for mine in by_user.values() for it in mine}


def _named(it: Given) -> str:
    return f"message {it.number} of {it.user}"
