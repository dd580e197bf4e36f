"""Retry policies: how long to wait before the next attempt. Values, with no clock of their own."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec

from towpath.backoff import pause_after
from towpath.clock import (
    Duration,
    DurationField,
    DurationLike,
    default_duration,
    duration,
    hours,
    seconds,
)
from towpath.errors import InvalidOption

_set = msgspec.structs.force_setattr


class Exponential(msgspec.Struct, frozen=True, tag="exponential"):
    """Wait *first* before the second attempt, then *factor* times as long each time, up to
    *longest*.

    The share *jitter* of each wait is random, so that jobs that failed together do not come back
    together.
    """

    first: DurationField = default_duration(seconds(1))
    factor: float = 2.0
    longest: DurationField = default_duration(hours(4))
    jitter: float = 0.2

    def __post_init__(self) -> None:
        _set(self, "first", duration("retry.first", self.first))
        _set(self, "longest", duration("retry.longest", self.longest))
        _check_between("retry.factor", self.factor, 1, 100)
        _check_between("retry.jitter", self.jitter, 0, 1)

    def delay(self, attempt: int, chance: float) -> Duration | None:
        """The wait after *attempt* (from 1); None = no further attempt. *chance* is from 0 to 1."""
        first, longest = self.first.total_seconds(), self.longest.total_seconds()
        wait = pause_after(attempt, first, longest, factor=self.factor)
        return timedelta(seconds=wait * (1 - self.jitter * chance))


class Fixed(msgspec.Struct, frozen=True, tag="fixed"):
    """Wait the same time before every further attempt."""

    every: DurationField = default_duration(seconds(10))

    def __post_init__(self) -> None:
        _set(self, "every", duration("retry.every", self.every))

    def delay(self, attempt: int, chance: float) -> Duration | None:
        """The wait after *attempt* (1 = the first); None = no other."""
        return self.every


class Listed(msgspec.Struct, frozen=True, tag="listed"):
    """Wait these times, one after the other; the job is dead after the last attempt.

    Without `max_attempts`, a handler or a submit with this policy allows as many attempts as the
    list needs, whatever the queue allows.
    """

    waits: tuple[Duration, ...]

    if TYPE_CHECKING:

        def __init__(self, waits: Sequence[DurationLike]) -> None: ...

    def __post_init__(self) -> None:
        _set(self, "waits", tuple(duration("retry.waits", wait) for wait in self.waits))

    def delay(self, attempt: int, chance: float) -> Duration | None:
        """The wait after *attempt* (1 = the first); None = no other."""
        return self.waits[attempt - 1] if attempt <= len(self.waits) else None


class Never(msgspec.Struct, frozen=True, tag="never"):
    """Do not try again: the job is dead at the first failure. The job of a crashed worker is still
    delivered again.
    """

    def delay(self, attempt: int, chance: float) -> Duration | None:
        """The wait after *attempt* (1 = the first); None = no other."""
        return None


RetryPolicy = Exponential | Fixed | Listed | Never
"""When to try again: `delay(attempt, chance)` is the wait after that attempt, None = never."""


def own_attempts(policy: RetryPolicy | None) -> int | None:
    """The number of attempts that *policy* itself allows; None if it sets no limit."""
    # Not for Never: a crashed worker's job comes back, and that is another attempt.
    return len(policy.waits) + 1 if isinstance(policy, Listed) else None


def _check_between(option: str, value: float, least: float, most: float) -> None:
    if not isinstance(value, int | float) or not least <= value <= most:  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
        raise InvalidOption(option, value, rule=f"must be a number from {least} to {most}")


def retry_policy(value: RetryPolicy) -> RetryPolicy:
    """*value* if it is one of the policies, else InvalidOption."""
    if not isinstance(value, RetryPolicy):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers may be untyped
        raise InvalidOption(
            "retry", value, rule="must be an Exponential, Fixed, Listed or Never policy"
        )
    return value
