"""Dumps everything that a Redis holds, byte by byte, to compare it later or to restore it."""

from collections.abc import Iterable
from dataclasses import dataclass

from tests.key_snapshot import KeySnapshot
from towpath.embedded import EmbeddedServer, RedisConnection
from towpath.embedded.process import items

APART = b"probe:"
"""Keys of the tests' own instruments, which are no part of what is compared."""
ENDING_MS = 2
"""With no more to live a key is gone when it is compared. A probe's lives for one."""

_DUMP = """
local now = redis.call('TIME')
local found = { now[1] * 1000 + math.floor(now[2] / 1000) }
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
  -- DUMP tells a hash's order, and while it grows each look moves a part: look until that is over.
  if redis.call('TYPE', key).ok == 'hash' then
    for _ = 1, 100 do redis.call('HEXISTS', key, '') end
  end
  found[#found + 1] = { key, redis.call('DUMP', key), redis.call('PTTL', key) }
end
return found
"""
_RESTORE = """
redis.call('FLUSHALL')
for i = 1, #ARGV, 3 do redis.call('RESTORE', ARGV[i], ARGV[i + 2], ARGV[i + 1]) end
"""


@dataclass(frozen=True, slots=True)
class DumpedKey:
    """One key: its value as DUMP gives it, and its time to live."""

    value: bytes
    ttl_ms: int

    def __eq__(self, other: object) -> bool:
        """Equal values with equal presence of a time to live; the time left differs by itself."""
        if not isinstance(other, DumpedKey):
            return NotImplemented
        return self.value == other.value and (self.ttl_ms > 0) == (other.ttl_ms > 0)

    def __hash__(self) -> int:
        return hash((self.value, self.ttl_ms > 0))


Dump = KeySnapshot[bytes, DumpedKey]


def dump(server: EmbeddedServer, pattern: str = "*") -> Dump:
    """Dumps every key of *server* that *fits* and does not expire soon, except those of the tests'
    probes.
    """
    with RedisConnection(server.address) as line:
        return _dump(line, pattern)


def dumps(nodes: Iterable[EmbeddedServer], pattern: str) -> dict[int, Dump]:
    """The same for the nodes of a cluster, by port: a key that has moved counts as changed."""
    found: dict[int, Dump] = {}
    for node in nodes:
        with RedisConnection(node.address) as line:
            line.ask("ASKING")  # also for keys of a slot that is being imported
            found[node.port] = _dump(line, pattern)
    return found


def _dump(line: RedisConnection, pattern: str) -> Dump:
    taken, *entries = items(line.ask("EVAL", _DUMP, 0, pattern))
    assert isinstance(taken, int)
    found: Dump = KeySnapshot(taken)
    for entry in entries:
        key, value, ttl = items(entry)
        assert isinstance(key, bytes)
        assert isinstance(ttl, int)
        ending = 0 <= ttl <= ENDING_MS
        if isinstance(value, bytes) and not key.startswith(APART) and not ending:
            found.note(key, DumpedKey(value, ttl), taken, ttl)
    return found


def restore(server: EmbeddedServer, saved: Dump) -> None:
    """Makes *server* hold exactly the keys in *saved*."""
    words: list[bytes | int] = []
    for key, held in saved.items():
        words += [key, held.value, max(held.ttl_ms, 0)]
    server.ask("EVAL", _RESTORE, 0, *words)


def changed(before: Dump, after: Dump) -> set[bytes]:
    """The keys that differ, except keys whose time to live was over."""
    return before.changed(after)
