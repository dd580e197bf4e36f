"""Streams for outsiders: capped, appended to in batches, read with plain XREAD."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from towpath.engine.batcher import LARGEST_BATCH
from towpath.engine.check import whole
from towpath.engine.keys import stream_key
from towpath.engine.recur import Recurring
from towpath.engine.script import lua_text
from towpath.errors import InvalidOption
from towpath.ids import stream_name

MOST_KEPT = 10_000_000
_MOST_FIELDS = 100


class Publishing(Recurring):
    """What an engine offers those who tell outsiders what happened."""

    async def publish(
        self, stream: str, entries: Sequence[Mapping[str, str | bytes]], *, cap: int
    ) -> list[str]:
        """Append *entries* to `towpath:stream:<stream>`, whole or not at all; their ids.

        The stream keeps at least the last *cap* entries and not many more. At least once: a call
        that is repeated after a lost reply appends them again, so put something into each by which
        a reader knows it. At most LARGEST_BATCH entries. Raises MemoryFull, ServerUnreachable and,
        before anything is sent, InvalidName, InvalidOption. One round trip.
        """
        key, cap = stream_key(stream_name(stream)), whole("cap", cap, 1, MOST_KEPT)
        if not 1 <= len(entries) <= LARGEST_BATCH:
            raise InvalidOption("entries", len(entries), rule=f"from 1 to {LARGEST_BATCH}")
        words: list[Any] = [word for entry in entries for word in _words(entry)]
        script = lua_text("append")
        ids: list[bytes] = await self._store.command("EVAL", script, 1, key, cap, *words)
        return [id.decode() for id in ids]


def _words(entry: Mapping[str, str | bytes]) -> list[str | bytes | int]:
    if not 1 <= len(entry) <= _MOST_FIELDS:
        raise InvalidOption("entry", len(entry), rule=f"must have 1 to {_MOST_FIELDS} fields")
    return [2 * len(entry), *(word for field in entry.items() for word in field)]
