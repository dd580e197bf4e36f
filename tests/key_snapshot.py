"""A snapshot of the keys in Redis, to be compared with a later one."""

from typing import Any, TypeVar, cast

K = TypeVar("K")
V = TypeVar("V")


class KeySnapshot(dict[K, V]):
    """Keys and values at one moment of the clock of Redis, *taken_ms*.

    A key with a time to live expires by itself, however long a busy machine takes between two
    snapshots. So a later snapshot without such a key is equal, if its time was over by then.
    """

    def __init__(self, taken_ms: int = 0) -> None:
        super().__init__()
        self.taken_ms = taken_ms
        self.ends_ms: dict[K, int] = {}
        """When keys end that have a time to live."""

    def note(self, key: K, value: V, now_ms: int, ttl_ms: int) -> None:
        """Adds a key with the time to live *ttl_ms* at *now_ms*; negative = it has none."""
        self[key] = value
        if ttl_ms >= 0:
            self.ends_ms[key] = now_ms + ttl_ms

    def changed(self, later: "KeySnapshot[K, V]") -> set[K]:
        """The keys that differ, except keys that have expired."""
        gone = {key for key, end in self.ends_ms.items() if end <= later.taken_ms} - later.keys()
        return {
            key for key in (self.keys() | later.keys()) - gone if self.get(key) != later.get(key)
        }

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, KeySnapshot):
            return super().__eq__(other)
        found = cast("KeySnapshot[Any, Any]", other)
        if found.taken_ms < self.taken_ms:
            return not found.changed(self)
        return not self.changed(found)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # pyright: ignore[reportAssignmentType] -- a dict has none either
