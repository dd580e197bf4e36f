"""A cache of limited size whose entries end after a while."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from math import inf
from typing import Generic, TypeVar

from towpath.clock import steady

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class RecentCache(Generic[K, V]):
    """At most *most* values by key, each for *lasts* seconds.

    A full cache drops the value that was stored or returned least recently. It is not thread-safe.
    """

    __slots__ = ("_entries", "_lasts", "_most", "_ticks")

    def __init__(
        self, most: int, lasts: float = inf, *, ticks: Callable[[], float] = steady
    ) -> None:
        self._most, self._lasts, self._ticks = most, lasts, ticks
        self._entries: OrderedDict[K, tuple[V, float]] = OrderedDict()
        """The value of each key, and until when it is returned."""

    def __len__(self) -> int:
        """The number of values, with those that have ended and were not dropped yet."""
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        """Whether there is a value of *key*, even if it has ended."""
        return key in self._entries

    def get(self, key: K) -> V | None:
        """Returns the value of *key*; None if there is none, or it has ended."""
        entry = self._entries.get(key)
        if entry is None or self._ticks() >= entry[1]:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(
        self, key: K, value: V, *, since: float | None = None, lasts: float | None = None
    ) -> V | None:
        """Store *value* for *lasts* seconds (default: those of the cache) from *since* (now).

        Returns the value of another key that was dropped because the cache was full.
        """
        begin = self._ticks() if since is None else since
        self._entries[key] = value, begin + (self._lasts if lasts is None else lasts)
        self._entries.move_to_end(key)
        if len(self._entries) > self._most:
            return self._entries.popitem(last=False)[1][0]
        return None

    def pop(self, key: K) -> V | None:
        """Remove the value of *key*, and return it; None if there is none."""
        entry = self._entries.pop(key, None)
        return None if entry is None else entry[0]

    def clear(self) -> None:
        self._entries.clear()
