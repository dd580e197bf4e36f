"""Pauses between tries that fail: each is longer than the last, up to a limit."""

from __future__ import annotations

from random import uniform

_GROWN_MOST = 60
"""Failures after which a pause no longer grows, so that a power can't overflow a float."""


class Backoff:
    """The pauses of one thing that is tried again after failures, in seconds.

    The first pause lasts *first*, each further one *factor* times as long, up to *longest*. The
    share *jitter* of each pause is random, so that those that failed together do not come back
    together.
    """

    __slots__ = ("_factor", "_first", "_jitter", "_longest", "pause")

    def __init__(
        self, first: float, longest: float, *, factor: float = 2.0, jitter: float = 0.0
    ) -> None:
        self._first, self._longest = first, longest
        self._factor, self._jitter = factor, jitter
        self.pause = 0.0
        """The pause after the last failure, without jitter; 0 = no failure since `reset`."""

    def next_pause(self, *, longest: float | None = None) -> float:
        """Count a failure. Returns the pause before the next try, at most *longest* if given."""
        longest = self._longest if longest is None else longest
        self.pause = min(self.pause * self._factor or self._first, longest)
        if not self._jitter:
            return self.pause
        return self.pause * uniform(1 - self._jitter, 1)  # noqa: S311 -- jitter

    def reset(self) -> None:
        """Begin with the first pause again, after a success."""
        self.pause = 0.0


def pause_after(failures: int, first: float, longest: float, *, factor: float = 2.0) -> float:
    """Returns the pause after so many *failures* in a row (from 1), for callers that store their
    number instead of a `Backoff`.
    """
    grown = factor ** min(max(failures - 1, 0), _GROWN_MOST)
    return min(first * min(grown, 2.0**_GROWN_MOST), longest)
