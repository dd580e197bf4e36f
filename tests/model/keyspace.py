"""The keys of one queue in Redis, with all that is in them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tests.key_snapshot import KeySnapshot
from towpath.embedded import Address, RedisConnection, Reply
from towpath.engine.script import Scripts

# A hash is not dumped: the order of its fields may change while nothing else does.
_DUMP = """
local now = redis.call('TIME')
local found = { now[1] * 1000 + math.floor(now[2] / 1000) }
for _, key in ipairs(redis.call('KEYS', ARGV[1] .. '*')) do
  if string.sub(key, #ARGV[1] + 1, #ARGV[1] + 5) ~= 'call:' then
    local value
    if redis.call('TYPE', key).ok == 'hash' then
      local names = redis.call('HKEYS', key)
      table.sort(names)
      value = { names, redis.call('HMGET', key, unpack(names)) }
    else
      value = redis.call('DUMP', key)
    end
    found[#found + 1] = key
    found[#found + 1] = value
    found[#found + 1] = redis.call('PTTL', key)
  end
end
return found
"""


@dataclass(frozen=True)
class ModelTarget:
    """The Redis on which programs run."""

    url: str
    address: Address
    connection: RedisConnection
    scripts: Scripts | None = None


class Keyspace:
    """Everything that a queue has in Redis."""

    def __init__(self, connection: RedisConnection, queue: str) -> None:
        self._connection, self._queue = connection, queue
        self._tag = f"{{{queue}}}:"

    def names(self) -> set[str]:
        """Every key of the queue, without its tag."""
        return {name.removeprefix(self._tag) for name in self._full_names()}

    def dump(self) -> KeySnapshot[str, Reply]:
        """The contents of every key except the memory of calls."""
        answer = self._connection.ask("EVAL", _DUMP, 0, self._tag)
        assert isinstance(answer, list)
        taken, *flat = answer
        assert isinstance(taken, int)
        found = KeySnapshot[str, Reply](taken)
        for key, value, ttl in zip(flat[::3], flat[1::3], flat[2::3], strict=True):
            assert isinstance(ttl, int)
            found.note(str(key), value, taken, ttl)
        return found

    def lasting(self, *passing: str) -> list[str]:
        """Keys with this prefix that should expire, but never would."""
        begin = tuple(self._tag + beginning for beginning in passing)
        return self._without_end(name for name in self._full_names() if name.startswith(begin))

    def lasting_jobs(self, kept: Iterable[str]) -> list[str]:
        """The same for the keys of jobs that are *kept* for a time."""
        kinds = ("job", "load", "result")
        return self._without_end(f"{self._tag}{kind}:{id}" for id in kept for kind in kinds)

    def _without_end(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if self._connection.ask("PTTL", name) == -1]

    def clear(self) -> None:
        """Removes leftovers, so that lists stay short for the next programs."""
        self._connection.ask("UNLINK", "", *self._full_names())
        self._connection.ask("HDEL", "towpath:queues", self._queue)

    def _full_names(self) -> list[str]:
        names = self._connection.ask("KEYS", self._tag + "*")
        assert isinstance(names, list)
        return [name.decode() for name in names if isinstance(name, bytes)]
