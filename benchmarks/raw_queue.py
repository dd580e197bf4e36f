"""The least work that a queue of this shape costs Redis, which shows the cost of the machine's
memory.

No rules, no tokens, no events: records with a small payload in them, locks and sorted sets are
written, read and removed as for a plain job, by one script per 50 jobs. Compared with Towpath's
figure, it tells how much of the cost of a large backlog is that of Redis: deeper sorted sets,
memory outside of caches, and Lua, which shares the allocator with the data: a script that only
makes tables becomes slower beside a large backlog, one that only counts does not.
"""

from __future__ import annotations

from benchmarks.bench import PAYLOAD, Bench
from benchmarks.measure import Cost

BATCH = 50
_AT_ONCE = 1000

_SUBMIT = """
local puts, adds = {}, {}
for i = 1, tonumber(ARGV[2]) do
  local id = string.format('%026.0f', ARGV[1] + i)
  local n = #puts
  puts[n + 1], puts[n + 2] = '{raw}:job:' .. id, string.rep('r', 10) .. ARGV[3]
  adds[#adds + 1] = ARGV[1] + i
  adds[#adds + 1] = id
end
redis.call('MSET', unpack(puts))
redis.call('ZADD', '{raw}:queue', unpack(adds))
"""

_RUN = """
local ids = redis.call('ZRANGE', '{raw}:queue', 0, ARGV[1] - 1)
local jobs, locks, puts, adds = {}, {}, {}, {}
for i, id in ipairs(ids) do
  jobs[i], locks[i] = '{raw}:job:' .. id, '{raw}:lock:' .. id
  puts[2 * i - 1], puts[2 * i] = jobs[i], string.rep('r', 26) .. ARGV[3]
  adds[2 * i - 1], adds[2 * i] = ARGV[2], id
end
redis.call('MGET', unpack(jobs))
redis.call('ZREM', '{raw}:queue', unpack(ids))
redis.call('ZADD', '{raw}:leases', unpack(adds))
redis.call('MSET', unpack(puts))
for _, lock in ipairs(locks) do redis.call('SET', lock, 'worker', 'PX', 600000) end
redis.call('MGET', unpack(jobs))
redis.call('ZREM', '{raw}:leases', unpack(ids))
redis.call('UNLINK', unpack(jobs))
redis.call('UNLINK', unpack(locks))
"""


_TABLES = """
local made = {}
for i = 1, tonumber(ARGV[1]) do made[i] = { id = 'job' .. i .. ARGV[2], number = i } end
"""


class LuaTables:
    """A script without commands that only makes tables, on the Redis of a bench."""

    def __init__(self, workbench: Bench) -> None:
        self._meter = workbench.meter

    async def cost(self, tables: int) -> Cost:
        return await self._meter.cost(tables, self._make(tables))

    async def _make(self, tables: int) -> None:
        for number in range(tables // _AT_ONCE):
            self._meter.ask("EVAL", _TABLES, 0, _AT_ONCE, number)


class RawQueue:
    """A bare queue on the Redis of a bench, with a backlog of *size* entries."""

    def __init__(self, workbench: Bench, size: int) -> None:
        self._meter = workbench.meter
        self._last = 0
        for _ in range(size // _AT_ONCE):
            self._submit(_AT_ONCE)

    async def cost(self, jobs: int) -> Cost:
        """The cost of so many jobs, 50 at a time, while the backlog keeps its size."""
        return await self._meter.cost(jobs, self._cycles(jobs // BATCH))

    async def _cycles(self, cycles: int) -> None:
        for _ in range(cycles):
            self._submit(BATCH)
            self._meter.ask("EVAL", _RUN, 1, "{raw}:queue", BATCH, self._last, PAYLOAD)

    def _submit(self, count: int) -> None:
        self._meter.ask("EVAL", _SUBMIT, 1, "{raw}:queue", self._last, count, PAYLOAD)
        self._last += count
