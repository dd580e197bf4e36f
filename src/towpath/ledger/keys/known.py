"""Keys that were looked up a moment ago: what makes a check cheap, and a revocation quick.

Bounded in time: what is told was read at most `FRESH` ago, so a revocation counts everywhere
within that. Bounded in size: wrong keys are remembered apart from real ones, so that somebody who
tries a million of them pushes out nothing but wrong keys.
"""

from __future__ import annotations

from collections import OrderedDict

from towpath.clock import Duration, seconds
from towpath.ledger.keys.key import KeyInfo

FRESH: Duration = seconds(5)
"""How long an answer counts, from before the question was sent."""
_RENEW = seconds(3)
"""From when on it is asked for again, beside the requests that still use it."""
MOST_REAL, MOST_WRONG = 10_000, 1_000


class Entry:
    """What was found under a digest; None = no such key."""

    __slots__ = ("digest", "ends_ms", "info", "renew_at", "stale_at")

    def __init__(self, digest: bytes, info: KeyInfo | None, ends_ms: float, asked: float) -> None:
        self.digest, self.info = digest, info
        self.ends_ms = ends_ms
        """From when on the key no longer counts, by the wall clock."""
        self.renew_at = asked + _RENEW.total_seconds()
        self.stale_at = asked + FRESH.total_seconds()


class KnownKeys:
    """Entries by digest. Times are those of a clock that never jumps."""

    def __init__(self, *, most_real: int = MOST_REAL, most_wrong: int = MOST_WRONG) -> None:
        self._real: OrderedDict[bytes, Entry] = OrderedDict()
        self._wrong: OrderedDict[bytes, Entry] = OrderedDict()
        self._most = {id(self._real): most_real, id(self._wrong): most_wrong}

    def __len__(self) -> int:
        return len(self._real) + len(self._wrong)

    def find(self, digest: bytes, now: float) -> Entry | None:
        """What is known and fresh. A real key that is used stays, whatever else comes."""
        entry = self._real.get(digest)
        if entry is not None:
            self._real.move_to_end(digest)
        else:
            entry = self._wrong.get(digest)
        return entry if entry is not None and now < entry.stale_at else None

    def put(self, entry: Entry) -> None:
        self.forget(entry.digest)
        kind = self._wrong if entry.info is None else self._real
        kind[entry.digest] = entry
        if len(kind) > self._most[id(kind)]:
            kind.popitem(last=False)

    def forget(self, digest: bytes) -> None:
        """So that the next check asks."""
        self._real.pop(digest, None)
        self._wrong.pop(digest, None)
